"""nGPT, figures 3, 8 and 9: accuracy on five tasks, and their mean, against the token budget.

At scales smoke and cpu the tasks are continuations of our own (``datamodules.continuations``).
"""

from collections.abc import Sequence

from paper_repro.papers.ngpt.runs import best_runs, context_of, named
from paper_repro.tables import claims, figure, plots
from paper_repro.tables.stats import Samples
from paper_repro.tables.view import View

MEAN, OUR_MEAN = "downstream_mean", "continuations_mean"
PAPERS = ("arc_easy", "hellaswag", "winogrande", "wsc273", "lambada_openai", MEAN)
OURS = (*(f"continuations_{letters}" for letters in range(1, 6)), OUR_MEAN)
COLUMNS = 3
STYLES = {"small": "-", "large": "--"}
ACCURACY = "accuracy"


class Figure3(figure.Figure):
    """Two lines of three panels for each context: every seed as a dot, a line through the means of each model."""

    size = (9.0, 5.0)

    @property
    def tasks(self) -> list[str]:
        return [task for task in (*PAPERS, *OURS) if task in self.artifact.metrics]

    @property
    def places(self) -> list[tuple[str, str]]:
        """Context and task of each panel."""
        return [(context, task) for context in self.view.chosen("context") for task in self.tasks]

    def rows(self) -> list[figure.Row]:
        found: list[figure.Row] = []
        for run in best_runs(self.view):
            where = {axis: run.place[axis] for axis in ("context", "size", "model", "budget")}
            for task in self.tasks:
                value = self.view.samples(task, run.place).get(run.seed)
                if value is not None:
                    shown = {"tokens": int(run.tokens), "rate": run.rate, "seed": run.seed, ACCURACY: round(value, 6)}
                    found.append({"task": task, **where, **shown})
        return found

    def draw(self, canvas: figure.Canvas, rows: Sequence[figure.Row]) -> None:
        lines = len(self.places) // COLUMNS
        canvas.set_size_inches(self.size[0], 2.5 * lines)
        panels = canvas.subplots(lines, COLUMNS, squeeze=False, sharex=True).ravel()
        for axes, (context, task) in zip(panels, self.places, strict=True):
            own = [row for row in rows if (row["context"], row["task"]) == (context, task)]
            for size, style in STYLES.items():
                for model in self.view.chosen("model"):
                    points = [row for row in own if (row["size"], row["model"]) == (size, model)]
                    places = [(row["tokens"], row[ACCURACY]) for row in points]
                    color = self.color(model)
                    plots.seeds_and_mean(axes, places, color, named(self.view, model, size), style)
            title = self.artifact.metrics[task].title
            axes.set_title(f"{title}\n{context_of(self.view, context)}", fontsize=7)
            if own:
                axes.set_xscale("log")
                plots.log_ticks(axes.xaxis)
            else:
                axes.text(0.5, 0.5, "n/a", ha="center", transform=axes.transAxes)
        for axes in panels[-COLUMNS:]:
            axes.set_xlabel("training tokens")
        ours = ", our continuations" if OUR_MEAN in self.tasks else ""
        canvas.supylabel(f"zero-shot accuracy (%){ours}", fontsize=9)

    def baselines(self) -> list[figure.BaselineLine]:
        return figure.panel_lines(self.view, [(task, {"context": context}) for context, task in self.places])


def estimate_accuracy_at_equal_tokens(view: View) -> claims.Estimate:
    """Return the mean accuracy of nGPT less that of GPT, at every size, context and budget of the scale."""
    metric = MEAN if MEAN in view.artifact.metrics else OUR_MEAN
    places: dict[str, dict[str, claims.Place]] = {}
    for run in best_runs(view):
        label = ", ".join(view.label(axis, run.place[axis]) for axis in ("size", "context", "budget"))
        places.setdefault(label, {})[run.place["model"]] = run.place
    parts: dict[str, tuple[Samples, Samples]] = {}
    for label, own in places.items():
        if own.keys() >= {"gpt", "ngpt"}:
            parts[label] = view.samples(metric, own["ngpt"]), view.samples(metric, own["gpt"])
    return claims.difference("mean accuracy of nGPT", "mean accuracy of GPT at equal tokens", parts, "points")

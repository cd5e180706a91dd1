"""nGPT, figures 3, 8 and 9: accuracy on five tasks, and their mean, against the token budget.

At scales smoke and cpu the tasks are docstring continuations, which are ours (``datamodules.continuations``).
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, intervals, palette
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, tested
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.floor_marks import FloorLine, floor_lines
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.views import View
from paper_repro.papers.ngpt.runs import MARKS, Run, chosen, context_of, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MEAN, OUR_MEAN = "downstream_mean", "continuations_mean"
PAPERS = ("arc_easy", "hellaswag", "winogrande", "wsc273", "lambada_openai", MEAN)
OURS = (*(f"continuations_{letters}" for letters in range(1, 6)), OUR_MEAN)
COLUMNS = 3
STYLES = {"small": "-", "large": "--"}
ACCURACY = "accuracy"


class Figure3(figures.Figure):
    """Two lines of three panels for each context: every seed as a dot, a line through the means of each model."""

    marks = MARKS

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.size = (9.0, 5.0 * max(1, len(chosen(view, "context"))))
        self.tasks = [task for task in (*PAPERS, *OURS) if task in self.artifact.metrics]

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for run in best_runs(self.view):
            where = {axis: run.place[axis] for axis in ("context", "size", "model", "budget")}
            for task in self.tasks:
                value = self.view.samples(task, run.place).get(run.seed)
                if value is not None:
                    shown = {"tokens": int(run.tokens), "rate": run.rate, "seed": run.seed, ACCURACY: round(value, 6)}
                    found.append({"task": task, **where, **shown})
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        contexts = chosen(self.view, "context")
        lines = len(self.tasks) // COLUMNS
        panels = canvas.subplots(lines * len(contexts), COLUMNS, squeeze=False, sharex=True).ravel()
        for axes, (context, task) in zip(panels, self._places(), strict=True):
            own = [row for row in rows if (row["context"], row["task"]) == (context, task)]
            for size, style in STYLES.items():
                for model in chosen(self.view, "model"):
                    points = [row for row in own if (row["size"], row["model"]) == (size, model)]
                    places = [(row["tokens"], row[ACCURACY]) for row in points]
                    color = palette.model(self.artifact.id, model)
                    figures.seeds_and_mean(axes, places, color, self._label(model, size), style)
            title = self.artifact.metrics[task].title
            axes.set_title(f"{title}\n{context_of(self.view, context)}", fontsize=7)
            if own:
                axes.set_xscale("log")
                figures.log_ticks(axes.xaxis)
            else:
                axes.text(0.5, 0.5, "n/a", ha="center", transform=axes.transAxes)
        for axes in panels[-COLUMNS:]:
            axes.set_xlabel("training tokens")
        ours = ", our docstring continuations" if OUR_MEAN in self.tasks else ""
        canvas.supylabel(f"zero-shot accuracy (%){ours}", fontsize=9)

    def floors(self) -> list[FloorLine]:
        return [
            line
            for panel, (context, task) in enumerate(self._places())
            for line in floor_lines(self.view, task, {"context": context}, panel)
        ]

    def _places(self) -> list[tuple[str, str]]:
        """Return the context and the task of each panel."""
        return [(context, task) for context in chosen(self.view, "context") for task in self.tasks]

    def _label(self, model: str, size: str) -> str:
        """Name the model, and its size where the scale has several: a reduced one is not of the size that it stands
        for.
        """
        label = self.artifact.axes["model"].values[model].label
        several = len(chosen(self.view, "size")) > 1
        return f"{label}, {self.artifact.axes['size'].values[size].label}" if several else label


def best_runs(view: View) -> list[Run]:
    """Return, for each size, context, model and budget, the runs at the rate with the lowest mean validation loss."""
    groups: dict[tuple[str, ...], dict[float, list[Run]]] = {}
    for run in runs(view.unwatched()):
        place = tuple(run.place[axis] for axis in ("size", "context", "model", "budget"))
        groups.setdefault(place, {}).setdefault(run.rate, []).append(run)
    best = (min(rates.values(), key=lambda own: intervals.mean([run.loss for run in own])) for rates in groups.values())
    return [run for own in best for run in own]


def judge_downstream_better_at_equal_tokens(view: View) -> Judgement:
    """Judge the paper's five tasks."""
    return _better_at_equal_tokens(view, MEAN)


def judge_continuations_better_at_equal_tokens(view: View) -> Judgement:
    """Judge our docstring continuations."""
    return _better_at_equal_tokens(view, OUR_MEAN)


def _better_at_equal_tokens(view: View, metric: str) -> Judgement:
    """Return the difference of a mean over tasks, over seeds, at every size, context and budget."""
    found: dict[tuple[str, ...], dict[str, list[Run]]] = {}
    for run in best_runs(view):
        if run.seed in view.unwatched().samples(metric, run.place):
            place = tuple(run.place[axis] for axis in ("size", "context", "budget"))
            found.setdefault(place, {}).setdefault(run.place["model"], []).append(run)
    parts = []
    for place, models in found.items():
        axes = zip(("size", "context", "budget"), place, strict=True)
        label = ", ".join(view.artifact.axes[axis].values[value].label for axis, value in axes)
        if models.keys() >= {"gpt", "ngpt"}:
            parts.append((label, guarded(view, partial(_above, models=models, metric=metric))))
    if not parts:
        lacks = {view.absence(metric, dict(key)) for key in view.points}
        return Judgement(UNDECIDED, ", ".join(sorted(lacks)))
    return combine(parts, FAILS, HOLDS)


def _above(view: View, models: dict[str, list[Run]], metric: str) -> Judgement:
    ours, other = (
        {run.seed: view.samples(metric, run.place)[run.seed] for run in models[name]} for name in ("ngpt", "gpt")
    )
    found = intervals.compare(ours, other)
    return tested(found, f"{found.mean:+.2f} points [{found.low:+.2f}, {found.high:+.2f}]", 0.0)

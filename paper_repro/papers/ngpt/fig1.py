"""nGPT, figure 1: validation loss while GPT and nGPT train."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures, intervals, palette
from paper_repro.artifacts.claims import UNDECIDED, Judgement, tested
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View
from paper_repro.papers.ngpt.runs import LOSS, chosen, note_best, runs, tokens_per_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

TENTH = {"f10": "f1", "f20": "f2"}
"""Budgets and those ten times as long."""


class Figure1(figures.Figure):
    """Loss against tokens seen, a line for each run of the first seed that has curves; the longest are drawn strong."""

    metric = LOSS
    marks = (
        "Lines: one run of the first seed each; strong: the longest, faint: shorter ones with a cosine of their own."
    )

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for key, point in self.view.points.items():
            place = dict(key)
            for seed, record in self.view.judged(point).items():
                curve = record.curves.get(LOSS, {"step": [], "value": []})
                for step, loss in zip(curve["step"], curve["value"], strict=True):
                    tokens = int(step * tokens_per_step(self.view, place))
                    where = {name: place[name] for name in ("model", "budget", "lr")}
                    found.append({**where, "seed": seed, "step": int(step), "tokens": tokens, LOSS: round(loss, 8)})
        first = min((row["seed"] for row in found), default=0)
        return [row for row in found if row["seed"] == first]

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        from matplotlib.ticker import EngFormatter

        axes = canvas.subplots()
        longest = chosen(self.view, "budget")[-1]
        lines: dict[tuple[str, str, str], list[Row]] = {}
        for row in rows:
            lines.setdefault((row["model"], row["budget"], row["lr"]), []).append(row)
        for (model, budget, _), own in lines.items():
            strong = budget == longest
            label = self.artifact.axes["model"].values[model].label if strong else None
            points = [(row["tokens"], row[LOSS]) for row in own]
            width, depth = (1.6, 1.0) if strong else (0.9, 0.5)
            style: Any = {"color": palette.model(self.artifact.id, model), "linewidth": width, "alpha": depth}
            axes.plot(*zip(*points, strict=True), **style, label=label)
        axes.set(xlabel="training tokens", ylabel="validation loss (nats per token)")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def judge_tenth_of_the_iterations(view: View) -> Judgement:
    """Return the final loss of nGPT's tenth of a budget below GPT's at the whole; undecided where no budget has its
    tenth.
    """
    losses: dict[tuple[str, str], dict[int, float]] = {}
    for run in runs(view.unwatched()):
        losses.setdefault((run.place["model"], run.place["budget"]), {})[run.seed] = run.loss
    for tenth, whole in TENTH.items():
        ours, other = losses.get(("ngpt", tenth)), losses.get(("gpt", whole))
        if ours and other:
            note_best(view, model="ngpt", budget=tenth)
            note_best(view, model="gpt", budget=whole)
            found = intervals.compare(other, ours)
            text = f"GPT's loss less nGPT's {found.mean:.4f} [{found.low:.4f}, {found.high:.4f}]"
            return tested(found, text, 0.0, base=intervals.mean(list(other.values())))
    return Judgement(UNDECIDED, "this scale runs no budget together with its tenth")

"""EBT, Table 5: the order of the models, and boards solved by their number of blanks."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, palette
from paper_repro.artifacts.claims import FAILS, HOLDS, Judgement, Order, Side, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.printed_numbers import PrintedNumber
from paper_repro.artifacts.views import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

CELLS = 81
BOARDS = "boards"
BY_GIVENS = "boards_of_"
RULES = "rules"
RANKED = ("ebt", "rnn", "feed_forward")
"""The order that is claimed, the best first."""


class Figure5(figures.Figure):
    """Share of boards solved over the number of blanks: the mean over seeds, and each seed as a point."""

    size = (6.4, 3.8)
    marks = "Faint dots: seeds; marks and lines: means over seeds, by the blanks of a board."
    floors_drawn = (RULES,)

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for key, point in self.view.points.items():
            place = dict(key)
            names = {name for record in self.view.judged(point).values() for name in record.metrics}
            givens = sorted(int(name.removeprefix(BY_GIVENS)) for name in names if name.startswith(BY_GIVENS))
            for count in reversed(givens):
                for seed, share in sorted(self.view.samples(f"{BY_GIVENS}{count}", place).items()):
                    solved = round(100 * share, 6)
                    rows.append({"model": place["model"], "blanks": CELLS - count, "seed": seed, "solved": solved})
        return rows + self._rules(sorted({CELLS - row["blanks"] for row in rows}, reverse=True))

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        """Return each model's printed share, which is that of all boards."""
        metric = self.artifact.metrics[BOARDS]
        found = []
        for key in self.view.points:
            model = dict(key)["model"]
            if (number := self.view.printed(key, BOARDS)) is not None:
                label, color = self.artifact.axes["model"].values[model].label, palette.model(self.artifact.id, model)
                found.append(PrintedNumber(label, number.mean, metric.unit, color=color))
        return found

    def _rules(self, givens: Sequence[int]) -> list[Row]:
        """Return what rules alone solve, which need no training."""
        return [
            {"model": RULES, "blanks": CELLS - count, "seed": seed, "solved": round(100 * share, 6)}
            for floor in self.view.floors
            if floor.plan.name == RULES
            for count in givens
            for seed, share in sorted(floor.samples(f"{BY_GIVENS}{count}").items())
        ]

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        axes = canvas.add_subplot()
        models = {name: value.label for name, value in self.artifact.axes["model"].values.items()}
        for model, label in {**models, RULES: self.artifact.floors[RULES].label}.items():
            own = [(row["blanks"], row["solved"]) for row in rows if row["model"] == model]
            color = palette.FLOOR if model == RULES else palette.model(self.artifact.id, model)
            figures.seeds_and_mean(axes, own, color, label, ":" if model == RULES else "-")
        axes.set(xlabel="blanks of a test board", ylabel="boards solved (%)", ylim=(-3, 103))


def judge_sudoku_order(view: View) -> Judgement:
    """Judge the claimed order by intervals over seeds."""
    parts = []
    for better, worse in itertools.pairwise(RANKED):
        labels = [view.artifact.axes["model"].values[model].label for model in (better, worse)]
        order = Order(Side("boards", {"model": better}), Side("boards", {"model": worse}))
        # The last of the order may well have learned nothing: the paper's solves 0.03 %.
        found = order.judge(view.without_floors() if worse == RANKED[-1] else view, {})
        parts.append((" above ".join(labels), found))
    return combine(parts, FAILS, HOLDS)

"""EBT, figure 5: losses over parameters, FLOPs and width, and against a Transformer++ of equal cost."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, intervals, palette
from paper_repro.artifacts.claims import FAILS, HOLDS, Judgement, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.sparse_tables import SparseTable
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.equal_cost import (
    BASE,
    above_at,
    better,
    equal_cost,
    factors,
    flops_ratio,
    time_ratio,
)
from paper_repro.papers.ebt.learning import (
    LOSS,
    MARKS,
    S1,
    TRANSFORMER,
    Size,
    chosen,
    compared,
    draw_points,
    exponents,
    larger_exponent,
    names_of,
    over_logarithm,
    row,
    rows_over,
    runs,
    short,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

SIZES, WIDTHS = {"width": "one", "budget": "one"}, {"size": "one", "budget": "one"}
LAWS: dict[str, tuple[dict[str, str], Size]] = {
    "non-embedding parameters": (SIZES, lambda run: run.parameters),
    "training FLOPs, counted": (SIZES, lambda run: run.flops),
    "training FLOPs, the paper's rule": (SIZES, lambda run: run.rule_flops),
    "width": (WIDTHS, lambda run: run.width),
}
PARAMETERS, FLOPS, RULE, WIDTH = LAWS
PANELS = (PARAMETERS, FLOPS, WIDTH)
LONGER = "steps over those of EBT"
COSTS = (":", "--", "-.", (0, (1, 3)), (0, (5, 4)))
"""The lines of equal costs, in ascending order."""


class Figure5(figures.Figure):
    """Three panels of the paper; a fourth has Transformer++'s loss over longer training, EBT's marked at equal cost."""

    size = (9.0, 6.4)
    marks = f"{MARKS} Last panel: at the upright lines training costs as much as that of an EBT."
    metric = LOSS

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for panel in PANELS:
            fixed, size = LAWS[panel]
            found += rows_over(panel, runs(self.view, **fixed), size)
        ours = list(runs(self.view, model=S1, budget="one", **BASE))
        for run in runs(self.view, model=TRANSFORMER, **BASE) if ours else ():
            found.append(row(LONGER, TRANSFORMER, run.seed, round(run.steps / ours[0].steps, 6), run.loss))
        for name, factor in factors(self.view).items() if ours else ():
            found += [row(LONGER, S1, run.seed, round(factor, 6), run.loss, name) for run in ours]
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        panels = canvas.subplots(2, 2, sharey=True)
        for axes, panel in zip(panels.flat, (*PANELS, LONGER), strict=True):
            own = [row for row in rows if row["panel"] == panel]
            draw_points(axes, [row for row in own if not row["note"]], names_of(self.view))
            over_logarithm(axes, own, panel)
            if panel == LONGER:
                _mark(axes, own)
        for axes in panels[:, 0]:
            axes.set_ylabel("validation loss (nats per token)")


class ScalingTable(SparseTable):
    """The runs; exponents and losses at equal cost in the summary, with their intervals in the remarks."""

    def summary(self) -> dict[str, float]:
        found: dict[str, float] = {}
        fixed, size = LAWS[FLOPS]
        for model in (TRANSFORMER, S1):
            if by_seed := exponents(runs(self.view, model=model, **fixed), size):
                found[f"exponent_{model}"] = intervals.mean([*by_seed.values()])
        for name, ratio in (("flops_ratio", flops_ratio(self.view)), ("rule_ratio", flops_ratio(self.view, True))):
            if ratio is not None:
                found[name] = ratio
        names = ("equal_tokens", "equal_time", "equal_flops", "equal_rule_flops")
        wanted = ("equal tokens", "equal time", "equal FLOPs, counted", "equal FLOPs, the paper's rule")
        known = factors(self.view)
        for name, word in zip(names, wanted, strict=True):
            if word in known and (at_cost := equal_cost(self.view, known[word])) is not None:
                found[name] = at_cost.mean
        return found

    def remarks(self) -> list[str]:
        """Return every exponent and every comparison at equal cost with its interval."""
        found = super().remarks()
        if base := list(runs(self.view, model=S1, budget="one", **BASE)):
            each = base[0].tokens / base[0].parameters if base[0].parameters else 0.0
            found.append(f"Tokens of training a non-embedding parameter, at each size: {each:.1f}; the paper: 20.")
        for name, (fixed, size) in LAWS.items():
            sides = [exponents(runs(self.view, model=model, **fixed), size) for model in (S1, TRANSFORMER)]
            if all(sides):
                found.append(f"Over {name}, EBT and Transformer++: {compared(*sides)[1]}.")
        for name, factor in factors(self.view).items():
            if (ratio := equal_cost(self.view, factor)) is not None:
                found.append(f"EBT's loss over Transformer++'s at {name}: {ratio}.")
        return found


def judge_rate_over_parameters_and_flops(view: View) -> Judgement:
    """Judge the exponents over parameters and over FLOPs, counted and by the paper's rule."""
    return combine([(name, _larger(view, name)) for name in (PARAMETERS, FLOPS, RULE)], FAILS, HOLDS)


def judge_rate_over_width(view: View) -> Judgement:
    """Judge the exponents over the width."""
    return _larger(view, WIDTH)


def judge_worse_at_small_size(view: View) -> Judgement:
    """Judge differences of losses paired by seed, at each size."""
    parts = []
    for size in chosen(view, "size"):
        parts.append((view.artifact.axes["size"].values[size].label, above_at(view, {**SIZES, "size": size})))
    return combine(parts, FAILS, HOLDS)


def judge_better_at_equal_flops(view: View) -> Judgement:
    """Judge the losses at equal FLOPs, counted."""
    return better(view, flops_ratio(view))


def judge_better_at_equal_time(view: View) -> Judgement:
    """Judge the losses at equal time."""
    return better(view, time_ratio(view))


def _larger(view: View, name: str) -> Judgement:
    fixed, size = LAWS[name]
    return larger_exponent(view, fixed, size)


def _mark(axes: "Axes", rows: Sequence[Row]) -> None:
    """Give the panel of longer training its ticks, and a line at each equal cost."""
    places = sorted({point["x"] for point in rows if point["model"] == TRANSFORMER})
    axes.set_xticks(places, labels=[short(place) for place in places])
    axes.minorticks_off()
    color = palette.model("ebt", S1)
    ours = [(point["x"], point[LOSS]) for point in rows if point["note"]]
    figures.seeds_and_mean(axes, ours, color, line="")
    lines = sorted((point["x"], point["note"]) for point in rows if point["note"])
    for (place, note), style in zip(dict.fromkeys(lines), COSTS, strict=False):
        axes.axvline(place, color=color, linestyle=style, linewidth=0.9, label=note)

"""EBT, figure 5: losses over parameters, FLOPs and width, and against a Transformer++ of equal cost."""

import math
from collections.abc import Sequence

import numpy as np

from paper_repro.papers.ebt import learning
from paper_repro.papers.ebt.learning import LOSS, S1, TRANSFORMER, Size, runs
from paper_repro.tables import claims, plots, stats
from paper_repro.tables.figure import Axes, Canvas, Figure, Row
from paper_repro.tables.table import Table
from paper_repro.tables.view import View

BASE = {"size": "one", "width": "one"}
SIZES, WIDTHS = {"width": "one", "budget": "one"}, {"size": "one", "budget": "one"}
LAWS: dict[str, tuple[dict[str, str], Size]] = {
    "non-embedding parameters": (SIZES, lambda run: run.parameters),
    "training FLOPs, counted": (SIZES, lambda run: run.flops),
    "training FLOPs, the paper's rule": (SIZES, lambda run: run.rule_flops),
    "width": (WIDTHS, lambda run: run.width),
}
PARAMETERS, FLOPS, RULE, WIDTH = LAWS
LONGER = "steps over those of EBT"
EQUAL_TOKENS, EQUAL_TIME = "equal tokens", "equal time"
EQUAL_FLOPS, EQUAL_RULE = "equal FLOPs, counted", "equal FLOPs, the paper's rule"
AT_EQUAL_COST = {
    "equal_tokens": EQUAL_TOKENS,
    "equal_flops": EQUAL_FLOPS,
    "equal_rule_flops": EQUAL_RULE,
    "equal_time": EQUAL_TIME,
}
"""The numbers of the summary at equal cost."""
COSTS = (":", "--", "-.", (0, (1, 3)))
"""The lines of equal costs, in ascending order."""
ROUNDING = 1e-9


class Figure5(Figure):
    """Three panels of the paper; a fourth has Transformer++'s loss over longer training, EBT's marked at equal cost."""

    size = (9.0, 6.4)
    marks = f"{Figure.marks} Last panel: at a vertical line Transformer++ has cost as much as EBT."
    metric = LOSS

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for panel in (PARAMETERS, FLOPS, WIDTH):
            fixed, size = LAWS[panel]
            found += learning.rows_over(panel, runs(self.view, **fixed), size)
        ours = runs(self.view, model=S1, budget="one", **BASE)
        for run in runs(self.view, model=TRANSFORMER, **BASE) if ours else ():
            found.append(learning.row(LONGER, TRANSFORMER, run.seed, round(run.steps / ours[0].steps, 6), run.loss))
        for name, factor in cost_ratios(self.view).items():
            found += [learning.row(LONGER, S1, run.seed, round(factor, 6), run.loss, name) for run in ours]
        return found

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        panels = canvas.subplots(2, 2, sharey=True)
        for axes, panel in zip(panels.flat, (PARAMETERS, FLOPS, WIDTH, LONGER), strict=True):
            own = [row for row in rows if row["panel"] == panel]
            learning.draw_panel(axes, [row for row in own if not row["note"]], self.view, panel)
            _draw_costs(axes, [row for row in own if row["note"]])
        for axes in panels[:, 0]:
            axes.set_ylabel("validation loss (nats per token)")


class ScalingTable(Table):
    """The runs, with exponents and costs in the summary and every comparison with its interval in the remarks."""

    def summary(self) -> dict[str, float]:
        found = {f"exponent_{model}": _exponents(self.view, model, FLOPS) for model in (TRANSFORMER, S1)}
        numbers = {name: stats.mean(list(own.values())) for name, own in found.items() if own}
        names, costs = {"flops_ratio": EQUAL_FLOPS, "rule_ratio": EQUAL_RULE}, cost_ratios(self.view)
        numbers |= {name: costs[cost] for name, cost in names.items() if cost in costs}
        for name, cost in AT_EQUAL_COST.items():
            found_at = at_equal_cost(self.view, cost, costs[cost]) if cost in costs else claims.nothing("not run")
            if found_at.interval is not None:
                numbers[name] = found_at.shown(found_at.interval.mean)
        return numbers

    def remarks(self) -> list[str]:
        found = []
        if (base := runs(self.view, model=S1, budget="one", **BASE)) and base[0].parameters:
            each = base[0].tokens / base[0].parameters
            found.append(f"Training tokens for each non-embedding parameter, at each size: {each:.1f}; the paper: 20.")
        laws = [(f"over {name}: ", learning.exponent_ratio({"": _sides(self.view, name)})) for name in LAWS]
        costs = [("", at_equal_cost(self.view, name, cost)) for name, cost in cost_ratios(self.view).items()]
        texts = [f"{where}{one.text}." for where, one in (*laws, *costs) if one.interval is not None]
        return found + [text[0].upper() + text[1:] for text in texts]


def cost_ratios(view: View) -> dict[str, float]:
    """Return EBT's cost of a step over Transformer++'s, by the name of the cost; unknown ones are left out."""
    found = {EQUAL_TOKENS: 1.0}
    if times := view.samples("ratio_own", {"model": "times", "budget": "one", **BASE}):
        found[EQUAL_TIME] = stats.mean(list(times.values()))
    ours, theirs = (runs(view, model=model, budget="one", **BASE)[:1] for model in (S1, TRANSFORMER))
    for one, other in zip(ours, theirs, strict=False):
        if other.flops:
            found |= {EQUAL_FLOPS: one.flops / other.flops, EQUAL_RULE: one.rule_flops / other.rule_flops}
    return found


def at_equal_cost(view: View, what: str, factor: float) -> claims.Estimate:
    """Return EBT's loss over that of a Transformer++ that trains ``factor`` times as long to cost ``what``.

    Transformer++'s log loss is interpolated linearly over log steps, seed by seed; beyond its longest run there is no
    estimate.
    """
    longer, ours, theirs = runs(view, model=TRANSFORMER, **BASE), dict[int, float](), dict[int, float]()
    for own in runs(view, model=S1, budget="one", **BASE):
        points = sorted((math.log(run.steps), math.log(run.loss)) for run in longer if run.seed == own.seed)
        wanted = math.log(factor * own.steps)
        if points and points[0][0] - ROUNDING <= wanted <= points[-1][0] + ROUNDING:
            ours[own.seed] = own.loss
            steps, losses = zip(*points, strict=True)
            theirs[own.seed] = math.exp(float(np.interp(wanted, steps, losses)))
    to = f"loss of Transformer++ at {what} ({factor:.3g} times the steps)"
    return claims.ratio("loss of EBT", to, {"": (ours, theirs)})


def estimate_rate_over_parameters_and_flops(view: View) -> claims.Estimate:
    """EBT's exponents over parameters and over counted FLOPs over Transformer++'s."""
    return learning.exponent_ratio({name: _sides(view, name) for name in (PARAMETERS, FLOPS)})


def estimate_less_flop_efficient(view: View) -> claims.Estimate:
    """EBT's loss over Transformer++'s at equal counted FLOPs."""
    factor = cost_ratios(view.unwatched()).get(EQUAL_FLOPS)
    return claims.nothing("not run") if factor is None else at_equal_cost(view, EQUAL_FLOPS, factor)


def _exponents(view: View, model: str, law: str) -> dict[int, float]:
    fixed, size = LAWS[law]
    return learning.exponents(runs(view, model=model, **fixed), size)


def _sides(view: View, law: str) -> tuple[stats.Samples, stats.Samples]:
    return _exponents(view, S1, law), _exponents(view, TRANSFORMER, law)


def _draw_costs(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw EBT's loss where Transformer++ has cost as much, with a line at each cost."""
    color = plots.model("ebt", S1)
    plots.seeds_and_mean(axes, [(row["x"], row[LOSS]) for row in rows], color, line="")
    for (place, note), style in zip(sorted({(one["x"], one["note"]) for one in rows}), COSTS, strict=False):
        axes.axvline(place, color=color, linestyle=style, linewidth=0.9, label=note)

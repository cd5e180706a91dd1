"""EBT, Table D.2 and appendix D.5: what the printed counts and the printed cost of a step come from."""

from collections.abc import Callable

from paper_repro.artifacts import tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, exactly
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.tableD1 import EBT_FLOPS, TRANSFORMER_FLOPS

TRANSFORMER = "transformer"
RULE = {"one_step": 1, "two_steps": 2, "time_embed": 2}
"""Optimization steps of the models whose trunk is Transformer++'s."""
ABOUT = 0.05
"""Relative; what "approximately" is taken to allow, the paper names no number."""
STEP_ROWS = {"one_step": 0, "two_steps": 0, "time_embed": 2}
"""Rows of D numbers that a model has for its landscapes."""


class TableD2(tables.Table):
    def summary(self) -> dict[str, float]:
        return {f"rule_{name}": _rule(name) for name in ("one_step", "two_steps")}


def judge_printed_counts_are_of_cut_totals(view: View) -> Judgement:
    """Judge whether every printed number is the rebuilt one within its tolerance."""
    tolerance = view.artifact.tolerances["parameters_rebuilt"].relative
    assert tolerance is not None
    parts = []
    for size, spec in view.artifact.axes["size"].values.items():
        place = {"size": size, "model": TRANSFORMER}
        printed, rebuilt = view.printed(tuple(place.items()), "parameters_rebuilt"), _count(view, place, "rebuilt")
        assert printed is not None
        if rebuilt is None:
            parts.append((spec.label, Judgement(UNDECIDED, "not run")))
            continue
        millions = rebuilt / view.artifact.metrics["parameters_rebuilt"].factor
        near = abs(millions - printed.mean) <= tolerance * printed.mean
        text = f"{millions:.3f}M, printed {printed.mean:g}M"
        parts.append((spec.label, exactly(near, text)))
    return combine(parts, FAILS, HOLDS)


def judge_ebt_adds_one_row(view: View) -> Judgement:
    """Judge whether EBT's count less Transformer++'s is D for the energy head and D for each landscape's row."""
    parts = []
    for size, spec in view.artifact.axes["size"].values.items():
        baseline, width = _count(view, {"size": size, "model": TRANSFORMER}), _width(view, size)
        for model, rows in STEP_ROWS.items():
            label, own = f"{spec.label}, {_label(view, model)}", _count(view, {"size": size, "model": model})
            if own is None or baseline is None:
                parts.append((label, Judgement(UNDECIDED, "not run")))
                continue
            more = own - baseline
            text = f"{more:,.0f} more, D = {width:,.0f}"
            parts.append((label, exactly(more == (1 + rows) * width, text)))
    return combine(parts, FAILS, HOLDS)


def judge_step_costs_as_the_rule_says(view: View) -> Judgement:
    return _against_rule(view, "weights_concatenated", lambda found, rule: abs(found - rule) <= ABOUT * rule)


def judge_split_costs_less_than_the_rule(view: View) -> Judgement:
    return _against_rule(view, "weights_split", lambda found, rule: found < rule)


def _against_rule(view: View, metric: str, good: Callable[[float, float], bool]) -> Judgement:
    """Judge each model over all sizes together: their ratios differ by little more than the last layer's share."""
    parts = []
    for model in RULE:
        samples = (view.samples(metric, {"size": size, "model": model}) for size in view.artifact.axes["size"].values)
        found = [next(iter(own.values())) for own in samples if own]
        if not found:
            parts.append((_label(view, model), Judgement(UNDECIDED, "not run")))
            continue
        text = f"{min(found):.2f} to {max(found):.2f} times, by the rule {_rule(model):.2f}"
        verdict = HOLDS if all(good(ratio, _rule(model)) for ratio in found) else FAILS
        parts.append((_label(view, model), Judgement(verdict, text, exact=True)))
    return combine(parts, FAILS, HOLDS)


def _rule(model: str) -> float:
    return RULE[model] * EBT_FLOPS / TRANSFORMER_FLOPS


def _label(view: View, model: str) -> str:
    return view.artifact.axes["model"].values[model].label


def _width(view: View, size: str) -> float:
    return view.counted("width", {"size": size, "model": TRANSFORMER}) or 0.0


def _count(view: View, place: dict[str, str], kind: str = "") -> float | None:
    name = f"parameters_{kind}" if kind else "parameters"
    return next(iter(view.samples(name, place).values()), None)

"""EBT, Tables D.3 and D.4: whether the schedule is the printed one, and whether its warm-up fits the scaling runs."""

import math

from paper_repro.artifacts import catalogue
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, exactly
from paper_repro.artifacts.views import View

ROUNDING = 1e-9
FINAL = 0.1
"""The share of the peak that is left at the end: the printed minimum scale of 10."""
SHARES = {"factor_quarter": 0.25, "factor_half": 0.5}
"""Points of the schedule, as shares of the steps behind the warm-up."""
RUNS = "ebt/tableD1"
STEPS = "training.steps"


def judge_linear_warmup_and_cosine(view: View) -> Judgement:
    """Judge the first rate, 1 / (w + 1) of the peak for w warm-up steps, and the cosine at a quarter, half and end."""
    parts = []
    for model, spec in view.artifact.axes["model"].values.items():
        warmup = _value(view, model, "warmup_steps")
        if warmup is None:
            parts.append((spec.label, Judgement(UNDECIDED, "not run")))
            continue
        expected = {name: FINAL + (1 - FINAL) * 0.5 * (1 + math.cos(math.pi * share)) for name, share in SHARES.items()}
        expected |= {"factor_first": 1 / (warmup + 1), "minimum_lr_scale": 1 / FINAL}
        for name, wanted in expected.items():
            found = _value(view, model, name)
            label = f"{spec.label}, {view.artifact.axes['item'].values[name].label}"
            if found is None:
                parts.append((label, Judgement(UNDECIDED, "not run")))
                continue
            same = math.isclose(found, wanted, rel_tol=ROUNDING)
            parts.append((label, exactly(same, f"{found:.6g}, expected {wanted:.6g}")))
    return combine(parts, FAILS, HOLDS)


def judge_warmup_fits_the_scaling_runs(view: View) -> Judgement:
    """Judge from printed numbers and the steps that Table D.1's FLOPs give."""
    printed = view.printed((("model", "ebt"), ("item", "warmup_steps")), "value")
    assert printed is not None
    parts = []
    for size in catalogue.load(RUNS).axes["size"].values.values():
        (steps,) = (item.value for item in size.overrides.items if item.key == STEPS)
        text = f"{steps:,} steps, warm-up {printed.mean:,.0f}"
        parts.append((size.label, exactly(printed.mean < steps, text)))
    return combine(parts, FAILS, HOLDS)


def _value(view: View, model: str, item: str) -> float | None:
    return next(iter(view.samples("value", {"model": model, "item": item}).values()), None)

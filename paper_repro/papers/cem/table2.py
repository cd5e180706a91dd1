"""CEM, Table 2: whether the schedule is the printed one, the batch arithmetic, and how many tokens there are in all."""

import math

from paper_repro.artifacts import tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, exactly
from paper_repro.artifacts.views import View

ROUNDING = 1e-9
FINAL = 0.1
"""The share of the full rate that is left at the end."""
SHARES = {"quarter": 0.25, "half": 0.5, "end": 1.0}
"""Points of the schedule, as shares of the steps behind the warm-up."""
GPUS = 8
"""GPUs of the paper's cluster (appendix D.5)."""


class Table2(tables.Table):
    def summary(self) -> dict[str, float]:
        """Return what every size has and the configs say."""
        found = {name: {self.view.counted(name, dict(key)) for key in self.view.points} for name in ("lr", "warmup")}
        return {name: value for name, values in found.items() for value in values if value and len(values) == 1}

    def remarks(self) -> list[str]:
        found = []
        for key in self.view.points:
            steps, tokens = (self.view.samples(name, dict(key)) for name in ("steps", "tokens"))
            if steps and tokens:
                label = self.artifact.axes["size"].values[dict(key)["size"]].label
                total = next(iter(steps.values())) * next(iter(tokens.values()))
                found.append(f"{label}: {total / 1e9:.2f} billion tokens")
        return [f"Steps times tokens a step: {'; '.join(found)}."] if found else []


def judge_cosine_annealing(view: View) -> Judgement:
    """Judge whether the rate is 0.1 + 0.9 (1 + cos(pi t)) / 2 after a quarter, half and all of the steps behind the
    warm-up.

    Where these do not divide by four, a quarter is that of the next whole step below.
    """
    parts = []
    for size, spec in view.artifact.axes["size"].values.items():
        place = {"size": size}
        steps, warmup = view.samples("steps", place), view.samples("warmup_steps", place)
        for name, share in SHARES.items():
            found = view.samples(f"factor_{name}", place)
            if not (found and steps and warmup):
                parts.append((spec.label, Judgement(UNDECIDED, "not run")))
                continue
            behind = next(iter(steps.values())) - next(iter(warmup.values()))
            progress = math.floor(share * behind) / behind
            wanted = FINAL + (1 - FINAL) * 0.5 * (1 + math.cos(math.pi * progress))
            factor = next(iter(found.values()))
            same = math.isclose(factor, wanted, rel_tol=0.0, abs_tol=ROUNDING)
            text = f"{factor:.6f} of the rate at the {name}, the cosine has {wanted:.6f}"
            parts.append((spec.label, exactly(same, text)))
    return combine(parts, FAILS, HOLDS)


def judge_batch_is_of_eight_gpus(view: View) -> Judgement:
    """Judge from printed numbers alone."""
    key = next(iter(view.points))
    names = ("windows_a_batch", "accumulation", "windows")
    batch, accumulation, effective = (number.mean for name in names if (number := view.printed(key, name)) is not None)
    product = batch * accumulation * GPUS
    text = f"{batch:.0f} x {accumulation:.0f} x {GPUS} = {product:.0f}, printed {effective:.0f}"
    return exactly(product == effective, text)

"""nGPT, Table 3: whether the schedule is the printed one."""

import math

from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, exactly
from paper_repro.artifacts.views import View

ROUNDING = 1e-9
SHARES = {"quarter": 0.25, "half": 0.5, "end": 1.0}
"""Points of the schedule, as shares of the steps behind the warm-up."""


def judge_cosine_annealing(view: View) -> Judgement:
    """Judge whether the rate is (1 + cos(pi t)) / 2 after a quarter, half and all of the steps behind the warm-up."""
    parts = []
    for model, spec in view.artifact.axes["model"].values.items():
        for name, share in SHARES.items():
            found = view.samples(f"factor_{name}", {"model": model})
            if not found:
                parts.append((spec.label, Judgement(UNDECIDED, "not run")))
                continue
            factor, wanted = next(iter(found.values())), 0.5 * (1 + math.cos(math.pi * share))
            same = math.isclose(factor, wanted, rel_tol=0.0, abs_tol=ROUNDING)
            text = f"{factor:.6f} of the rate at the {name}, half a cosine has {wanted:.6f}"
            parts.append((spec.label, exactly(same, text)))
    return combine(parts, FAILS, HOLDS)

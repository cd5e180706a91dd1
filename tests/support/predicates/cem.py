"""Made-up records for CEM's predicates."""

import math
from collections.abc import Callable

from paper_repro.tests.support.made_up import Made, Numbers, Place
from paper_repro.tests.support.predicates.case import Case

MILLION = 1_000_000


def loss(of: Callable[[Place], float]) -> Made:
    return Made(lambda place, seed: {"val_loss": of(place)})


def sweep(llama: float, full: float, lead: float) -> Made:
    """A parabola of each model's loss over log2 of the rate, lowest at the rate given; CEM's is lower by ``lead``."""
    best = {"llama": (llama, 0.0), "full": (full, lead)}

    def of(place: Place) -> float:
        rate, less = best[place["model"]]
        return 4.0 - less + 0.1 * math.log2(float(place["lr"]) / rate) ** 2

    return loss(of)


def valleys(less: dict[str, float], best: float = 0.008) -> Made:
    """A parabola of each model's loss over log2 of the rate, lowered by so much; models not named by nothing."""
    return loss(lambda place: 4.0 - less.get(place["model"], 0.0) + 0.1 * math.log2(float(place["lr"]) / best) ** 2)


def gains(larger: Callable[[Place], bool], one: float, other: float) -> Made:
    """What T = 2 takes off a loss of 4: ``one`` where ``larger``, else ``other``."""
    return loss(lambda place: 4.0 - (one if larger(place) else other) * (place["steps"] == "t2"))


def preconditioned(one: float, other: float) -> Made:
    """What the preconditioner takes off, at T = 2 and at T = 1."""
    gain = {"t1": other}
    return loss(lambda place: 4.0 - gain.get(place["steps"], one) * (place["preconditioner"] == "diagonal_low_rank"))


def counts(name: str, change: Callable[[Place], float]) -> Made:
    return Made(lambda place, seed: {name: change(place)}, noise=0.0, known=True)


PRINTED = {"m86": 86, "m108": 108, "m134": 134, "m162": 162}
KNOWN = Made(known=True)


def millions(name: str, more: float) -> Made:
    """Llama's counts as printed, and so much more."""
    return counts(name, lambda place: (PRINTED[place["size"]] + more) * MILLION)


def factors(change: float) -> Made:
    """The cosine's factors after a quarter and the half, the latter changed."""
    return Made(
        lambda place, seed: {"factor_half": _half(place) + change, "factor_end": 0.1, **_quarter(place)},
        noise=0.0,
        known=True,
    )


def _cosine(place: Place, share: float) -> float:
    steps, warmup = STEPS[place["size"]]
    behind = steps - warmup
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * math.floor(share * behind) / behind))


def _half(place: Place) -> float:
    return _cosine(place, 0.5)


def _quarter(place: Place) -> Numbers:
    steps, warmup = STEPS[place["size"]]
    return {"factor_quarter": _cosine(place, 0.25), "steps": float(steps), "warmup_steps": float(warmup)}


STEPS = {"m86": (1000, 100), "m108": (1001, 100), "m134": (1003, 50), "m162": (2000, 10)}


def batches(windows: float) -> Made:
    printed = {"windows_a_batch": 4.0, "accumulation": 2.0, "windows": windows}
    return Made(printed=lambda place: printed, known=True)


CASES = {
    "cem.bases.rates.higher_rate": Case("cem/fig5", sweep(0.002, 0.006, 0.0), sweep(0.006, 0.002, 0.0)),
    "cem.bases.rates.full_cem_better": Case("cem/fig5", sweep(0.004, 0.004, 0.05), sweep(0.004, 0.004, -0.05)),
    "cem.own_rates.second_step_helps": Case(
        "cem/own_rates", valleys({"attention_t2": 0.05}), valleys({"attention": 0.05})
    ),
    "cem.own_rates.gap_narrows": Case("cem/own_rates", valleys({"mlp_t2": 0.05}), valleys({"mlp": 0.05})),
    "cem.own_rates.widening_helps": Case("cem/own_rates", valleys({"mlp_matched": 0.05}), valleys({"mlp": 0.05})),
    "cem.own_rates.matched_beats_llama": Case(
        "cem/own_rates", valleys({"mlp_matched": 0.05}), valleys({"llama": 0.05})
    ),
    # The audit's case: both are losses, the recursion's the smaller one.
    "cem.recursion.recursion_gains_more_than_reuse": Case(
        "cem/fig4",
        gains(lambda place: place["model"] != "llama", 0.05, 0.01),
        gains(lambda place: place["model"] != "llama", -0.01, -0.05),
    ),
    "cem.recursion.preconditioner_gains_more_at_t2": Case(
        "cem/fig2d", preconditioned(0.05, 0.01), preconditioned(-0.01, -0.05)
    ),
    "cem.training_length.pays_more_in_long_training": Case(
        "cem/training_length",
        gains(lambda place: place["length"] == "x4", 0.05, 0.01),
        gains(lambda place: place["length"] == "x4", -0.01, -0.05),
    ),
    "cem.table1.printed_counts_are_truncated": Case(
        "cem/table1", millions("parameters", 0.9), millions("parameters", -0.1)
    ),
    "cem.table1.printed_counts_are_rounded": Case(
        "cem/table1", millions("parameters", -0.1), millions("parameters", 0.9)
    ),
    "cem.table1.printed_counts_are_of_tied_tables": Case(
        "cem/table1", millions("parameters_counted_early", 0.9), millions("parameters_counted_early", 1.1)
    ),
    "cem.table1.half_of_the_attention": Case("cem/table1", KNOWN, counts("parameters", lambda place: MILLION)),
    "cem.table1.two_thirds_of_the_mlp": Case("cem/table1", KNOWN, counts("parameters", lambda place: MILLION)),
    "cem.table2.cosine_annealing": Case("cem/table2", factors(0.0), factors(1e-6)),
    "cem.table2.batch_is_of_eight_gpus": Case("cem/table2", batches(64.0), batches(65.0)),
}

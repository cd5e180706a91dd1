"""nGPT's estimates on made-up records with known answers, the changes of its ablations, and figure 7 as drawn."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from paper_repro.papers.ngpt import fig2
from paper_repro.papers.ngpt.bases.ablation import CHANGE, with_changes
from paper_repro.papers.ngpt.fig2 import Part
from paper_repro.tables import claims
from paper_repro.tables.view import Notes
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made, MadeUpView, Numbers, Place, estimate, estimated, value

Metrics = Callable[[Place, int], Numbers]
SEEDS = (0, 1, 2)
BUDGETS = {"f20": 1 / 20, "f10": 1 / 10, "f8": 1 / 8, "f4": 1 / 4, "f2": 1 / 2, "f34": 3 / 4, "f1": 1.0}
DOUBLED = 0.3
"""Twice the tokens lower a loss by so much: at 2**d times the tokens of GPT it is lower by 0.3 d."""


def view(artifact: str, metrics: Metrics, scale: str = "cpu") -> MadeUpView:
    return made_up.view(f"ngpt/{artifact}", Made(metrics, scale=scale, seeds=SEEDS))


def losses(**speedups: float | Callable[[Place], float]) -> Metrics:
    """Losses of models that are so many times as fast as GPT."""

    def metrics(place: Place, seed: int) -> Numbers:
        given = speedups.get(place["model"], 1.0)
        factor = given(place) if callable(given) else given
        loss = 5.0 - DOUBLED * math.log2(BUDGETS[place["budget"]] * factor)
        return {"val_loss": loss, "test_loss": loss + 0.5, "train_loss": 4.0}

    return metrics


def faster_in_longer_contexts(place: Place) -> float:
    return {"c1k": 0.5, "c4k": 0.8, "c8k": 0.8**2 / 0.5}[place["context"]]


def after_the_longest(scale: str) -> Metrics:
    """Losses of nGPT that are 0.6 lower after the longest training, of test and not of validation at scale cpu."""

    def metrics(place: Place, seed: int) -> Numbers:
        loss = {"ngpt": 2.4, "gpt": 3.0}[place["model"]] if place["budget"] == "f1" else 4.0
        return {"val_loss": loss + (9.0 if scale == "cpu" else 0.0), "test_loss": loss}

    return metrics


def accuracies(metric: str, chosen: Callable[[Place], bool] = lambda place: True) -> Metrics:
    """Accuracies at the rate that is chosen for its loss, and higher ones at others."""

    def metrics(place: Place, seed: int) -> Numbers:
        accuracy = {"ngpt": 43.0, "gpt": 40.0}[place["model"]] if chosen(place) else 99.0
        return {"val_loss": 3.0 if chosen(place) else 4.0, metric: accuracy}

    return metrics


def of_model(gpt: Numbers, ngpt: Numbers) -> Metrics:
    return lambda place, seed: {"gpt": gpt, "ngpt": ngpt}.get(place["model"], {})


SPREADS = of_model(
    {"in_spread_95": 4.0, "in_spread_max": 9.0, "in_norm_variation": 0.3, "out_norm_variation": 0.5},
    {"in_spread_95": 2.0, "in_spread_max": 2.0, "in_norm_variation": 0.1, "out_norm_variation": 0.1},
)
CONDITIONS = of_model(
    {"condition_attention": 8.0, "condition_attention_renormalized": 2.0},
    {"condition_attention": 2.0, "condition_attention_renormalized": 99.0},
)
PERPLEXITIES = of_model({"perplexity_x8": 99.0, "perplexity_x1": 1.0}, {"perplexity_x8": 24.0, "perplexity_x1": 20.0})


def scales(place: Place, seed: int) -> Numbers:
    base = place["run"] == "base"
    return {"mean_alpha_A": 0.2 if base else 9.0, "mean_alpha_M": 0.4, "sqk_spread": 4.0 if base else 1.0}


def settings(place: Place, seed: int) -> Numbers:
    """The worst setting of s_z, and the worst of each other section."""
    worst = {"z_slow": 8.0, "z_large": 2.0, "qk_005": 4.0, "uv_small": 2.0}
    return {"val_loss": worst.get(place["setting"], 1.0)}


def stored(place: Place, seed: int) -> Numbers:
    """At the best rate, storage in bfloat16 costs GPT 4 % and nGPT 1 %."""
    factors = {"gpt_bf16": 1.04, "ngpt": 0.9, "ngpt_bf16": 0.9 * 1.01}
    worse = 0.0 if place["lr"] == "1e-2" else 1.0
    return {"val_loss": 3.0 + worse, "test_loss": 4.0 * factors.get(place["model"], 1.0) - worse, "train_loss": 4.0}


def times(place: Place, seed: int) -> Numbers:
    fall = {"t256": 1.6, "t1024": 1.5, "t4096": 1.2, "t8192": 1.1}[place["context"]]
    grown = {"w128": 1.1, "w512": 0.88, "large": 0.9}.get(place["size"], 1.0)
    return {"ratio_ngpt": fall * grown if place["implementation"] == "reference" else 1.04}


STEPS = math.prod((1.5 * 1.1, 1.6, 1.5, 1.2, 1.5 * 0.88)) ** 0.2
PRINTED_STEPS = math.prod((1.2, 1.1, 1.2 * 0.9, 1.1 * 0.9)) ** 0.25
CASES: list[tuple[str, str, str, Metrics, float]] = [
    ("fig1", "lower_loss_at_equal_tokens", "cpu", after_the_longest("cpu"), -0.6),
    ("fig1", "lower_loss_at_equal_tokens", "paper", after_the_longest("paper"), -0.6),
    ("fig2", "speedup_1k", "cpu", losses(ngpt=1.2), 1.2),
    ("fig2", "speedup_1k", "cpu", losses(ngpt=0.75, gpt=0.75), 1.0),
    ("fig2", "speedup_grows_with_context", "paper", losses(ngpt=faster_in_longer_contexts), 0.8 / 0.5),
    ("fig3", "accuracy_at_equal_tokens", "cpu", accuracies("continuations_mean"), 3.0),
    ("fig3", "accuracy_at_equal_tokens", "paper", accuracies("downstream_mean", lambda at: at["lr"] == "1.5e-3"), 3.0),
    ("fig4", "embedding_conditioning", "cpu", SPREADS, 3.0),
    ("fig4", "embedding_norms_fixed", "cpu", SPREADS, 0.3),
    ("fig5", "condition_numbers", "cpu", CONDITIONS, 2.0),
    ("fig6", "modest_steps", "cpu", scales, 0.3),
    ("fig6", "sqk_stable", "cpu", scales, 4.0),
    ("fig13", "length_extrapolation", "cpu", PERPLEXITIES, 1.2),
    ("replications", "storage_hurts_gpt_more", "cpu", stored, 1.04 / 1.01),
    ("steptime", "step_takes_longer", "cpu", times, STEPS),
    ("steptime", "step_overhead_fused", "cpu", times, 1.04),
    ("steptime", "step_overhead", "paper", times, PRINTED_STEPS),
    ("table4", "sz_init_matters", "cpu", settings, math.sqrt(2.0 * 4.0)),
]


@pytest.mark.parametrize(("artifact", "claim", "scale", "metrics", "expected"), CASES)
def test_an_estimate_has_its_value(artifact: str, claim: str, scale: str, metrics: Metrics, expected: float) -> None:
    found = estimated(f"ngpt/{artifact}", claim, Made(metrics, scale=scale, seeds=SEEDS))
    assert found == pytest.approx(expected, rel=1e-3)


def test_the_best_rate_counts_and_the_others_are_not_read() -> None:
    def metrics(place: Place, seed: int) -> Numbers:
        worse = 0.0 if place["lr"] in ("5e-3", "2e-2") else 1.0
        return {name: loss + worse for name, loss in losses(ngpt=1.2)(place, seed).items()}

    read: Notes = {}
    assert value(fig2.estimate_speedup_1k(replace(view("fig2", metrics), read=read))) == pytest.approx(1.2, rel=1e-3)
    assert {dict(key)["lr"] for key, _ in read} == {"5e-3", "2e-2"}
    assert {dict(key)["model"] for key, _ in read} == {"gpt", "ngpt"}


def test_beyond_the_losses_of_the_baseline_a_speedup_is_a_bound() -> None:
    far = fig2.estimate_speedup_1k(view("fig2", losses(ngpt=16.0)))
    assert far.interval is not None and math.isinf(far.interval.high)
    assert far.shown(far.interval.low) == pytest.approx(math.sqrt(4 / 3), rel=1e-3)  # GPT's most tokens over nGPT's
    slow = fig2.estimate_speedup_1k(view("fig2", losses(ngpt=1 / 16)))
    assert slow.interval is not None and math.isinf(slow.interval.low)
    assert slow.shown(slow.interval.high) == pytest.approx(math.sqrt(2 / 3 / 2), rel=1e-3)
    by_budget = losses(ngpt=lambda place: 0.5 if place["budget"] == "f20" else 0.8)
    grown = fig2.estimate_speedup_grows_with_budget(view("fig2", by_budget, "paper"))
    assert grown.interval is not None and math.isinf(grown.interval.high)  # at 1/20 nGPT is slower than all of GPT
    assert grown.shown(grown.interval.low) == pytest.approx(0.8, rel=1e-3)


def test_parts_inside_the_range_count_alone_and_bounds_on_both_sides_say_nothing() -> None:
    def part(ratio: float, *sides: Any) -> Part:
        return Part({seed: math.log(ratio) + 0.01 * seed for seed in SEEDS}, frozenset(sides))

    inside = fig2.pooled("", {"a": part(2.0), "b": part(8.0), "c": part(99.0, ">")})
    assert value(inside) == pytest.approx(4.0, rel=0.02)
    assert fig2.pooled("", {"a": part(2.0, ">"), "b": part(8.0, "<")}).interval is None
    assert fig2.pooled("", {"a": part(2.0, ">", "<")}).interval is None
    turned = part(2.0).over(part(8.0, "<"))
    assert turned.sides == {">"} and math.exp(turned.logs[0]) == pytest.approx(0.25)


def test_the_error_of_the_test_sample_widens_the_interval_of_a_difference_of_losses() -> None:
    def files(place: Place, seed: int) -> dict[str, bytes]:
        own = [-0.1, 0.3, -0.2, 0.4] if place["model"] == "ngpt" else [0.0] * 4
        return {"test_losses.json": json.dumps({"losses": [2.0 + one + 1e-3 * seed for one in own]}).encode()}

    made = Made(lambda place, seed: {"val_loss": 3.0, "test_loss": 2.0}, files=files, seeds=SEEDS)
    found = estimate(made_up.view("ngpt/fig1", made), "lower_loss_at_equal_tokens")
    assert value(found) == pytest.approx(0.1, rel=1e-3) and found.items == claims.SEEDS_AND_ITEMS
    assert found.interval is not None and found.interval.low < 0


def test_the_error_of_the_test_sample_enters_speedups() -> None:
    metrics = losses(ngpt=1.2)

    def files(place: Place, seed: int) -> dict[str, bytes]:
        spread = 0.01 * DOUBLED if place["model"] == "ngpt" else 0.0
        own = [metrics(place, seed)["test_loss"] + spread * one for one in (-1.0, 3.0, -3.0, 1.0)]
        return {"test_losses.json": json.dumps({"losses": own}).encode()}

    found = estimate(made_up.view("ngpt/fig2", Made(metrics, files=files, seeds=SEEDS)), "speedup_1k")
    assert value(found) == pytest.approx(1.2, rel=1e-3) and found.items == claims.SEEDS_AND_ITEMS
    error = 0.01 * math.log(2.0) * math.sqrt(20 / 3 / 4)  # a loss of DOUBLED is a factor of two in tokens
    assert found.interval is not None and found.interval.error == pytest.approx(error, rel=0.02)


def test_a_change_is_against_the_default_of_the_same_seed() -> None:
    def metrics(place: Place, seed: int) -> Numbers:
        if place["setting"] == "default" and seed == 2:
            return {}
        return {"val_loss": (2.0 + seed) * (1.01 if place["setting"] == "no_qk_norm" else 1.0)}

    table6 = view("table6", metrics)
    changed = with_changes(table6)
    assert changed.samples(CHANGE, {"setting": "no_qk_norm"}) == pytest.approx({0: 1.0, 1: 1.0}, rel=1e-3)
    assert changed.samples(CHANGE, {"setting": "default"}) == {0: 0.0, 1: 0.0}
    assert not table6.samples(CHANGE, {"setting": "no_qk_norm"})

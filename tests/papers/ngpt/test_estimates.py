"""Estimates of nGPT's claims on made-up samples whose answer is known, and whose sides are told apart."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from paper_repro.papers.ngpt import fig1, fig2, fig3, fig4, fig5, fig6, fig13, replications, steptime, table4
from paper_repro.papers.ngpt.fig2 import Part
from paper_repro.tables import claims
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made, MadeUpView, value

Place = Mapping[str, str]
Metrics = Callable[[Place, int], dict[str, float]]


def view(artifact: str, metrics: Metrics, scale: str = "cpu", noise: float = 1e-6) -> MadeUpView:
    seeds = (0, 1, 2)
    return made_up.view(f"ngpt/{artifact}", Made(metrics=metrics, scale=scale, noise=noise, seeds=seeds))


# Speedups

BUDGETS = {"f20": 1 / 20, "f10": 1 / 10, "f8": 1 / 8, "f4": 1 / 4, "f2": 1 / 2, "f34": 3 / 4, "f1": 1.0}
DOUBLED = 0.3
"""Twice the tokens lower a loss by so much: at 2**d times the tokens of GPT it is lower by 0.3 d."""


def losses(**speedups: float | Callable[[Place], float]) -> Metrics:
    """Losses of models that are so many times as fast as GPT."""

    def metrics(place: Place, seed: int) -> dict[str, float]:
        given = speedups.get(place["model"], 1.0)
        factor = given(place) if callable(given) else given
        loss = 5.0 - DOUBLED * math.log2(BUDGETS[place["budget"]] * factor)
        return {"val_loss": loss, "test_loss": loss + 0.5, "train_loss": 4.0}

    return metrics


@pytest.mark.parametrize("factor", [1.2, 0.75])
def test_a_speedup_is_tokens_of_the_baseline_over_those_of_ngpt(factor: float) -> None:
    found = fig2.estimate_speedup_1k(view("fig2", losses(ngpt=factor)))
    assert value(found) == pytest.approx(factor, rel=1e-3)
    behind = fig2.estimate_speedup_1k(view("fig2", losses(ngpt=factor, gpt=factor)))
    assert value(behind) == pytest.approx(1.0, rel=1e-3)


def test_the_best_rate_counts_and_the_others_are_not_read() -> None:
    def metrics(place: Place, seed: int) -> dict[str, float]:
        worse = 0.0 if place["lr"] in ("5e-3", "2e-2") else 1.0
        return {name: loss + worse for name, loss in losses(ngpt=1.2)(place, seed).items()}

    noting, read = view("fig2", metrics).noting()
    assert value(fig2.estimate_speedup_1k(noting)) == pytest.approx(1.2, rel=1e-3)
    assert {dict(key)["lr"] for key, _ in read} == {"5e-3", "2e-2"}
    assert {dict(key)["model"] for key, _ in read} == {"gpt", "ngpt"}


def test_beyond_the_losses_of_the_baseline_a_speedup_is_a_bound() -> None:
    far = fig2.estimate_speedup_1k(view("fig2", losses(ngpt=16.0)))
    assert far.interval is not None and math.isinf(far.interval.high)
    assert far.shown(far.interval.low) == pytest.approx(math.sqrt(4 / 3), rel=1e-3)  # GPT's most tokens over nGPT's
    slow = fig2.estimate_speedup_1k(view("fig2", losses(ngpt=1 / 16)))
    assert slow.interval is not None and math.isinf(slow.interval.low)
    assert slow.shown(slow.interval.high) == pytest.approx(math.sqrt(2 / 3 / 2), rel=1e-3)


def test_parts_inside_the_range_count_alone_and_bounds_on_both_sides_say_nothing() -> None:
    def part(ratio: float, *sides: Any) -> Part:
        return Part({seed: math.log(ratio) + 0.01 * seed for seed in range(3)}, frozenset(sides))

    assert value(fig2.pooled("", {"a": part(2.0), "b": part(8.0), "c": part(99.0, ">")})) == pytest.approx(
        4.0, rel=0.02
    )
    assert fig2.pooled("", {"a": part(2.0, ">"), "b": part(8.0, "<")}).interval is None
    assert fig2.pooled("", {"a": part(2.0, ">", "<")}).interval is None
    turned = part(2.0).over(part(8.0, "<"))
    assert turned.sides == {">"} and math.exp(turned.logs[0]) == pytest.approx(0.25)


@pytest.mark.parametrize("turned", [False, True])
def test_growth_is_the_later_speedup_over_the_earlier(turned: bool) -> None:
    pair = (0.8, 0.5) if turned else (0.5, 0.8)

    def factor(place: Place, axis: str, first: str) -> float:
        return pair[0] if place[axis] == first else pair[1]

    each = {"c1k": pair[0], "c4k": pair[1], "c8k": pair[1] ** 2 / pair[0]}
    by_context = view("fig2", losses(ngpt=lambda place: each[place["context"]]), "paper")
    found = fig2.estimate_speedup_grows_with_context(by_context)
    assert value(found) == pytest.approx(pair[1] / pair[0], rel=1e-3)  # 4k over 1k, and 8k over 4k
    by_budget = view("fig2", losses(ngpt=lambda place: factor(place, "budget", "f20")), "paper")
    grown = fig2.estimate_speedup_grows_with_budget(by_budget)
    assert grown.interval is not None and math.isinf(grown.interval.high)  # at 1/20 nGPT is slower than all of GPT
    assert grown.shown(grown.interval.low) == pytest.approx(pair[1], rel=1e-3)


# Losses and accuracies


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_the_loss_at_equal_tokens_is_ngpts_less_gpts_after_the_longest_training(scale: str) -> None:
    def metrics(place: Place, seed: int) -> dict[str, float]:
        loss = {"ngpt": 2.4, "gpt": 3.0}[place["model"]] if place["budget"] == "f1" else 4.0
        return {"val_loss": loss + (9.0 if scale == "cpu" else 0.0), "test_loss": loss}

    found = fig1.estimate_lower_loss_at_equal_tokens(view("fig1", metrics, scale))
    assert value(found) == pytest.approx(-0.6, rel=1e-4) and found.items == claims.SEEDS_ONLY


def test_the_error_of_the_test_sample_widens_the_interval_of_a_difference_of_losses() -> None:
    def metrics(place: Place, seed: int) -> dict[str, float]:
        return {"val_loss": 3.0, "test_loss": 2.0}

    def files(place: Place, seed: int) -> dict[str, bytes]:
        own = [-0.1, 0.3, -0.2, 0.4] if place["model"] == "ngpt" else [0.0] * 4
        return {"test_losses.json": json.dumps({"losses": [2.0 + one + 1e-3 * seed for one in own]}).encode()}

    made = Made(metrics=metrics, files=files, seeds=(0, 1, 2), noise=1e-6)
    found = fig1.estimate_lower_loss_at_equal_tokens(made_up.view("ngpt/fig1", made))
    assert value(found) == pytest.approx(0.1, rel=1e-3) and found.items == claims.SEEDS_AND_ITEMS
    assert found.interval is not None and found.interval.low < 0


@pytest.mark.parametrize(
    ("scale", "metric", "parts"), [("cpu", "continuations_mean", 3), ("paper", "downstream_mean", 30)]
)
def test_accuracy_is_ngpts_less_gpts_at_the_rates_with_the_lowest_losses(scale: str, metric: str, parts: int) -> None:
    def metrics(place: Place, seed: int) -> dict[str, float]:
        chosen = scale == "cpu" or place["lr"] == "1.5e-3"
        accuracy = {"ngpt": 43.0, "gpt": 40.0}[place["model"]] if chosen else 99.0
        return {"val_loss": 3.0 if chosen else 4.0, metric: accuracy}

    found = fig3.estimate_accuracy_at_equal_tokens(view("fig3", metrics, scale))
    assert value(found) == pytest.approx(3.0, rel=1e-3) and len(found.parts) == parts


def test_the_worst_setting_of_s_z_is_held_against_the_worst_of_each_other_section() -> None:
    worst = {"z_slow": 8.0, "z_large": 2.0, "qk_005": 4.0, "uv_small": 2.0}
    found = table4.estimate_sz_init_matters(
        view("table4", lambda place, seed: {"val_loss": worst.get(place["setting"], 1.0)})
    )
    assert value(found) == pytest.approx(math.sqrt(2.0 * 4.0), rel=1e-4)


# Inspected models


def of_model(gpt: Mapping[str, float], ngpt: Mapping[str, float]) -> Metrics:
    return lambda place, seed: dict({"gpt": gpt, "ngpt": ngpt}.get(place["model"], {}))


def test_embeddings_are_compared_gpt_first() -> None:
    spread = {"in_spread_95": 4.0, "in_spread_max": 9.0}, {"in_spread_95": 2.0, "in_spread_max": 2.0}
    assert value(fig4.estimate_embedding_conditioning(view("fig4", of_model(*spread)))) == pytest.approx(3.0, rel=1e-4)
    norms = {"in_norm_variation": 0.3, "out_norm_variation": 0.5}, {"in_norm_variation": 0.1, "out_norm_variation": 0.1}
    assert value(fig4.estimate_embedding_norms_fixed(view("fig4", of_model(*norms)))) == pytest.approx(0.3, rel=1e-4)


def test_condition_numbers_are_gpts_before_and_after_renormalising_over_ngpts_as_trained() -> None:
    gpt = {"condition_attention": 8.0, "condition_attention_renormalized": 2.0}
    ngpt = {"condition_attention": 2.0, "condition_attention_renormalized": 99.0}
    assert value(fig5.estimate_condition_numbers(view("fig5", of_model(gpt, ngpt)))) == pytest.approx(2.0, rel=1e-4)


def test_steps_are_averaged_over_attention_and_mlp_of_figure_6_and_spreads_over_all_runs() -> None:
    def metrics(place: Place, seed: int) -> dict[str, float]:
        base = place["run"] == "base"
        return {"mean_alpha_A": 0.2 if base else 9.0, "mean_alpha_M": 0.4, "sqk_spread": 4.0 if base else 1.0}

    found = view("fig6", metrics)
    assert value(fig6.estimate_modest_steps(found)) == pytest.approx(0.3, rel=1e-4)
    assert value(fig6.estimate_sqk_stable(found)) == pytest.approx(4.0 ** (1 / 5), rel=1e-4)


def test_perplexity_rises_from_the_trained_length_of_ngpt() -> None:
    perplexities = {"perplexity_x8": 24.0, "perplexity_x1": 20.0}
    made = view("fig13", of_model({"perplexity_x8": 99.0, "perplexity_x1": 1.0}, perplexities))
    assert value(fig13.estimate_length_extrapolation(made)) == pytest.approx(1.2, rel=1e-4)


# Times of a step


def times(place: Place, seed: int) -> dict[str, float]:
    fall = {"t256": 1.6, "t1024": 1.5, "t4096": 1.2, "t8192": 1.1}[place["context"]]
    grown = {"w128": 1.1, "w512": 0.88, "large": 0.9}.get(place["size"], 1.0)
    return {"ratio_ngpt": fall * grown if place["implementation"] == "reference" else 1.04}


def test_step_times_are_pooled_by_implementation_and_contexts() -> None:
    cpu, paper = view("steptime", times), view("steptime", times, "paper")
    each = [1.5 * 1.1, 1.6, 1.5, 1.2, 1.5 * 0.88]
    assert value(steptime.estimate_step_takes_longer(cpu)) == pytest.approx(math.prod(each) ** 0.2, rel=1e-4)
    assert value(steptime.estimate_step_overhead_fused(cpu)) == pytest.approx(1.04, rel=1e-4)
    printed = [1.2, 1.1, 1.2 * 0.9, 1.1 * 0.9]
    assert value(steptime.estimate_step_overhead(paper)) == pytest.approx(math.prod(printed) ** 0.25, rel=1e-4)
    assert steptime.StepTimes(paper).summary() == pytest.approx({"ratio_4k": 1.2, "ratio_8k": 1.1}, rel=1e-4)
    assert steptime.StepTimes(cpu).summary() == pytest.approx({"ratio_4k": 1.2}, rel=1e-4)


@pytest.mark.parametrize("name", ["fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "steptime", "table4"])
def test_without_records_there_is_no_estimate(name: str) -> None:
    empty = made_up.without(view(name, lambda place, seed: {}))
    for claim in empty.artifact.claims:
        function = empty.artifact.function(str(claim.form), claim.line)
        assert function(empty).interval is None, claim.id


def test_storage_is_held_against_float32_of_the_same_model_each_at_its_best_rate() -> None:
    factors = {"gpt_bf16": 1.04, "ngpt": 0.9, "ngpt_bf16": 0.9 * 1.01}

    def metrics(place: Place, seed: int) -> dict[str, float]:
        worse = 0.0 if place["lr"] == "1e-2" else 1.0
        factor = factors.get(place["model"], 1.0)
        return {"val_loss": 3.0 + worse, "test_loss": 4.0 * factor - worse, "train_loss": 4.0}

    found = view("replications", metrics)
    assert value(replications.estimate_storage_hurts_gpt_more(found)) == pytest.approx(1.04 / 1.01, rel=1e-3)
    assert replications.estimate_storage_hurts_gpt_more(made_up.without(found)).interval is None

"""Estimates and figures of EBT's language tables, on made-up records whose answers are known."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from paper_repro.tables.figure import figure_of
from paper_repro.tables.spec import Number
from paper_repro.tables.table import table_of
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made, Place

SCALED = {"half": 0.5, "one": 1.0, "more": 1.5, "double": 2.0, "four": 4.0, "eight": 8.0}
LENGTHS = ("half", "one")
STEP_COST, TIME_RATIO = 3.0, 2.0
Loss = Callable[[Place, str, int, int], float]


def estimated(name: str, claim: str, made: Made) -> float:
    """Return the estimate of a claim, as it is printed."""
    return made_up.value(made_up.estimate(made_up.view(f"ebt/{name}", made), claim))


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-3, abs=1e-3)


def falling(s1: float, transformer: float, s2: float = 0.0) -> Made:
    """Losses that fall as powers of data, batch size and depth."""
    power = {"s1": s1, "transformer": transformer, "s2": s2}

    def loss(place: Place, tokens: float = 1.0) -> float:
        size = SCALED[place.get("batch", "one")] * SCALED[place.get("depth", "one")] * tokens
        return float(5.0 * size ** -power[place["model"]])

    steps = range(100, 1501, 100)
    return Made(
        lambda place, seed: {"val_loss": loss(place)},
        noise=1e-6,
        curves=lambda place, seed: {"val_loss": [(step, loss(place, step / 1500)) for step in steps]},
    )


def scaled(s1: float, transformer: float, level: float = 5.0) -> Made:
    """Losses that fall as powers of FLOPs, parameters and steps; EBT's at the base is ``level``, Transformer++'s 5."""
    power, start = {"s1": s1, "transformer": transformer}, {"s1": level, "transformer": 5.0}

    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        if place["model"] == "times":
            return {"ratio_own": TIME_RATIO}
        size, budget = SCALED[place["size"]], SCALED[place["budget"]]
        loss = start[place["model"]] * (size**2 * budget * SCALED[place["width"]]) ** -power[place["model"]]
        cost = STEP_COST if place["model"] == "s1" else 1.0
        return {"val_loss": loss, "trunk_parameters": 1e5 * size, "step_flops": cost * 1e9 * size}

    return Made(metrics, noise=1e-6)


def test_figure_4_subtracts_transformers_exponents_from_ebts() -> None:
    assert estimated("fig4", "data_batch_depth", falling(s1=0.2, transformer=0.1)) == near(0.1)
    assert estimated("fig4", "data_batch_depth", falling(s1=0.1, transformer=0.3)) == near(-0.2)


def test_figure_5_divides_ebts_exponents_by_transformers() -> None:
    claim = "rate_over_parameters_and_flops"
    assert estimated("fig5", claim, scaled(s1=0.2, transformer=0.1)) == near(2.0)
    assert estimated("fig5", claim, scaled(s1=0.1, transformer=0.2)) == near(0.5)
    summary = table_of(made_up.view("ebt/fig5", scaled(s1=0.2, transformer=0.1))).summary()
    assert summary["exponent_s1"] == near(0.2) and summary["exponent_transformer"] == near(0.1)
    assert summary["flops_ratio"] == near(STEP_COST) and summary["rule_ratio"] == near(40 / 6)


@pytest.mark.parametrize("level", [4.0, 5.0, 6.0])
def test_figure_5_compares_losses_at_equal_tokens_and_at_equal_flops(level: float) -> None:
    made = scaled(s1=0.1, transformer=0.1, level=level)
    assert estimated("fig5", "worse_at_small_size", made) == near(level / 5)
    assert estimated("fig5", "less_flop_efficient", made) == near(level / 5 * STEP_COST**0.1)


def test_beyond_the_longest_transformer_there_is_no_comparison() -> None:
    view = made_up.view("ebt/fig5", scaled(s1=0.1, transformer=0.1))
    (fig5,) = view.artifact.modules[:1]
    assert fig5.at_equal_cost(view, "equal time", 8.0).interval is not None
    assert fig5.at_equal_cost(view, "equal time", 8.5).interval is None


def test_figure_c1_divides_s2s_exponent_by_s1s() -> None:
    assert estimated("figC1", "s2_scales_like_s1", falling(s1=0.2, transformer=0.0, s2=0.1)) == near(0.5)
    assert estimated("figC1", "s2_scales_like_s1", falling(s1=0.1, transformer=0.0, s2=0.2)) == near(2.0)


def thinking(loss: Loss, **metrics: float) -> Made:
    """Losses over sets, steps and samples, as a file beside the record."""
    known = {"validation_loss": 4.0, "gsm8k_loss": 5.0, "dyck-generated_loss": 6.0, **metrics}

    def files(place: Place, seed: int) -> Mapping[str, bytes]:
        lines = [
            f"{name},{steps},{samples},{loss(place, name, steps, samples)},4.0"
            for name in ("validation", "gsm8k", "dyck-generated")
            for steps in (1, 2, 3, 4, 6)
            for samples in (1, 2, 10)
        ]
        return {"thinking.csv": "\n".join(["set,steps,samples,loss,oracle", *lines]).encode()}

    return Made(lambda place, seed: known, noise=0.0, files=files)


def test_figure_6_fits_the_gain_over_doublings_of_the_shift() -> None:
    """The sets lie 1 and 2 nats from validation; a gain of 10 points for each doubling."""

    def made(sign: float) -> Made:
        shift = {"validation": 0.0, "gsm8k": 1.0, "dyck-generated": 2.0}

        def loss(place: Place, name: str, steps: int, samples: int) -> float:
            gain = 0.3 + sign * 0.1 * shift[name] / math.log(2)
            return 5.0 + (math.log(1 - gain) if steps == 6 else 0.0)

        return thinking(loss)

    assert estimated("fig6", "thinking_more_ood", made(1.0)) == near(10.0)
    assert estimated("fig6", "thinking_more_ood", made(-1.0)) == near(-10.0)


def test_figure_7_compares_with_the_steps_of_training_and_not_with_the_first() -> None:
    loss = {1: 9.0, 2: 7.0, 3: 5.0, 4: 5.0, 6: 4.8}
    made = thinking(lambda place, name, steps, samples: loss[steps])
    assert estimated("fig7", "thinking_helps", made) == near(math.exp(-0.2))
    loss[6] = 5.3
    assert estimated("fig7", "thinking_helps", made) == near(math.exp(0.3))


def test_figure_7_compares_verification_after_the_longest_training_and_ebt_with_transformer() -> None:
    gained = {"half": -0.5, "one": 0.2}
    made = thinking(lambda place, name, steps, samples: 5.0 - gained[place["length"]] * (samples == 10))
    assert estimated("fig7", "verification_helps", made) == near(math.exp(-0.2))
    assert estimated("fig7", "below_a_transformer", made) == near(math.exp(5.0 - 5.5))
    assert estimated("fig7", "below_a_transformer", thinking(lambda *_: 6.0)) == near(math.exp(6.0 - 5.5))


def test_figure_b4_fits_what_ten_samples_add_to_two_over_training() -> None:
    def made(sign: float) -> Made:
        def loss(place: Place, name: str, steps: int, samples: int) -> float:
            gain = {1: 0.0, 2: 0.3, 10: 0.3 + sign * 0.1 * LENGTHS.index(place["length"])}[samples]
            return 5.0 + math.log(1 - gain)

        return thinking(loss)

    assert estimated("figB4", "less_adversarial_with_data", made(1.0)) == near(10 / math.log10(2))
    assert estimated("figB4", "less_adversarial_with_data", made(-1.0)) == near(-10 / math.log10(2))


def test_figure_b3_averages_areas_over_sets_and_shows_each_energy() -> None:
    metrics = {"energy_rank": -0.3, "gsm8k_energy_auroc": 0.9, "python_energy_auroc": 0.5, "gsm8k_loss_auroc": 0.8}
    texts = [{"set": "gsm8k", "tokens": ["a", "b"], "energies": [[1.0, 2.0], [3.0, 4.0]]}]
    files = {"token_energies.json": json.dumps({"texts": texts}).encode()}
    made = Made(lambda place, seed: metrics, files=lambda place, seed: files)
    assert estimated("figB3", "energy_is_uncertainty", made) == near(-0.3)
    assert estimated("figB3", "ood_energy", made) == near(0.7)
    figure = figure_of(made_up.view("ebt/figB3", made))
    assert figure is not None
    rows = [row for row in figure.rows() if row["panel"] == "energy"]
    assert [(row["step"], row["token"], row["value"]) for row in rows] == [
        *((0, "a", 1.0), (0, "b", 2.0), (1, "a", 3.0), (1, "b", 4.0))
    ]


def test_table_2_compares_with_a_quarter_of_the_gain_and_verification_with_and_without_noise() -> None:
    gains = {"full": (8.0, 20.0), "fixed_step_size": (0.0, 3.0), "no_noise": (15.0, 17.0)}

    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        longer, best = gains.get(place["technique"], (1.0, 1.0))
        return {"bigbench-dyck_longer_gain": longer, "bigbench-dyck_best_gain": best}

    made = Made(metrics, noise=0.0)
    assert estimated("table2", "random_step_size_critical", made) == near(3.0 - 20.0 / 4)
    assert estimated("table2", "langevin_tradeoff", made) == near((20.0 - 8.0) - (17.0 - 15.0))
    gains["fixed_step_size"], gains["full"] = (0.0, 9.0), (15.0, 16.0)
    assert estimated("table2", "random_step_size_critical", made) == near(9.0 - 16.0 / 4)
    assert estimated("table2", "langevin_tradeoff", made) == near(1.0 - 2.0)


def test_table_3_compares_at_equal_training_and_at_equal_pretraining_loss() -> None:
    """On other sets a Transformer++ has 1 nat more than in pretraining, EBT 0.7 nats more."""
    known = {"transformer": 4.0, "transformer_half": 4.3, "transformer_quarter": 4.6, "transformer_fifth": 5.0}

    def made(pretraining: float) -> Made:
        def metrics(place: Place, seed: int) -> Mapping[str, float]:
            own = known.get(place["model"], pretraining)
            other = own + (1.0 if place["model"] in known else 0.7)
            return {"validation_loss": own, **{f"{name}_loss": other for name in ("gsm8k", "python", "listops")}}

        return Made(metrics, noise=0.0)

    for pretraining in (4.2, 4.5):
        assert estimated("table3", "ood_generalisation", made(pretraining)) == near(math.exp(pretraining - 4.3))
        assert estimated("table3", "lower_at_equal_pretraining", made(pretraining)) == near(math.exp(-0.3))


def test_table_d1_gives_the_printed_gap_and_turns_with_the_flops() -> None:
    known = Made(known=True)
    assert estimated("tableD1", "scaling_rate_gap", known) == pytest.approx(1.0897, abs=6e-4)
    sizes = ("xxs", "xs", "small", "medium", "large")

    def flops(place: Place, seed: int) -> Mapping[str, float]:
        decades = {"ebt": 1.0, "transformer": 0.5}[place["model"]]
        return {"flops": 1e16 * 10 ** (decades * sizes.index(place["size"]))}

    def printed(place: Place) -> Mapping[str, float | Number]:
        loss = 5.0 * 0.9 ** sizes.index(place["size"])
        return {"loss": Number(loss, None, ((33, loss * (1.001 if place["size"] == "xs" else 1.0)),))}

    made = Made(flops, noise=0.0, printed=printed, known=True)
    assert estimated("tableD1", "scaling_rate_gap", made) == near(0.5)


def test_table_d5_divides_our_ratios_by_the_printed_ones() -> None:
    printed = {"one_step": (3.92, 1.77, 1.77), "two_steps": (7.78, 2.85, 3.24)}

    def made(factor: float) -> Made:
        def metrics(place: Place, seed: int) -> Mapping[str, float]:
            time, memory, first = (factor * ratio for ratio in printed.get(place["model"], (1.0, 1.0, 1.0)))
            return {"ratio_own": time, "memory_ratio_own": memory, "first_ratio_own": first}

        return Made(metrics, noise=1e-6, scale="paper")

    assert estimated("tableD5", "step_cost", made(1.1)) == near(1.1)
    assert estimated("tableD5", "step_cost", made(0.5)) == near(0.5)

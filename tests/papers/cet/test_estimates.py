"""Estimates and rows of CET on made-up records with known answers, and settings that are built."""

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from paper_repro.base import configs
from paper_repro.probes.settings import completion_settings as settings
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made

FALLS = [0.1 * index for index in range(16)]


def value(name: str, claim: str, made: Made) -> float:
    return made_up.value(made_up.estimate(made_up.view(f"cet/{name}", made), claim))


def measured(ep: Mapping[str, float], tbpte: Mapping[str, float] | None = None) -> Made:
    by_method = {"ep": ep, "tbpte": tbpte or {}}
    return Made(
        lambda place, seed: {name: number * (1 + 0.1 * seed) for name, number in by_method[place["method"]].items()},
        1e-6,
    )


def trace(falls: list[float], growths: list[float], late: float = 9.0, shift: float = 0.0) -> bytes:
    """A relaxation of images that fall by 9 until T1 = 2 and so much after it, and whose errors grow so much."""
    count = len(falls)
    document: Mapping[str, Any] = {
        "trained": 2,
        "steps": [0, 1, 2, 4],
        "energies": [[10.0] * count, [5.0] * count, [1.0] * count, [1 + shift - fall for fall in falls]],
        "shown": [2, 4],
        "errors": [[0.1] * count, [0.1 + growth for growth in growths]],
        "before": [9.0] * count,
        "after": falls,
        "late": [fall > late for fall in falls],
    }
    return json.dumps(document).encode()


def relaxed(**files: bytes) -> Made:
    named = {f"{name}.json": content for name, content in files.items()}
    return Made(files=lambda place, seed: named)


def test_errors_are_compared_by_method_and_by_split() -> None:
    one, other = {"test_mse": 0.03, "train_mse": 0.02}, {"test_mse": 0.02, "train_mse": 0.02}
    assert value("table1", "ep_close_to_tbpte", measured(one, other)) == pytest.approx(1.5, rel=1e-4)
    assert value("table1", "ep_close_to_tbpte", measured(other, one)) == pytest.approx(1 / 1.5, rel=1e-4)
    assert value("table1", "no_generalisation_gap", measured(one, other)) == pytest.approx(math.sqrt(1.5), rel=1e-4)
    gap = measured({"test_mse": 0.02, "train_mse": 0.04}, {"test_mse": 0.02, "train_mse": 0.04})
    assert value("table1", "no_generalisation_gap", gap) == pytest.approx(0.5, rel=1e-4)


def test_orders_are_those_of_ep_and_cosines_of_both_methods() -> None:
    numbers = (
        {"estimate_order": 2.0, "gradient_cosine_bfloat16": 0.8},
        {"estimate_order": 1.0, "gradient_cosine_bfloat16": 0.6},
    )
    assert value("table1", "ep_second_order", measured(*numbers)) == pytest.approx(2.0 * 1.1, rel=1e-4)  # seeds 0, 1, 2
    assert value("table1", "bfloat16_suffices", measured(*numbers)) == pytest.approx(0.7 * 1.1, rel=1e-4)


def test_rises_and_late_falls_are_counted_by_image() -> None:
    rises = {"long_rises": 1.0, "tenth_rises": 3.0, "long_late": 2.0}
    made = Made(lambda place, seed: rises, noise=0.0)
    assert value("fig3", "energy_falls_each_step", made) == pytest.approx(4 / 16)
    assert value("fig3", "saddles", made) == pytest.approx(2 / 16)
    many = Made(lambda place, seed: {**rises, "long_rises": 500.0}, noise=0.0)
    assert value("fig3", "energy_falls_each_step", many) == 1.0


def test_late_falls_and_growing_errors_are_correlated_by_rank() -> None:
    growths = [math.exp(fall) for fall in FALLS]
    assert value("fig4", "spurious_minima", relaxed(long=trace(FALLS, growths))) == pytest.approx(1.0)
    assert value("fig4", "spurious_minima", relaxed(long=trace(FALLS, growths[::-1]))) == pytest.approx(-1.0)
    alike = made_up.view("cet/fig4", relaxed(long=trace(FALLS, [0.0] * 16)))
    assert made_up.estimate(alike, "spurious_minima").interval is None


def test_an_image_ends_alike_if_energy_and_collapse_agree() -> None:
    one = trace(FALLS, FALLS, late=0.75)
    assert (
        value("fig5", "step_size_insensitive", relaxed(long=one, tenth=trace(FALLS, FALLS, late=0.75, shift=0.05)))
        == 1.0
    )
    # Half a unit is more than 1 % of any fall.
    far = relaxed(long=one, tenth=trace(FALLS, FALLS, late=0.75, shift=0.5))
    assert value("fig5", "step_size_insensitive", far) == 0.0
    others = relaxed(long=one, tenth=trace(FALLS, FALLS, late=1.15))  # 0.8 to 1.1 collapse with one step size alone
    assert value("fig5", "step_size_insensitive", others) == pytest.approx(12 / 16)


def test_table_2_is_of_the_model_that_trains() -> None:
    ours, trained = configs.compose("cet/settings"), configs.compose("cet/celeba")
    assert ours["counted"] == trained["model"] and ours["optimizer"] == trained["optimizer"]
    assert ours["schedule"] == trained["schedule"] and ours["training"]["steps"] == trained["training"]["steps"]
    found = settings(ours)
    assert found["parameters"] == 5_475_843 and found["num_patches"] == 121

"""CET's estimates on made-up records with known answers."""

import json
import math
from typing import Any

import pytest

from paper_repro.tests.support.made_up import Made, Numbers, estimate, estimated, view

FALLS = [0.1 * index for index in range(16)]


def measured(ep: Numbers, tbpte: Numbers) -> Made:
    by_method = {"ep": ep, "tbpte": tbpte}
    return Made(
        lambda place, seed: {name: number * (1 + 0.1 * seed) for name, number in by_method[place["method"]].items()}
    )


def trace(falls: list[float], growths: list[float], late: float = 9.0, shift: float = 0.0) -> bytes:
    """A relaxation of images that fall by 9 until T1 = 2 and so much after it, and whose errors grow so much."""
    count = len(falls)
    document: dict[str, Any] = {
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


def test_errors_orders_and_cosines_are_compared_by_method_and_by_split() -> None:
    ep = {"test_mse": 0.03, "train_mse": 0.02, "estimate_order": 2.0, "gradient_cosine_bfloat16": 0.8}
    tbpte = {"test_mse": 0.02, "train_mse": 0.02, "estimate_order": 1.0, "gradient_cosine_bfloat16": 0.6}
    expected = {
        "ep_close_to_tbpte": 1.5,
        "no_generalisation_gap": math.sqrt(1.5),
        "ep_second_order": 2.0 * 1.1,  # the mean over seeds 0, 1, 2
        "bfloat16_suffices": 0.7 * 1.1,
    }
    for claim, number in expected.items():
        assert estimated("cet/table1", claim, measured(ep, tbpte)) == pytest.approx(number, rel=1e-4)


def test_rises_and_late_falls_are_counted_by_image() -> None:
    rises = {"long_rises": 1.0, "tenth_rises": 3.0, "long_late": 2.0}
    made = Made(lambda place, seed: rises, noise=0.0)
    assert estimated("cet/fig3", "energy_falls_each_step", made) == pytest.approx(4 / 16)
    assert estimated("cet/fig3", "saddles", made) == pytest.approx(2 / 16)
    many = Made(lambda place, seed: {**rises, "long_rises": 500.0}, noise=0.0)
    assert estimated("cet/fig3", "energy_falls_each_step", many) == 1.0


def test_late_falls_and_growing_errors_are_correlated_by_rank() -> None:
    shrinking = [-math.exp(fall) for fall in FALLS]
    assert estimated("cet/fig4", "spurious_minima", relaxed(long=trace(FALLS, shrinking))) == pytest.approx(-1.0)
    alike = view("cet/fig4", relaxed(long=trace(FALLS, [0.0] * 16)))
    assert estimate(alike, "spurious_minima").interval is None


@pytest.mark.parametrize(
    ("late", "shift", "share"),
    [(0.75, 0.05, 1.0), (0.75, 0.5, 0.0), (1.15, 0.0, 12 / 16)],
    ids=["alike", "half a unit is more than 1 % of any fall", "0.8 to 1.1 collapse with one step size alone"],
)
def test_an_image_ends_alike_if_energy_and_collapse_agree(late: float, shift: float, share: float) -> None:
    made = relaxed(long=trace(FALLS, FALLS, late=0.75), tenth=trace(FALLS, FALLS, late, shift))
    assert estimated("cet/fig5", "step_size_insensitive", made) == pytest.approx(share)

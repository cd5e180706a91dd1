"""CEM's estimates on made-up losses with known answers, and what divergence and edges of a grid do."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from paper_repro.cells.tasks import DIVERGED
from paper_repro.papers.cem.bases.rates import optimum, sweep
from paper_repro.tables.claims import SEEDS_AND_ITEMS
from paper_repro.tables.figure import figure_of
from paper_repro.tables.view import View
from paper_repro.tests.support.made_up import Made, Numbers, Place, estimate, estimated, value, view


def near(number: float) -> Any:
    return pytest.approx(number, rel=1e-4)


def test_the_rate_is_chosen_on_validation_and_judged_on_the_items_of_the_test_split() -> None:
    items = {"attention": [2.0, 3.0, 4.5], "llama": [2.5, 3.5, 4.0]}

    def losses(place: Place, seed: int) -> Numbers:
        chosen = {"llama": "2e-3", "attention": "8e-3"}[place["model"]] == place["lr"]
        return {"val_loss": 3.0 - chosen, "test_loss": 4.0 + chosen + seed + (place["model"] == "llama")}

    def files(place: Place, seed: int) -> Mapping[str, bytes]:
        found = [loss + 0.1 * seed * (place["model"] == "llama") for loss in items[place["model"]]]
        return {"test_losses.json": json.dumps({"losses": found}).encode()}

    claim, seeds_only = "attention_half_parameters", Made(losses, noise=0.0, seeds=(0, 1, 2))
    assert estimated("cem/fig2a", claim, seeds_only) == near(math.exp(-1.0))
    found = estimate(view("cem/fig2a", replace(seeds_only, files=files)), claim)
    assert found.items == SEEDS_AND_ITEMS and value(found) == near(math.exp(-0.5 / 3 - 0.1))
    assert found.interval is not None and found.interval.high > 0.5  # three items tell little


def test_tied_attention_saves_half() -> None:
    assert estimated("cem/table1", "half_of_the_attention", Made(known=True)) == 0.5


def valley(at: Mapping[str, float], gain: float = 0.0) -> Made:
    """A parabola of each model's loss over log2 of the rate, lowest at a rate that moves a little with the seed."""

    def losses(place: Place, seed: int) -> Numbers:
        away = math.log2(float(place["lr"]) / at.get(place["model"], 0.006)) - 0.03 * seed
        return {"val_loss": 4.0 - gain * (place["model"] == "full") + 0.02 * away**2 + 0.001 * seed}

    return Made(losses)


def test_best_rates_are_read_off_each_seeds_interpolant() -> None:
    made = valley({"llama": 0.003, "full": 0.006})

    def files(place: Place, seed: int) -> dict[str, bytes]:
        loss = made.metrics(place, seed)["val_loss"]
        return {"test_losses.json": json.dumps({"losses": [loss - 0.1, loss + 0.1]}).encode()}

    found = estimate(view("cem/fig3a", replace(made, files=files)), "higher_rate")
    assert found.items == SEEDS_AND_ITEMS
    # One doubling; Akima between points of a parabola is off by less than a tenth of one.
    assert found.interval is not None and found.interval.mean == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("name", ["fig3a", "fig5"])
def test_lowest_perplexities_are_compared_at_each_models_own_rate(name: str) -> None:
    made = valley({"full": 0.0038, "llama": 0.0044}, 0.05)
    assert estimated(f"cem/{name}", "full_cem_better", made) == pytest.approx(math.exp(-0.05), abs=2e-3)


@pytest.mark.parametrize("at", [{"llama": 0.1}, {"full": 1e-5}])
def test_a_best_rate_at_the_edge_of_the_grid_tells_nothing(at: Mapping[str, float]) -> None:
    assert estimate(view("cem/fig3a", valley(at)), "higher_rate").interval is None


def diverged(found: View, model: str, lr: str, seed: int) -> View:
    """Return the view in which one run of a sweep diverged."""
    (key,) = (key for key in found.points if {("model", model), ("lr", lr)} <= {*key})
    own = {**found.points[key].own, seed: replace(found.points[key].own[seed], status=DIVERGED, metrics={})}
    return replace(found, points={**found.points, key: replace(found.points[key], own=own)})


def test_a_rate_at_which_a_seed_diverged_is_left_out() -> None:
    found = diverged(view("cem/fig3a", valley({"llama": 0.003, "full": 0.003})), "full", "1.6e-2", 1)
    best = optimum(sweep(found, "reduced", "full"))
    assert not isinstance(best, str) and not best.at_edge
    figure = figure_of(found)
    assert figure is not None
    rows = [row for row in figure.rows() if row["model"] == "full"]
    assert [(row["rate"], row["seed"], row["perplexity"]) for row in rows if row["note"]] == [(0.016, 1, "")]
    interval = estimate(found, "higher_rate").interval
    assert interval is not None and interval.mean == pytest.approx(0.0, abs=0.05)

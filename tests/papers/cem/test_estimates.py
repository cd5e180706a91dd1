"""Each estimate of CEM's claims on made-up losses with a known answer, and what divergence and edges of a grid do."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from paper_repro.cells.tasks import DIVERGED
from paper_repro.papers.cem.bases.rates import optimum, sweep
from paper_repro.tables.claims import SEEDS_AND_ITEMS
from paper_repro.tables.figure import figure_of
from paper_repro.tables.view import View
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made, Place

Loss = Callable[[Place], float]


def value(name: str, claim: str, made: Made) -> float:
    """Return an estimate as it is printed."""
    return made_up.value(made_up.estimate(made_up.view(f"cem/{name}", made), claim))


def text(loss: Loss) -> Made:
    return Made(lambda place, seed: {"val_loss": loss(place) + 0.01 * seed}, noise=1e-6)


def lower(gains: Mapping[str, float], axis: str = "model") -> Made:
    """A loss of 4, less what the value of an axis gains."""
    return text(lambda place: 4.0 - gains.get(place[axis], 0.0))


def near(number: float) -> Any:
    return pytest.approx(number, rel=1e-4)


SIDES: dict[str, tuple[str, str, str]] = {
    "fig2a attention_half_parameters": ("model", "attention", "llama"),
    "fig2b mlp_matched": ("model", "mlp_matched", "llama"),
    "fig2c attention_beats_llama": ("model", "attention", "llama"),
    "fig2c recursion_helps": ("steps", "t2", "t1"),
    "fig2c preconditioner_at_t2": ("preconditioner", "diagonal_low_rank", "none"),
    "fig2d recursion_helps": ("steps", "t2", "t1"),
    "fig2d preconditioner_at_t2": ("preconditioner", "diagonal_low_rank", "none"),
    "fig2d mlp_below_llama": ("model", "mlp", "llama"),
    "fig3b diagonal_essential": ("model", "none", "shared"),
    "fig3b shared_close_to_per_head": ("model", "shared", "per_head"),
    "fig3c reuse_useless": ("steps", "t2", "t1"),
    "fig4 reuse_useless": ("steps", "t2", "t1"),
}
"""By artifact and claim: the axis on which its sides differ, and the value of either side."""


@pytest.mark.parametrize("name", SIDES)
def test_a_ratio_of_perplexities_is_of_the_sides_that_the_claim_names(name: str) -> None:
    (artifact, claim), (axis, of, to) = name.split(), SIDES[name]
    for better, sign in ((of, -1), (to, 1)):
        made = replace(lower({better: 0.05}, axis), seeds=(0, 1, 2))
        assert value(artifact, claim, made) == near(math.exp(sign * 0.05))


def test_the_rate_is_chosen_on_validation_and_judged_on_the_items_of_the_test_split() -> None:
    items = {"attention": [2.0, 3.0, 4.5], "llama": [2.5, 3.5, 4.0]}

    def losses(place: Place, seed: int) -> Mapping[str, float]:
        chosen = {"llama": "2e-3", "attention": "8e-3"}[place["model"]] == place["lr"]
        return {"val_loss": 3.0 - chosen, "test_loss": 4.0 + chosen + seed + (place["model"] == "llama")}

    def files(place: Place, seed: int) -> Mapping[str, bytes]:
        found = [loss + 0.1 * seed * (place["model"] == "llama") for loss in items[place["model"]]]
        return {"test_losses.json": json.dumps({"losses": found}).encode()}

    seeds_only = Made(losses, noise=0.0, seeds=(0, 1, 2))
    assert value("fig2a", "attention_half_parameters", seeds_only) == near(math.exp(-1.0))
    found = made_up.estimate(made_up.view("cem/fig2a", replace(seeds_only, files=files)), "attention_half_parameters")
    assert found.items == SEEDS_AND_ITEMS and made_up.value(found) == near(math.exp(-0.5 / 3 - 0.1))
    assert found.interval is not None and found.interval.high > 0.5  # three items tell little


def test_errors_of_regression_are_pooled_over_the_kernels() -> None:
    level = {"rbf": 0.01, "matern": 0.2, "periodic": 0.04, "rational_quadratic": 0.06, "non_stationary": 0.03}
    factor = {"plain": 1.5, "gated": 1.2, "t1": 1.0, "t2": 0.8}

    def made(factors: Mapping[str, float], matern: float = 1.0) -> Made:
        def errors(place: Place, seed: int) -> Mapping[str, float]:
            own = factors.get(place["model"], 1.0) * (matern if place["kernel"] == "matern" else 1.0)
            return {"test_rmse": level[place["kernel"]] * own * (1 + 0.1 * seed)}

        return Made(errors, noise=1e-6)

    assert value("table3", "gp_order", made(factor)) == near(0.8)
    assert value("table3", "plain_above_gated", made(factor)) == near(1.25)
    assert value("table3", "gated_above_t1", made(factor)) == near(1.2)
    swapped = {"t1": factor["t2"], "t2": factor["t1"], "gated": factor["plain"], "plain": factor["gated"]}
    assert value("table3", "gp_order", made(swapped)) == near(1.25)
    assert value("table3", "plain_above_gated", made(swapped)) == near(0.8)
    assert value("table3", "gp_fewer_parameters", Made(parameters=lambda place: len(place["model"]))) == 2


def test_tied_attention_saves_half() -> None:
    known = Made(known=True)
    assert value("table1", "half_of_the_attention", known) == 0.5
    # At 86M the attention of eight layers has 4 x 672^2 parameters each.
    more = 0.1 * 4 * 672**2 * 8

    def counts(place: Place, seed: int) -> Mapping[str, float]:
        before = made_up.view("cem/table1", known).samples("parameters", place)[0]
        return {"parameters": before - more * (place == {"size": "m86", "model": "attention"})}

    changed = made_up.estimate(made_up.view("cem/table1", Made(counts, noise=0.0, known=True)), "half_of_the_attention")
    shares = {label: part.mean for label, part in changed.parts}
    assert shares == pytest.approx({"86M": 0.6, "108M": 0.5, "134M": 0.5, "162M": 0.5})


def valley(at: Mapping[str, float], gains: Mapping[str, float]) -> Made:
    """A parabola of each model's loss over log2 of the rate, lowest at a rate that moves a little with the seed."""

    def losses(place: Place, seed: int) -> Mapping[str, float]:
        away = math.log2(float(place["lr"]) / at.get(place["model"], 0.006)) - 0.03 * seed
        return {"val_loss": 4.0 - gains.get(place["model"], 0.0) + 0.02 * away**2 + 0.001 * seed}

    return Made(losses, noise=1e-7)


def test_best_rates_are_read_off_each_seeds_interpolant() -> None:
    found = made_up.estimate(made_up.view("cem/fig3a", valley({"llama": 0.003, "full": 0.006}, {})), "higher_rate")
    # One doubling; Akima between points of a parabola is off by less than a tenth of one.
    assert found.interval is not None and found.interval.mean == pytest.approx(1.0, abs=0.1)
    back = made_up.estimate(made_up.view("cem/fig3a", valley({"llama": 0.006, "full": 0.003}, {})), "higher_rate")
    assert back.interval is not None and back.interval.mean == pytest.approx(-1.0, abs=0.1)


@pytest.mark.parametrize("name", ["fig3a", "fig5"])
def test_lowest_perplexities_are_compared_at_each_models_own_rate(name: str) -> None:
    at = {"full": 0.0038, "llama": 0.0044}
    assert value(name, "full_cem_better", valley(at, {"full": 0.05})) == pytest.approx(math.exp(-0.05), abs=2e-3)
    assert value(name, "full_cem_better", valley(at, {"llama": 0.05})) == pytest.approx(math.exp(0.05), abs=2e-3)


@pytest.mark.parametrize("at", [{"llama": 0.1}, {"full": 1e-5}])
def test_a_best_rate_at_the_edge_of_the_grid_tells_nothing(at: Mapping[str, float]) -> None:
    view = made_up.view("cem/fig3a", valley(at, {}))
    assert (
        made_up.estimate(view, "higher_rate").interval is None
        and made_up.estimate(view, "full_cem_better").interval is None
    )


def diverged(view: View, model: str, lr: str, seed: int) -> View:
    """Return the view in which one run of a sweep diverged."""
    (key,) = (key for key in view.points if {("model", model), ("lr", lr)} <= {*key})
    own = {**view.points[key].own, seed: replace(view.points[key].own[seed], status=DIVERGED, metrics={})}
    return replace(view, points={**view.points, key: replace(view.points[key], own=own)})


def test_a_rate_at_which_a_seed_diverged_is_left_out() -> None:
    view = diverged(made_up.view("cem/fig3a", valley({"llama": 0.003, "full": 0.003}, {})), "full", "1.6e-2", 1)
    best = optimum(sweep(view, "reduced", "full"))
    assert not isinstance(best, str) and not best.at_edge
    figure = figure_of(view)
    assert figure is not None
    rows = [row for row in figure.rows() if row["model"] == "full"]
    assert [(row["rate"], row["seed"], row["perplexity"]) for row in rows if row["note"]] == [(0.016, 1, "")]
    found = made_up.estimate(view, "higher_rate")
    assert found.interval is not None and found.interval.mean == pytest.approx(0.0, abs=0.05)


def test_without_records_there_is_no_estimate() -> None:
    for name in ("fig2c", "fig2d", "fig3a", "table3", "table1"):
        view = made_up.without(made_up.view(f"cem/{name}", Made(scale="exact" if name == "table1" else "cpu")))
        assert all(made_up.estimate(view, claim.id).interval is None for claim in view.artifact.claims)

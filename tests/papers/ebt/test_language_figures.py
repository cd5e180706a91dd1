"""Figures 4, 5 and C.1 and the sweeps of rates on made-up losses that are power laws."""

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from matplotlib.figure import Figure as Canvas

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED
from paper_repro.artifacts.claims import judge as judge_claim
from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.artifacts.plan import Plan
from paper_repro.artifacts.render import figure_of, table_of
from paper_repro.artifacts.views import View
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import FINISHED, Outcome
from paper_repro.papers.ebt import equal_cost
from paper_repro.tests.support.synthetic import fill

NAMES = ("fig4", "fig5", "figC1", "rates")
FLOOR_LOSS = 9.0
TIME_RATIO = 5.0
STEP_FLOPS = {"transformer": 1.0e9, "s1": 4.0e9, "s2": 5.0e9}
Loss = Callable[[str, Mapping[str, float]], float]
"""A loss, from a model's name and its tokens, batch, depth, width, rate and alpha."""


@functools.cache
def plan_of(name: str) -> Plan:
    return plans.make(catalogue.load(f"ebt/{name}"), "cpu")


def sizes_of(cell: PlannedCell) -> dict[str, float]:
    config = cell.config
    data, model = config["data"], config["model"]
    return {
        "tokens": config["training"]["steps"] * data["batch_size"] * data["window"],
        "batch": data["batch_size"],
        "depth": model["num_layers"],
        "width": model["width"],
        "rate": config["optimizer"]["lr"],
        "alpha": model.get("step_size", 1.0),
    }


def made_up(
    name: str, root: Path, loss: Loss, floor: float = FLOOR_LOSS, spread: float = 1e-4, seeds: Any = None
) -> View:
    """Records whose losses differ by ``spread``, relative: in part those of one seed alike, in part on their own."""
    plan = plan_of(name) if seeds is None else plans.make(catalogue.load(f"ebt/{name}"), "cpu", seeds)

    def outcome(cell: PlannedCell) -> Outcome:
        model = dict(cell.key)["model"]
        if model == "times":
            return Outcome(FINISHED, {"ratio_own": TIME_RATIO})
        sizes, own = sizes_of(cell), Random(f"{cell.key} {cell.seed}").uniform(-1, 1)
        moved = 1 + spread * (own + (cell.seed - 1) * (1 + 0.1 * (model != "transformer")))
        shares = (0.2, 0.4, 0.6, 0.8, 1.0)
        steps = cell.config["training"]["steps"]
        curve = [
            (int(share * steps), moved * loss(model, {**sizes, "tokens": share * sizes["tokens"]})) for share in shares
        ]
        parameters = 7 * sizes["depth"] * sizes["width"] ** 2
        metrics = {
            "val_loss": moved * loss(model, sizes),
            "trunk_parameters": parameters,
            "step_flops": STEP_FLOPS[model] * parameters,
        }
        return Outcome(FINISHED, metrics, {"val_loss": curve}, parameters=int(parameters))

    fill(root, plan, outcome, {"val_loss": floor})
    return views.build(plan, root, None)


def law(exponents: Mapping[str, float], factors: Mapping[str, float] | None = None) -> Loss:
    """A loss that falls with tokens, layers and width alike; the batch acts through the tokens."""

    def loss(model: str, sizes: Mapping[str, float]) -> float:
        size = sizes["tokens"] / 1e5 * sizes["depth"] * sizes["width"] / 64
        rate, alpha = BEST[model]
        valley = 1 + 0.01 * (math.log(sizes["rate"] / rate) ** 2 + math.log(sizes["alpha"] / alpha) ** 2)
        return 5 * (factors or {}).get(model, 1.0) * size ** -exponents[model] * valley

    return loss


def _best() -> dict[str, tuple[float, float]]:
    """Rate and alpha of each model's middle setting."""
    middle = {"rate": "one", "alpha": "one"}
    cells = [cell for cell in plan_of("rates").cells if middle.items() <= dict(cell.key).items()]
    sizes = {dict(cell.key)["model"]: sizes_of(cell) for cell in cells}
    return {model: (own["rate"], own["alpha"]) for model, own in sizes.items()}


BEST = _best()
EQUAL = {"transformer": 0.1, "s1": 0.1, "s2": 0.1}
FASTER = {"transformer": 0.1, "s1": 0.2, "s2": 0.3}
SLOWER = {"transformer": 0.2, "s1": 0.1, "s2": 0.05}
WORSE = {"s1": 1.2, "s2": 2.0}


def words(view: View) -> dict[str, str]:
    return {claim.id: judge_claim(claim, view).verdict for claim in view.artifact.claims}


@pytest.mark.parametrize(("exponents", "expected"), [(FASTER, HOLDS), (SLOWER, FAILS)])
def test_data_batch_and_depth_are_judged_by_exponents(
    tmp_path: Path, exponents: dict[str, float], expected: str
) -> None:
    assert words(made_up("fig4", tmp_path, law(exponents))) == {"data_batch_depth": expected}


def test_noise_larger_than_the_difference_decides_nothing(tmp_path: Path) -> None:
    view = made_up("fig4", tmp_path, law({"transformer": 0.1, "s1": 0.101}), spread=0.05)
    assert words(view) == {"data_batch_depth": UNDECIDED}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_is_not_below_the_floor_decides_nothing(tmp_path: Path, name: str) -> None:
    view = made_up(name, tmp_path, law(FASTER), floor=1.0)
    found = [judge_claim(claim, view) for claim in view.artifact.claims]
    assert {judgement.verdict for judgement in found} == {NOT_JUDGED}
    reasons = [part.because for judgement in found for _, part in judgement.parts or (("", judgement),)]
    assert all("Bigram count 1.0000" in reason for reason in reasons), reasons


def test_the_exponents_of_the_summary_are_those_that_were_put_in(tmp_path: Path) -> None:
    """Over FLOPs, of which a run at size 1/4, 1/2 and 1 has 1/16, 1/4 and 1."""

    def over_flops(model: str, sizes: Mapping[str, float]) -> float:
        return 100 * (sizes["tokens"] * sizes["depth"] * sizes["width"] ** 2) ** -0.1

    view = made_up("fig5", tmp_path, over_flops)
    found = table_of(view).summary()
    assert found["exponent_transformer"] == pytest.approx(0.1, abs=1e-3)
    assert found["exponent_s1"] == pytest.approx(0.1, abs=1e-3)
    assert found["flops_ratio"] == pytest.approx(4.0)
    assert found["rule_ratio"] == pytest.approx(40 / 6)


def test_figure_5s_claims_hold_and_fail(tmp_path: Path) -> None:
    rates = ("rate_over_parameters_and_flops", "rate_over_width")
    faster = words(made_up("fig5", tmp_path / "a", law(FASTER, {"s1": 4.0}), floor=99.0))
    assert {faster[name] for name in (*rates, "worse_at_small_size")} == {HOLDS}
    assert faster["better_at_equal_flops"] == faster["better_at_equal_time"] == FAILS
    slower = words(made_up("fig5", tmp_path / "b", law(SLOWER, {"s1": 0.3}), floor=99.0))
    assert {slower[name] for name in (*rates, "worse_at_small_size")} == {FAILS}
    assert slower["better_at_equal_flops"] == slower["better_at_equal_time"] == HOLDS


def test_equal_cost_is_read_off_the_longer_runs(tmp_path: Path) -> None:
    view = made_up("fig5", tmp_path, law(EQUAL), spread=0.0)
    summary = table_of(view).summary()
    assert summary["equal_tokens"] == pytest.approx(1.0)
    assert summary["equal_flops"] == pytest.approx(4.0**0.1)
    assert summary["equal_rule_flops"] == pytest.approx((40 / 6) ** 0.1)
    assert summary["equal_time"] == pytest.approx(TIME_RATIO**0.1)
    compared = equal_cost.equal_cost(view, 3.0)
    assert compared is not None and compared.mean == pytest.approx(3.0**0.1)
    assert equal_cost.equal_cost(view, 8.5) is None  # nothing is extrapolated


def test_s2_may_scale_a_little_slower_and_has_to_start_higher(tmp_path: Path) -> None:
    def judged(s2: float, factors: dict[str, float]) -> str:
        exponents = {"s1": 0.1, "s2": s2}
        name = f"{s2}-{factors['s2']}"
        return words(made_up("figC1", tmp_path / name, law(exponents, factors), floor=99.0))["s2_scales_like_s1"]

    assert judged(0.1, {"s2": 1.5}) == HOLDS
    assert judged(0.095, {"s2": 1.5}) == HOLDS
    assert judged(0.08, {"s2": 1.5}) == FAILS
    assert judged(0.1, {"s2": 0.7}) == FAILS


def test_a_best_rate_or_alpha_at_an_edge_fails(tmp_path: Path) -> None:
    assert set(words(made_up("rates", tmp_path / "one", law(EQUAL), seeds=[0])).values()) == {UNDECIDED}
    assert set(words(made_up("rates", tmp_path / "a", law(EQUAL))).values()) == {HOLDS}

    def at_an_edge(model: str, sizes: Mapping[str, float]) -> float:
        return 5 - math.log(sizes["rate"]) / 10 - math.log(sizes["alpha"]) / 10

    assert set(words(made_up("rates", tmp_path / "b", at_an_edge)).values()) == {FAILS}


@pytest.mark.parametrize("name", NAMES)
def test_figures_draw_what_their_rows_hold(tmp_path: Path, name: str) -> None:
    figure = figure_of(made_up(name, tmp_path / "runs", law(FASTER, WORSE)))
    assert figure is not None
    rows = figure.rows()
    assert rows and {line.value for line in figure.floors()} == {FLOOR_LOSS}
    assert all(path.stat().st_size > 500 for path in figure.write(tmp_path))
    lines = (tmp_path / "figure.csv").read_text().splitlines()
    assert lines[-1].endswith(f"Bigram count,{FLOOR_LOSS}") and len(lines) == 1 + len(rows) + 1


def test_a_high_loss_at_one_rate_does_not_flatten_the_panel_of_alpha(tmp_path: Path) -> None:
    figure = figure_of(made_up("rates", tmp_path, law(FASTER, WORSE)))
    assert figure is not None
    canvas = Canvas()
    figure.draw(canvas, figure.rows())
    rates, alphas = canvas.axes
    assert not rates.get_shared_y_axes().joined(rates, alphas)


@pytest.mark.parametrize("name", NAMES)
def test_without_runs_nothing_is_said(tmp_path: Path, name: str) -> None:
    view = views.build(plan_of(name), tmp_path, None)
    assert set(words(view).values()) == {UNDECIDED}
    figure: Any = figure_of(view)
    assert figure.rows() == []
    assert table_of(view).remarks() == []


def test_a_floor_prints_a_loss_and_nothing_of_a_training(tmp_path: Path) -> None:
    table = table_of(made_up("fig5", tmp_path, law(EQUAL)))
    grid = table.grid()
    (row,) = (row for row in grid.rows if row[0] == "Floor: Bigram count")
    printed = {header for header, cell in zip(grid.headers, row, strict=True) if cell}
    assert printed == {"Model", "Validation loss"}
    assert {one["quantity"] for one in table.long_rows() if one.get("floor") == "bigram"} == {"val_loss"}


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_what_artifacts_share_is_trained_once(scale: str) -> None:
    """The base run of S1 stands in figures 4, 5 and C.1 and among the rates."""

    def cells(name: str, **place: str) -> set[str]:
        found = plans.make(catalogue.load(f"ebt/{name}"), scale).cells
        return {cell.settings for cell in found if place.items() <= dict(cell.key).items() and cell.seed == 0}

    (base,) = cells("fig5", model="s1", size="one", width="one", budget="one")
    assert cells("fig4", model="s1", batch="one", depth="one") == {base}
    assert cells("rates", model="s1", rate="one", alpha="one") == {base}
    assert cells("figC1", model="s1") == {base}

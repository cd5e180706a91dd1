"""Figures 3a and 5 on made-up curves over the learning rate."""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paper_repro.artifacts import catalogue, render, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement
from paper_repro.artifacts.views import View
from paper_repro.base.errors import UsageError
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import DIVERGED, FINISHED, Outcome
from paper_repro.tests.support.synthetic import fill

NAMES = ("fig3a", "fig5")
Curve = Callable[[str, float, int], float | None]
"""Loss by model, log2 of the rate in thousandths and seed; None: diverged."""


def made_up(name: str, root: Path, curve: Curve, only: tuple[str, ...] = ()) -> View:
    plan = plans.make(catalogue.load(f"cem/{name}"), "cpu")

    def outcome(cell: PlannedCell) -> Outcome | None:
        place = dict(cell.key)
        if only and place["lr"] not in only:
            return None
        loss = curve(place["model"], math.log2(cell.config["optimizer"]["lr"] / 1e-3), cell.seed)
        if loss is None:
            return Outcome(DIVERGED, parameters=400_000, note="diverged")
        return Outcome(FINISHED, {"val_loss": loss}, parameters=400_000, seconds=1.0)

    fill(root, plan, outcome)
    return views.build(plan, root, None)


def valley(llama: float, full: float, lower: float = 0.01) -> Curve:
    """A valley each, CEM's lower by some nats; a seed moves both models' by as much."""

    def curve(model: str, exponent: float, seed: int) -> float:
        at = {"llama": llama, "full": full}[model] + 0.05 * seed
        return 4 + 0.02 * (exponent - at) ** 2 - lower * (model == "full") + 0.001 * seed

    return curve


def table(view: View) -> Any:
    return render.table_of(view)


def judged(view: View) -> dict[str, Judgement]:
    return {claim.id: judgement for claim, judgement in table(view).judgements()}


def words(view: View) -> dict[str, str]:
    return {name: judgement.verdict for name, judgement in judged(view).items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_best_rate_is_read_off_the_interpolant(name: str, tmp_path: Path) -> None:
    view = made_up(name, tmp_path, valley(1.2, 2.3))
    assert words(view) == {"full_cem_better": HOLDS, "higher_rate": HOLDS}
    remarks = table(view).remarks()
    assert len(remarks) == 2 and all(": optimum " in remark for remark in remarks)
    (part,) = judged(view)["higher_rate"].parts
    # 1.1 doublings apart; Akima between points of a parabola is off by less than a tenth of a doubling.
    assert float(part[1].because.split()[0]) == pytest.approx(1.1, abs=0.1)


def test_a_lower_rate_or_a_worse_best_fails(tmp_path: Path) -> None:
    assert words(made_up("fig3a", tmp_path / "a", valley(2.3, 1.2, -0.02))) == {
        "full_cem_better": FAILS,
        "higher_rate": FAILS,
    }
    inside = made_up("fig3a", tmp_path / "b", valley(2.3, 2.3, -0.005))  # half a per cent above
    assert words(inside)["full_cem_better"] == HOLDS


def test_an_optimum_at_an_edge_is_named_and_decides_only_what_it_can(tmp_path: Path) -> None:
    above = made_up("fig3a", tmp_path / "a", valley(1.5, 5.0, 0.05))
    assert words(above) == {"full_cem_better": HOLDS, "higher_rate": HOLDS}  # CEM's true optimum is farther out
    assert "CEM's best at the edge of the grid in 3" in judged(above)["higher_rate"].parts[0][1].because
    assert any("at the edge of the grid" in remark for remark in table(above).remarks())
    below = made_up("fig3a", tmp_path / "b", valley(5.0, 1.5, -0.05))
    assert words(below) == {"full_cem_better": FAILS, "higher_rate": FAILS}
    beyond = made_up("fig3a", tmp_path / "c", valley(5.0, 1.5, 0.5))  # Llama may be better beyond the grid
    assert words(beyond)["full_cem_better"] == UNDECIDED
    low = made_up("fig3a", tmp_path / "d", valley(-1.0, -1.0))  # both may lie anywhere below
    assert words(low)["higher_rate"] == UNDECIDED
    opposite = made_up("fig3a", tmp_path / "e", valley(-1.0, 5.0, -0.5))  # CEM may be better beyond the grid
    # Both ends of the grid in every seed: a difference without a spread.
    assert words(opposite) == {"full_cem_better": UNDECIDED, "higher_rate": UNDECIDED}


def test_a_diverged_rate_is_left_out_and_named(tmp_path: Path) -> None:
    def curve(model: str, exponent: float, seed: int) -> float | None:
        return None if (model, exponent, seed) == ("full", 4.0, 1) else valley(1.2, 2.0)(model, exponent, seed)

    view = made_up("fig3a", tmp_path, curve)
    assert "diverged and left out: 0.016" in table(view).remarks()[1]
    assert words(view)["higher_rate"] == HOLDS


@pytest.mark.parametrize(("only", "found"), [(("4e-3",), "1 of 1"), (("2e-3", "4e-3"), "2 of 2")])
def test_too_few_rates_are_said_in_table_figure_and_claims(only: tuple[str, ...], found: str, tmp_path: Path) -> None:
    view = made_up("fig3a", tmp_path, valley(1.2, 2.3), only)
    sentence = f"{found} learning rates converged, Akima interpolation needs at least 3: add rates to the sweep"
    assert table(view).remarks() == [f"{label}, reduced: no optimum: {sentence}." for label in ("Llama", "CEM")]
    assert set(words(view).values()) == {UNDECIDED}
    written = {path.name: path for path in _figure(view).write(tmp_path / "figure")}
    assert sentence in written["figure.svg"].read_text()


def test_nothing_run_is_said(tmp_path: Path) -> None:
    view = views.build(plans.make(catalogue.load("cem/fig3a"), "cpu"), tmp_path, None)
    assert all("the learning-rate sweep is empty: run its cells first" in text for text in table(view).remarks())
    assert set(words(view).values()) == {UNDECIDED}
    assert len(_figure(view).write(tmp_path / "figure")) == 3


def test_the_figure_has_every_run_and_a_star_for_each_sweep(tmp_path: Path) -> None:
    view = made_up("fig3a", tmp_path, valley(1.2, 2.3))
    written = {path.name: path for path in _figure(view).write(tmp_path / "figure")}
    rows = list(csv.DictReader(written["figure.csv"].open()))
    assert sum(row["kind"] == "run" for row in rows) == 2 * 5 * 3
    stars = {row["model"]: float(row["rate"]) for row in rows if row["kind"] == "optimum"}
    assert stars["llama"] < stars["full"] and 1e-3 < stars["llama"] < 16e-3


@pytest.mark.parametrize("rates", ["[]", '["4e-3"]', '["2e-3", "4e-3"]'])
def test_a_grid_that_no_interpolant_fits_is_refused_before_anything_runs(rates: str, tmp_path: Path) -> None:
    path = tmp_path / "cem" / "mine.yaml"
    path.parent.mkdir()
    scales = f"scales: {{cpu: {{only: {{lr: {rates}}}}}}}"
    path.write_text(f"like: cem/rates\ntitle: Few rates\nsource: {{where: a test}}\n{scales}\n")
    with pytest.raises(UsageError) as caught:
        plans.make(catalogue.load_file(path), "cpu")
    message = str(caught.value)
    assert str(path) in message
    assert ("'lr'" in message) and ("needs at least 3" in message or rates == "[]")


@pytest.mark.parametrize("name", NAMES)
def test_every_scale_runs_its_grid(name: str) -> None:
    artifact = catalogue.load(f"cem/{name}")
    for scale, count in (("smoke", 3), ("cpu", 5), ("gpu", 5), ("paper", 5)):
        cells = plans.make(artifact, scale, [0]).cells
        rates = sorted({cell.config["optimizer"]["lr"] for cell in cells})
        assert len(rates) == count and rates[-1] / rates[0] == pytest.approx(2.0 ** (count - 1), rel=1e-12)


def test_cem_has_two_layers_more_at_the_larger_size() -> None:
    cells = plans.make(catalogue.load("cem/fig5"), "paper", [0]).cells
    assert {(dict(cell.key)["model"], cell.config["model"]["num_layers"]) for cell in cells} == {
        ("llama", 15),
        ("full", 17),
    }


def _figure(view: View) -> Any:
    return render.figure_of(view)

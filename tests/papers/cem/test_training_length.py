"""Whether a second step gains more later in training, on made-up losses."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue, render, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, SMALL
from paper_repro.artifacts.views import View
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import FINISHED, Outcome
from paper_repro.tests.support.synthetic import fill

PLAN = plans.make(catalogue.load("cem/training_length"), "gpu")


def made_up(root: Path, gain: Callable[[str, str], float]) -> View:
    """Loss 4, or 3.5 after the longer training, less what T = 2 gains there."""

    def outcome(cell: PlannedCell) -> Outcome:
        place = dict(cell.key)
        loss = 4.0 - 0.5 * (place["length"] == "x4") + 0.01 * cell.seed
        if place["steps"] == "t2":
            loss -= gain(place["model"], place["length"]) + 0.0005 * (cell.seed - 1)
        return Outcome(FINISHED, {"val_loss": loss}, parameters=400_000, seconds=1.0)

    fill(root, PLAN, outcome)
    return views.build(PLAN, root, None)


def words(view: View) -> dict[str, str]:
    return {claim.id: judgement.verdict for claim, judgement in render.table_of(view).judgements()}


@pytest.mark.parametrize(
    ("short", "long", "expected"),
    [
        (-0.02, 0.03, (FAILS, HOLDS, HOLDS)),
        (0.03, 0.02, (HOLDS, HOLDS, FAILS)),
        (0.02, -0.03, (HOLDS, FAILS, FAILS)),
        (0.01, 0.01, (HOLDS, HOLDS, SMALL)),
    ],
)
def test_claims_turn_with_the_gain(short: float, long: float, expected: tuple[str, ...], tmp_path: Path) -> None:
    found = words(made_up(tmp_path, lambda _, length: long if length == "x4" else short))
    assert (found["pays_in_short_training"], found["pays_in_long_training"]) == expected[:2]
    assert found["pays_more_in_long_training"] == expected[2]


def test_the_figure_has_the_gain_of_every_seed(tmp_path: Path) -> None:
    view = made_up(tmp_path, lambda model, length: {"mlp": 0.01, "attention": 0.02}[model] * (1 + (length == "x4")))
    figure = render.figure_of(view)
    assert figure is not None
    (path,) = [path for path in figure.write(tmp_path / "figure") if path.suffix == ".csv"]
    rows = list(csv.DictReader(path.open()))
    assert len(rows) == 2 * 2 * 3
    middle = {(row["model"], int(row["tokens"])): float(row["gain"]) for row in rows if row["seed"] == "1"}
    expected = {("mlp", 43_253_760): 0.01, ("mlp", 173_015_040): 0.02}
    expected |= {("attention", 43_253_760): 0.02, ("attention", 173_015_040): 0.04}
    assert middle == pytest.approx(expected, abs=1e-5)

"""Floors: what an artifact names, which cells they are, and what is not judged because of them."""

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paper_repro.artifacts import catalogue, deciding, decisions, floors, intervals, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.claim_rows import claim_document
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, Order, Side, combine, judge
from paper_repro.artifacts.figures import Figure
from paper_repro.artifacts.floor_marks import FloorLine
from paper_repro.artifacts.guards import NOT_JUDGED, guarded
from paper_repro.artifacts.plan import Plan
from paper_repro.artifacts.tables import Table
from paper_repro.artifacts.views import View
from paper_repro.base.errors import UsageError
from paper_repro.base.identity import settings
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.runner import Result
from paper_repro.cells.tasks import FAILED, FINISHED, Outcome
from paper_repro.tests.support import synthetic
from paper_repro.tests.support.synthetic import finished

TEXT = """\
title: Old against new
source: {paper: A paper, where: Table 1}
experiment: cem/gaussian_process
axes:
  kernel: {title: Kernel, sets: data.kernel, values: [rbf, matern]}
  model:
    title: Model
    values:
      old: {label: Old}
      new: {label: New, overrides: {optimizer.lr: 0.001}}
metrics:
  test_rmse: {title: Test RMSE, unit: "", direction: lower, digits: 2}
  train_rmse: {title: Training RMSE, unit: "", direction: lower, digits: 2}
  steps_taken: {title: Steps, unit: "", direction: none, digits: 0}
FLOORS
smallest: {ratio: 0.001, absolute: 1.0e-6, reason: made up}
claims:
  - id: old_above_new
    says: Old is above new, on every kernel
    where: Table 1
    over: [kernel]
    predicate: {order: {metric: test_rmse, greater: {model: old}, lesser: {model: new}}}
scales:
  cpu: {seeds: [0, 1, 2], about: a small one., overrides: {training.steps: 4}}
"""
FLOORS = "floors:\n  target_mean: {metrics: [test_rmse]}\n"
ERRORS = {"old": 0.4, "new": 0.2}


def load(folder: Path, given: str = FLOORS) -> Artifact:
    return synthetic.load(folder, TEXT.replace("FLOORS\n", given))


def plan_of(folder: Path, given: str = FLOORS) -> Plan:
    return plans.make(load(folder, given), "cpu")


def view_of(folder: Path, floor: float | Callable[[PlannedCell], Outcome | None], **errors: float) -> View:
    """Records of both models, a little apart by seed, and of the floor on both kernels."""
    plan = plan_of(folder)
    for cell in plan.cells:
        error = {**ERRORS, **errors}[dict(cell.key)["model"]] * (1 + 0.005 * cell.seed)
        synthetic.write_record(folder / "runs", cell, finished(test_rmse=error, steps_taken=4.0))
    for planned in plan.floors:
        for cell in planned.cells.values():
            made = floor(cell) if callable(floor) else finished(test_rmse=floor + 1e-4 * cell.seed)
            if made is not None:
                synthetic.write_record(folder / "runs", cell, made)
    return views.build(plan, folder / "runs", None)


def judged(view: View) -> Judgement:
    return judge(view.artifact.claims[0], view)


@functools.cache
def shipped_plans() -> dict[str, Plan]:
    """Return the plan of each artifact of the repository at each of its scales."""
    artifacts = {name: catalogue.load(name) for name in catalogue.find()}
    return {f"{name} at scale {word}": plans.make(one, word) for name, one in artifacts.items() for word in one.scales}


def test_every_artifact_that_trains_names_a_floor() -> None:
    for name, plan in shipped_plans().items():
        assert not plan.trains_without_floor, name
        bounded = {key for floor in plan.floors if floor.spec.judges == floors.MODEL for key in floor.keys}
        assert not plan.floors or bounded, f"{name} has floors, of which none judges a model"


def test_what_trains_has_three_seeds_or_more() -> None:
    """One seed decides nothing.  Scale smoke judges nothing."""
    few = {
        name
        for name, plan in shipped_plans().items()
        if not name.endswith(("smoke", "exact")) and len({cell.seed for cell in plan.cells}) < 3
    }
    assert few == set()


def test_an_artifact_that_trains_without_a_floor_is_found(tmp_path: Path) -> None:
    assert plan_of(tmp_path, "").trains_without_floor
    assert not plan_of(tmp_path).trains_without_floor
    assert not plans.make(catalogue.load("cem/table1")).trains_without_floor


def test_models_on_the_same_data_share_a_floor_and_its_id_follows_from_the_data(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert [(floor.name, floor.common(), len(floor.keys)) for floor in plan.floors] == [
        ("target_mean", {"kernel": "rbf"}, 2),
        ("target_mean", {"kernel": "matern"}, 2),
    ]
    ids = {cell.id for floor in plan.floors for cell in floor.cells.values()}
    assert len(ids) == 6 and {cell.id for cell in plan.all_cells} == ids | {cell.id for cell in plan.cells}
    for floor in plan.floors:
        for cell in floor.cells.values():
            assert settings({**cell.config, "optimizer": {}, "model": {}, "training": {}}) == cell.settings
            assert cell.config["data"]["kernel"] == floor.common()["kernel"] and not cell.probes


def test_floors_that_were_rows_keep_their_records() -> None:
    """The floors of EBT and CET were values of an axis; their published records are found by the same ids."""
    published = Path(__file__).parents[2] / "results" / "cells"
    for name, floor in (("ebt/figC1", "bigram"), ("cet/table1", "mean_image"), ("ebt/figB1", "linear_frames")):
        plan = plans.make(catalogue.load(name), "cpu")
        (found,) = (one for one in plan.floors if one.name == floor)
        assert all((published / cell.id / "record.json").is_file() or cell.missing for cell in found.cells.values())


def test_better_models_are_judged_and_others_are_not(tmp_path: Path) -> None:
    assert judged(view_of(tmp_path / "better", 1.0)).verdict == HOLDS
    below = judged(view_of(tmp_path / "below", 0.3))
    assert below.verdict == NOT_JUDGED and below.because == f"2 {NOT_JUDGED}"
    assert "rbf, Old: Test RMSE 0.40, Mean of the targets 0.30" in below.parts[0][1].because


def test_what_cannot_be_told_from_the_floor_is_not_better() -> None:
    floor = {0: 1.0, 1: 1.0, 2: 1.0}
    assert floors.is_better({0: 0.9, 1: 0.91, 2: 0.89}, floor, "lower")
    assert not floors.is_better({0: 0.5, 1: 0.99, 2: 1.3}, floor, "lower")
    assert floors.is_better({0: 1.1, 1: 1.11, 2: 1.09}, floor, "higher")
    assert not floors.is_better(floor, floor, "higher")
    assert floors.is_better({0: 0.9}, floor, "lower") and not floors.is_better({0: 1.0}, floor, "lower")


def test_all_seeds_of_a_model_are_held_against_its_floor() -> None:
    """The first three seeds are better than the floor and all five are not; or all eight are, the first three not."""
    early = dict(enumerate((0.9, 0.91, 0.89, 1.3, 1.3)))
    late = dict(enumerate((0.5, 0.99, 1.3, 0.5, 0.55, 0.5, 0.5, 0.45)))
    for floor in ({0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0}, {0: 1.0, 1: 1.001, 2: 0.999}):
        assert floors.is_better({seed: early[seed] for seed in range(3)}, floor, "lower")
        assert not floors.is_better(early, floor, "lower")
        assert not floors.is_better({seed: late[seed] for seed in range(3)}, floor, "lower")
        assert floors.is_better(late, floor, "lower")
    fixed = floors.difference(early, {0: 1.0, 1: 1.0, 2: 1.0})
    assert fixed == intervals.of([value - 1.0 for value in early.values()]) and fixed.count == 5
    # One that varies and lacks seeds has a spread of its own; one that has them all is paired with them.
    varies = {0: 1.0, 1: 1.2, 2: 0.8}
    assert floors.difference(early, varies) == intervals.welch(list(early.values()), list(varies.values()))
    paired = floors.difference({0: 0.9, 2: 0.7}, varies)
    assert paired.paired and paired.count == 2 and paired.mean == pytest.approx(-0.1) and paired.high < 0


def test_more_seeds_may_let_a_model_pass_where_its_interval_reaches_the_better_side() -> None:
    floor = dict.fromkeys(range(3), 1.0)
    assert floors.may_pass({0: 0.5, 1: 0.99, 2: 1.3}, floor, "lower")
    assert floors.may_pass({0: 0.5, 1: 1.01, 2: 1.6}, floor, "lower")  # its mean is worse, and may not be
    assert not floors.may_pass({0: 1.1, 1: 1.11, 2: 1.09}, floor, "lower")
    assert floors.may_pass({0: 1.5, 1: 1.0, 2: 0.7}, floor, "higher") and not floors.may_pass(floor, floor, "higher")
    assert floors.may_pass({0: 1.1}, floor, "lower")  # of one seed nobody knows


def test_not_judged_is_open_where_every_part_may_pass() -> None:
    passing, final = Judgement(NOT_JUDGED, "", may_pass=True), Judgement(NOT_JUDGED, "")
    undecided, held, failed = (Judgement(word, "") for word in (UNDECIDED, HOLDS, FAILS))
    assert passing.is_open and undecided.is_open and not (final.is_open or held.is_open or failed.is_open)
    assert combine([("", passing), ("", undecided), ("", held)], FAILS, HOLDS).is_open
    assert not combine([("", passing), ("", final)], FAILS, HOLDS).is_open
    assert not combine([("", passing), ("", failed)], FAILS, HOLDS).is_open


def test_a_model_below_one_floor_for_good_does_not_pass_because_it_may_pass_another(tmp_path: Path) -> None:
    given = "floors:\n  target_mean: {metrics: [test_rmse]}\n  mine: {label: Mine, direction: lower, "
    plan = plan_of(tmp_path, given + 'values: {test_rmse: 0.1}, about: "a reason"}\n')
    noise = {0: -0.05, 1: 0.0, 2: 0.06}
    synthetic.fill(tmp_path / "runs", plan, lambda cell: finished(test_rmse=0.4 + noise[cell.seed]), {"test_rmse": 0.4})
    view = views.build(plan, tmp_path / "runs", None)
    (found,) = {floors.shortfall(view, key, "test_rmse") for key in list(view.points)[:1]}
    assert found is not None and "Mean of the targets" in found.because and not found.may_pass
    witness = view.witness()
    for place in map(dict, view.points):
        witness.samples("test_rmse", place)
    below = witness.shortfall()
    assert below is not None and below.because == found.because and not below.may_pass


def with_looks(folder: Path) -> Plan:
    text = TEXT.replace("FLOORS\n", FLOORS).replace("seeds: [0, 1, 2]", "seeds: [0, 1, 2], looks: [3, 5, 8, 12]")
    return plans.make(synthetic.load(folder, text), "cpu")


def runner(root: Path, later: float) -> Callable[[Plan], Result]:
    """Write records of the old model, with one of the first three seeds above the floor of 4 and then as given, and of
    the new one.
    """

    def outcome(cell: PlannedCell) -> Outcome:
        old = (3.4, 3.5, 4.6)[cell.seed] if cell.seed < 3 else later + 0.01 * cell.seed
        error = old if dict(cell.key)["model"] == "old" else 2.0 + 0.01 * cell.seed
        return dataclasses.replace(finished(test_rmse=error), seconds=10.0)

    def run(plan: Plan) -> Result:
        synthetic.fill(root, plan, outcome, {"test_rmse": 4.0})
        return Result({FINISHED: len(plan.cells)})

    return run


@pytest.mark.parametrize(("later", "verdict", "look"), [(3.3, HOLDS, 8), (6.0, NOT_JUDGED, 8), (3.9, NOT_JUDGED, 12)])
def test_what_is_not_judged_at_one_look_may_be_at_the_next(
    tmp_path: Path, later: float, verdict: str, look: int
) -> None:
    plan, runs = with_looks(tmp_path), tmp_path / "runs"
    claim, run = plan.artifact.claims[0], runner(runs, later)
    run(plan)
    found = decisions.decide(claim, views.build(plan, runs, None))
    assert (found.judgement.verdict, found.look, found.following) == (NOT_JUDGED, 3, 5)
    assert claim_document(claim, found.judgement)["may_pass"] is True
    assert deciding.decide(plan, runs, tmp_path / "none", 1.0, run) == 0
    found = decisions.decide(claim, views.build(plans.with_looks(plan, [runs / plan.folder]), runs, None))
    assert (found.judgement.verdict, found.look, found.following) == (verdict, look, None)
    assert "may_pass" not in claim_document(claim, found.judgement)


def test_a_model_that_is_worse_than_its_floor_gets_no_further_look(tmp_path: Path) -> None:
    plan, runs = with_looks(tmp_path), tmp_path / "runs"
    synthetic.fill(runs, plan, lambda cell: finished(test_rmse=4.5 + 0.01 * cell.seed), {"test_rmse": 4.0})
    found = decisions.decide(plan.artifact.claims[0], views.build(plan, runs, None))
    assert (found.judgement.verdict, found.look, found.following) == (NOT_JUDGED, 3, None)
    assert "may_pass" not in claim_document(plan.artifact.claims[0], found.judgement)

    def never(plan: Plan) -> Result:
        raise AssertionError(f"{len(plan.cells)} cells were run")

    assert deciding.decide(plan, runs, tmp_path / "none", 1.0, never) == 0


def test_a_part_below_the_floor_leaves_the_others_their_say() -> None:
    unknown, held, failed = Judgement(NOT_JUDGED, ""), Judgement(HOLDS, ""), Judgement(FAILS, "")
    undecided = Judgement(UNDECIDED, "")
    assert combine([("", unknown), ("", held)], FAILS, HOLDS).verdict == NOT_JUDGED
    assert combine([("", unknown), ("", failed)], FAILS, HOLDS).verdict == FAILS
    assert combine([("", unknown), ("", undecided), ("", held)], FAILS, HOLDS).verdict == NOT_JUDGED
    assert combine([("", unknown), ("", held)], HOLDS, FAILS).verdict == HOLDS


def test_functions_are_judged_by_what_they_read(tmp_path: Path) -> None:
    view = view_of(tmp_path, 0.3)
    good, bad = {"kernel": "rbf", "model": "new"}, {"kernel": "rbf", "model": "old"}

    def reads(place: dict[str, str], name: str = "test_rmse") -> Callable[[View], Judgement]:
        def function(view: View) -> Judgement:
            return Judgement(HOLDS if view.samples(name, place) else UNDECIDED, "read")

        return function

    assert guarded(view, reads(good)).verdict == HOLDS
    assert guarded(view, reads(bad)).verdict == guarded(view, reads(bad, "steps_taken")).verdict == NOT_JUDGED
    for way in (lambda seen: seen.attachments("a.csv", bad), lambda seen: seen.judged(seen.point(bad))):
        assert guarded(view, lambda seen, way=way: (way(seen), Judgement(HOLDS, ""))[1]).verdict == NOT_JUDGED
    looked = guarded(view, lambda seen: reads(bad)(seen.unwatched()))
    assert looked.verdict == HOLDS  # to choose with

    def with_parts(seen: View) -> Judgement:
        parts = [("bad", guarded(seen, reads(bad))), ("good", guarded(seen, reads(good)))]
        return combine(parts, FAILS, HOLDS)

    found = guarded(view, with_parts)
    assert found.verdict == NOT_JUDGED and [part.verdict for _, part in found.parts] == [NOT_JUDGED, HOLDS]
    order = Order(Side("test_rmse", bad), Side("test_rmse", good))
    assert order.judge(view, {}).verdict == NOT_JUDGED and order.judge(view.without_floors(), {}).verdict == HOLDS


def test_a_claim_may_say_why_no_floor_holds_it(tmp_path: Path) -> None:
    view = view_of(tmp_path, 0.3)
    text = TEXT.replace("FLOORS\n", FLOORS).replace(
        "    over: [kernel]\n", '    over: [kernel]\n    without_floor: "x"\n'
    )
    assert judge(synthetic.load(tmp_path, text).claims[0], view).verdict == HOLDS


def test_a_floor_that_is_missing_or_failed_decides_nothing_and_says_why(tmp_path: Path) -> None:
    absent = judged(view_of(tmp_path / "absent", lambda cell: None)).parts[0][1]
    assert absent.verdict == UNDECIDED and "no floor: Mean of the targets: not run" in absent.because
    failed = judged(view_of(tmp_path / "failed", lambda cell: Outcome(FAILED, note="no memory"))).parts[0][1]
    assert failed.verdict == UNDECIDED and "Mean of the targets: seed 0 failed: no memory" in failed.because
    other = judged(view_of(tmp_path / "other", lambda cell: finished(train_rmse=1.0))).parts[0][1]
    assert other.verdict == UNDECIDED and "it has not measured test_rmse" in other.because


def test_a_floor_without_data_names_the_command_that_brings_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paper_repro.base.data_files.DATA", tmp_path)
    monkeypatch.delenv("PAPER_REPRO_DATA", raising=False)
    plan = plans.make(catalogue.load("nrgpt/table1"), "cpu")
    (floor,) = plan.floors
    assert all("prepare_data.py docstrings --vocabulary 512" in cell.missing for cell in floor.cells.values())
    measured = floors.MeasuredFloor(floor, {}, {}, (0,))
    assert "prepare_data.py docstrings --vocabulary 512" in measured.lack("best_val_loss")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("target_mean: {metrics: [val_loss]}", "bounds 'val_loss', which no cell measures"),
        ("target_mean: {metrics: [steps_taken]}", "'steps_taken', which has no direction: nothing is better"),
        (
            "target_mean: {metrics: [test_rmse], direction: higher}",
            "passed by a higher number, and of 'test_rmse' lower is better",
        ),
        ("target_mean: {metrics: [test_rmse], direction: up}", "direction is lower or higher, not 'up'"),
        ("target_meen: {metrics: [test_rmse]}", r"'target_meen' is none of papers/floors.yaml \(did you mean"),
        ("target_mean: {}", "'target_mean' bounds no metric"),
        ("target_mean: {metrics: [test_rmse], judges: all}", "judges is model, metrics, nothing, not 'all'"),
        ("target_mean: {metrics: [test_rmse], at: {kernel: rbd}}", "unknown value 'rbd' of axis 'kernel'"),
        ("target_mean: {metrics: [test_rmse], at_scale: {cpo: {}}}", "unknown scale 'cpo'"),
        ("target_mean: {metrics: [test_rmse], values: {test_rmse: 1.0}}", "one of both"),
        ("mine: {label: Mine, direction: lower, values: {test_rmse: 1.0}}", "numbers without their reason"),
        ("target_mean: {metric: [test_rmse]}", "unknown key 'metric'"),
    ],
)
def test_wrong_floors_are_refused_with_file_and_line(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(UsageError, match=rf"up\.yaml:\d+: .*{message}"):
        load(tmp_path, f"floors:\n  {given}\n")


def test_a_floor_of_values_needs_no_cell(tmp_path: Path) -> None:
    given = 'floors:\n  mine: {label: Mine, direction: lower, values: {test_rmse: 0.3}, about: "a reason"}\n'
    plan = plan_of(tmp_path, given)
    assert [(floor.name, floor.cells, len(floor.keys)) for floor in plan.floors] == [("mine", {}, 4)]
    synthetic.fill(tmp_path / "runs", plan, lambda cell: finished(test_rmse=ERRORS[dict(cell.key)["model"]]))
    view = views.build(plan, tmp_path / "runs", None)
    assert {part.verdict for _, part in judged(view).parts} == {NOT_JUDGED}
    assert "Floor, Mine: a reason" in Table(view).notes()


def test_rows_notes_and_cells_of_a_table_name_the_floors(tmp_path: Path) -> None:
    view = view_of(tmp_path, 0.3)
    table = Table(view)
    grid = table.grid()
    assert grid.rows[-2] == ["rbf", "Floor: Mean of the targets", "0.30", "", ""]
    document: Any = table.document()
    ids = {cell.id for floor in view.plan.floors for cell in floor.cells.values()}
    assert {cell for cell, place in document["cells"].items() if place.get("floor") == "target_mean"} == ids
    (row,) = (one for one in document["rows"] if one.get("floor") and one["kernel"] == "rbf")
    assert row["own_mean"] == pytest.approx(0.3001) and row["own_seeds"] == 3 and row["model"] == ""
    notes = " ".join(table.notes())
    assert "Of 4 models 2 are not better than this floor in Test RMSE: rbf, Old; matern, Old." in notes
    better = " ".join(Table(view_of(tmp_path / "better", 9.0)).notes())
    assert "All 4 models are better than this floor in Test RMSE." in better


def test_a_figure_draws_its_floors_and_writes_them_to_the_csv(tmp_path: Path) -> None:
    class Plain(Figure):
        metric = "test_rmse"

        def rows(self) -> list[dict[str, Any]]:
            return [{"x": 1, "y": 0.2}]

        def draw(self, canvas: Any, rows: Any) -> None:
            canvas.subplots().plot([row["x"] for row in rows], [row["y"] for row in rows])

    figure = Plain(view_of(tmp_path, 0.3))
    assert figure.floors() == [FloorLine("Mean of the targets", pytest.approx(0.3001))]
    figure.write(tmp_path)
    assert (tmp_path / "figure.csv").read_text().splitlines()[1:] == ["1,0.2,,", ",,Mean of the targets,0.3001"]
    assert re.search("Mean of the targets", (tmp_path / "figure.svg").read_text())

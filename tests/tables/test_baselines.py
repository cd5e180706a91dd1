"""Trivial baselines: how an artifact names them, which cells they are, and when a model beats one."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import settings
from paper_repro.cells.planned import TRAINING, PlannedCell
from paper_repro.cells.tasks import FAILED, Outcome
from paper_repro.tables import claims, plan, spec, stats, view
from paper_repro.tables.claims import CANNOT_TELL, NOT_BEATEN, SEEN, Judgement
from paper_repro.tables.plan import Plan
from paper_repro.tables.spec import EXACT
from paper_repro.tables.table import Table
from paper_repro.tables.view import View
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
BASELINES
smallest: {ratio: 0.001, reason: made up}
claims:
  - id: old_above_new
    says: Old is above new
    where: Table 1
    ratio: {metric: test_rmse, of: {model: old}, to: {model: new}, over: [kernel]}
    above: 1
scales:
  cpu: {seeds: 3, about: a small one., overrides: {training.steps: 4}}
"""
MEAN = "  target_mean: {metrics: [test_rmse]}\n"
ERRORS = {"old": 0.4, "new": 0.2}
Baselined = Callable[[PlannedCell], Outcome | None]


def plan_of(folder: Path, given: str = MEAN) -> Plan:
    text = TEXT.replace("BASELINES\n", f"baselines:\n{given}" if given else "")
    return plan.make(synthetic.load(folder, text), "cpu")


def view_of(folder: Path, baseline: float | Baselined, given: str = MEAN, **metrics: Mapping[str, float]) -> View:
    """Records of both models, a little apart by seed, and of the baselines on both kernels."""
    made = plan_of(folder, given)
    for cell in made.cells:
        model = dict(cell.key)["model"]
        noise = 1 + (0.005 if model == "old" else 0.002) * cell.seed
        values = {name: found[model] * noise for name, found in {"test_rmse": ERRORS, **metrics}.items()}
        synthetic.write_record(folder / "runs", cell, finished(**values))
    for cell in (cell for one in made.baselines for cell in one.cells.values()):
        found = baseline(cell) if callable(baseline) else finished(test_rmse=baseline + 1e-4 * cell.seed)
        if found is not None:
            synthetic.write_record(folder / "runs", cell, found)
    return view.build(made, folder / "runs", None)


def judged(found: View) -> Judgement:
    return claims.judge(found.artifact.claims[0], found)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(spec.find()))
def test_every_artifact_that_trains_names_a_baseline_and_has_three_seeds(name: str) -> None:
    """One seed decides nothing.  Scale smoke judges nothing."""
    artifact = spec.load(name)
    found = plan.make(artifact, "cpu" if "cpu" in artifact.scales else next(iter(artifact.scales)), [0])
    trained = {cell.key for cell in found.cells if cell.config["task"]["_target_"] == TRAINING}
    bounded = {key for one in found.baselines if one.spec.judges == spec.MODEL for key in one.keys}
    assert trained <= bounded
    seeds = {word: len(scale.seeds) for word, scale in artifact.scales.items() if word not in ("smoke", EXACT)}
    assert all(count >= 3 for count in seeds.values()), seeds


def test_models_on_the_same_data_share_a_baseline_whose_id_follows_from_the_data(tmp_path: Path) -> None:
    found = plan_of(tmp_path)
    assert [(one.name, one.common(), len(one.keys)) for one in found.baselines] == [
        ("target_mean", {"kernel": "rbf"}, 2),
        ("target_mean", {"kernel": "matern"}, 2),
    ]
    ids = {cell.id for one in found.baselines for cell in one.cells.values()}
    assert len(ids) == 6 and {cell.id for cell in found.all_cells} == ids | {cell.id for cell in found.cells}
    for one in found.baselines:
        for cell in one.cells.values():
            assert settings({**cell.config, "optimizer": {}, "model": {}, "training": {}}) == cell.settings
            assert cell.config["data"]["kernel"] == one.common()["kernel"] and not cell.config.get("probes")


def test_better_models_are_judged_and_others_are_not(tmp_path: Path) -> None:
    assert judged(view_of(tmp_path / "better", 1.0)).verdict == SEEN
    below = judged(view_of(tmp_path / "below", 0.3))
    assert below.verdict == NOT_BEATEN and below.because == "rbf, Old: Test RMSE 0.40, Mean of the targets 0.30"
    for baseline in (lambda cell: None, lambda cell: Outcome(FAILED, note="broke"), lambda cell: finished(other=1.0)):
        found = judged(view_of(tmp_path / "absent" / str(id(baseline)), baseline))
        assert found.verdict == CANNOT_TELL and found.because.startswith("no baseline: Mean of the targets: ")


MINE = "mine: {label: Mine, direction: lower, about: a reason, "


@pytest.mark.parametrize(
    ("judges", "value", "verdict"),
    [("model", 0.1, NOT_BEATEN), ("metrics", 0.1, SEEN), ("nothing", 0.1, SEEN), ("model", 0.9, SEEN)],
)
def test_a_baseline_of_another_metric_judges_what_it_says(tmp_path, judges, value, verdict):
    given = f"{MEAN}  {MINE}values: {{train_rmse: {value}}}, judges: {judges}}}\n"
    found = view_of(tmp_path, 1.0, given, train_rmse={"old": 0.3, "new": 0.3})
    assert judged(found).verdict == verdict
    key = next(iter(found.points))
    beaten = None if judges == "nothing" else value > 0.3
    assert found.is_beaten(key, "test_rmse") is True and found.is_beaten(key, "train_rmse") is beaten


def test_all_seeds_of_a_model_are_held_against_its_baseline() -> None:
    """The first three seeds are better than the baseline, and all five are not."""
    model = dict(enumerate((0.9, 0.91, 0.89, 1.3, 1.3)))
    for bound in ({0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0}, {0: 1.0, 1: 1.001, 2: 0.999}):
        assert view.is_better({seed: model[seed] for seed in range(3)}, bound, "lower")
        assert not view.is_better(model, bound, "lower")
    fixed = view.difference(model, {0: 1.0, 1: 1.0, 2: 1.0})
    assert fixed == stats.of([value - 1.0 for value in model.values()]) and fixed.count == 5
    # One that varies and lacks seeds has a spread of its own; one that has them all is paired with them.
    varies = {0: 1.0, 1: 1.2, 2: 0.8}
    assert view.difference(model, varies) == stats.welch(list(model.values()), list(varies.values()))
    paired = view.difference({0: 0.9, 2: 0.7}, varies)
    assert paired.paired and paired.count == 2 and paired.mean == pytest.approx(-0.1) and paired.high < 0


def test_rows_marks_and_cells_of_a_table_name_the_baselines(tmp_path: Path) -> None:
    found = view_of(tmp_path, 0.3)
    table = Table(found)
    grid = table.grid()
    assert [row[0] for row in grid.rows[-2:]] == ["rbf", "matern"] and grid.rows[-2][1:] == [
        "Baseline: Mean of the targets, rbf",
        "0.30",
        "",
    ]
    assert {row[1]: row[2].endswith("‡") for row in grid.rows[:-2]} == {"Old": True, "New": False}
    document = table.document()
    ids = {cell.id for one in found.plan.baselines for cell in one.cells.values()}
    assert {cell for cell, place in document["cells"].items() if place.get("baseline") == "target_mean"} == ids
    (row,) = (one for one in document["rows"] if one.get("baseline") and one["kernel"] == "rbf")
    assert row["own_mean"] == pytest.approx(0.3001) and row["own_seeds"] == 3 and row["model"] == ""
    assert "‡" not in Table(view_of(tmp_path / "better", 9.0)).markdown()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("target_maen: {metrics: [test_rmse]}", "(did you mean 'target_mean'?)"),
        ("target_mean: {metrics: [test_rsme]}", "(did you mean 'test_rmse'?)"),
        ("target_mean: {metrics: [test_rmse], direction: higher}", "its direction is higher"),
        ("target_mean: {metrics: [test_rmse], at: {kernel: rfb}}", "(did you mean 'rbf'?)"),
        ("target_mean: {}", "bounds no metric"),
        (f"{MINE}metrics: [test_rmse]}}", "has a task that measures it, or values: give one"),
        ("mine: {label: Mine, direction: lower, values: {test_rmse: 1}}", "without their reason"),
    ],
)
def test_wrong_baselines_are_refused_with_file_and_line(tmp_path: Path, given: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_of(tmp_path, f"  {given}\n")
    assert str(caught.value).startswith(f"{tmp_path / 'made' / 'up.yaml'}:15: ") and said in str(caught.value)


def test_what_cannot_be_told_from_the_baseline_is_not_better() -> None:
    bound = {0: 1.0, 1: 1.0, 2: 1.0}
    assert not view.is_better({0: 0.5, 1: 0.99, 2: 1.3}, bound, "lower")
    assert view.is_better({0: 1.1, 1: 1.11, 2: 1.09}, bound, "higher")
    assert not view.is_better(bound, bound, "higher")
    assert view.is_better({0: 0.9}, bound, "lower") and not view.is_better({0: 1.0}, bound, "lower")

import csv

import pytest

from paper_repro.tests.training.doubles import assert_same_runs

COUNTS = [1, 2]


@pytest.fixture
def cells(cell):
    def make(kind, count=1, **changes):
        own = {"machine__logger": kind, "machine__log_every_steps": 1, "training__evaluate_every": 4, **changes}
        return [cell(seed=seed, **own) for seed in range(count)]

    return make


def points(folder, kind):
    """Every point of a start of a training as (step, name, value), in order."""
    if kind == "csv":
        with (folder / "metrics.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        return sorted(
            (int(row["step"]), name, float(text))
            for row in rows
            for name, text in row.items()
            if name != "step" and text
        )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return sorted((event.step, tag, event.value) for tag in found.Tags()["scalars"] for event in found.Scalars(tag))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", ["csv", "tensorboard"])
def test_points_are_the_losses_and_evaluations_of_each_start_and_change_no_result(count, kind, cells, run, tmp_path):
    pytest.importorskip("tensorboard", reason="pip install 'paper-repro[tensorboard]'")
    batch = cells(kind, count)
    outcomes, without = run(batch, tmp_path / "a", stops=(7,)), run(cells(None, count), tmp_path / "b")
    assert_same_runs(outcomes, without, batch, (tmp_path / "a", tmp_path / "b"))
    assert not list((tmp_path / "b").rglob("logs"))
    for one, outcome in zip(batch, outcomes, strict=True):
        expected = sorted((step, name, value) for name, curve in outcome.curves.items() for step, value in curve)
        logs = tmp_path / "a" / one.id / "logs"
        found = [*points(logs / "version_0", kind), *points(logs / "version_1", kind)]
        assert [point[:2] for point in found] == [point[:2] for point in expected]
        assert [point[2] for point in found] == pytest.approx([point[2] for point in expected], rel=1e-6)
    rarer = cells(kind, machine__log_every_steps=5, training__evaluate_every=None)
    run(rarer, tmp_path / "c")
    found = points(tmp_path / "c" / rarer[0].id / "logs" / "version_0", kind)
    assert [step for step, name, _ in found if name == "training_loss"] == [5, 10, 12]


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
def test_weights_and_biases_offline_has_a_run_for_each_cell(count, cells, run, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="pip install 'paper-repro[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    batch = cells("wandb", count)
    run(batch, tmp_path)
    for one in batch:
        (file,) = (tmp_path / one.id / "logs").glob("wandb/offline-run-*/run-*.wandb")
        assert all(word in file.read_bytes() for word in (b"training_loss", one.id.encode()))

"""What a sweep shows: time left, names of cells, durations."""

from dataclasses import replace

import pytest

from paper_repro.cells import progress
from paper_repro.cells.jobs import Job
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.progress import RunningJob, Sweep, duration

CELL = PlannedCell((("kernel", "rbf"), ("model", "t2")), 0, {}, "s", "95071d22e59ea75a")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (89, "89 s"),
        (600, "10 min"),
        (6 * 3600, "6.0 h"),
        (47.6 * 3600, "47.6 h"),
        (10 * 86400, "10 days"),
        (571_102.9 * 3600, "65 years"),
    ],
)
def test_a_time_is_told_in_units_that_a_person_would_use(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_start_is_no_part_of_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    sweep = Sweep(total=1, work_total=100.0)
    sweep.running[0] = job = RunningJob("one", 1, 100.0, steps=100)
    assert sweep.eta_seconds() is None
    now, job.step = 130.0, 1  # 30 seconds of imports, then the first step
    assert sweep.eta_seconds() is None
    now, job.step = 140.0, 11  # a step a second
    assert sweep.eta_seconds() == pytest.approx(89.0)
    now, job.step = 150.0, 21
    assert sweep.eta_seconds() == pytest.approx(79.0)


def test_a_job_is_named_by_what_its_cells_share() -> None:
    assert Job((CELL,)).label == "rbf t2 seed 0"
    others = tuple(replace(CELL, seed=seed, key=(("kernel", name), CELL.key[1])) for seed, name in enumerate("abc"))
    assert Job(others).label == "t2 seeds 0-2"
    assert Job((others[0], replace(others[2], seed=5))).label == "t2 seeds 0,5"
    assert Job((replace(CELL, key=()),)).label == "seed 0"
    assert CELL.name == "rbf t2 seed 0"

"""What a sweep shows: time left, names of cells, durations, bars on a terminal and lines elsewhere."""

import io
import re
from dataclasses import replace

import pytest

from paper_repro.base.errors import duration
from paper_repro.cells import progress
from paper_repro.cells.planned import Job, PlannedCell
from paper_repro.cells.progress import Display, RunningJob, Sweep

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


class Clock:
    """A time that only the test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_job_that_goes_on_from_a_checkpoint_counts_its_own_steps_alone(clock: Clock) -> None:
    job = RunningJob("t2", 1, 1.0)
    clock.now += 60.0  # imports and a compile trial
    job.reach(500, 1000, 2.0)
    assert job.rate() is None and job.eta_seconds() is None
    clock.now += 10.0
    job.reach(520, 1000, 2.0)
    assert job.rate() == pytest.approx(2.0) and job.eta_seconds() == pytest.approx(240.0)
    clock.now += 5.0
    assert job.rate() == pytest.approx(2.0) and job.eta_seconds() == pytest.approx(235.0)


def test_elsewhere_than_on_a_terminal_a_line_is_printed_where_something_changed(clock: Clock) -> None:
    sweep, out = Sweep(total=3, done=1, work_total=200.0), io.StringIO()
    sweep.running[4] = job = RunningJob("t2 seed 0", 1, 100.0)

    def wait(seconds: float) -> list[str]:
        before = out.tell()
        for _ in range(int(4 * seconds)):
            clock.now += 0.25
            display.update()
        return out.getvalue()[before:].splitlines()

    with Display(sweep, out) as display:
        assert wait(60) == ["1/3 cells done, 1 running, 1 left: t2 seed 0: no step"]
        job.reach(1, 100, 2.0)
        assert wait(30) == ["1/3 cells done, 1 running, 1 left: t2 seed 0: step 1/100, loss 2"]
        job.reach(11, 100, 1.5)
        (line,) = wait(30)
        assert re.fullmatch(r"1/3 .* 1 left, ETA \d+ min: t2 seed 0: step 11/100, loss 1.5", line), line
        for step in range(12, 22):
            job.reach(step, 100, 1.0)
            assert len(wait(1)) <= 1
        assert len(out.getvalue().splitlines()) == 3 + 1, "a line each ten seconds"
        display.say("t2 diverged")
    assert out.getvalue().endswith("t2 diverged\n")


def test_a_terminal_has_a_bar_for_all_cells_and_one_for_each_job(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    sweep, out = Sweep(total=4, done=1, failed=1, work_total=200.0, began=clock.now), Terminal()

    def shown() -> list[str]:
        """Return the lines that a redrawn display has on the terminal."""
        clock.now += 0.5
        display.update()
        out.truncate(out.seek(0))
        display.say("drawn")
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "")
        return [" ".join(line.split()) for line in text.partition("drawn\n")[2].splitlines()]

    with Display(sweep, out) as display:
        sweep.running[0] = one = RunningJob("[t2] seed 0", 1, 100.0, began=clock.now)
        sweep.running[7] = RunningJob("t1 seeds 0-2", 3, 100.0, began=clock.now)
        clock.now += 59.5
        whole, first, second = shown()
        assert re.fullmatch(r"all cells, 1 failed or diverged ━.* 2/4 60 s", whole), whole
        assert first.startswith("[t2] seed 0 ") and "no step 60 s" in first and "steps/s" not in first
        assert second.startswith("t1 seeds 0-2 (3 cells) ")
        one.reach(1, 1000, 3.0)
        shown()
        clock.now += 9.5
        one.reach(41, 1000, 2.5)
        whole, first, _ = shown()
        assert re.search(r" 41/1000 4 steps/s 70 s ETA 4 min loss 2.5$", first), first
        assert re.search(r" 2/4 70 s ETA 8 min$", whole), whole
        del sweep.running[0]
        sweep.done = 2
        whole, left = shown()
        assert "3/4" in whole and left.startswith("t1 seeds 0-2 (3 cells) ")

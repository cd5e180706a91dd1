"""What a sweep shows: time left, names of cells, durations, bars on a terminal and lines elsewhere."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from paper_repro.base.errors import duration
from paper_repro.cells import leases, progress
from paper_repro.cells.planned import Job, PlannedCell
from paper_repro.cells.progress import Display, RunningJob
from paper_repro.scripts import reproduce

CELL = PlannedCell("95071d22e59ea75a", {}, (("kernel", "rbf"), ("model", "t2")), 0, "s")


def test_a_job_is_named_by_what_its_cells_share() -> None:
    assert Job((CELL,)).label == "rbf t2 seed 0"
    others = tuple(replace(CELL, seed=seed, key=(("kernel", name), CELL.key[1])) for seed, name in enumerate("abc"))
    assert Job(others).label == "t2 seeds 0-2"
    assert Job((others[0], replace(others[2], seed=5))).label == "t2 seeds 0,5"
    assert CELL.name == "rbf t2 seed 0"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A time that only the test moves on."""
    time = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: time.now)
    return time


def test_elsewhere_than_on_a_terminal_a_line_is_printed_where_something_changed(clock: SimpleNamespace) -> None:
    out = io.StringIO()
    job = RunningJob("t2 seed 0", 1, 100.0)

    def wait(seconds: float) -> list[str]:
        before = out.tell()
        for _ in range(int(4 * seconds)):
            clock.now += 0.25
            display.update()
        return out.getvalue()[before:].splitlines()

    with Display(3, done=1, work=200.0, running=[job], stream=out) as display:
        assert wait(60) == ["1/3 cells done, 1 running, 1 left: t2 seed 0: no step"]
        job.step, job.steps, job.loss = 1, 100, 2.0
        assert wait(30) == ["1/3 cells done, 1 running, 1 left: t2 seed 0: step 1/100, loss 2"]
        job.step, job.loss = 31, 1.5
        (line,) = wait(30)
        assert re.fullmatch(r"1/3 .* 1 left, ETA \d min: t2 seed 0: step 31/100, loss 1.5", line), line
        job.step = 100
        display.say("t2 diverged")
        (line,) = wait(10)
        assert line.endswith("step 100/100, evaluating, loss 1.5")
    assert "\nt2 diverged\n" in out.getvalue()


def test_a_terminal_has_one_line_that_is_drawn_again(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True, raising=False)
    job = RunningJob("t2 seed 0", 1, 200.0)
    with Display(4, done=1, failed=1, work=200.0, running=[job], stream=out) as display:
        for step in (0, 500, 540):  # steps from before it was resumed are no part of the rate
            clock.now += 10
            job.step, job.steps, job.loss = step, 1000, 3.0
            display.update()
    first, second, last, end = out.getvalue().split(progress.CLEAR)[1:]
    assert first == "1/4 cells done, 1 running, 1 left, 1 failed or diverged: t2 seed 0: no step"
    assert len(second) == 79 and "ETA" not in second and last.startswith(f"{first.partition(':')[0]}, ETA 2 min: ")
    assert end == ""


def test_cells_that_were_begun_say_how_far_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("cem/table3", "--cells", "seeds=0", "training.steps=3000", f"runs={tmp_path}")

    def statuses() -> dict[str, str]:
        assert reproduce.main(words) == 0
        rows = [re.split(r" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()[3:]]
        return {row[0]: row[3] for row in rows}

    alone, first, second, running, begun, *_ = statuses()
    for folder, step in ((f"cells/{alone}", 1200), (f"cells/{alone}", 900), ("stacks/a", 2000), (f"cells/{begun}", 5)):
        path = tmp_path / folder / "checkpoints" / f"step-{step:09d}.ckpt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "stacks" / "a" / "begun.json").write_text(json.dumps({first: {}, second: {}}))
    with leases.hold(tmp_path, [running, begun]):
        found = statuses()
    assert [found[cell] for cell in (alone, first, second, running, begun)] == [
        "begun: step 1,200 of 3,000",
        "begun: step 2,000 of 3,000",
        "begun: step 2,000 of 3,000",
        "running, no step saved",
        "running: step 5 of 3,000",
    ]
    assert {*list(found.values())[5:]} == {"finished (reference)"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (600, "10 min"), (47.6 * 3600, "47.6 h"), (10 * 86400, "10 days"), (2e9, "63 years")],
)
def test_a_time_is_told_in_units_that_a_person_would_use(seconds: float, text: str) -> None:
    assert duration(seconds) == text

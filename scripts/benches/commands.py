"""What the commands cost: processor time and time of whole processes, held against the goals of this repository.

First the commands that train nothing, several times each; a plan is made once in an empty folder of runs and then
again.  Then two calls for each artifact: what is published of it is rendered anew, at scale cpu or exact; and it is run
at scale smoke (scale exact, where it has no other), with one worker, into an empty folder: what a user waits for who
tries an artifact.  Artifacts whose data are not below $PAPER_REPRO_DATA are left out.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from paper_repro.tables import plan, spec
from paper_repro.tables.spec import EXACT

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 5
AT_ONCE, SECOND_PLAN, FIRST_PLAN, RENDERED, SMOKE = 1.0, 2.0, 10.0, 2.0, 20.0
"""Goals, in seconds of a processor."""
QUICK = (
    ("--list", ["reproduce.py", "--list"], 0),
    ("--help", ["reproduce.py", "--help"], 0),
    ("--cells", ["reproduce.py", "cem/table3", "--cells"], 0),
    ("--config", ["train.py", "cem/gaussian_process", "--config"], 0),
    ("an argument that is refused", ["reproduce.py", "cem/tabel3"], 2),
    ("a setting that is refused", ["reproduce.py", "cem/table3", "data.kernle=rbf"], 2),
)
"""What it is called, its words and its exit code."""


@dataclass(frozen=True)
class Row:
    """What a command took, in seconds, each time that it was called."""

    kind: ClassVar[str] = "commands"
    case: str
    command: str
    processor: list[float]
    wall: list[float]
    goal: float

    @property
    def is_met(self) -> bool:
        return statistics.median(self.processor) < self.goal

    def line(self) -> str:
        took = f"{statistics.median(self.processor):.2f} s of a processor, {statistics.median(self.wall):.2f} s"
        return f"{self.case}: {took}, goal {self.goal:g} s{'' if self.is_met else ': MISSED'}"

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.is_met}


def commands(device: Any, rounds: int = ROUNDS, artifacts: Sequence[str] | None = None) -> Iterator[Row]:
    """Call every command, ``rounds`` times those that train nothing.

    Args:
        device: not used: a command finds its own.
        rounds: calls of each command that trains nothing, after one that is not counted.
        artifacts: those to render and to run at scale smoke; all where it is None.

    Raises:
        SystemExit: an artifact lacks its data, or a command ended with another exit code than it should.
    """
    scales = {name: _scale(name) for name in (sorted(spec.find()) if artifacts is None else artifacts)}
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        for case, words, code in QUICK:
            in_none = [f"runs={runs / 'none'}"] if words[0] == "reproduce.py" and not words[1].startswith("--") else []
            yield _row(case, words, [_call([*words, *in_none], code) for _ in range(rounds + 1)][1:], AT_ONCE)
        planned = ["reproduce.py", "cem/table3", "--plan"]
        for case, goal in (("--plan for the first time", FIRST_PLAN), ("--plan once more", SECOND_PLAN)):
            found = [_call([*planned, f"runs={runs / f'plan{turn}'}"], 0) for turn in range(rounds)]
            yield _row(case, planned, found, goal)
        for artifact, scale in scales.items():
            folder = runs / artifact.replace("/", "-")
            folder.mkdir()
            shown = ["reproduce.py", artifact, "--render"]
            yield _row(f"{artifact} rendered", shown, [_call([*shown, f"runs={folder}"], 0)], RENDERED)
            words = ["reproduce.py", artifact, f"scale={scale}", "machine.workers=1"]
            yield _row(f"{artifact} at scale {scale}", words, [_call([*words, f"runs={folder}"], 0)], SMOKE)


def _scale(artifact: str) -> str:
    loaded = spec.load(artifact)
    scale = "smoke" if "smoke" in loaded.scales else EXACT
    if missing := next((cell.missing for cell in plan.make(loaded, scale).cells if cell.missing), ""):
        raise SystemExit(f"error: {artifact} at scale {scale} lacks its data: {missing}")
    return scale


def _call(words: Sequence[str], code: int) -> tuple[float, float]:
    """Return the seconds of a processor, children included, and of the clock that a script takes."""
    start, before = time.perf_counter(), os.times()
    command = [sys.executable, str(ROOT / "scripts" / words[0]), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    wall, after = time.perf_counter() - start, os.times()
    if done.returncode != code:
        raise SystemExit(f"error: {' '.join(words)} ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return round(used, 3), round(wall, 3)


def _row(case: str, words: Sequence[str], found: Sequence[tuple[float, float]], goal: float) -> Row:
    return Row(case, f"scripts/{' '.join(words)}", [one[0] for one in found], [one[1] for one in found], goal)

"""Benches that measure memory in a process of its own: the child finds what benches share, and its errors are told."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from paper_repro.base.errors import ROOT

BENCHES = ROOT / "scripts" / "benches"
CHILD = """
import os, sys
import side_by_side
if sys.argv[1] == "fail": raise ValueError("out of paper")
print(float(os.environ["OMP_NUM_THREADS"]) + float(os.environ["HALF"]) + len(sys.argv))
"""
STARTED = sorted(path.name for path in BENCHES.glob("*.py") if "measure_in_child(" in path.read_text())


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHES / "shared"))
    return import_module("children")


def test_a_child_has_one_thread_and_returns_what_it_prints(children: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text(CHILD)
    assert children.measure_in_child(str(tmp_path / "bench.py"), "one", "two", HALF="0.5") == 4.5


def test_an_error_of_a_child_is_told(children: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text(CHILD)
    with pytest.raises(RuntimeError, match=r"(?s)bench\.py fail ended with status 1:.*out of paper"):
        children.measure_in_child(str(tmp_path / "bench.py"), "fail")


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTED)
def test_a_bench_that_starts_its_own_file_can_be_started(children: ModuleType, name: str) -> None:
    with pytest.raises(RuntimeError, match="IndexError"):  # its imports are done when it looks for arguments
        children.measure_in_child(str(BENCHES / name))


def test_three_benches_start_their_own_file() -> None:
    assert STARTED == ["cet_memory.py", "linear_ce.py", "nrgpt_block.py"]

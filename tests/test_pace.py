import subprocess
import sys
from pathlib import Path

from paper_repro.tests.support import pace


def test_slow_functions_are_written_slowest_first_and_other_files_keep_their_lines(tmp_path: Path) -> None:
    measured = [("tests/a.py::quick", 0.1), *((f"tests/a.py::many[{case}]", 0.4) for case in "abc")]
    measured += [("tests/b.py::one", 5.0)]
    before = {"tests/a.py::renamed": 9.0, "tests/c.py::other": 2.0}
    path = tmp_path / "slow.txt"
    path.write_text(pace.text(pace.total(measured), before))
    assert path.read_text().splitlines()[1:] == ["tests/b.py::one 5.0", "tests/c.py::other 2.0", "tests/a.py::many 1.2"]
    assert pace.read(path) == {"tests/b.py::one": 5.0, "tests/c.py::other": 2.0, "tests/a.py::many": 1.2}


def test_time_counts_processes_that_a_test_starts_and_waits_for() -> None:
    before = pace.seconds()
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    assert pace.seconds() - before > 0.05


def test_what_the_file_names_exists() -> None:
    for name in pace.read():
        file, _, function = name.partition("::")
        path = pace.SLOW.parent.parent / file
        assert path.is_file() and f"def {function}(" in path.read_text(), (
            f"{name}: rename or delete its line in slow.txt"
        )

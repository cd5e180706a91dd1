import os
import subprocess
import sys
from pathlib import Path

import pytest

from paper_repro.base.command_line import ROOT

SKIPPING = """
import pytest
@pytest.mark.parametrize("number", range(3))
def test_compiled(number): pytest.skip("no C++ compiler here")
def test_package(): pytest.importorskip("no_such_package_at_all")
@pytest.mark.skip("submitit is not installed: pip install submitit")
def test_cluster(): pass
@pytest.mark.xfail
def test_known(): assert False
def test_good(): pass
"""


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_a_run_ends_with_each_reason_for_skips_and_what_brings_the_missing_thing(
    processes: list[str], tmp_path: Path
) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('neither_this', reason='needs a GPU')")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "paper_repro.tests.conftest", *processes]
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False, timeout=120)
    _, _, summary = run.stdout.partition(" skipped tests ")
    shown = summary.splitlines()[1:5]
    assert shown == [
        "3 skipped: no C++ compiler here; apt-get install -y g++",
        "1 skipped: could not import 'no_such_package_at_all': No module named 'no_such_package_at_all'; "
        "pip install -e '.[dev]'",
        "1 skipped: needs a GPU; run them on a computer with a GPU",
        "1 skipped: submitit is not installed: pip install submitit",
    ], run.stdout


def test_a_run_without_skips_says_nothing_of_them(tmp_path: Path) -> None:
    (tmp_path / "test_good.py").write_text("def test_good(): pass")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "paper_repro.tests.conftest"]
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0 and "skipped" not in run.stdout


def test_continuous_integration_says_that_it_is_one() -> None:
    """``skips.skip`` warns of what is missing where $CI is set."""
    script = (ROOT / ".ci" / "run").read_text()
    line = next(line for line in script.splitlines() if "CI=" in line)
    for given, expected in (({}, "true"), ({"CI": "yes"}, "yes")):
        environment = {"PATH": os.environ["PATH"], **given}
        told = subprocess.run(
            ["sh", "-c", f"{line}\nprintenv CI"], env=environment, capture_output=True, text=True, check=True
        )
        assert told.stdout == f"{expected}\n"

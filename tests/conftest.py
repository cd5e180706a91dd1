"""What all tests share: they see nothing of the checkout's data/ and runs/, nor of the settings of who starts them."""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[1])
THEIRS = re.compile(
    r"PAPER_REPRO_(?!GOLDEN)|WANDB_|NETRC$|NO_COLOR$|FORCE_COLOR$|COLUMNS$|LINES$|MPLBACKEND$|HYDRA_|GIT_|LANG$|LANGUAGE$|LC_|"
    r"SLURM_|SBATCH_|SUBMITIT_|TORCHELASTIC_|MASTER_|RANK$|LOCAL_RANK$|GROUP_RANK$|WORLD_SIZE$|LOCAL_WORLD_SIZE$"
)
"""The variables of a user that our commands, or the libraries below them, read."""
for name in filter(THEIRS.match, [*os.environ]):
    del os.environ[name]
os.environ["LC_ALL"] = "C.UTF-8"
# Processes that tests start import the code of this checkout, whichever one the environment was built for.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
sys.path.insert(0, ROOT)
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported, which torch may do at any time

import pytest  # noqa: E402

from paper_repro.base import data_files  # noqa: E402
from paper_repro.tests.support import golden, pace, skips  # noqa: E402

STARTED = pytest.StashKey[float]()
OURS = tempfile.TemporaryDirectory(prefix="of-tests-")
os.environ["PAPER_REPRO_RUNS"] = str(Path(OURS.name, "runs"))
data_files.DATA = Path(OURS.name, "data")  # before anything else imports it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out the test functions that tests/slow.txt names")
    parser.addoption("--write-slow", action="store_true", help="measure every test and write tests/slow.txt anew")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "golden(paper, pattern): run for every case of every golden record that matches")
    if config.getoption("--write-slow") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Slow())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("golden")
    if marker is not None:
        metafunc.parametrize("golden", list(golden.cases(*marker.args)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        slow = pace.read()
        config.hook.pytest_deselected(items=[item for item in items if pace.function(item.nodeid) in slow])
        items[:] = [item for item in items if pace.function(item.nodeid) not in slow]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[STARTED] = pace.seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """The report of a test's end carries its processor time, from a worker of pytest-xdist too."""
    report: Any = yield
    if report.when == "teardown" and STARTED in item.stash:
        report.user_properties.append(("seconds", pace.seconds() - item.stash[STARTED]))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was skipped is said at the end of every run: nobody would look for it otherwise."""
    if lines := skips.lines(terminalreporter.stats.get("skipped", [])):
        terminalreporter.section("skipped tests")
        terminalreporter.write("".join(f"{line}\n" for line in lines))


class Slow:
    """Collects what the tests took and writes it when the session is over."""

    def __init__(self) -> None:
        self.measured: list[tuple[str, float]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.measured += [(report.nodeid, taken) for name, taken in report.user_properties if name == "seconds"]

    def pytest_sessionfinish(self) -> None:
        pace.SLOW.write_text(pace.text(pace.total(self.measured), pace.read()))

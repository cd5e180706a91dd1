"""What all tests share: they see nothing of the checkout's data/ and runs/, nor of the settings of who starts them."""

import os
import re
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

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

from paper_repro.base import files  # noqa: E402

OURS = tempfile.TemporaryDirectory(prefix="of-tests-")
os.environ["PAPER_REPRO_RUNS"] = str(Path(OURS.name, "runs"))
files.DATA = Path(OURS.name, "data")  # before anything else imports it


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a script in this process, which has imported torch; return its exit code and what it printed."""

    def run(script: str, *words: str) -> tuple[int, str, str]:
        path = str(Path(ROOT, "scripts", script))
        monkeypatch.setattr(sys, "argv", [path, *words])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(path, run_name="__main__")
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return run

import resource
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from paper_repro.base.errors import ROOT


class Built(NamedTuple):
    """A site; ``seconds`` are those of a processor."""

    folder: Path
    seconds: float
    printed: str


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The site of the committed results, built by the command in a process of its own, which imports no torch."""
    folder = tmp_path_factory.mktemp("report") / "site"
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import report; report.main(sys.argv[1:])"
    code += "; assert not {'torch', 'lightning', 'datasets', 'matplotlib'} & set(sys.modules)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", code, f"to={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Built(folder, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout)

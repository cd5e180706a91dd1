import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from paper_repro.base.command_line import ROOT


@dataclass(frozen=True)
class Built:
    folder: Path
    seconds: float
    """Processor time of the build."""
    printed: str


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The site of the committed results, built by the command in a process of its own, which imports no torch."""
    folder = tmp_path_factory.mktemp("report") / "site"
    code = f"import runpy, sys; sys.argv[0] = 'report.py'; sys.path.insert(0, {str(ROOT)!r})"
    code += f"\ntry:\n    runpy.run_path({str(ROOT / 'scripts' / 'report.py')!r}, run_name='__main__')"
    code += "\nexcept SystemExit as end:\n    assert not end.code, end.code"
    code += "\nheavy = {'torch', 'lightning', 'datasets', 'transformers', 'scipy', 'matplotlib', 'numpy'}"
    code += "\nassert not heavy & set(sys.modules), heavy & set(sys.modules)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", code, f"to={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Built(folder, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout)

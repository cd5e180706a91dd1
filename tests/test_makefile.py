"""`make` builds its environment whole or not at all."""

import shutil
import subprocess
from pathlib import Path

import pytest

from paper_repro.base.command_line import ROOT

PYTHON = """#!/bin/sh
# Stands for `python -m venv FOLDER`: an environment whose pip fails while the file `offline` exists.
mkdir -p "$3/bin"
printf '#!/bin/sh\\n[ ! -e offline ] && echo "$@" >> installed\\n' > "$3/bin/pip"
chmod +x "$3/bin/pip"
"""


def make(folder: Path) -> int:
    command = ["make", "-s", f"PYTHON={folder / 'python'}", ".venv/.ready"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_an_environment_that_was_half_built_is_built_anew_and_a_whole_one_is_kept(tmp_path: Path) -> None:
    for name in ("Makefile", "constraints.txt", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "offline").touch()
    assert make(tmp_path) != 0
    half = tmp_path / ".venv" / "half"
    half.touch()
    (tmp_path / "offline").unlink()
    assert make(tmp_path) == 0
    assert not half.exists()
    assert len((tmp_path / "installed").read_text().splitlines()) == 2
    assert make(tmp_path) == 0
    assert len((tmp_path / "installed").read_text().splitlines()) == 2, "a whole environment is installed once"

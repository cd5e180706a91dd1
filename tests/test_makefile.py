"""`make` builds its environment whole or not at all."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paper_repro.base.command_line import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
PYTHON = """#!/bin/sh
# Stands for a Python: `-c` and `-V` tell its version, `-m venv FOLDER` builds an environment whose pip fails while the
# file `offline` exists, and whose command names the folder that it lies in.
case "$1" in
    -c) [ ! -e old ]; exit ;;
    -V) echo "Python 3.9.18"; exit ;;
esac
mkdir -p "$3/bin"
printf '#!/bin/sh\\n[ ! -e offline ] && echo "$@" >> installed\\n' > "$3/bin/pip"
printf '#!%s/bin/python\\n' "$3" > "$3/bin/ruff"
printf 'VIRTUAL_ENV=%s\\n' "$3" > "$3/bin/activate"
printf 'command = python -m venv %s\\n' "$3" > "$3/pyvenv.cfg"
printf '\\0%s' "$3" > "$3/bin/binary"
printf '#!/bin/sh\\n' > "$3/bin/python"
ln -s pip "$3/bin/link"
chmod +x "$3/bin/pip" "$3/bin/ruff" "$3/bin/python"
"""


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-s", f"PYTHON={folder / 'python'}", *(words or (".venv/.ready",))]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("Makefile", "constraints.txt", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def test_an_environment_that_was_half_built_is_built_anew_and_a_whole_one_is_kept(folder: Path) -> None:
    (folder / "offline").touch()
    assert make(folder).returncode != 0
    assert not (folder / ".venv").exists(), "what is not whole is not in its place"
    half = folder / ".venv" / "half"  # as older versions of the Makefile left it
    half.parent.mkdir()
    half.touch()
    (folder / "offline").unlink()
    assert make(folder).returncode == 0
    assert not half.exists() and not (folder / ".venv.part").exists()
    assert len((folder / "installed").read_text().splitlines()) == 2
    assert make(folder).returncode == 0
    assert len((folder / "installed").read_text().splitlines()) == 2, "a whole environment is installed once"


def test_an_environment_knows_where_it_lies_after_its_move(folder: Path) -> None:
    assert make(folder).returncode == 0
    venv = folder / ".venv"
    assert (venv / "bin/ruff").read_text() == f"#!{venv}/bin/python\n"
    assert (venv / "bin/activate").read_text() == f"VIRTUAL_ENV={venv}\n"
    assert ".part" not in (venv / "pyvenv.cfg").read_text()
    assert (venv / "bin/link").is_symlink() and not list(venv.rglob("*.part"))
    assert (venv / "bin/binary").read_bytes().endswith(b".part"), "only text is changed"


def test_a_failed_update_leaves_the_environment_that_works(folder: Path) -> None:
    assert make(folder).returncode == 0
    (folder / "offline").touch()
    (folder / ".venv/.ready").unlink()
    assert make(folder).returncode != 0
    assert (folder / ".venv/bin/ruff").is_file()


def test_what_tests_need_is_installed_when_tests_are_asked_for(folder: Path) -> None:
    assert make(folder, "environment").returncode == 0
    assert ".[dev]" not in (folder / "installed").read_text()
    (folder / "offline").touch()
    assert make(folder, ".venv/.dev").returncode != 0
    assert (folder / ".venv/.ready").is_file() and not (folder / ".venv/.dev").exists(), "what runs still runs"
    (folder / "offline").unlink()
    assert make(folder, ".venv/.dev").returncode == 0
    assert (folder / "installed").read_text().splitlines()[2:] == ["install -q -c constraints.txt -e .[dev]"]
    assert "pip install" not in make(folder, "-n", "test").stdout, "once"


def test_too_old_a_python_is_refused_before_anything_is_built_or_removed(folder: Path) -> None:
    (folder / "old").touch()
    (folder / ".venv").mkdir()
    found = make(folder, "reproduce")
    assert found.returncode != 0 and (folder / ".venv").is_dir() and not (folder / ".venv.part").exists()
    assert "is Python 3.9.18; Python 3.11 or 3.12 is needed" in found.stderr
    assert "make reproduce PYTHON=python3.12" in found.stderr


def test_a_python_that_is_not_there_is_named(folder: Path) -> None:
    found = make(folder, "environment", "PYTHON=python3.999")
    assert found.returncode != 0 and not (folder / ".venv").exists()
    assert "there is no python3.999 here" in found.stderr and "make environment PYTHON=python3.12" in found.stderr


def script(folder: Path, *python: str) -> subprocess.CompletedProcess[str]:
    """Run a script of a copy of the repository with a Python that lacks our packages."""
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    command = [*python, str(folder / "scripts/train.py"), "cem/gaussian_process", "a b"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_script_of_another_python_says_in_one_line_what_to_do(tmp_path: Path) -> None:
    found = script(tmp_path, sys.executable, "-I", "-S")
    assert found.returncode == 2 and len(found.stderr.splitlines()) == 1
    assert found.stderr.startswith("error: ") and f"make -C {tmp_path} environment" in found.stderr


def test_a_script_of_another_python_goes_on_in_the_repositorys_environment(tmp_path: Path) -> None:
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nfor word in "$@"; do echo "[$word]"; done\n')
    python.chmod(0o755)
    found = script(tmp_path, sys.executable, "-I", "-S")
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [f"[{tmp_path}/scripts/train.py]", "[cem/gaussian_process]", "[a b]"]


def test_a_script_does_not_run_the_code_of_another_checkout(tmp_path: Path) -> None:
    """Nor does it note that one's commit in its records; with its own package first it runs."""
    (tmp_path / "paper_repro").mkdir()
    found = script(tmp_path, sys.executable)
    assert found.returncode == 2 and len(found.stderr.splitlines()) == 1
    assert f"runs the code of {ROOT}, the script is that of {tmp_path};" in found.stderr
    assert f"make -C {tmp_path} environment" in found.stderr
    assert found.stderr.endswith(f"; or set PYTHONPATH={tmp_path}\n")


def test_the_same_checkout_by_another_way_is_ours(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ROOT)
    command = [sys.executable, str(tmp_path / "link" / "scripts" / "reproduce.py"), "--help"]
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


def test_scripts_beside_no_package_run_the_one_that_is_installed(tmp_path: Path) -> None:
    """As those of a wheel do."""
    assert "give one experiment" in script(tmp_path, sys.executable).stderr  # refused for its words, not for its place

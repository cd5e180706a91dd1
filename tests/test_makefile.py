"""`make` builds its environment whole or not at all."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
PYTHON = """#!/bin/sh
# Stands for a Python: `-c` and `-V` tell its version, `-m venv FOLDER` builds an environment whose Python installs, and
# fails at it while the file `offline` exists; its files name the folder that they lie in.
case "$1 $2" in
    -c*) [ ! -e old ]; exit ;;
    -V*) echo "Python 3.9.18"; exit ;;
    "-m pip") shift 2; [ ! -e offline ] && echo "$@" >> installed; exit ;;
    "-m venv") ;;
    *) exit ;;
esac
mkdir -p "$3/bin"
full=$(cd "$3" && pwd)
cp "$0" "$3/bin/python"
printf '#!%s/bin/python\\n' "$full" > "$3/bin/ruff"
printf 'VIRTUAL_ENV=%s\\n' "$full" > "$3/bin/activate"
chmod +x "$3/bin/ruff"
"""
FILES = ("Makefile", "constraints.txt", "pyproject.toml", "setup.py")


def called(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return called("make", "-s", "PYTHON=./python", *(words or (".venv/.ready",)), cwd=folder)


def checkout(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkout(tmp_path)


ODD = ["work copy", "a#ü", "it's", 'a "name"', "$HOME", "a;b&c|d", "-rf"]


@pytest.mark.parametrize("name", ODD)
def test_an_environment_is_built_and_removed_in_any_path_and_nothing_else_is(tmp_path: Path, name: str) -> None:
    folder = checkout(tmp_path / name)
    for part in {"HOME", *name.split()} - {name}:  # what a shell or make would take for the path
        for path in (place / part / ".venv.part" / "thesis.txt" for place in (tmp_path, folder)):
            path.parent.mkdir(parents=True)
            path.write_text("somebody's")
    before = content(tmp_path)
    made = make(folder, "environment")
    assert made.returncode == 0, made.stderr
    assert (folder / ".venv/bin/activate").read_text() == f"VIRTUAL_ENV={folder}/.venv\n"
    assert len((folder / "installed").read_text().splitlines()) == 2
    (folder / "installed").unlink()
    assert make(folder, "clean").returncode == 0
    assert content(tmp_path) == before


def test_an_environment_that_was_half_built_is_built_anew_and_a_whole_one_is_kept(folder: Path) -> None:
    (folder / "offline").touch()
    assert make(folder).returncode != 0
    assert not (folder / ".venv").exists(), "what is not whole is not in its place"
    (folder / "offline").unlink()
    for _ in range(2):
        assert make(folder).returncode == 0 and not (folder / ".venv.part").exists()
        assert len((folder / "installed").read_text().splitlines()) == 2, "a whole environment is installed once"
    venv = folder / ".venv"  # its files name the folder that they lie in
    assert (venv / "bin/ruff").read_text() == f"#!{venv}/bin/python\n"
    (folder / "offline").touch()
    (venv / ".ready").unlink()
    assert make(folder).returncode != 0
    assert (venv / "bin/ruff").is_file(), "a failed update leaves the environment that works"


def test_too_old_a_python_or_none_is_refused_before_anything_is_built_or_removed(folder: Path) -> None:
    (folder / "old").touch()
    (folder / ".venv").mkdir()
    for found in (make(folder, "reproduce"), make(folder, "reproduce", "PYTHON=python3.999")):
        assert found.returncode != 0 and (folder / ".venv").is_dir() and not (folder / ".venv.part").exists()
        assert "Python 3.11 or 3.12 is needed" in found.stderr and "PYTHON=python3.12" in found.stderr


def copy_scripts(folder: Path) -> None:
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))


def fake_python(checkout: Path) -> None:
    """Build an environment whose Python prints its path and its words."""
    python = checkout / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "[$PYTHONPATH]"\nfor word in "$@"; do echo "[$word]"; done\n')
    python.chmod(0o755)


def test_a_script_goes_on_in_the_environment_or_says_how_to_build_it_and_runs_no_other_code(tmp_path: Path) -> None:
    copy_scripts(tmp_path)
    without_packages = [sys.executable, "-I", "-S", f"{tmp_path}/scripts/train.py", "cem/gaussian_process", "a b"]
    found = called(*without_packages)
    assert found.returncode == 2 and len(found.stderr.splitlines()) == 1
    assert found.stderr.startswith("error: ") and f"make -C {tmp_path} environment" in found.stderr
    fake_python(tmp_path)
    found = called(*without_packages)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[1:] == [f"[{tmp_path}/scripts/train.py]", "[cem/gaussian_process]", "[a b]"]
    (tmp_path / "paper_repro").mkdir()
    found = called(sys.executable, tmp_path / "scripts/train.py", "cem/gaussian_process")
    assert found.returncode == 2
    assert f"runs the code of {ROOT}, the script is that of {tmp_path};" in found.stderr
    assert found.stderr.endswith(f"; or set PYTHONPATH={tmp_path}\n")


def test_a_worktree_runs_its_own_code_in_the_environment_of_the_main_checkout(tmp_path: Path) -> None:
    """For scripts, for make, and for what they start; nothing is built or removed in the main checkout."""
    main, mine = tmp_path / "the main", checkout(tmp_path / "a b")
    private = main / ".git" / "worktrees" / "mine"  # as git makes it
    private.mkdir(parents=True)
    (private / "commondir").write_text("../..\n")
    (mine / ".git").write_text(f"gitdir: {private}\n")
    (mine / "paper_repro").mkdir()
    copy_scripts(mine)
    fake_python(main)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = partial(called, cwd=mine, env=environment)
    found = run(sys.executable, "-I", "-S", mine / "scripts/train.py", "a b")
    assert found.stdout.splitlines() == [f"[{mine}]", f"[{mine}/scripts/train.py]", "[a b]"], found.stderr
    words = ["make", "-s", f"PYTHON={sys.executable}"]
    assert f"error: {main}/.venv lacks what tests need" in run(*words, "test").stderr
    (main / ".venv/.dev").touch()
    before = content(main)
    found = run(*words, "lint")
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"[{mine}]\n") and "[ruff]" in found.stdout.splitlines()
    run(*words, "clean")
    assert content(main) == before and not (mine / ".venv").exists()

"""Only files that a run reads make its code uncommitted."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from paper_repro.base.errors import ROOT
from paper_repro.base.files import CodeState, read_code_state

TRACKED = ("kernels/op/code.py", "paper_repro/conf/a.yaml", "constraints.txt", "README.md")


def git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init")
    shutil.copy(ROOT / ".gitignore", root)
    for name in TRACKED:
        write(root / name)
    git(root, "add", "-A")
    git(root, "commit", "-m", "first")
    return root


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_where_git_cannot_say_the_state_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_code_state(tmp_path) == CodeState(None, None)
    git(tmp_path, "init")
    assert read_code_state(tmp_path) == CodeState(None, None), "no commit yet"
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    assert read_code_state(tmp_path).dirty is False
    monkeypatch.setenv("PATH", "")
    assert read_code_state(tmp_path) == CodeState(None, None)


def test_files_that_no_code_reads_do_not_count(root: Path) -> None:
    commit = git(root, "rev-parse", "HEAD").strip()
    write(root / "README.md", "changed")
    for name in ("results/a.md", "docs/a.yaml", "tests/test_a.py", "notes.txt", "mine.py", "kernels/notes.txt"):
        write(root / name)
    for name in ("runs", "data", ".venv", "site"):
        (root / name).symlink_to("/tmp")
    assert read_code_state(root) == CodeState(commit, False)
    listed = git(root, "status", "--short").split()
    assert "mine.py" in listed and not {"runs", "data", ".venv", "site"} & {*listed}, "a link is ignored as a folder is"


@pytest.mark.parametrize("name", ["paper_repro/papers/a b/ü.yaml", "kernels/new.py", "lightning_modules/a/new.py"])
def test_new_code_counts(root: Path, name: str) -> None:
    write(root / name)
    assert read_code_state(root).dirty is True


@pytest.mark.parametrize("name", TRACKED[:-1])
def test_changed_code_counts(root: Path, name: str) -> None:
    write(root / name, "changed")
    assert read_code_state(root).dirty is True
    (root / name).unlink()
    assert read_code_state(root).dirty is True
    git(root, "checkout", "--", name)
    index = (root / ".git" / "index").read_bytes()
    os.utime(root / name, (1, 1))
    assert read_code_state(root).dirty is False
    assert (root / ".git" / "index").read_bytes() == index, "a git that is killed while it writes leaves a lock"


def test_a_worktree_has_a_state_of_its_own(root: Path) -> None:
    git(root, "worktree", "add", "--detach", "../a b")
    write(root.parent / "a b/scripts/new.py")
    assert (read_code_state(root).dirty, read_code_state(root.parent / "a b").dirty) == (False, True)

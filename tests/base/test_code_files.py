import os
import shutil
import subprocess
from pathlib import Path

import pytest

from paper_repro.base import configs, identity
from paper_repro.base.configs import compose
from paper_repro.base.errors import ROOT
from paper_repro.base.files import CodeState, read_code_state

SOURCES = {
    "__init__.py": "",
    "a.py": "if TYPE_CHECKING:\n    from ours.types_only import T\n\nfrom ours import b\n",
    "b.py": "import os, ours.c as c\n\n\ndef late():\n    from .d import (\n        one,\n        two,\n    )\n",
    "c.py": "from . import e as other, \\\n    h; import ours.i\nfrom . import(  # (a)\n    j,  # b\n    k,\n)\n",
    "d.py": "one = two = 1\n",
    "e/__init__.py": "from .f import g\n",
    "e/f.py": "g = 1\n",
    **dict.fromkeys(("h.py", "i.py", "j.py", "k.py"), ""),
    "types_only.py": "T = int\n",
    "unused.py": "",
}


def test_every_import_counts_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in SOURCES.items():
        path = tmp_path / "ours" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv(configs.PACKAGES, str(tmp_path / "ours"))
    found = identity.imported_by(["ours.a"])
    assert {name.removeprefix("ours.") for name in found} == {"ours", "a", "b", "c", "d", "e", "e.f", *"hijk"}


def test_an_experiment_counts_its_model_its_kernels_and_how_it_is_trained() -> None:
    found = identity.code_of(compose("ngpt/speedup", ["model=ngpt/ngpt"]))
    named = ("models.ngpt", "kernels.sphere_step.triton", "training.single", "datamodules.text", "base.identity")
    assert {f"paper_repro.{name}" for name in named} <= found.keys()
    others = ("paper_repro.models.cet", "paper_repro.tables", "paper_repro.papers", "paper_repro.launchers")
    assert not [name for name in found if name.startswith(others)]


def test_a_list_is_known_by_its_content_alone(tmp_path: Path) -> None:
    code = identity.imported_by(["paper_repro.base.configs"])
    name = identity.keep_code(tmp_path, code)
    assert identity.read_code(tmp_path, name) == code and identity.other_code(tmp_path, name) == ()
    path = tmp_path / "code" / f"{name}.json"
    path.write_text(path.read_text().replace("errors", "sudoku"))
    assert identity.read_code(tmp_path, name) is None


def test_a_folder_is_read_again_only_where_one_of_its_files_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "texts [1]").mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text(name)
    files = {"role": str(tmp_path / "other.txt")}
    config = {"data": {"path": str(folder), "files": files, "between": "/", "after": "...", "kernel": "rbf"}}
    known = identity.data_files(config)
    assert [*known] == [str(folder)]
    read, whole = list[Path](), identity.sha256_of_file
    monkeypatch.setattr(identity, "sha256_of_file", lambda path: read.append(path) or whole(path))
    assert identity.other_data(config, known) == [] and not read
    (folder / "a.txt").touch()
    assert identity.other_data(config, known) == [] and len(read) == 2
    (folder / "a.txt").write_text("c")
    assert identity.other_data(config, known) == [str(folder)]
    (folder / "a.txt").write_text("a")
    (folder / "c.txt").touch()
    assert identity.other_data(config, known) == [str(folder)]


def test_a_run_that_has_read_two_files_of_one_name_comes_from_neither(tmp_path: Path) -> None:
    path = tmp_path / "points.txt"
    config, states = {"data": {"path": str(path)}}, []
    for text in "aba":
        path.write_text(text)
        states.append(identity.data_files(config))
    first, second, again = states
    assert identity.other_data(config, identity.joined(first, again)) == []
    assert identity.other_data(config, identity.joined(first, second)) == [str(path)]
    assert identity.other_data(config, identity.joined(identity.joined(first, second), again)) == [str(path)]
    assert identity.joined({"m": "1", "gone": "2"}, {"m": "1", "n": "3"}).items() >= {"m": "1", "n": "3"}.items()


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


def test_new_and_changed_code_counts(root: Path) -> None:
    for name in ("paper_repro/papers/a b/ü.yaml", "kernels/new.py", "lightning_modules/a/new.py"):
        write(root / name)
        assert read_code_state(root).dirty is True, name
        (root / name).unlink()
    for name in TRACKED[:-1]:
        write(root / name, "changed")
        assert read_code_state(root).dirty is True, name
        (root / name).unlink()
        assert read_code_state(root).dirty is True, name
        git(root, "checkout", "--", name)
        index = (root / ".git" / "index").read_bytes()
        os.utime(root / name, (1, 1))
        assert read_code_state(root).dirty is False
        assert (root / ".git" / "index").read_bytes() == index, "a git that is killed while it writes leaves a lock"

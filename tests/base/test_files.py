import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import IO, Any

import pytest

from paper_repro.base.errors import ROOT
from paper_repro.base.files import (
    CodeState,
    CorruptFileError,
    cached,
    check_digest,
    digest_path,
    read_code_state,
    read_with_digest,
    stream_with_digest,
    write_atomically,
    write_with_digest,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail_with(number: int) -> Any:
    def failing(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return failing


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (Path, "replace")])
def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, owner, name):
    path = tmp_path / "deep" / "file"
    for old in ([], ["file"]):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="space"):
            patch.setattr(owner, name, fail_with(errno.ENOSPC))
            write_atomically(path, b"new content")
        assert names(path.parent) == old
        write_atomically(path, b"old")
    assert path.read_bytes() == b"old" and path.stat().st_mode & 0o777 == 0o644


def test_a_digest_is_kept_beside_the_file_and_an_interrupt_leaves_both(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write(stream: IO[bytes]) -> None:
        stream.write(b"a")
        stream.write(memoryview(b"bc"))
        stream.flush()

    def interrupted(stream: IO[bytes]) -> None:
        stream.write(b"half of the n")
        raise KeyboardInterrupt

    stream_with_digest(path, write)
    with pytest.raises(KeyboardInterrupt):
        stream_with_digest(path, interrupted)
    # FIPS 180-2, appendix B.1
    expected = b"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n"
    assert digest_path(path).read_bytes() == expected and names(tmp_path) == ["file", "file.sha256"]
    assert read_with_digest(path) == b"abc"
    check_digest(path)


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [("", b"contEnt"), ("", b"conten"), ("", b"content\x00"), (".sha256", b""), (".sha256", b"0" * 64 + b"\n")],
)
def test_damage_is_detected(tmp_path: Path, suffix: str, damage: bytes) -> None:
    path = tmp_path / "file"
    write_with_digest(path, b"content")
    (tmp_path / f"file{suffix}").write_bytes(damage)
    for read in (read_with_digest, check_digest):
        with pytest.raises(CorruptFileError, match="damaged: its SHA-256 is"):
            read(path)
    digest_path(path).unlink()
    with pytest.raises(CorruptFileError, match="says nothing"):
        check_digest(path)


def test_a_crash_between_digest_and_file_is_seen_as_damage_not_as_success(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_with_digest(path, b"old")
    real = Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda own, to: real(own, to) if to != path else fail_with(errno.EIO)())
        with pytest.raises(OSError, match="Input/output"):
            write_with_digest(path, b"new")
    with pytest.raises(CorruptFileError):
        read_with_digest(path)


def test_a_cache_is_built_once_and_again_when_damaged(tmp_path: Path) -> None:
    path, built = tmp_path / "deep" / "cache", []

    def build() -> bytes:
        built.append(1)
        return b"content"

    assert [cached(path, build) for _ in range(3)] == [b"content"] * 3 and len(built) == 1
    path.write_bytes(b"c0ntent")
    assert cached(path, build) == b"content" and len(built) == 2


def git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_new_and_changed_files_count_where_code_reads_them(tmp_path: Path) -> None:
    assert read_code_state(tmp_path) == CodeState(None, None)
    git(tmp_path, "init")
    assert read_code_state(tmp_path) == CodeState(None, None), "no commit yet"
    shutil.copy(ROOT / ".gitignore", tmp_path)
    tracked = ("kernels/op/code.py", "paper_repro/conf/a.yaml", "constraints.txt", "README.md")
    for name in tracked:
        write(tmp_path / name)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-m", "first")
    for name in ("README.md", "results/a.md", "docs/a.yaml", "tests/test_a.py", "mine.py", "kernels/notes.txt"):
        write(tmp_path / name, "changed")
    clean = CodeState(git(tmp_path, "rev-parse", "HEAD").strip(), False)
    assert read_code_state(tmp_path) == clean
    for name in ("paper_repro/papers/a b/ü.yaml", "kernels/new.py", "lightning_modules/a/new.py"):
        write(tmp_path / name)
        assert read_code_state(tmp_path).dirty is True, name
        (tmp_path / name).unlink()
    for name in tracked[:-1]:
        write(tmp_path / name, "changed")
        assert read_code_state(tmp_path).dirty is True, name
        (tmp_path / name).unlink()
        assert read_code_state(tmp_path).dirty is True, name
        git(tmp_path, "checkout", "--", name)
        index = (tmp_path / ".git" / "index").read_bytes()
        os.utime(tmp_path / name, (1, 1))
        assert read_code_state(tmp_path) == clean
        assert (tmp_path / ".git" / "index").read_bytes() == index, "a git that is killed while it writes leaves a lock"

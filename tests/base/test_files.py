import errno
import os
from pathlib import Path
from typing import IO, Any

import pytest

from paper_repro.base.files import (
    CorruptFileError,
    cached,
    check_digest,
    digest_path,
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
def test_a_failing_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
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


@pytest.mark.parametrize("damage", ["flip", "truncate", "extend", "no digest", "empty digest", "other digest"])
def test_damage_is_detected(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "file"
    write_with_digest(path, b"content")
    changes = {"flip": b"contEnt", "truncate": b"conten", "extend": b"content\x00"}
    if damage in changes:
        path.write_bytes(changes[damage])
    elif damage == "no digest":
        digest_path(path).unlink()
    else:
        digest_path(path).write_bytes(b"" if damage == "empty digest" else b"0" * 64 + b"\n")
    with pytest.raises(CorruptFileError, match="damaged: its SHA-256 is"):
        read_with_digest(path)
    with pytest.raises(CorruptFileError):
        check_digest(path)


def test_a_crash_between_digest_and_file_is_seen_as_damage_not_as_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

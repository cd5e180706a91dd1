import errno
import logging
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from paper_repro.training import compiled_code
from paper_repro.training.compiled_code import ENVIRONMENT, kept_code, of_compiler, of_full_disk, user_folder


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path, compiled):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.delenv(ENVIRONMENT, raising=False)


def test_all_runs_of_a_user_share_a_folder_that_names_torch_and_the_processor(tmp_path):
    with kept_code() as (folder, lasting):
        assert folder == user_folder() and lasting and os.environ[ENVIRONMENT] == str(folder)
        assert folder.is_relative_to(tmp_path / "caches") and not [*folder.iterdir()]
        assert folder.name == f"torch-{torch.__version__}-{compiled_code.processor()}"
        assert folder.stat().st_mode & 0o077 == 0
    assert ENVIRONMENT not in os.environ and folder.is_dir()


def test_another_processor_has_another_folder(monkeypatch):
    here, cpuinfo = user_folder(), Path("/proc/cpuinfo").read_text()
    for changed in (
        cpuinfo.replace("model name", "model name\t: other\nold name"),
        cpuinfo.replace(" sse2 ", " sse2 avx10_9 "),
    ):
        assert changed != cpuinfo
        monkeypatch.setattr(Path, "read_text", lambda self, text=changed: text)
        compiled_code.processor.cache_clear()
        assert user_folder().parent == here.parent and user_folder() != here
    monkeypatch.undo()
    compiled_code.processor.cache_clear()


def test_the_speed_that_a_processor_has_at_the_moment_does_not_name_it(monkeypatch):
    here, cpuinfo = compiled_code.processor(), Path("/proc/cpuinfo").read_text()
    monkeypatch.setattr(Path, "read_text", lambda self: cpuinfo.replace("cpu MHz", "cpu MHz\t: 1.0\nold MHz"))
    compiled_code.processor.cache_clear()
    assert compiled_code.processor() == here


def test_a_folder_that_the_user_names_is_taken_and_torchs_own_default_is_not(monkeypatch, tmp_path):
    mine, default = tmp_path / "mine", Path(tempfile.gettempdir()) / "torchinductor_me"
    for named, taken in ((mine, mine), (default, user_folder())):
        monkeypatch.setenv(ENVIRONMENT, str(named))
        with kept_code() as (folder, lasting):
            assert folder == taken and lasting and os.environ[ENVIRONMENT] == str(folder)
        assert os.environ[ENVIRONMENT] == str(named)


def test_where_nothing_is_compiled_nothing_is_made(tmp_path):
    with kept_code(wanted=False):
        assert ENVIRONMENT not in os.environ
    assert not [*tmp_path.iterdir()]


def _read_only(monkeypatch):
    def refuse(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)


def _full(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=3 << 20))


def _a_file(monkeypatch):
    Path(os.environ["XDG_CACHE_HOME"]).write_text("")


@pytest.mark.parametrize(
    ("state", "why"),
    [(_read_only, "Read-only file system"), (_full, "3 MiB free, 100 are needed"), (_a_file, "Not a directory")],
)
def test_a_folder_that_takes_nothing_is_replaced_by_a_temporary_one(monkeypatch, caplog, state, why):
    state(monkeypatch)
    with caplog.at_level(logging.WARNING), kept_code() as (folder, lasting):
        assert (
            folder != user_folder()
            and folder.is_dir()
            and not lasting
            and os.environ[ENVIRONMENT] == str(folder.resolve())
        )
        assert folder.parent == Path(tempfile.gettempdir())
    assert not folder.exists() and ENVIRONMENT not in os.environ
    (line,) = caplog.messages
    assert str(user_folder()) in line and why in line and str(folder) in line and "\n" not in line


def test_errors_of_the_compiler_and_of_a_full_disk_are_told_from_others():
    class CannotError(Exception):
        __module__ = "torch._inductor.exc"

    full, other = OSError(errno.ENOSPC, "No space left on device"), OSError(errno.ENOENT, "No such file")
    assert of_compiler(CannotError()) and of_compiler(full) and of_full_disk(full)
    assert not of_compiler(other) and not of_compiler(RuntimeError("shapes differ")) and not of_full_disk(CannotError())
    assert of_full_disk(CannotError("g++: fatal error: error writing to x.s: No space left on device"))
    wrapped = CannotError("lowering failed")
    wrapped.__cause__ = full
    assert of_full_disk(wrapped)
    circle = RuntimeError("a")
    circle.__context__ = RuntimeError("b")
    circle.__context__.__context__ = circle
    assert not of_compiler(circle)

"""Where torch keeps compiled code: one folder of this user for all workers and runs, for each torch and processor.

Torch's own default is a folder of the user below the temporary one, which a restart of the machine empties.  Its keys
hold source, compiler flags and paths, but not the processor, for which ``-march=native`` stands: a folder that two
machines share would give one of them instructions that it does not have.  So each processor has a folder of its own.
"""

import contextlib
import functools
import hashlib
import logging
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from paper_repro.base.files import disk_refuses

ENVIRONMENT = "TORCHINDUCTOR_CACHE_DIR"
LEAST_FREE_BYTES = 100 << 20
"""The code of a kind of cells takes 1 to 10 MB, and what the compiler writes meanwhile a few times that."""
_PROBE_BYTES = 64 << 10
_IDENTIFYING = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU implementer", "CPU part")
"""Lines of /proc/cpuinfo that decide which instructions ``-march=native`` may take."""
_FULL = ("No space left on device", "Disk quota exceeded", "Read-only file system")
_log = logging.getLogger(__name__)


def user_folder() -> Path:
    """Return where compiled code lies unless ``$TORCHINDUCTOR_CACHE_DIR`` names another folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "paper-repro" / "compiled" / f"torch-{torch.__version__}-{processor()}"


@functools.cache
def processor() -> str:
    """Return 12 hexadecimal digits that name this processor's model and instructions."""
    found = [platform.system(), platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
        lines = [line.partition(":") for line in first.splitlines()]
        found += [f"{name.strip()}:{value.strip()}" for name, _, value in lines if name.strip() in _IDENTIFYING]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:12]


class Kept(NamedTuple):
    """Where compiled code lies, and whether later processes find it there."""

    folder: Path
    lasting: bool


@contextlib.contextmanager
def kept_code(wanted: bool = True) -> Iterator[Kept]:
    """Have torch keep compiled code in ``$TORCHINDUCTOR_CACHE_DIR``, or in ``user_folder``, and say where.

    Where that is read-only or full, the code goes to a temporary folder, which is deleted at the end, and the log says
    so in one line.

    Args:
        wanted: whether anything may be compiled; if not, nothing is changed.
    """
    before, folder = os.environ.get(ENVIRONMENT), _asked() or user_folder()
    if not wanted:
        yield Kept(folder, lasting=True)
        return
    with contextlib.ExitStack() as stack:
        refusal = _refusal(folder)
        if refusal:
            temporary = tempfile.TemporaryDirectory(prefix="paper-repro-compiled-", ignore_cleanup_errors=True)
            _log.warning("%s: %s; compiled code goes to %s for this run", folder, refusal, temporary.name)
            folder = Path(stack.enter_context(temporary))
        os.environ[ENVIRONMENT] = str(folder.resolve())
        try:
            yield Kept(folder, lasting=not refusal)
        finally:
            if before is None:
                os.environ.pop(ENVIRONMENT, None)
            else:
                os.environ[ENVIRONMENT] = before


def _asked() -> Path | None:
    """Return the folder that the user names; torch puts its own default there when it is imported."""
    found = Path(os.environ.get(ENVIRONMENT) or "")
    default = found.parent == Path(tempfile.gettempdir()) and found.name.startswith("torchinductor_")
    return None if default or not found.name else found


def _refusal(folder: Path) -> str:
    """Return why a folder takes no compiled code; nothing if it does."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(b"x" * _PROBE_BYTES)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"cannot write there ({error.strerror})"
    return "" if free >= LEAST_FREE_BYTES else f"{free >> 20} MiB free, {LEAST_FREE_BYTES >> 20} are needed"


def missing_compiler() -> str:
    """Return the name of the C++ compiler that torch would call and that is not there; nothing if it is."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    return "" if shutil.which(name) else name


def of_compiler(error: BaseException) -> bool:
    """Return whether an error comes from torch's compiler, or from the disk that it writes to."""
    return any(
        type(one).__module__.startswith(("torch._dynamo", "torch._inductor")) or _of_disk(one) for one in _chain(error)
    )


def of_full_disk(error: BaseException) -> bool:
    """Return whether an error, or what led to it, is that a disk takes nothing more."""
    return any(_of_disk(one) or any(text in str(one) for text in _FULL) for one in _chain(error))


def _of_disk(error: BaseException) -> bool:
    return isinstance(error, OSError) and disk_refuses(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, at most 200 characters; its type where it has none."""
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]

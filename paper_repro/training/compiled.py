"""torch.compile of the training loss: which cells machine.compile=auto compiles, and where torch keeps the code."""

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from paper_repro.base.errors import UsageError, first_line
from paper_repro.base.files import disk_refuses
from paper_repro.training.module import PaperModule

AUTO_FLOPS = 2e12
"""``auto`` compiles a training of so many FLOPs of matrix products: about a minute of one processor core.  On a CPU a
compiled pass takes 0.45 to 0.85 of the time of an uncompiled one.  The first process of a kind of cells compiles for 15
to 60 s; later ones find the code and start in 3 to 14 s."""
ENVIRONMENT = "TORCHINDUCTOR_CACHE_DIR"
_IDENTIFYING = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU implementer", "CPU part")
"""Lines of /proc/cpuinfo that decide which instructions ``-march=native`` may take."""


def reason_against(module: PaperModule, flops: float) -> str:
    """Return why ``auto`` does not compile the loss of a training of so many FLOPs; nothing if it does.

    The answer follows from the config and this machine alone, so a resumed run gets the same.
    """
    if module.uncompilable:
        return module.uncompilable
    if flops < AUTO_FLOPS:
        return f"{flops:.1e} FLOPs of matrix products, and auto compiles from {AUTO_FLOPS:.0e} on"
    if any(_has_dropout(part) for part in module.modules()):
        return "dropout, whose random numbers compiled code draws more slowly"
    if name := missing_compiler():
        return f"no C++ compiler {name} here"
    return ""


def _has_dropout(part: torch.nn.Module) -> bool:
    rate = part.p if isinstance(part, torch.nn.Dropout) else getattr(part, "dropout", 0.0)
    return isinstance(rate, float) and rate > 0


def missing_compiler() -> str:
    """Return the name of the C++ compiler that torch would call and that is not there; nothing if it is."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    return "" if shutil.which(name) else name


def check_compiler() -> None:
    """Raise UsageError if there is no C++ compiler."""
    if name := missing_compiler():
        raise UsageError(
            f"machine.compile=true needs the C++ compiler {name}, which is not on PATH: install it (apt-get "
            "install g++, or conda install cxx-compiler), name another in $CXX, or set machine.compile=auto"
        )


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Raise an error of torch's compiler anew, with what the user can do."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        what = f"torch cannot compile this loss here ({first_line(error)})"
        raise UsageError(f"{what}: set machine.compile=false, or auto") from error


def of_compiler(error: BaseException) -> bool:
    """Return whether an error comes from torch's compiler, or from the disk that it writes to."""
    of_torch = type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
    return of_torch or (isinstance(error, OSError) and disk_refuses(error))


@contextlib.contextmanager
def kept_code() -> Iterator[Path]:
    """Have torch keep compiled code in ``$TORCHINDUCTOR_CACHE_DIR``, or in ``user_folder``.

    Torch's own default is below the temporary folder, which a restart empties.
    """
    before = os.environ.get(ENVIRONMENT)
    named = Path(before or "")
    default = named.parent == Path(tempfile.gettempdir()) and named.name.startswith("torchinductor_")
    folder = user_folder() if default or not named.name else named
    os.environ[ENVIRONMENT] = str(folder.resolve())
    try:
        yield folder
    finally:
        os.environ.pop(ENVIRONMENT)
        if before is not None:
            os.environ[ENVIRONMENT] = before


def user_folder() -> Path:
    """Return where compiled code lies unless ``$TORCHINDUCTOR_CACHE_DIR`` names another folder.

    Torch's keys do not hold the processor, whose instructions the code takes: each processor has a folder of its own.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "paper-repro" / "compiled" / f"torch-{torch.__version__}-{_processor()}"


@functools.cache
def _processor() -> str:
    """Return 12 hexadecimal digits that name this processor's model and instructions."""
    found = [platform.system(), platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
        lines = [line.partition(":") for line in first.splitlines()]
        found += [f"{name.strip()}:{value.strip()}" for name, _, value in lines if name.strip() in _IDENTIFYING]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:12]

"""The first thing that every command does: a harmless environment, output that cannot fail in the middle, signals.

A command ends with exit code 130 on SIGINT, SIGTERM and SIGHUP.  While it imports, it ends at once; later the signal
raises KeyboardInterrupt, so that the runner can stop its workers.  Only a second Ctrl-C hurries a command that already
stops: a terminal that closes sends SIGHUP more than once, and schedulers follow one signal with another.
"""

import contextlib
import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from types import FrameType

from paper_repro.base.errors import INTERRUPTED

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = "interrupted: what is finished is kept; the same command goes on from there"
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
_IMPORTS = "<frozen importlib._bootstrap>"
_asked = False


def prepare() -> None:
    """Prepare this process and those that it will start; a second call changes nothing."""
    changed = harmless(os.environ)
    for name in os.environ.keys() - changed.keys():
        del os.environ[name]
    os.environ.update(changed)
    if any("error" in option for option in sys.warnoptions):
        sys.warnoptions.clear()
        warnings.resetwarnings()
    _prepare_output()
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves SIGHUP
            signal.signal(number, _stop)


def harmless(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what a notebook or a terminal may have set and our processes cannot use.

    Figures go to files, so matplotlib draws them with Agg; a warning of a library is no error; and text that an output
    cannot encode is written with backslashes.
    """
    kept = {name: value for name, value in environment.items() if name != "PYTHONWARNINGS" or "error" not in value}
    return {**kept, "MPLBACKEND": "Agg", "PYTHONIOENCODING": "utf-8:backslashreplace"}


class _Unfailing(io.TextIOWrapper):
    """The standard error, whose text is lost where nobody takes it: messages must not end what they tell of."""

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def _prepare_output() -> None:
    # Where one of the first three descriptors is closed, the next file that is opened would receive the output.
    # Output that is read-only fails as a full disk does.
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    elif type(sys.stderr) is io.TextIOWrapper:
        encoding = sys.stderr.encoding
        stream = _Unfailing(sys.stderr.detach(), encoding, "backslashreplace", line_buffering=True)
        sys.stderr = sys.__stderr__ = stream  # type: ignore[misc]


def output_failed(error: OSError) -> bool:
    """Return whether an error says that output takes nothing more; the end of the process then says it no second time.

    One that names a file is another error.
    """
    if error.filename is not None or not (isinstance(error, BrokenPipeError) or error.errno in _REFUSED):
        return False
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _stop(number: int, frame: FrameType | None) -> None:
    """End the process at once while it imports, which must not be cut off by an exception; else raise.

    Raises:
        KeyboardInterrupt: unless this process has been asked before, and now by another signal than Ctrl-C.
    """
    global _asked  # noqa: PLW0603
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            with contextlib.suppress(OSError):
                os.write(2, f"{STOPPED}\n".encode())
            os._exit(INTERRUPTED)
        frame = frame.f_back
    if not _asked or number == signal.SIGINT:
        _asked = True
        raise KeyboardInterrupt

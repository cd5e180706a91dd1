"""Commands: their words, the errors that the user can mend, and their start and end.

An error is one line, and its exit code is 2.  A command ends with exit code 130 on SIGINT, SIGTERM and SIGHUP: at once
while it imports, else by KeyboardInterrupt, so that the runner can stop its workers.
"""

import argparse
import contextlib
import difflib
import errno
import io
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT if (ROOT / "pyproject.toml").is_file() else Path.cwd()
"""The folder of data, runs and site: the checkout, or the current folder of a package that pip installed."""
RESULTS = ROOT / "results"
RUNS_VARIABLE = "PAPER_REPRO_RUNS"
"""The environment variable that names the folder of runs for every command that is not told another."""
MISUSE, INTERRUPTED = 2, 130
"""Exit codes of the commands, beside 0 (all done) and 1 (some cells failed, diverged or lack their data)."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = "interrupted: what is finished is kept; the same command goes on from there"
BY_TORCHRUN, BY_SRUN = "torchrun", "srun"
FORMAT = "%(levelname)s: %(message)s"
_SWEEP = "train.py -m sweeps; reproduce.py takes seeds=0,1, and an artifact names values (docs/add/ablation.md)"
EXTRAS = {
    **{"datasets": "data", "sklearn": "images", "skimage": "images", "diffusers": "latents"},
    **dict.fromkeys(("sentence_transformers", "transformers", "language_tool_python", "spellchecker"), "text"),
}
"""The extra that brings each package which only some commands need."""
OUTPUT_FAILS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
_asked: float | None = None
TOGETHER_SECONDS = 0.3
"""Two signals that arrive within so short a time are one request to stop."""


class UsageError(ValueError):
    """A command, a config or a file that the user wrote is wrong (exit code 2)."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, at most 200 characters; its type where it has none."""
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the valid name nearest to ``name`` in any case, else the valid names."""
    names = sorted({str(item) for item in valid})
    folded = {item.casefold(): item for item in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    if close:
        return f" (did you mean '{folded[close[0]]}'?)"
    shown = ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")
    return f" (valid: {shown})" if names else ""


# Checks that constructors make of their arguments.


def at_least(name: str, value: int, least: int = 1) -> int:
    """Return a whole number of at least ``least``; else raise ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def positive(name: str, value: float) -> float:
    """Return a positive finite number; else raise ValueError."""
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")
    return float(value)


def one_of(name: str, value: str, valid: Iterable[str]) -> str:
    """Return one of the ``valid`` words; else raise ValueError with the nearest."""
    if value not in valid:
        raise ValueError(f"{name} must be one of {', '.join(valid)}, got {value!r}{nearest(str(value), valid)}")
    return value


# Several processes of one command.


@dataclass(frozen=True)
class Place:
    """One of the processes that train a cell together."""

    by: str
    rank: int
    count: int


def place() -> Place | None:
    """Return the place of this process, which torchrun or srun started; None where it was started alone."""
    found = os.environ
    if "TORCHELASTIC_RUN_ID" in found:
        own = Place(BY_TORCHRUN, int(found["RANK"]), int(found["WORLD_SIZE"]))
    elif "SLURM_STEP_ID" in found and found.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        own = Place(BY_SRUN, int(found.get("SLURM_PROCID", 0)), int(found.get("SLURM_STEP_NUM_TASKS", 1)))
    else:
        return None
    return own if own.count > 1 else None


def check_started(nodes: int) -> None:
    """Raise UsageError where a command that trains on several nodes was started alone."""
    if nodes > 1 and place() is None:
        raise UsageError(
            f"machine.nodes={nodes}: the same command has to be started on every node, by torchrun or srun "
            "(docs/cluster.md)"
        )


def end_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Send this process, which ``multiprocessing`` started, a signal when the one that started it has ended."""

    def wait() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os.kill(os.getpid(), by)

    threading.Thread(target=wait, daemon=True).start()


def cause(code: int) -> str:
    """Say what ended a process: its exit code, or minus the signal that killed it."""
    if code == -signal.SIGKILL:
        return "killed by signal 9: for lack of memory, or by another process"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


# Words of a command.


@dataclass
class Words:
    """A command line, sorted."""

    flags: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)

    @property
    def runs(self) -> Path:
        """The folder of runs, which need not be there."""
        return runs_folder(self.settings.get("runs"))

    def seeds(self) -> list[int] | None:
        """Return the seeds asked for, as ``seeds=0,1,2``; None if none were."""
        text = self.settings.get("seeds")
        return None if text is None else [whole("seeds", part) for part in text.strip("[]").split(",")]

    def seed(self) -> int | None:
        """Return the one seed asked for, as ``seed=0``; None if none was."""
        text = self.settings.get("seed")
        return None if text is None else whole("seed", text)


def parse(arguments: Sequence[str], flags: Sequence[str], settings: Sequence[str]) -> Words:
    """Sort the words of a command; a setting is written ``key=value``, ``--key value`` or ``--key=value``.

    A key that is nearly a setting's is an error, because it would be taken for one of the config.
    """
    words, rest = Words(), iter(arguments)
    for word in rest:
        key, equals, value = word.partition("=")
        if word.startswith("--") and key[2:] in settings:
            key, value, equals = key[2:], value if equals else next(rest, "--"), "="
            if value.startswith("--"):
                raise UsageError(f"--{key} needs a value")
        if word.startswith("-") and key not in settings:
            if word not in flags:
                known = [*flags, *(f"--{name}" for name in settings)]
                hint = f": {_SWEEP}" if word in ("-m", "--multirun") else nearest(word, known)
                raise UsageError(f"unknown option {word}{hint}")
            words.flags.add(word)
        elif not equals and not word.startswith("~"):
            words.names.append(word)
        elif key in settings:
            if key in words.settings:
                raise UsageError(f"{key} is given twice: {key}={words.settings[key]} and {key}={value}; give it once")
            if not value:
                raise UsageError(f"{key}= needs a value")
            words.settings[key] = value
        elif difflib.get_close_matches(key, settings, cutoff=0.8):
            raise UsageError(f"unknown setting {key}={nearest(key, settings)}")
        else:
            words.overrides.append(word)
    return words


def whole(key: str, text: str) -> int:
    """Return the whole number of ``key=text``."""
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{key}={text}: give whole numbers") from error


def default_runs() -> Path:
    """Return $PAPER_REPRO_RUNS, else runs/ of the repository."""
    return Path(os.environ.get(RUNS_VARIABLE) or HOME / "runs").expanduser()


def runs_folder(given: str | None = None) -> Path:
    """Return the folder that ``runs=DIR`` names, else ``default_runs``; UsageError: a file, or the committed tables."""
    path = Path(given).expanduser() if given else default_runs()
    if path.exists() and not path.is_dir():
        raise UsageError(f"{'runs' if given else RUNS_VARIABLE}={path}: this is no folder; give runs=DIR")
    if path.resolve() == RESULTS.resolve():
        raise UsageError(f"runs={path}: the committed reference; give another folder, and --publish copies into it")
    return path


class Options(argparse.ArgumentParser):
    """Reads the options of a command; a wrong word is a UsageError, and ``--help`` shows the description and them."""

    def __init__(self, command: str, description: str | None) -> None:
        super().__init__(
            command, description=description, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
        )

    def print_help(self, file: object = None) -> None:
        """Print the help; argparse would not say that the output takes nothing."""
        print(self.format_help(), end="")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')}; {self.prog} --help says more")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the values of the options; without any word, print the help and raise SystemExit."""
        if not arguments:
            self.print_help()
            raise SystemExit(MISUSE)
        words, unknown = self.parse_known_args(arguments)
        if unknown:
            valid = [option for action in self._actions for option in action.option_strings]
            raise UsageError(f"unknown option {unknown[0]}{nearest(unknown[0], valid)}")
        return words


def number(kind: type[int] | type[float], least: float, most: float = sys.float_info.max) -> Callable[[str], float]:
    """Return the reader of an option's number between two bounds."""

    def read(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            bounds = f"{least:g} or more" if most == sys.float_info.max else f"a number from {least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"{text}: give {bounds}")
        return value

    read.__name__ = kind.__name__
    return read


def counts(text: str) -> list[int]:
    """Read an option's whole numbers of 1 or more, for example ``1,2,4``."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text}: give whole numbers of 1 or more with commas, for example 1,2,4")
    return [int(part) for part in parts]


# Messages.


def duration(seconds: float) -> str:
    """Write seconds in the units that a person would use."""
    hours = seconds / 3600
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if hours < 48:
        return f"{hours:.1f} h"
    return f"{hours / 24:,.0f} days" if hours < 2 * 365 * 24 else f"{hours / 24 / 365:,.0f} years"


class Later(logging.Handler):
    """Keeps the warnings of some loggers, each once, until they are printed below the text that they are about."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(FORMAT))
        self._lines: dict[str, bool] = {}  # a line: whether it has been printed

    def emit(self, record: logging.LogRecord) -> None:
        self.add(self.format(record))

    def add(self, line: str) -> None:
        self._lines.setdefault(line, False)

    def print(self) -> None:
        """Print to stderr what was added since the last call."""
        for line, printed in self._lines.items():
            if not printed:
                print(line, file=sys.stderr)
            self._lines[line] = True


@contextlib.contextmanager
def kept(*packages: str) -> Iterator[Later]:
    """Keep the warnings of the packages' loggers; those not printed inside the block are printed at its end."""
    later, loggers = Later(), [logging.getLogger(name) for name in packages]
    for logger in loggers:
        logger.addHandler(later)
        logger.propagate = False
    try:
        yield later
    finally:
        for logger in loggers:
            logger.removeHandler(later)
            logger.propagate = True
        later.print()


# Start and end of a command.


def run_main(main: Callable[[Sequence[str]], int], arguments: Sequence[str] | None = None) -> int:
    """Call ``main``; an error that the user can mend becomes one line and exit code 2, output that fails exit code 1.

    A reader that leaves early (``| head``) is no failure.
    """
    prepare()
    logging.basicConfig(format=FORMAT, level=logging.WARNING)
    try:
        try:
            code = main(sys.argv[1:] if arguments is None else arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        if code == INTERRUPTED:
            _ignore_signals()
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISUSE
    except ModuleNotFoundError as error:
        if (name := str(error.name).partition(".")[0]) not in EXTRAS:
            raise
        print(f"error: {name} is not installed: pip install 'paper-repro[{EXTRAS[name]}]'", file=sys.stderr)
        return MISUSE
    except KeyboardInterrupt:
        _ignore_signals()
        print(STOPPED, file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        # EBADF: prepare() has opened a closed output for reading.  An error that names a file is not of the output.
        if error.filename is not None or error.errno not in OUTPUT_FAILS:
            raise
        with contextlib.suppress(OSError, ValueError):  # Python writes what is left at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return 0
        print(f"error: the output cannot be written: {error.strerror}; send it elsewhere", file=sys.stderr)
        return 1


def prepare() -> None:
    """Prepare this process and those that it will start; a second call changes nothing.

    matplotlib draws with Agg, a warning of a library is no error, and text that an output cannot encode is written with
    backslashes.  A closed output is opened again, because the next file would take its descriptor.
    """
    os.environ.update({"MPLBACKEND": "Agg", "PYTHONIOENCODING": "utf-8:backslashreplace"})
    if "error" in os.environ.get("PYTHONWARNINGS", ""):
        del os.environ["PYTHONWARNINGS"]
    if any("error" in option for option in sys.warnoptions):
        sys.warnoptions.clear()
        warnings.resetwarnings()
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves SIGHUP
            signal.signal(number, _stop)


def _ignore_signals() -> None:
    """Ignore further signals, which would end the process once the interpreter has restored the default handlers."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def _stop(number: int, frame: FrameType | None) -> None:
    """End the process at once while it imports, which must not be cut off by an exception; else interrupt it.

    Once it stops, only a second Ctrl-C interrupts it again: a terminal that closes sends SIGHUP more than once,
    schedulers follow one signal with another, and signals that were held back arrive together.
    """
    global _asked  # noqa: PLW0603
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            with contextlib.suppress(OSError):
                os.write(2, f"{STOPPED}\n".encode())
            os._exit(INTERRUPTED)
        frame = frame.f_back
    first, now = _asked, time.monotonic()
    if first is None or (number == signal.SIGINT and now - first > TOGETHER_SECONDS):
        _asked = first or now
        raise KeyboardInterrupt

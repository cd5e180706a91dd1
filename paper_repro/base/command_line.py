"""Words of a command: names, reserved ``key=value`` settings, and Hydra-style overrides for the config."""

import argparse
import difflib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from paper_repro.base import entry
from paper_repro.base.errors import INTERRUPTED, MISUSE, UsageError, nearest
from paper_repro.base.later import FORMAT

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
RUNS_VARIABLE = "PAPER_REPRO_RUNS"
"""The environment variable that names the folder of runs for every command that is not told another."""
_SWEEP = "train.py -m sweeps; reproduce.py takes seeds=0,1, and an artifact names values (docs/add/ablation.md)"
HABITS = {"-m": _SWEEP, "--multirun": _SWEEP}
"""Options of Hydra, each with what does the same here."""


def default_runs() -> Path:
    """Return the folder of runs where ``runs=DIR`` names none: $PAPER_REPRO_RUNS, else runs/ of the repository."""
    return Path(os.environ.get(RUNS_VARIABLE) or ROOT / "runs").expanduser()


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


def whole(key: str, text: str) -> int:
    """Return the whole number of ``key=text``."""
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{key}={text}: give whole numbers") from error


def runs_folder(given: str | None) -> Path:
    """Return the folder of runs that ``runs=DIR`` names, else ``default_runs``.

    Raises:
        UsageError: there is something else in its place.
    """
    path = Path(given).expanduser() if given else default_runs()
    if path.exists() and not path.is_dir():
        raise UsageError(f"{'runs' if given else RUNS_VARIABLE}={path}: this is no folder; give runs=DIR")
    return path


def parse(arguments: Sequence[str], flags: Sequence[str], settings: Sequence[str]) -> Words:
    """Sort the words of a command; a setting is written ``key=value``, ``--key value`` or ``--key=value``.

    Raises:
        UsageError: an unknown flag, a setting given twice, or a key that is nearly a setting's and would be taken for
            one of the config.
    """
    words = Words()
    rest = iter(arguments)
    for word in rest:
        key, equals, value = word.partition("=")
        if word.startswith("--") and key[2:] in settings:
            key, value, equals = key[2:], value if equals else next(rest, "--"), "="
            if value.startswith("--"):
                raise UsageError(f"--{key} needs a value")
        if word in HABITS:
            raise UsageError(f"unknown option {word}: {HABITS[word]}")
        if word.startswith("-") and key not in settings:
            if word not in flags:
                raise UsageError(f"unknown option {word}{nearest(word, [*flags, *(f'--{name}' for name in settings)])}")
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


class Options(argparse.ArgumentParser):
    """Reads the options of a command; a wrong word is a UsageError, and ``--help`` shows the description and them.

    Args:
        command: the script's name.
        description: the script's docstring.
    """

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
        """Return the values of the options.

        Raises:
            UsageError: an unknown option, answered with the nearest known one, or a value that cannot be one.
            SystemExit: the help is printed: it was asked for, or there is no word.
        """
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


def run_main(main: Callable[[Sequence[str]], int], arguments: Sequence[str] | None = None) -> int:
    """Call ``main``; what the user can mend becomes one line and exit code 2, output that fails exit code 1.

    A reader that leaves early (``| head``) is no failure.
    """
    entry.prepare()
    logging.basicConfig(format=FORMAT, level=logging.WARNING)
    try:
        try:
            code = main(sys.argv[1:] if arguments is None else arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISUSE
    except KeyboardInterrupt:
        print(entry.STOPPED, file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if not entry.output_failed(error):
            raise
        if isinstance(error, BrokenPipeError):
            return 0
        print(f"error: the output cannot be written: {error.strerror}; send it elsewhere", file=sys.stderr)
        return 1

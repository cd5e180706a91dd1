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
_SWEEP = (
    "no command sweeps: reproduce.py takes seeds=0,1, an ablation of your own names several values "
    "(docs/add/ablation.md)"
)
_CONFIG = "--config prints the resolved config and runs nothing"
HABITS = {"-m": _SWEEP, "--multirun": _SWEEP, "-c": _CONFIG, "--cfg": _CONFIG}
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
        """The folder of runs, which need not be there.

        Raises:
            UsageError: there is something else in its place.
        """
        given = self.settings.get("runs")
        path = default_runs() if given is None else Path(given).expanduser()
        if path.exists() and not path.is_dir():
            named = "runs" if given is not None else RUNS_VARIABLE
            raise UsageError(f"{named}={path}: this is no folder; give runs=DIR")
        return path

    def seeds(self) -> list[int] | None:
        """Return the seeds asked for, as ``seeds=0,1,2``; None if none were.

        Raises:
            UsageError: something other than whole numbers.
        """
        text = self.settings.get("seeds")
        if text is None:
            return None
        try:
            return [int(part) for part in text.strip("[]").split(",")]
        except ValueError as error:
            raise UsageError(f"seeds={text}: give whole numbers with commas, for example seeds=0,1,2") from error

    def seed(self) -> int | None:
        """Return the one seed asked for, as ``seed=0``; None if none was.

        Raises:
            UsageError: something other than a whole number.
        """
        text = self.settings.get("seed")
        try:
            return None if text is None else int(text)
        except ValueError as error:
            raise UsageError(f"seed={text} is not a whole number") from error


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
    """Reads the options of a command that explains them in its docstring; a wrong word is a UsageError.

    Args:
        command: the script's name, for the errors.
    """

    def __init__(self, command: str) -> None:
        super().__init__(prog=command, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help says what there is")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the values of the options.

        Raises:
            UsageError: an unknown option, answered with the nearest known one, or a value that cannot be one.
        """
        words, unknown = self.parse_known_args(arguments)
        if unknown:
            valid = [option for action in self._actions for option in action.option_strings]
            raise UsageError(f"unknown option {unknown[0]}{nearest(unknown[0], valid)}")
        return words


def run_main(main: Callable[[Sequence[str]], int], arguments: Sequence[str] | None = None) -> int:
    """Call ``main``; what the user can mend becomes one line and exit code 2, output that fails exit code 1.

    A reader that leaves early (``| head``) is no failure.
    """
    entry.prepare()
    logging.basicConfig(format=FORMAT, level=logging.WARNING)
    try:
        code = main(sys.argv[1:] if arguments is None else arguments)
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

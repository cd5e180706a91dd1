"""The Python code that goes with an artifact: the files beside its YAML and its bases, and what the YAML names."""

import importlib
import importlib.util
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.packages import own_packages

HOMES = ("paper_repro.papers.", "paper_repro.artifacts.")
"""Where the classes and functions lie that a YAML may name."""


def load(name: str, files: Sequence[Path]) -> list[ModuleType]:
    """Return the Python files beside an artifact's YAML and its bases, the artifact's own first.

    Args:
        name: the artifact's id.
        files: its YAML and those of its bases, the nearest first.

    Raises:
        UsageError: with file and line, one of them cannot be imported.
    """
    names = [name.replace("/", "."), *(f"{path.parent.parent.name}.bases.{path.stem}" for path in files[1:])]
    found = zip(names, (path.with_suffix(".py") for path in files), strict=True)
    return [_module(f"{HOMES[0]}{name}", path) for name, path in found if path.is_file()]


def _module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except Exception as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        fault = f"{type(error).__name__}: {said}" if said else type(error).__name__
        raise UsageError(f"{_place(path, error)}: it cannot be imported, {fault}: mend it") from error
    return module


def _place(path: Path, error: Exception) -> str:
    """Return the file, and the line of it at which an import failed, where there is one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    return _line([str(path)], error) or str(path)


def fault_in(modules: Sequence[ModuleType], error: Exception) -> str | None:
    """Return the file and the line of one of the modules that led to an error; None where none did."""
    return _line([str(module.__file__) for module in modules], error)


def _line(files: Sequence[str], error: Exception) -> str | None:
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((f"{frame.filename}:{frame.lineno}" for frame in frames if frame.filename in files), None)


def named(name: str, where: str) -> Any:
    """Return what a YAML names, for example ``paper_repro.papers.cem.recursion.StepsFigure``.

    Raises:
        UsageError: with the file and line ``where``, it is not below ``paper_repro.papers``, ``paper_repro.artifacts``
            or a package of the user, or there is none.
    """
    home, _, last = name.rpartition(".")
    homes = (*HOMES, *(f"{package}." for package in own_packages()))
    if not name.startswith(homes):
        raise UsageError(f"{where}: {name!r} is not below {' or '.join(home[:-1] for home in homes)}")
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if not f"{home}.".startswith(f"{error.name}."):
            raise
        raise UsageError(f"{where}: there is no module {error.name}") from error
    if not hasattr(module, last):
        raise UsageError(f"{where}: {home} has no {last!r}{nearest(last, vars(module))}")
    return getattr(module, last)

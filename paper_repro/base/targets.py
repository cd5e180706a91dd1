"""From ``_target_`` nodes to objects: only this package and torch.optim, and no argument goes unread."""

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from paper_repro.base.errors import UsageError, nearest

ALLOWED = ("paper_repro.", "torch.optim.")
DIRECTIVES = ("_target_", "_partial_", "_args_", "_convert_", "_recursive_")
"""The keys of a ``_target_`` node that are for hydra, not for the target."""
PACKAGE = Path(__file__).parents[1]


def check_targets(config: Any) -> None:
    """Refuse a config that names anything outside ``paper_repro`` and ``torch.optim``.

    This reads the names alone and imports nothing; ``locate`` checks what they lead to.

    Raises:
        UsageError: with the offending ``_target_`` and the key under which it stands.
    """
    for path, call in _calls(config, ""):
        if not _may_be_named(call["_target_"]):
            raise UsageError(f"{path or 'config'}: {_refusal(call['_target_'])}")


def instantiate(node: Mapping[str, Any], **extra: Any) -> Any:
    """Build the object that ``node['_target_']`` names from the other keys of ``node`` and ``extra``.

    Nested ``_target_`` nodes are built first; ``_partial_: true`` gives a ``functools.partial``.

    Raises:
        UsageError: an unknown key (with the nearest valid one), a refused or missing target, or a value that the
            target's constructor refuses (ValueError, TypeError).
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate as build

    check_targets(node)
    for path, text in _texts(node, ""):
        if "${" in text:  # hydra would resolve it, and build what comes out of it unchecked
            raise UsageError(f"{path}: {text!r} is not resolved; give a plain value")
    for path, keys in _calls(node, ""):
        _check_arguments(path, keys, extra if path == "" else {})
    try:
        return build(dict(node), **extra, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise UsageError(f"{node.get('_target_')}: {cause}") from error


def locate(target: str) -> Any:
    """The class or function of that dotted name.

    It must be defined below paper_repro or torch.optim, not merely be within reach of a module there: the ``os`` that
    some module imports is refused.

    Raises:
        UsageError: there is none, its module cannot be imported, or it is defined elsewhere.
    """
    if not _may_be_named(target):
        raise UsageError(_refusal(target))
    found: Any = _longest_module(target)
    rest = target.removeprefix(found.__name__ + ".").split(".")
    for name in rest:
        if not hasattr(found, name):
            known = [key for key in vars(found) if not key.startswith("_")] if hasattr(found, "__dict__") else []
            raise UsageError(f"_target_ {target!r} does not exist{nearest(name, known)}")
        found = getattr(found, name)
    home = getattr(found, "__module__", None)
    named = inspect.isclass(found) or inspect.isroutine(found)
    if not named or not isinstance(home, str) or not f"{home}.".startswith(ALLOWED):
        raise UsageError(_refusal(target))
    return found


def _longest_module(target: str) -> ModuleType:
    parts = target.split(".")
    for count in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:count])
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise UsageError(f"_target_ {target!r}: {name} cannot be imported: {error}") from error
        except Exception as error:
            raise UsageError(f"_target_ {target!r}: {name} cannot be imported: {error!r}") from error
    raise AssertionError(target)  # paper_repro itself can be imported


def _may_be_named(target: Any) -> bool:
    if not isinstance(target, str) or not target.startswith(ALLOWED):
        return False
    parts = target.split(".")
    if not all(part.isidentifier() and not part.startswith("_") for part in parts):
        return False
    # A checkout's root lies on the package's path: its setup.py and the package itself are no rooms of the package.
    first, root = parts[1], PACKAGE.parent
    inside = (PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").is_file()
    beside = first != PACKAGE.name and (root / first).is_dir()
    return parts[0] == "torch" or inside or beside


def _refusal(target: Any) -> str:
    return f"_target_ {target!r} is refused: only what is defined under paper_repro and torch.optim is accepted"


def _check_arguments(path: str, node: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    signature = inspect.signature(locate(node["_target_"]))
    parameters = signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    valid = {parameter.name for parameter in parameters}
    for key in node:
        if key not in valid and key not in DIRECTIVES:
            where = f"{path}.{key}" if path else str(key)
            raise UsageError(f"unknown key {where!r} for {node['_target_']}{nearest(str(key), valid)}")
    for key in extra:
        if key not in valid:
            raise UsageError(f"{node['_target_']} takes no argument {key!r}")


def _calls(node: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield path, node
        for key, value in node.items():
            yield from _calls(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for index, value in enumerate(node):
            yield from _calls(value, f"{path}[{index}]")


def _texts(node: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _texts(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, Sequence):
        for index, value in enumerate(node):
            yield from _texts(value, f"{path}[{index}]")

"""From ``_target_`` nodes to objects: only classes of listed rooms, of the user's own packages and optimizers, and no
argument goes unread.
"""

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.packages import VARIABLE, own_packages

ROOMS = ("models", "lightning_modules", "datamodules", "probes", "training", "metrics", "papers", "tests")
"""The parts of the package whose classes a config may name; what runs, reads and writes files is not among them."""
ALLOWED = (*(f"paper_repro.{room}." for room in ROOMS), "torch.optim.")
FACTORIES = ("paper_repro.models.", "paper_repro.tests.")
"""Where a function may be named, too, if its annotation says which class of ours it builds."""
DIRECTIVES = ("_target_", "_partial_", "_args_", "_convert_", "_recursive_")
"""The keys of a ``_target_`` node that are for hydra, not for the target."""


def check_targets(config: Any) -> None:
    """Refuse a config that names anything outside the ``ROOMS``, the user's own packages and ``torch.optim``.

    This reads the names alone and imports nothing; ``locate`` and ``require`` check what they lead to.

    Raises:
        UsageError: with the offending ``_target_`` and the key under which it stands.
    """
    for path, call in _calls(config, ""):
        if not _may_be_named(call["_target_"]):
            raise UsageError(f"{path or 'config'}: {_refusal(call['_target_'])}")


def modules(config: Any) -> set[str]:
    """Return the modules of what a config may name; they are not imported."""
    targets = [call["_target_"] for _, call in _calls(config, "")]
    return {target.rpartition(".")[0] for target in targets if _may_be_named(target)}


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


def require(node: Any, section: str, expected: type, described: str, nested: bool = False) -> None:
    """Check what a section's ``_target_`` builds, before anything is built.

    Args:
        section: the key under which ``node`` stands, for the message.
        expected: a base class, or a protocol of methods alone that is checkable at runtime.
        described: ``expected`` in words, for example "a class that has run()".
        nested: every ``_target_`` below must build an ``expected`` too, as the parts of a model do.

    Raises:
        UsageError: there is no ``_target_``, or it builds something else.
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise UsageError(f"{section}: found no _target_, expected that of {described}")
    for path, call in _calls(node, section):
        if path == section or nested:
            found = built_by(call["_target_"])
            if not issubclass(found, expected):
                builds = "" if found.__name__ == call["_target_"].rpartition(".")[2] else f", which is {found.__name__}"
                raise UsageError(f"{path}._target_ {call['_target_']}{builds}: not {described}")


def built_by(target: str) -> type:
    """Return the class of what a target builds: itself, or for a function what its annotation says.

    Raises:
        UsageError: as ``locate``.
    """
    found = locate(target)
    return found if isinstance(found, type) else _returned(found)


def locate(target: str) -> Any:
    """Return the class or function of that dotted name.

    It must be defined in one of the ``ROOMS``, in a package that the user named or, as an optimizer, below torch.optim,
    not merely be within reach of a module there: the ``os`` that some module imports is refused.  A function is
    accepted where it is defined beside models, or in the user's package, and annotated with the class that it builds.

    Raises:
        UsageError: there is none, its module cannot be imported, it is defined elsewhere, or it is neither a class nor
            such a function.
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
    if not _may_be_built(found):
        raise UsageError(_refusal(target))
    return found


def _may_be_built(found: Any) -> bool:
    home = f"{getattr(found, '__module__', None)}."
    if isinstance(found, type):
        if home.startswith("torch.optim."):
            return issubclass(found, importlib.import_module("torch.optim").Optimizer)
        return home.startswith(_allowed())
    return (
        isinstance(found, FunctionType) and home.startswith((*FACTORIES, *_own())) and _may_be_built(_returned(found))
    )


def _own() -> tuple[str, ...]:
    return tuple(f"{name}." for name in own_packages())


def _allowed() -> tuple[str, ...]:
    return (*ALLOWED, *_own())


def _returned(factory: FunctionType) -> Any:
    return inspect.get_annotations(factory).get("return")


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
    if not isinstance(target, str) or not target.startswith(_allowed()):
        return False
    return all(part.isidentifier() and not part.startswith("_") for part in target.split("."))


def _refusal(target: Any) -> str:
    rooms = ", ".join(ROOMS)
    own = "".join(f", {name}" for name in own_packages())
    return (
        f"_target_ {target!r} is refused: only classes of paper_repro.{{{rooms}}}{own} and torch's optimizers are "
        f"accepted; a package of yours is named by {VARIABLE}={_first_part(target)}"
    )


def _first_part(target: Any) -> str:
    first = str(target).partition(".")[0]
    return first if first.isidentifier() and first != "paper_repro" else "NAME"


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

"""From ``_target_`` nodes to objects: only this package and torch.optim, and no argument goes unread."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paper_repro.errors import UsageError, nearest

ALLOWED = ("paper_repro.", "torch.optim.")


def check_targets(config: Any) -> None:
    """Refuse a config that would call anything outside ``paper_repro`` and ``torch.optim``.

    Raises:
        UsageError: with the offending ``_target_`` and the key under which it stands.
    """
    for path, target in _targets(config, ""):
        if not isinstance(target, str) or not target.startswith(ALLOWED) or ".." in target:
            raise UsageError(
                f"{path}: _target_ {target!r} is refused: only names under paper_repro and torch.optim are accepted"
            )


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
    for path, keys in _calls(node, ""):
        _check_arguments(path, keys, extra if path == "" else {})
    try:
        return build(dict(node), **extra, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise UsageError(f"{node.get('_target_')}: {cause}") from error


def locate(target: str) -> Any:
    """The class or function of that dotted name.

    Raises:
        UsageError: there is none.
    """
    from hydra.utils import get_object

    try:
        return get_object(target)
    except (ImportError, ValueError, AttributeError) as error:
        module, _, name = target.rpartition(".")
        try:
            known = [key for key in vars(get_object(module)) if not key.startswith("_")]
        except Exception:
            known = []
        raise UsageError(f"_target_ {target!r} does not exist{nearest(name, known)}") from error


def _check_arguments(path: str, node: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    signature = inspect.signature(locate(node["_target_"]))
    parameters = signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    valid = {parameter.name for parameter in parameters}
    for key in node:
        if key not in valid and not key.startswith("_"):
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


def _targets(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    for where, call in _calls(node, path):
        yield where or "config", call["_target_"]

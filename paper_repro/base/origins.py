"""The resolved config of one cell, with the place that each of its values comes from.

A config is made of layers: the files that Hydra composes, then the overrides in their order.  Each layer maps dotted
keys to values and knows its source; a value's origin is the last layer that sets it.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from paper_repro.base import config as configs
from paper_repro.base import typed_yaml
from paper_repro.base.config import CONF
from paper_repro.base.overrides import Override
from paper_repro.base.typed_yaml import Node

ROOT = CONF.parents[1]
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS_OF_YAML = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_COMMENTS = 56
"""The column at which comments begin, where the value leaves room."""


def explained(experiment: str, overrides: Sequence[str | Override], seed: int) -> str:
    """Return one cell's resolved config as YAML; behind each value, as a comment, where it comes from.

    Raises:
        UsageError: as ``config.compose``.
    """
    parsed = configs.parse_all(overrides)
    (config,) = configs.compose_seeds(experiment, parsed, [seed])
    written = dict(leaves(configs.unresolved(experiment, parsed)))
    sources = origins(experiment, parsed, seed)
    lines = list(_lines(config, written, sources))
    return "\n".join(lines)


def origins(experiment: str, overrides: Sequence[Override], seed: int) -> dict[str, str]:
    """Return the source of each value of a composed config, by its dotted key."""
    found = _of_files(experiment, overrides)
    for item in overrides:
        if configs.chooses(item):
            continue
        factor = f"{item.value} times the value of {found.get(item.key)}, by " if item.times else ""
        _clear(found, item.key)
        found.update((key, f"{factor}{item.source}") for key, _ in leaves(item.value, item.key))
    found["seed"] = f"the seed {seed}"
    return found


def _of_files(experiment: str, overrides: Sequence[Override]) -> dict[str, str]:
    """Return the file and line of each value that Hydra composes of files, and who chose the file."""
    choosers = {item.key: item.source for item in overrides if configs.chooses(item)}
    return {
        key: f"{one.place}, chosen by {choosers[one.group]}" if one.group in choosers else one.place
        for key, one in composed(experiment, configs.chosen_groups(overrides)).items()
    }


class Written(NamedTuple):
    """A value as a file of the config writes it."""

    value: Any
    place: str
    """File and line."""
    group: str
    """The group of configs that the file belongs to."""


@functools.lru_cache(maxsize=256)
def composed(experiment: str, groups: tuple[tuple[str, str], ...]) -> Mapping[str, Written]:
    """Return each value that Hydra composes of files by its dotted key, references to other keys as they are written.

    Args:
        experiment: a file under ``conf/experiment``.
        groups: the choice for each group that is chosen, each of which there must be.
    """
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    with configs.searched():
        loader = GlobalHydra.instance().config_loader()
        choices = [f"{group}={choice}" for group, choice in groups]
        defaults = loader.compute_defaults_list(f"experiment/{experiment}", choices, RunMode.RUN).defaults
    found: dict[str, Written] = {}
    for default in defaults:
        path = configs.file_of(str(default.config_path))
        if path is not None:
            group = str(default.config_path).partition("/")[0]
            for key, node in _places(typed_yaml.read(path), default.package or ""):
                _clear(found, key)
                found[key] = Written(node.plain(), f"{path}:{node.key_line}", group)
    return found


def _clear(found: dict[str, Any], key: str) -> None:
    """Drop the sources of a section that is replaced, and of an empty one that is filled."""
    for known in [known for known in found if f"{known}.".startswith(f"{key}.") or key.startswith(f"{known}.")]:
        del found[known]


def _places(node: Node, prefix: str) -> Iterator[tuple[str, Node]]:
    for key, child in node.items().items():
        name = f"{prefix}.{key}".removeprefix(".")
        if name == "defaults":
            continue
        if child.is_mapping and child.items():
            yield from _places(child, name)
        else:
            yield name, child


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a nested mapping with its dotted key; an empty mapping is a value."""
    if not isinstance(value, Mapping) or (not value and prefix):
        yield prefix, value
        return
    for key, child in value.items():
        yield from leaves(child, f"{prefix}.{key}".removeprefix("."))


def _lines(
    node: Mapping[str, Any], written: Mapping[str, Any], sources: Mapping[str, str], prefix: str = ""
) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and name not in sources:
            yield f"{indent}{_text(key)}:"
            yield from _lines(value, written, sources, f"{name}.")
            continue
        line = f"{indent}{_text(key)}: {_text(value)}"
        raw = written.get(name)
        via = f"{raw}, " if isinstance(raw, str) and "${" in raw else ""
        source = sources.get(name, "not found in any layer").replace(f"{ROOT}/", "")
        yield f"{line:<{_COMMENTS}}  # {via}{source}"


def _text(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_YAML:
        return value
    return json.dumps(value, ensure_ascii=False)

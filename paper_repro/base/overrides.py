"""One override: a key of a config, the value it is given, and the place where somebody wrote it.

A command gives overrides as words in Hydra's grammar (``optimizer.lr=0.003``).  A YAML file gives them as a mapping
from dotted keys to values; a value may be a whole section, which replaces the one below it.  In YAML alone,
``{times: 2}`` multiplies the number below it, and ``{axis: steps}`` stands for the number of an artifact's axis.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.typed_yaml import Node

COMMAND = "the command line"
TIMES, AXIS = "times", "axis"
MISSING = "???"
"""OmegaConf's word for a value that somebody has yet to give; to import omegaconf takes a third of a second."""
_TARGET = "_target_"
_OF_SEVERAL_KINDS = ("machine.compile", "machine.devices")
"""Keys whose values are of several kinds; ``cells.machine_section`` checks them."""

_AS_IT_STANDS = re.compile(r"(?P<key>\+{0,2}[A-Za-z_][\w./]*)=(?P<value>(?:/|~/|\.{1,2}/)[^\\]*)", re.DOTALL)
"""A path, whose commas, spaces and brackets are not Hydra's."""
_CHECKPOINTS = "a run goes on from its last checkpoint by itself: give the same command again"
HABITS = {
    "trainer.max_steps": "training.steps",
    "trainer.max_epochs": "training.steps",
    "trainer.gradient_clip_val": "training.clip_norm",
    "trainer.accumulate_grad_batches": "training.accumulate",
    "trainer.num_nodes": "machine.nodes",
    "learning_rate": "optimizer.lr",
    "logger": "machine.logger",
}
"""Keys of Lightning's and Hydra's templates, each with the key that does the same here."""


@dataclass(frozen=True)
class Override:
    """The value of one key, or with ``times`` the factor of the number below it."""

    key: str
    value: Any
    said: str = field(compare=False)
    """How a complaint about it begins: the words of a command, or the file, the line and the key."""
    source: str = field(default=COMMAND, compare=False)
    """Where the value comes from: the file and line, and the axis value or the scale that it belongs to."""
    adds: bool = False
    """Whether the key may be new (written ``+key``)."""
    times: bool = False
    axis: bool = False
    """Whether ``value`` names an axis, whose number the value then is."""

    def of(self, layer: str) -> "Override":
        """Return the same with its layer, for example ``axis model=ff1``, in its source."""
        return dataclasses.replace(self, source=f"{self.source} ({layer})")

    def having(self, value: Any) -> "Override":
        """Return the same with the number of the axis that it named."""
        return dataclasses.replace(self, value=value, axis=False)

    def error(self, message: str) -> UsageError:
        return UsageError(f"{self.said}: {message}")

    def touches(self, other: "Override") -> bool:
        """Return whether both set the same key, or one a part of what the other sets."""
        return (
            self.key == other.key or f"{self.key}.".startswith(f"{other.key}.") or other.key.startswith(f"{self.key}.")
        )


def quoted(text: str) -> str:
    """Return a word of a command as Hydra's grammar takes it: a path in quotes."""
    path = _AS_IT_STANDS.fullmatch(text)
    return text if path is None else "{}='{}'".format(path["key"], path["value"].replace("'", "\\'"))


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Override:
    """Parse one override in Hydra's grammar: ``key=value``, ``+key=value`` to add a key, or ``group=choice``.

    Raises:
        UsageError: it is not of the form key=value, or deletes or sweeps.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    said = f"override {text!r}"
    try:
        parsed = OverridesParser.create().parse_override(quoted(text))
    except HydraException as error:
        raise UsageError(f"{said} is not of the form key=value: {str(error).splitlines()[0]}") from error
    key, value = parsed.key_or_group, text.partition("=")[2]
    if not key:
        raise UsageError(f"{said} is not of the form key=value: it has no key")
    if parsed.is_delete():
        raise UsageError(f"{said}: deleting is not supported; null turns off what is optional: {key}=null")
    if parsed.package is not None:
        raise UsageError(f"{said}: packages are not supported; write {key}={value}")
    if parsed.is_sweep_override():
        raise UsageError(
            f"{said}: several values are for train.py -m; give one value, a list as {key}=[{value}], or name the "
            "values as an axis (docs/add/ablation.md)"
        )
    return _checked(Override(key, parsed.value(), said, adds=parsed.is_add() or parsed.is_force_add()))


def read(node: Node) -> tuple[Override, ...]:
    """Return the overrides of a YAML mapping; a section stands before what refines it.

    Raises:
        UsageError: with file and line, it is no mapping, or a value is not finite.
    """
    if not node.is_mapping:
        raise node.error(f"'{node.name}' is a mapping of keys to values, for example {{optimizer.lr: 0.008}}")
    found = (single(name, child) for name, child in node.items().items())
    return tuple(sorted(found, key=lambda item: item.key.count(".")))


def single(name: str, node: Node) -> Override:
    """Return the override of the key ``name`` (``+name`` to add it) by the value of a node."""
    where = f"{node.path}:{node.key_line or node.line}"
    key, value = name.removeprefix("+"), node.plain()
    special = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else ""
    times, axis = special == TIMES, special == AXIS
    if times or axis:
        value = value[special]
    if times and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise node.error(f"'{key}': {TIMES} takes a number, not {value!r}")
    return _checked(Override(key, value, f"{where}: override '{key}'", where, name != key, times, axis))


def _checked(override: Override) -> Override:
    if override.key == "seed":
        raise override.error("seeds are given apart: seeds=0,1 for an artifact, seed=0 for one run")
    if override.key == "experiment":
        raise override.error(
            f"unknown key 'experiment': an artifact has its own; train.py {override.value} trains that one"
        )
    try:
        json.dumps(override.value, allow_nan=False, sort_keys=True)
    except (ValueError, TypeError) as error:
        raise override.error("a value must be finite, and keys in braces all words") from error
    return override


def apply(config: dict[str, Any], override: Override) -> None:
    """Set the override's key in ``config``, whose sections are copied before they change.

    Raises:
        UsageError: the key is unknown (with the nearest), or the value is of another type than the one below it.
    """
    *parents, last = override.key.split(".")
    node: Any = config
    for depth, part in enumerate(parents):
        if part not in node:
            raise _unknown_key(override, parents[:depth], node, config)
        if not isinstance(node[part], dict):
            raise override.error(f"{'.'.join(parents[: depth + 1])} is a value, not a section")
        node[part] = dict(node[part])
        node = node[part]
    if override.times:
        node[last] = _product(override, node.get(last))
    elif last in node:
        node[last] = _fitting(override, node[last])
    elif override.adds:
        node[last] = override.value
    else:
        raise _unknown_key(override, parents, node, config)


def _unknown_key(
    override: Override, parents: Sequence[str], node: Mapping[str, Any], config: Mapping[str, Any]
) -> UsageError:
    """Name the key that does the same, else the keys of the same last part, else the nearest key of the section."""
    if override.key in ("ckpt_path", "resume", "trainer.resume_from_checkpoint"):
        return override.error(f"unknown key {override.key!r}: {_CHECKPOINTS}")
    wanted = HABITS.get(override.key, override.key)
    last = wanted.rpartition(".")[2].casefold()
    alike = [key for key in _keys(config) if key.rpartition(".")[2].casefold() == last]
    if wanted in alike:
        alike = [wanted]
    if alike:
        shown = " or ".join(sorted(alike, key=lambda key: key.count("."))[:3])
        return override.error(f"unknown key {override.key!r} (did you mean {shown}?)")
    valid = [".".join([*parents, str(key)]) for key in node]
    return override.error(f"unknown key {override.key!r}{nearest(override.key, valid)}")


def _keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{key}.")


def _product(override: Override, below: Any) -> int | float:
    if isinstance(below, bool) or not isinstance(below, (int, float)):
        raise override.error(f"{TIMES} multiplies a number, and the value below is {below!r}")
    product: int | float = below * override.value
    if isinstance(below, float):
        return float(product)
    if product != int(product):
        raise override.error(f"{override.key} is a whole number, and {below} times {override.value} is {product}")
    return int(product)


def _fitting(override: Override, default: Any) -> Any:
    value = override.value
    if override.key in _OF_SEVERAL_KINDS:
        return value
    open_default = isinstance(default, str) and (default.startswith("${") or default == MISSING)
    if default is None or value is None or open_default or (isinstance(value, str) and value.startswith("${")):
        return value
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        if isinstance(default, dict) and _TARGET in default and isinstance(value, str):
            raise override.error(
                f"{override.key} takes a section, not a word: {override.key}.{_TARGET}=... names another class (now "
                f"{default[_TARGET]}), and {override.key}.KEY=... changes a value"
            )
        section = override.key.rpartition(".")[0]
        other = f"; where either is right, override the whole section {section}" if section else ""
        raise override.error(f"{override.key} takes {_kind(default)} (default {default!r}), not {_kind(value)}{other}")
    return value


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", list: "a list"}
    return kinds.get(type(value), "a section")

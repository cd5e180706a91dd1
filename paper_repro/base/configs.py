"""From an experiment's name and overrides to a resolved config, and from its ``_target_`` nodes to objects.

Hydra composes the files, once for each choice of config groups; value overrides are then applied to that composition
(``apply``), and references such as ``${data.window}`` are replaced by values (``resolve``).  A config is a plain dict.

Hydra and OmegaConf are imported where they compose, because their import takes a third of a second.
The YAML of artifacts is read here, too (``read``): complaints name file and line, which OmegaConf does not keep.
"""

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import math
import os
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import yaml

from paper_repro.base.errors import UsageError, nearest

CONF = Path(__file__).parents[1] / "conf"
LARGEST = 2**63 - 1
"""The largest seed that a record can hold."""
COMMAND = "the command line"
TIMES, AXIS = "times", "axis"
MISSING = "???"
TARGET = "_target_"
PACKAGES = "PAPER_REPRO_PACKAGES"
"""The environment variable that names the user's packages, by name or by folder, several as in $PATH."""
ROOMS = ("models", "lightning_modules", "datamodules", "probes", "training", "metrics", "papers", "tests")
"""The parts of the package whose classes a config may name; the rooms that run code and write files are not."""
CALLBACKS = "lightning.pytorch.callbacks."
FACTORIES = ("paper_repro.models.", "paper_repro.tests.")
"""Where a function may be named, too, if its annotation says which class of ours it builds."""
DIRECTIVES = (TARGET, "_partial_", "_args_", "_convert_", "_recursive_")
"""The keys of a ``_target_`` node that are for hydra, not for the target."""
HABITS = {
    "trainer.max_steps": "training.steps",
    "trainer.max_epochs": "training.steps",
    "trainer.gradient_clip_val": "training.clip_norm",
    "trainer.accumulate_grad_batches": "training.accumulate",
    "trainer.num_nodes": "machine.nodes",
    "learning_rate": "optimizer.lr",
    "callbacks": "training.callbacks",
    "logger": "machine.logger",
    "trainer": "training",
}
"""Keys of Lightning's and Hydra's templates, each with the key that does the same here."""
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
_hints = functools.cache(typing.get_type_hints)
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")
_PATH = re.compile(r"(?P<key>\+{0,2}[A-Za-z_][\w./]*)=(?P<value>(?:/|~/|\.{1,2}/)[^\\]*)", re.DOTALL)
_OF_SEVERAL_KINDS = tuple(f"machine.{key}" for key in ("compile", "cuda_graph", "devices", "micro_batch", "workers"))
"""Keys whose values are of several kinds; ``cells.planned`` checks them."""


# Configs.


def compose(experiment: str, overrides: "Sequence[str | Override]" = (), seed: int = 0) -> dict[str, Any]:
    """Return the resolved config of one cell: ``compose_seeds`` for a single seed."""
    return compose_seeds(experiment, overrides, [seed])[0]


def compose_seeds(experiment: str, overrides: "Sequence[str | Override]", seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the resolved configs of one experiment, such as ``cem/gaussian_process``, at several seeds.

    A later override wins over an earlier one.  UsageError: an unknown name, a value of another type than the default's,
    a reference that leads nowhere, or a ``_target_`` that is refused.
    """
    config = unresolved(experiment, parse_all(overrides))
    found = []
    for seed in seeds:
        if type(seed) is not int or not 0 <= seed <= LARGEST:
            raise UsageError(f"seed {seed!r} is not a whole number from 0 to {LARGEST}, the largest in a record")
        try:
            found.append(resolve({**config, "seed": seed}))
        except UsageError as error:
            raise UsageError(f"experiment {experiment}: {error}") from error
        check_targets(found[-1])
    return found


def unresolved(experiment: str, overrides: "Sequence[Override]") -> dict[str, Any]:
    """Return the config with its references as written: group files, then the values in their order."""
    config = dict(compose_files(experiment, chosen_groups(overrides)))
    for item in overrides:
        if not chooses(item):
            apply(config, item)
    return config


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a config in which each reference to a key, such as ``${seed}``, is that key's value.

    OmegaConf would take a hundred times as long, and would resolve secrets such as ``${oc.env:KEY}``.
    """

    def value(node: Any, place: str, within: tuple[str, ...]) -> Any:
        if isinstance(node, Mapping):
            return {str(key): value(child, f"{place}.{key}", within) for key, child in node.items()}
        if isinstance(node, list):
            return [value(child, f"{place}[{index}]", within) for index, child in enumerate(node)]
        if not isinstance(node, str) or ("$" not in node and node != MISSING):
            return node
        if node == MISSING:
            raise UsageError(f"{place} has no value: give {place}=...")
        if "${" in _REFERENCE.sub("", node):
            raise UsageError(f"{place}: {node!r} is refused: only plain references such as ${{seed}} are accepted")
        if found := _REFERENCE.fullmatch(node):
            return behind(found[1], place, within)
        return _REFERENCE.sub(lambda found: str(behind(found[1], place, within)), node)

    def behind(key: str, place: str, within: tuple[str, ...]) -> Any:
        if key in within:
            raise UsageError(f"{place}: ${{{key}}} leads back to itself")
        try:
            return value(lookup(config, key), key, (*within, key))
        except KeyError:
            raise UsageError(f"{place}: ${{{key}}}: there is no key {key!r}") from None

    return {key: value(node, key, ()) for key, node in config.items()}


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """Return the value under a dotted key, for example ``optimizer.lr``, else raise KeyError."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            raise KeyError(key)
        node = node[part]
    return node


def without(config: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return a copy of ``config`` without the given dotted keys (absent ones are ignored)."""
    result = dict(config)
    for key in keys:
        first, _, rest = key.partition(".")
        if not rest:
            result.pop(first, None)
        elif isinstance(result.get(first), dict):
            result[first] = without(result[first], [rest])
    return result


def without_seeds(node: Any) -> Any:
    """Return a part of a config without the keys ``seed`` at any depth."""
    if isinstance(node, Mapping):
        return {key: without_seeds(value) for key, value in node.items() if key != "seed"}
    return [without_seeds(item) for item in node] if isinstance(node, list | tuple) else node


# Files of configs.


def folders() -> list[Path]:
    """Return the folders of configs: ours, and ``conf`` of each package of the user."""
    own = (folder / "conf" for folder in own_packages().values())
    return [CONF, *(folder for folder in own if folder.is_dir())]


def files_of(group: str) -> dict[str, Path]:
    """Return the files of a group of configs by the name that chooses each, which must be unique."""
    found: dict[str, Path] = {}
    for root in folders():
        for path in sorted((root / group).rglob("*.yaml")):
            name = path.relative_to(root / group).with_suffix("").as_posix()
            if name in found:
                raise UsageError(f"{path}: {found[name]} has that name already; give it another")
            found[name] = path
    return found


def file_of(name: str) -> Path | None:
    """Return the file of a config, named as in ``experiment/cem/slimpajama``; None where there is none."""
    return next((path for root in folders() if (path := root / f"{name}.yaml").is_file()), None)


def experiments() -> list[str]:
    """Return the experiments, ours and those of the user's packages."""
    return sorted(files_of("experiment"))


def experiment_titles() -> dict[str, str]:
    """Return the title of each experiment: the first comment of its file."""
    titles = {}
    for name, path in sorted(files_of("experiment").items()):
        lines = path.read_text(encoding="utf-8").splitlines()
        comments = (line[1:].strip() for line in lines if line.startswith("#") and not line.startswith("# @package"))
        titles[name] = next(comments, "")
    return titles


def experiment_named(words: Sequence[str]) -> str:
    """Return the experiment that words of a command name: ``cem/slimpajama``, ``CEM Slimpajama`` or its file."""
    place = "/".join(words).rpartition("conf/experiment/")[2].removesuffix(".yaml").strip("/")
    name = {name.casefold(): name for name in experiments()}.get(place.casefold())
    if name is None and len(words) != 1:
        raise UsageError("give one experiment, for example cem/gaussian_process; --list shows them all")
    return name or place


def chooses(override: "Override") -> bool:
    """Return whether this names a config of a group, as ``machine=gpu`` does, and is no value for a key."""
    return (
        isinstance(override.value, str)
        and override.key != "experiment"
        and any((folder / override.key).is_dir() for folder in folders())
    )


def chosen_groups(overrides: "Sequence[Override]") -> tuple[tuple[str, str], ...]:
    """Return the choice for each config group that the overrides name, sorted; ``+`` marks a group without default."""
    return tuple(sorted({f"{'+' * item.adds}{item.key}": item.value for item in overrides if chooses(item)}.items()))


@functools.lru_cache(maxsize=256)
def compose_files(experiment: str, groups: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return Hydra's composition of an experiment and the files of its groups; callers must not change it."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    for group, choice in (("experiment", experiment), *groups):
        if choice not in (choices := files_of(group.lstrip("+"))):
            own = [name for name in choices if name.startswith(f"{experiment.partition('/')[0].casefold()}/")]
            said = f"unknown experiment {choice!r}"
            if group != "experiment":
                said = f"{group}={choice}: there is no such {group} config"
            raise UsageError(f"{said}{nearest(choice, own or choices)}")
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = hydra_compose("train", _words_of_hydra(experiment, groups))
    except HydraException as error:
        raise UsageError(f"experiment {experiment}: {' '.join(str(error).split())}") from error
    container: Any = OmegaConf.to_container(config, resolve=False)
    return {str(key): value for key, value in container.items() if key != "runs"}


def _words_of_hydra(experiment: str, groups: tuple[tuple[str, str], ...]) -> list[str]:
    """Return the overrides of ``train.yaml`` that compose an experiment with the choices of its groups."""
    return [search_path(), f"experiment={experiment}", "runs=null", *(f"{group}={choice}" for group, choice in groups)]


def search_path() -> str:
    """Return the override by which Hydra looks for configs in the user's packages, too."""
    return f"hydra.searchpath={json.dumps([f'file://{folder}' for folder in folders()[1:]])}"


# YAML whose mistakes are named with file and line.


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A loader of the scalars of YAML 1.2's core schema: ``1e-3`` is a number, ``yes`` and ``1:30`` are text."""

    yaml_implicit_resolvers: typing.ClassVar[dict[str, Any]] = {}


_CORE = "tag:yaml.org,2002:"
_MORE = "!more"
_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
for _scalar, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", rf"{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_CORE + _scalar, re.compile(rf"^(?:{_pattern})$"), _first)


@dataclass(frozen=True, eq=False)
class Node:
    """A YAML node with its file and line, and the line of its key."""

    path: Path
    line: int
    tag: str
    content: "dict[str, Node] | list[Node] | str"
    """The nodes of a mapping or a list, or the word of a scalar as it stands in the file: ``1e-3``, not 0.001."""
    name: str = ""
    key_line: int = 0

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"

    def error(self, message: str) -> UsageError:
        return UsageError(f"{self.where}: {message}")

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.content, dict)

    @property
    def is_sequence(self) -> bool:
        return isinstance(self.content, list)

    def items(self) -> "dict[str, Node]":
        if not isinstance(self.content, dict):
            raise self.error(f"{self.name or 'this'} must be a mapping of keys to values")
        return dict(self.content)

    def elements(self) -> "list[Node]":
        if not isinstance(self.content, list):
            raise self.error(f"{self.name or 'this'} must be a list")
        if self.tag == _MORE:
            raise self.error(f"'{self.name}' is {_MORE} of a list, and there is none before it")
        return list(self.content)

    def text(self) -> str:
        if not isinstance(self.content, str):
            raise self.error(f"{self.name or 'this'} must be one word or number")
        return self.content

    def plain(self) -> Any:
        """Return the value as plain Python data."""
        if self.is_mapping:
            return {key: child.plain() for key, child in self.items().items()}
        if self.is_sequence:
            return [child.plain() for child in self.elements()]
        text = self.text()
        try:
            match self.tag.removeprefix(_CORE):
                case "str":
                    return text
                case "null":
                    return None
                case "bool":
                    return {"true": True, "false": False}[text.lower()]
                case "int":
                    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
                case "float":
                    return float(text.replace(".inf", "inf").replace(".nan", "nan") if text[-1].isalpha() else text)
        except (KeyError, ValueError) as error:
            raise self.error(f"not understood: {text!r}") from error
        raise self.error(f"not understood: the tag {self.tag!r}")


Library = Mapping[str, Mapping[str, Node]]
"""Definitions by name, for each section whose list names them."""


def read(path: Path, library: Library | None = None) -> Node:
    """Return the root node of a YAML file without aliases.

    A section of the library may be a list, ``[loss, {perplexity: {digits: 2}}]``, which names definitions.
    """
    try:
        text = path.read_text(encoding="utf-8")
        for token in yaml.scan(text, Loader=_Loader) if "*" in text else ():
            if isinstance(token, yaml.AliasToken):
                raise UsageError(f"{path}:{token.start_mark.line + 1}: anchors and aliases are not read: use 'like'")
        root = yaml.compose(text, Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from error
    if root is None:
        raise UsageError(f"{path}: the file is empty")
    node = _node(path, root)
    if library and node.is_mapping:
        sections = {key: _defined(child, library.get(key)) for key, child in node.items().items()}
        node = dataclasses.replace(node, content=sections)
    return node


def _node(path: Path, node: yaml.Node, name: str = "", key_line: int = 0) -> Node:
    content: Any = node.value
    if isinstance(node, yaml.SequenceNode):
        content = [_node(path, child, name) for child in node.value]
    elif isinstance(node, yaml.MappingNode):
        content = dict[str, Node]()
        for key_node, child in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key == "<<":
                raise UsageError(f"{path}:{line}: a key is one word, and merge keys (<<) are not read")
            if key in content:
                raise UsageError(f"{path}:{line}: duplicate key '{key}' (first at line {content[key].key_line})")
            content[key] = _node(path, child, key, line)
    return Node(path, node.start_mark.line + 1, node.tag, content, name, key_line)


def _defined(section: Node, known: Mapping[str, Node] | None) -> Node:
    """Return a section; of a list of names the mapping of their definitions."""
    if known is None or not isinstance(section.content, list):
        return section
    found: dict[str, Node] = {}
    for child in section.content:
        if not child.is_mapping and child.text() not in known:
            raise child.error(f"unknown '{child.text()}' in '{section.name}'{nearest(child.text(), known)}")
        own = child.items() if child.is_mapping else {child.text(): known[child.text()]}
        found |= {name: over(known[name], node) if name in known else node for name, node in own.items()}
    return dataclasses.replace(section, content=found)


def over(base: Node, own: Node) -> Node:
    """Return ``own`` with what it leaves to ``base``: mappings are merged key by key, a list with the tag ``!more``
    continues the other file's, and all else is replaced.
    """
    if isinstance(base.content, dict) and isinstance(own.content, dict):
        below = base.content
        merged = {key: over(below[key], child) if key in below else child for key, child in own.content.items()}
        return dataclasses.replace(own, content=below | merged)
    if isinstance(base.content, list) and isinstance(own.content, list) and own.tag == _MORE:
        return dataclasses.replace(own, tag=base.tag, content=base.content + own.content)
    return own


def entries(node: Node, required: Sequence[str] = (), optional: Sequence[str] = ()) -> dict[str, Node]:
    """Return the entries of a mapping; one that is unknown, or missing, is a UsageError with file and line."""
    found, known = node.items(), (*required, *optional)
    for key, child in found.items():
        if key not in known:
            raise UsageError(f"{child.path}:{child.key_line}: unknown key '{key}'{nearest(key, known)}")
    for key in required:
        if key not in found:
            raise node.error(f"missing '{key}'" + (f" in '{node.name}'" if node.name else ""))
    return found


def convert(hint: Any, node: Node) -> Any:
    """Return the value of ``node`` as the type ``hint``: a scalar, a list, a dict, a dataclass, whose fields may have
    another ``key`` in their metadata, or a class with its own ``from_yaml(node)``.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if type(None) in arguments and node.plain() is None:
            return None
        (hint,) = (argument for argument in arguments if argument is not type(None))
        return convert(hint, node)
    if origin in (list, tuple):
        return origin(convert(arguments[0], child) for child in node.elements())
    if origin is dict:
        return {key: convert(arguments[1], child) for key, child in node.items().items()}
    if hint is Any:
        return node.plain()
    if hasattr(hint, "from_yaml"):
        return hint.from_yaml(node)
    if dataclasses.is_dataclass(hint):
        return _built(hint, node)
    value = node.plain()
    if value is None:
        raise node.error(f"'{node.name}' must not be empty")
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise node.error(f"'{node.name}' must be {_KINDS.get(hint, hint.__name__)}, not {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise node.error(f"'{node.name}' must be finite, not {value!r}")
    return value


def _built(kind: Any, node: Node) -> Any:
    fields = {one.metadata.get("key", one.name): one for one in dataclasses.fields(kind)}
    required = [key for key, one in fields.items() if {one.default, one.default_factory} == {dataclasses.MISSING}]
    found = [(fields[key].name, child) for key, child in entries(node, required, list(fields)).items()]
    values = {name: convert(_hints(kind)[name], child) for name, child in found}
    try:
        return kind(**values)
    except UsageError:
        raise
    except ValueError as error:
        raise node.error(str(error)) from error


# Overrides.


@dataclass(frozen=True)
class Override:
    """The value of one key of a config, or with ``times`` the factor of the number below it.

    In YAML alone, ``{times: 2}`` multiplies, and ``{axis: steps}`` is the number of an axis.
    """

    key: str
    value: Any
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

    def error(self, message: str) -> UsageError:
        where = "" if self.source == COMMAND else f"{self.source}: "
        return UsageError(f"{where}override {self.key!r}: {message}")


def quoted(text: str) -> str:
    """Return a word of a command as Hydra's grammar takes it: a path in quotes, with its commas and spaces."""
    path = _PATH.fullmatch(text)
    return text if path is None else "{}='{}'".format(path["key"], path["value"].replace("'", "\\'"))


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Override:
    """Parse one override in Hydra's grammar: ``key=value``, ``+key=value`` to add a key, or ``group=choice``."""
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
    if parsed.is_delete() or parsed.package is not None:
        raise UsageError(f"{said}: deleting and packages are not supported; {key}=null turns off what is optional")
    if parsed.is_sweep_override():
        raise UsageError(
            f"{said}: several values are for train.py -m; give one value, a list as {key}=[{value}], or name the "
            "values as an axis (docs/add/ablation.md)"
        )
    return _checked(Override(key, parsed.value(), adds=parsed.is_add() or parsed.is_force_add()))


def parse_all(overrides: Sequence[str | Override]) -> list[Override]:
    return [parse(item) if isinstance(item, str) else item for item in overrides]


class Overrides(tuple[Override, ...]):
    """The overrides of a YAML mapping; a section stands before what refines it."""

    @classmethod
    def from_yaml(cls, node: Node) -> "Overrides":
        if not node.is_mapping:
            raise node.error(f"'{node.name}' is a mapping of keys to values, for example {{optimizer.lr: 0.008}}")
        found = (override_of(name, child) for name, child in node.items().items())
        return cls(sorted(found, key=lambda item: item.key.count(".")))


def override_of(name: str, node: Node) -> Override:
    """Return the override of the key ``name`` (``+name`` to add it) by the value of a YAML node."""
    where = f"{node.path}:{node.key_line or node.line}"
    key, value = name.removeprefix("+"), node.plain()
    special = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else ""
    times, axis = special == TIMES, special == AXIS
    if times or axis:
        value = value[special]
    if times and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise node.error(f"'{key}': {TIMES} takes a number, not {value!r}")
    return _checked(Override(key, value, where, name != key, times, axis))


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
    """Set the override's key in ``config``, whose sections are copied before they change."""
    *parents, last = override.key.split(".")
    node: Any = config
    for depth, part in enumerate(parents):
        if part not in node and not (override.adds and depth):
            raise _unknown_key(override, parents[:depth], node, config)
        if not isinstance(node.setdefault(part, {}), dict):
            raise override.error(f"{'.'.join(parents[: depth + 1])} is a value, not a section")
        node[part] = dict(node[part])
        node = node[part]
    if override.times:
        below = node.get(last)
        if isinstance(below, bool) or not isinstance(below, (int, float)):
            raise override.error(f"{TIMES} multiplies a number, and the value below is {below!r}")
        exact = below * override.value
        node[last] = type(below)(exact)
        if node[last] != exact:
            raise override.error(f"{override.key} is a whole number, and {below} times {override.value} is {exact}")
    elif last in node:
        node[last] = _fitting(override, node[last])
    elif override.adds and override.key not in HABITS:
        node[last] = override.value
    else:
        raise _unknown_key(override, parents, node, config)


def _unknown_key(
    override: Override, parents: Sequence[str], node: Mapping[str, Any], config: Mapping[str, Any]
) -> UsageError:
    """Name the key that does the same, else the keys of the same last part, else the nearest key of the section."""
    said = f"unknown key {override.key!r}"
    if override.key in ("ckpt_path", "resume", "trainer.resume_from_checkpoint"):
        return override.error(f"{said}: a run goes on from its last checkpoint by itself: give the same command again")
    wanted = HABITS.get(override.key, override.key)
    last = wanted.rpartition(".")[2].casefold()
    alike = [key for key, _ in _nodes(config, "") if key.rpartition(".")[2].casefold() == last]
    alike = alike or [wanted] * (wanted != override.key)
    if alike:
        shown = wanted if wanted in alike else " or ".join(sorted(alike, key=lambda key: key.count("."))[:3])
        return override.error(f"{said} (did you mean {shown}?)")
    return override.error(f"{said}{nearest(override.key, ['.'.join([*parents, str(key)]) for key in node])}")


def _fitting(override: Override, default: Any) -> Any:
    value = override.value
    is_open = isinstance(default, str) and (default.startswith("${") or default == MISSING)
    if override.key in _OF_SEVERAL_KINDS or default is None or value is None or is_open:
        return value
    if type(value) is type(default) or (isinstance(value, str) and value.startswith("${")):
        return value
    if isinstance(default, float) and type(value) is int:
        return float(value)
    takes, given = (_KINDS.get(type(one), "a section") for one in (default, value))
    raise override.error(f"{override.key} takes {takes} (default {default!r}), not {given}")


# Origins of values.


def explained(experiment: str, overrides: Sequence[str | Override], seed: int) -> str:
    """Return one cell's resolved config as YAML, with the last layer that sets each value as a comment."""
    parsed = parse_all(overrides)
    config, written = compose(experiment, parsed, seed), dict(leaves(unresolved(experiment, parsed)))
    return "\n".join(_lines(config, written, _origins(experiment, parsed, seed)))


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a nested mapping with its dotted key; an empty mapping is a value."""
    if not isinstance(value, Mapping) or (not value and prefix):
        yield prefix, value
        return
    for key, child in value.items():
        yield from leaves(child, f"{prefix}.{key}".removeprefix("."))


def _origins(experiment: str, overrides: Sequence[Override], seed: int) -> dict[str, str]:
    """Return the origin of each value of a composed config, by its dotted key."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    choosers = {item.key: item.source for item in overrides if chooses(item)}
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        words = _words_of_hydra(experiment, chosen_groups(overrides))
        defaults = loader.compute_defaults_list("train", words, RunMode.RUN).defaults
    found: dict[str, str] = {}
    for default in defaults:
        if (path := file_of(str(default.config_path))) is not None:
            group = str(default.config_path).partition("/")[0]
            chosen = f", chosen by {choosers[group]}" if group in choosers else ""
            for key, line in _places(read(path), default.package or ""):
                _clear(found, key)
                found[key] = f"{path}:{line}{chosen}"
    for item in overrides:
        if not chooses(item):
            factor = f"{item.value} times the value of {found.get(item.key)}, by " if item.times else ""
            _clear(found, item.key)
            found.update((key, f"{factor}{item.source}") for key, _ in leaves(item.value, item.key))
    return {**found, "seed": f"the seed {seed}"}


def _clear(found: dict[str, str], key: str) -> None:
    """Drop the origins of a section that is replaced, and of an empty one that is filled."""
    for known in [known for known in found if f"{known}.".startswith(f"{key}.") or key.startswith(f"{known}.")]:
        del found[known]


def _places(node: Node, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the dotted key of each value of a file, and its line."""
    for key, child in node.items().items():
        name = f"{prefix}.{key}".removeprefix(".")
        if child.is_mapping and child.items():
            yield from _places(child, name)
        elif name != "defaults":
            yield name, child.key_line


def _lines(
    node: Mapping[str, Any], written: Mapping[str, Any], origins: Mapping[str, str], prefix: str = ""
) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and name not in origins:
            yield f"{indent}{_yaml(key)}:"
            yield from _lines(value, written, origins, f"{name}.")
            continue
        raw = written.get(name)
        reference = f"{raw}, " if isinstance(raw, str) and "${" in raw else ""
        origin = origins.get(name, "not found in any layer").replace(f"{CONF.parents[1]}/", "")
        yield f"{f'{indent}{_yaml(key)}: {_yaml(value)}':<56}  # {reference}{origin}"


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.removesuffix("...\n").strip()


# Packages of a user.


def own_packages() -> Mapping[str, Path]:
    """Return the folder of each package of the user by its name; their modules can be imported from here on.

    $PAPER_REPRO_PACKAGES names them.  Below a package's folder, ``conf/`` holds configs in the layout of ours, and
    ``papers/`` artifacts.
    """
    return _packages(os.environ.get(PACKAGES, ""))


@functools.lru_cache(maxsize=8)
def _packages(given: str) -> Mapping[str, Path]:
    found, where = dict[str, Path](), f"${PACKAGES}={given}"
    for word in filter(None, given.split(os.pathsep)):
        path, name = Path(word).expanduser(), word.strip()
        is_folder = path.is_dir() and (os.sep in word or not word.isidentifier())
        if is_folder:
            name = path.absolute().name  # a link gives the package its name
            if str(path.absolute().parent) not in sys.path:
                sys.path.append(str(path.absolute().parent))
        if name in sys.stdlib_module_names or name == "paper_repro":
            raise UsageError(f"{where}: {name} is a package of Python or of this repository; give yours another name")
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        places = [Path(place).resolve() for place in (spec and spec.submodule_search_locations) or ()]
        if not places or (is_folder and places[0] != path.resolve()):
            instead = f" (Python takes {name} from {places[0]})" if places else ""
            raise UsageError(f"{where}: {word!r} is not the folder or the name of a package{instead}")
        found.setdefault(name, places[0])
    return found


# Targets.


def check_targets(config: Any) -> None:
    """Raise UsageError where a config names a target that is refused; ``locate`` and ``require`` check the objects."""
    for path, call in _calls(config, ""):
        if not _may_be_named(call[TARGET]):
            raise UsageError(f"{path or 'config'}: {_refusal(call[TARGET])}")


def modules(config: Any) -> set[str]:
    """Return the modules of the classes that a config may name; they are not imported."""
    targets = [call[TARGET] for _, call in _calls(config, "")]
    return {target.rpartition(".")[0] for target in targets if _may_be_named(target)}


def instantiate(node: Mapping[str, Any]) -> Any:
    """Build the object that ``node['_target_']`` names from the other keys of ``node``, as Hydra does.

    UsageError: an unknown key, a refused or missing target, or a value that the target's constructor refuses.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate as build

    check_targets(node)
    for path, value in _nodes(node, ""):
        if isinstance(value, str) and "${" in value:  # hydra would resolve it, and build the result unchecked
            raise UsageError(f"{path}: {value!r} is not resolved; give a plain value")
    for path, call in _calls(node, ""):
        parameters = inspect.signature(locate(call[TARGET])).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        for key in call if not takes_any else ():
            if key not in parameters and key not in DIRECTIVES:
                where = f"{path}.{key}".removeprefix(".")
                raise UsageError(f"unknown key {where!r} for {call[TARGET]}{nearest(str(key), parameters)}")
    try:
        return build(dict(node), _convert_="all")
    except InstantiationException as error:
        raise UsageError(f"{node.get(TARGET)}: {error.__cause__ or error}") from error


def require(node: Any, section: str, expected: type, described: str, nested: bool = False) -> None:
    """Check before anything is built that a section's ``_target_`` builds an ``expected``, ``described`` in words.

    With ``nested`` every ``_target_`` below must build one too, as the parts of a model do.
    """
    if not isinstance(node, Mapping) or TARGET not in node:
        raise UsageError(f"{section}: found no {TARGET}, expected the name of {described}")
    for path, call in _calls(node, section):
        if path == section or nested:
            found = built_by(call[TARGET])
            if not issubclass(found, expected):
                builds = "" if found.__name__ == call[TARGET].rpartition(".")[2] else f", which is {found.__name__}"
                raise UsageError(f"{path}.{TARGET} {call[TARGET]}{builds}: not {described}")


def built_by(target: str) -> type:
    """Return the class that a target builds: itself, or the one that a function's annotation names."""
    found: Any = locate(target)
    return found if isinstance(found, type) else inspect.get_annotations(found)["return"]


def locate(target: str) -> Any:
    """Return the class or function of that dotted name, a module and a name in it, else raise UsageError.

    It must be defined in one of the ``ROOMS``, in a package that the user named, as an optimizer below torch.optim, or
    as a callback below lightning.pytorch.callbacks: the ``os`` that some module imports is refused.  A function is
    accepted where it is defined beside models, or in the user's package, and annotated with the class that it builds.
    """
    if not _may_be_named(target):
        raise UsageError(_refusal(target))
    home, _, name = target.rpartition(".")
    try:
        module = importlib.import_module(home)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{home}.".startswith(f"{error.name}."):
            raise UsageError(_refusal(target)) from error
        said = error if isinstance(error, ModuleNotFoundError) else repr(error)
        raise UsageError(f"{TARGET} {target!r}: {home} cannot be imported: {said}") from error
    if not hasattr(module, name):
        known = [key for key in vars(module) if not key.startswith("_")]
        raise UsageError(f"{TARGET} {target!r} does not exist{nearest(name, known)}")
    found = getattr(module, name)
    if not _may_be_built(found):
        raise UsageError(_refusal(target))
    return found


def _may_be_built(found: Any) -> bool:
    home = f"{getattr(found, '__module__', None)}."
    if isinstance(found, FunctionType):
        made = inspect.get_annotations(found).get("return")
        return home.startswith((*FACTORIES, *(f"{name}." for name in own_packages()))) and _may_be_built(made)
    if not isinstance(found, type):
        return False
    if home.startswith("torch.optim."):
        return issubclass(found, importlib.import_module("torch.optim").Optimizer)
    if home.startswith(CALLBACKS):
        return issubclass(found, importlib.import_module("lightning").Callback)
    return home.startswith(_allowed())


def _allowed() -> tuple[str, ...]:
    rooms = (f"paper_repro.{room}." for room in ROOMS)
    return (*rooms, "torch.optim.", CALLBACKS, *(f"{name}." for name in own_packages()))


def _may_be_named(target: Any) -> bool:
    if not isinstance(target, str) or not target.startswith(_allowed()):
        return False
    return all(part.isidentifier() and not part.startswith("_") for part in target.split("."))


def _refusal(target: Any) -> str:
    first = str(target).partition(".")[0]
    name = first if first.isidentifier() and first != "paper_repro" else "NAME"
    own = "".join(f", {name}" for name in own_packages())
    return (
        f"{TARGET} {target!r} is refused: only classes of paper_repro.{{{', '.join(ROOMS)}}}{own} and torch's "
        f"optimizers are accepted; a package of yours is named by {PACKAGES}={name}"
    )


def _calls(node: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((place, found) for place, found in _nodes(node, path) if isinstance(found, Mapping) and TARGET in found)


def _nodes(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a node and all nodes below it, each with its place."""
    yield path, node
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _nodes(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for index, value in enumerate(node):
            yield from _nodes(value, f"{path}[{index}]")

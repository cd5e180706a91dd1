"""What makes a cell the cell that it is: one id for its weights, and one for each probe that measures them.

Four things stay out of an id, so that a change of any of them costs no training:

* what changes speed or place alone: the ``machine`` section, the keys that ``speed`` and ``hints`` list;
* a key at its neutral value, which is the default of the constructor that reads it;
* the folder that a data file lies in, where its name is absolute: its content counts (``base.data_hashes``);
* where a class lies: a class that moved counts under the name that it was first published with.

``identity.yaml`` beside this file holds these rules.  A record that an older version of the code has written is read by
the same rules, so its id is today's id, whatever its config calls the classes.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper_repro.base import typed_yaml

RULES = Path(__file__).with_suffix(".yaml")
MACHINE = "machine"
"""The one top-level key that says where and how fast, never what."""
AUTO = "auto"
"""The value of ``machine.compile`` that leaves the choice to a trial."""
PROBES = "probes"
FILES = "files"
TARGET = "_target_"
LENGTH = 16
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Timed:
    """The keys of ``machine`` that a measured time depends on."""

    always: list[str]
    unless: dict[str, list[Any]]
    """Keys that count at other values than these alone, of which the first stands for an absent key."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.always, *self.unless)

    def of(self, machine: Mapping[str, Any]) -> dict[str, Any]:
        """Return what counts of a machine section."""
        found = {key: machine[key] for key in self.always if key in machine}
        return found | {
            key: machine[key] for key, usual in self.unless.items() if machine.get(key, usual[0]) not in usual
        }


@dataclass(frozen=True)
class PublishedText:
    """The text of published records that each user prepares anew."""

    name: str
    """What the manifest calls its source."""
    of: str
    """The programs whose text it is."""
    manifests: dict[str, dict[str, Any]]
    """The SHA-256 of a published manifest to its tokenizer and its shards."""


@dataclass(frozen=True)
class Rules:
    """The content of ``identity.yaml``."""

    renamed: dict[str, str]
    """Today's dotted name of a class to the name under which its first record was published."""
    between: dict[str, str]
    """Other names that records hold of a class, to today's."""
    speed: frozenset[str]
    """Arguments of models and optimisers that stand in ``machine`` today."""
    hints: frozenset[str]
    """Other keys that change no result, wherever they stand."""
    unread: Mapping[str, frozenset[str]]
    """Keys of older configs that no code reads, by class; under "config" those of the top level."""
    published_text: PublishedText
    timed: dict[str, "Timed"]
    """A task that measures time, to the keys of ``machine`` that its result depends on."""
    reads: dict[str, list[str]]
    """A task that does not read its whole config, to the dotted keys that it reads."""
    neutral: dict[str, dict[str, Any]]
    """A class, or a section without a class, to its keys' neutral values."""

    @functools.cached_property
    def moved(self) -> dict[str, str]:
        """The first name of a class, and any between, to today's."""
        return {first: now for now, first in self.renamed.items()} | self.between

    @functools.cached_property
    def uncounted(self) -> frozenset[str]:
        """The keys that change no result, wherever they stand but in ``machine``."""
        return self.speed | self.hints


@functools.cache
def rules() -> Rules:
    """Return the rules, read once."""
    content = typed_yaml.read(RULES).plain()
    neutral: dict[str, dict[str, Any]] = {}
    for entry in content["neutral"]:
        for name in entry["of"]:
            neutral.setdefault(name, {}).update(entry["values"])
    speed, hints = (frozenset(content[key]) for key in ("speed", "hints"))
    unread = {name: frozenset(keys) for name, keys in content["unread"].items()}
    timed = {task: Timed(**node) for task, node in content["timed"].items()}
    published = PublishedText(**content["published_text"])
    names = (content["renamed"], content["between"])
    return Rules(*names, speed, hints, unread, published, timed, content["reads"], neutral)


def settings(config: Mapping[str, Any]) -> str:
    """Return the hash of all that makes a cell's weights, but for the content of the files that it reads."""
    return fingerprint(_canonical(_read_part(today(config)), ""))


def weights(config: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """Return the id of a cell.

    Args:
        config: resolved.
        files: the SHA-256 of each file that ``data.files`` names, by role.
    """
    return with_files(settings(config), files)


def with_files(own: str, files: Mapping[str, str]) -> str:
    """Return the id of a cell of these ``settings``; ``files`` as in ``weights``."""
    return own if not files else hashlib.sha256(f"{own}/{canonical_json(dict(files))}".encode()).hexdigest()[:LENGTH]


def probes(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the id of each probe of a config, by its name."""
    found = _renewed(config.get(PROBES) or {})
    return {name: fingerprint(_canonical(node, "")) for name, node in found.items() if node is not None}


def recorded(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record keeps of a config: all but ``machine``, of which it keeps what its id depends on."""
    timed = _timed(config)
    return {**{key: value for key, value in config.items() if key != MACHINE}, **({MACHINE: timed} if timed else {})}


def of_record(config: Mapping[str, Any], data: Mapping[str, str]) -> str | None:
    """Return the id that a record must have; None where it does not tell the content of the files that its cell has
    read.

    Args:
        config: the record's.
        data: the SHA-256 of the data that the run has seen, by role, as the record gives them.
    """
    roles = files_of(config)
    if not roles.keys() <= data.keys():
        return None
    return weights(config, {role: data[role] for role in sorted(roles)})


def is_timed(config: Mapping[str, Any]) -> bool:
    """Return whether a cell measures how long something takes."""
    return _target(config.get("task")) in rules().timed


def timed_keys(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of the machine section that a cell's result depends on; none but of one that measures time."""
    rule = rules().timed.get(_target(config.get("task")))
    return () if rule is None else rule.keys


def files_of(config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the files that a config's task reads, by role; what measures time works on random numbers."""
    if is_timed(config):
        return {}
    found = reader_of(config).get(FILES)
    return found if isinstance(found, Mapping) else {}


def reader_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the node that names files, and the command that prepares them: ``data``, or its ``source``."""
    data = config.get("data")
    if not isinstance(data, Mapping):
        return {}
    source = data.get("source")
    return source if isinstance(source, Mapping) and FILES in source else data


def today(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config of any age as today's code spells it: classes where they lie now, keys of speed in
    ``machine``.
    """
    known = rules()
    result = {key: _renewed(value) for key, value in config.items() if key not in known.unread["config"]}
    task = _target(result.get("task"))
    machine = dict(result.get(MACHINE) or {})
    if task in known.timed:
        machine = {key: config[key] for key in known.timed[task].keys if key in config} | machine
    for key in known.speed & result.keys():
        del result[key]
    return {**result, MACHINE: machine} if machine else result


def fingerprint(value: Any) -> str:
    """Return a short SHA-256 of a JSON value; key order does not matter, 1 and 1.0 differ."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:LENGTH]


def canonical_json(value: Any) -> str:
    """Return the one spelling of a JSON value."""
    return _CANONICAL.encode(value)


def _read_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a config a task's result depends on."""
    task = _target(config.get("task"))
    found = {key: value for key, value in config.items() if key not in (MACHINE, PROBES)}
    if task in rules().reads:
        found = dict(_selected(found, ("task", "seed", *rules().reads[task])))
    timed = _timed(config)
    return {**found, MACHINE: timed} if timed else found


def _timed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a config's machine section counts."""
    rule = rules().timed.get(_target(config.get("task")))
    return {} if rule is None else rule.of(config.get(MACHINE) or {})


def _selected(config: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    sections: dict[str, list[str]] = {}
    for key in keys:
        section, _, rest = key.partition(".")
        sections.setdefault(section, []).append(rest)
    for section, rests in sections.items():
        if section not in config:
            continue
        value = config[section]
        if "" in rests or not isinstance(value, Mapping):
            yield section, value
        else:
            yield section, dict(_selected(value, tuple(rests)))


def _canonical(node: Any, section: str) -> Any:
    """Return a node without what does not count, its classes under their first names."""
    if isinstance(node, dict):
        known = rules()
        name = _target(node) or section
        neutral = known.neutral.get(name, {})
        without = known.uncounted if section != MACHINE else ()
        result = {}
        for key, value in node.items():
            if key in without:
                continue
            found = _below_root(value) if section == FILES else _canonical(value, str(key))
            if key in neutral and canonical_json(found) == _neutral(name, key):
                continue
            result[str(key)] = known.renamed.get(value, value) if key == TARGET else found
        return result
    if isinstance(node, (list, tuple)):
        return [_canonical(value, "") for value in node]
    return node


def _below_root(name: Any) -> Any:
    """Return the name of a data file; of an absolute one the last folder and the file, as below a folder of data."""
    return str(Path(*Path(name).parts[-2:])) if isinstance(name, str) and Path(name).is_absolute() else name


@functools.cache
def _neutral(name: str, key: str) -> str:
    """Return the neutral value of a key as canonical JSON."""
    return canonical_json(_canonical(rules().neutral[name][key], ""))


def _renewed(node: Any) -> Any:
    """Return a node with each class under today's name, without keys that are not read or stand in ``machine``."""
    if isinstance(node, dict):
        known, first = rules(), str(node.get(TARGET))
        name = known.moved.get(first, first)
        gone = (known.speed if TARGET in node else frozenset()) | known.unread.get(name, frozenset())
        renewed = {key: _renewed(value) for key, value in node.items() if key not in gone}
        return {**renewed, TARGET: name} if TARGET in renewed else renewed
    if isinstance(node, (list, tuple)):
        return [_renewed(value) for value in node]
    return node


def _target(node: Any) -> str:
    found = node.get(TARGET) if isinstance(node, dict) else None
    return found if isinstance(found, str) else ""

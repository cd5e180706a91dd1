"""The identity of a cell: one id for its weights, one for each probe, and hashes of its code and data.

Four things stay out of an id:

* settings of speed or place alone: the ``machine`` section, the keys that ``speed`` and ``hints`` list;
* a key at its neutral value, which is the default of the constructor that reads it;
* the folder of a data file, where its name is absolute: its content counts;
* the module of a class: a class that moved counts under the name that it was first published with.

``identity.yaml`` beside this file holds these rules, which hold for records of older versions of the code, too.

The code of a cell is a hash of each file of ours, or of the user, that its classes import.  A record names that list by
its hash; the list itself is in the folder ``code`` beside ``cells``.  Files are only read, nothing is imported.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paper_repro.base import configs
from paper_repro.base.configs import TARGET, modules, own_packages
from paper_repro.base.files import read_regular, sha256_of_bytes, sha256_of_file, write_atomically

RULES = Path(__file__).with_suffix(".yaml")
MACHINE = "machine"
"""The one top-level key that changes place and speed alone."""
AUTO = "auto"
"""The value of ``machine.compile`` that leaves the choice to the length of the run."""
PROBES = "probes"
FILES = "files"
CODE = "code"
"""The folder of lists of modules."""
IGNORED = -100
"""The target of a place that no loss counts; PyTorch's default ``ignore_index``."""
LENGTH = 16
Hashes = dict[str, str]
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class Rules(NamedTuple):
    """The content of ``identity.yaml``, which explains each part."""

    renamed: dict[str, str]
    moved: dict[str, str]
    """The first name of a class, and any between, to today's."""
    speed: frozenset[str]
    hints: frozenset[str]
    unread: Mapping[str, frozenset[str]]
    timed: dict[str, dict[str, Any]]
    reads: dict[str, list[str]]
    neutral: dict[str, dict[str, Any]]
    """A class, or a section without a class, to its keys' neutral values."""


@functools.cache
def rules() -> Rules:
    """Return the rules, read once."""
    content = configs.read(RULES).plain()
    neutral: dict[str, dict[str, Any]] = {}
    for entry in content.pop("neutral"):
        for name in entry["of"]:
            neutral.setdefault(name, {}).update(entry["values"])
    moved = {first: now for now, first in content["renamed"].items()} | content.pop("between")
    own: Any = {key: frozenset(content.pop(key)) for key in ("speed", "hints")}
    unread = {name: frozenset(keys) for name, keys in content.pop("unread").items()}
    return Rules(**content, **own, moved=moved, unread=unread, neutral=neutral)


# Ids.


def settings(config: Mapping[str, Any]) -> str:
    """Return the hash of all that makes a cell's weights, but for the content of the files that it reads."""
    renewed = today(config)
    task = _target(renewed.get("task"))
    found = {key: value for key, value in renewed.items() if key not in (MACHINE, PROBES)}
    if task in rules().reads:
        found = dict(_selected(found, ("task", "seed", *rules().reads[task])))
    return fingerprint(_canonical(found | ({MACHINE: timed} if (timed := _timed(renewed)) else {}), ""))


def with_files(own: str, files: Mapping[str, str]) -> str:
    """Return the id of a cell of these ``settings``; ``files``: the SHA-256 of each file of ``data.files``, by role."""
    return own if not files else sha256_of_bytes(f"{own}/{canonical_json(dict(files))}".encode())[:LENGTH]


def probes(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the id of each probe of a config, by its name."""
    found = _renewed(config.get(PROBES) or {})
    return {name: fingerprint(_canonical(node, "")) for name, node in found.items() if node is not None}


def recorded(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config that a record keeps: all but those keys of ``machine`` that its id leaves out."""
    found = {key: value for key, value in config.items() if key != MACHINE}
    return {**found, MACHINE: timed} if (timed := _timed(config)) else found


def of_record(config: Mapping[str, Any], data: Mapping[str, str]) -> str | None:
    """Return the id that a record of this config must have; None where ``data`` (SHA-256 by role) lacks a file."""
    roles = files_of(config).keys()
    return with_files(settings(config), {role: data[role] for role in roles}) if roles <= data.keys() else None


def is_timed(config: Mapping[str, Any]) -> bool:
    """Return whether a cell measures how long something takes."""
    return _target(config.get("task")) in rules().timed


def timed_keys(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of the machine section that a cell's result depends on; none but of one that measures time."""
    rule = rules().timed.get(_target(config.get("task")))
    return () if rule is None else (*rule["always"], *rule["unless"])


def files_of(config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the files that a config's task reads, by role; a task that measures time works on random numbers."""
    found = {} if is_timed(config) else reader_of(config).get(FILES)
    return found if isinstance(found, Mapping) else {}


def reader_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the node that names files, and the command that prepares them: ``data``, or its ``source``."""
    data = config.get("data")
    if not isinstance(data, Mapping):
        return {}
    source = data.get("source")
    return source if isinstance(source, Mapping) and FILES in source else data


def today(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config of any age as today's code spells it: classes by today's names, keys of speed in ``machine``."""
    known = rules()
    result = {key: _renewed(value) for key, value in config.items() if key not in known.unread["config"]}
    machine = {key: config[key] for key in timed_keys(result) if key in config} | (result.get(MACHINE) or {})
    for key in known.speed & result.keys():
        del result[key]
    return {**result, MACHINE: machine} if machine else result


def fingerprint(value: Any) -> str:
    """Return a short SHA-256 of a JSON value; key order does not matter, 1 and 1.0 differ."""
    return sha256_of_bytes(canonical_json(value).encode())[:LENGTH]


def canonical_json(value: Any) -> str:
    """Return the one spelling of a JSON value."""
    return _CANONICAL.encode(value)


def mix(*parts: int | str) -> int:
    """Return a 63-bit seed for the stream that ``parts`` name, for example ``mix(seed, "batch", epoch)``.

    Nothing has to be drawn in order: step t of a resumed run sees the numbers of an uninterrupted run.
    """
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _timed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config's machine section that counts: keys that always do, and others at rare values."""
    rule, machine = rules().timed.get(_target(config.get("task"))), config.get(MACHINE) or {}
    if rule is None:
        return {}
    rare = (key for key, usual in rule["unless"].items() if machine.get(key, usual[0]) not in usual)
    return {key: machine[key] for key in (*rule["always"], *rare) if key in machine}


def _selected(config: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for section, value in config.items():
        inner = tuple(key.partition(".")[2] for key in keys if key.startswith(f"{section}."))
        if inner and section not in keys and isinstance(value, Mapping):
            yield section, dict(_selected(value, inner))
        elif inner or section in keys:
            yield section, value


def _canonical(node: Any, section: str) -> Any:
    """Return a node without the keys that do not count, its classes under their first names."""
    if isinstance(node, dict):
        known = rules()
        name = _target(node) or section
        neutral = known.neutral.get(name, {})
        left_out = known.speed | known.hints if section != MACHINE else ()
        result = {}
        for key, value in node.items():
            if key in left_out:
                continue
            found = _canonical(value, str(key))
            if section == FILES and isinstance(value, str) and Path(value).is_absolute():
                found = str(Path(*Path(value).parts[-2:]))  # as below a folder of data
            if key in neutral and canonical_json(found) == _neutral(name, key):
                continue
            result[str(key)] = known.renamed.get(value, value) if key == TARGET else found
        return result
    if isinstance(node, (list, tuple)):
        return [_canonical(value, "") for value in node]
    return node


@functools.cache
def _neutral(name: str, key: str) -> str:
    return canonical_json(_canonical(rules().neutral[name][key], ""))


def _renewed(node: Any) -> Any:
    """Return a node with each class under today's name, without keys that are not read or belong to ``machine``."""
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
    """Return today's name of the class of a node; "" where it has none."""
    found = node.get(TARGET) if isinstance(node, dict) else None
    return rules().moved.get(found, found) if isinstance(found, str) else ""


# Data.


def data_files(config: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return size, time of change and SHA-256 of each file or folder that the data section names by its path."""
    return {text: [*_status(path), _digest(path)] for text, path in _paths(config)}


def other_data(config: Mapping[str, Any], known: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the names of a config's data files that are not as in ``known``, which ``data_files`` returned."""
    found = dict(_paths(config))

    def is_same(text: str, state: Sequence[Any]) -> bool:
        return text in found and (_status(found[text]) == list(state[:2]) or _digest(found[text]) == state[2])

    return [text for text, state in known.items() if not is_same(text, state)]


def _paths(config: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Yield each text of the data section that is the path of a file or folder, and that path."""
    root = (config.get(MACHINE) or {}).get("data_root")
    for text in sorted(_texts(config.get("data")) - {*files_of(config).values()}):
        places = (Path(text).expanduser(), *((Path(root, text),) if root else ()))
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            if found := next((path for path in places if path.exists()), None):
                yield text, found


def _texts(node: Any) -> set[str]:
    if isinstance(node, str):  # a separator, as "." and "/" are, names no data
        return {node} if (os.sep in node or "." in node) and Path(node).name.strip(".") else set()
    if isinstance(node, Mapping):
        return set().union(*(_texts(value) for key, value in node.items() if key not in (TARGET, "prepare")))
    return set().union(*map(_texts, node)) if isinstance(node, list | tuple) else set()


def _status(path: Path) -> list[int]:
    """Return size and time of change; of a folder the sum of its sizes, and a number for all names and times."""
    if path.is_file():
        status = path.stat()
        return [status.st_size, status.st_mtime_ns]
    inner = [(name, _status(file)) for name, file in _files(path)]
    return [sum(status[0] for _, status in inner), int(fingerprint(inner), 16) // 2]


def _digest(path: Path) -> str:
    if path.is_file():
        return sha256_of_file(path)
    return fingerprint([[name, _digest(file)] for name, file in _files(path)])


def _files(folder: Path) -> list[tuple[str, Path]]:
    return [(file.relative_to(folder).as_posix(), file) for file in sorted(folder.rglob("*")) if file.is_file()]


# Code.


def code_of(config: Mapping[str, Any]) -> Hashes:
    """Return a hash of each module of ours, or of the user, that a config's classes import, as it was first read."""
    return imported_by(modules(config))


def imported_by(names: Iterable[str]) -> Hashes:
    """Return a hash of each of these modules, and of each module of ours, or of the user, that they import."""
    found: Hashes = {}
    waiting = sorted(names)
    while waiting:
        name = waiting.pop()
        if name not in found and (read := _module(name)) is not None:
            found[name], imported = read
            waiting += imported
    return dict(sorted(found.items()))


def stamp(module: str) -> str:
    """Return a hash of the code of a module and of all that it imports: a part of the names of its cached results."""
    return fingerprint(imported_by([module]))


def keep_code(root: Path, code: Hashes) -> str:
    """Write a list of modules and hashes below ``root``, unless it is there; return its hash."""
    name = fingerprint(code)
    path = root / CODE / f"{name}.json"
    if not path.is_file():
        write_atomically(path, canonical_json(code).encode() + b"\n")
    return name


def read_code(root: Path, name: str) -> Hashes | None:
    """Return the list of that hash; None where it is absent or damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        code = json.loads(read_regular(root / CODE / f"{name}.json", 1_000_000))
        if isinstance(code, dict) and fingerprint(code) == name and all(isinstance(one, str) for one in code.values()):
            return code
    return None


@functools.lru_cache(maxsize=256)
def other_code(root: Path, name: str) -> tuple[str, ...] | None:
    """Return the files of the list of that hash that have changed or are gone; None where there is no such list."""
    code = read_code(root, name)
    if code is None:
        return None
    root, found = Path(__file__).resolve().parents[2], []
    for module, known in code.items():
        path = _file(module)
        if path is None:
            found.append(f"{module} (gone)")
        elif (now := _module(module)) is None or now[0] != known:
            found.append(str(path.relative_to(root) if path.is_relative_to(root) else path))
    return tuple(found)


def joined(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return hashes or states of files that a run has read twice; where the two differ, a hash that no file has."""
    mixed: dict[str, Any] = {}
    for name, state in before.items():
        digest = state if isinstance(state, str) else state[2]
        other = now.get(name)
        if other is None or (other if isinstance(other, str) else other[2]) != digest:
            mixed[name] = fingerprint([digest]) if isinstance(state, str) else [0, 0, fingerprint([digest])]
    return {**now, **mixed}


@functools.cache
def _module(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the hash of a module's file and the modules that it imports; None where no file of ours is it."""
    path = _file(name)
    if path is None:
        return None
    content = path.read_bytes()
    parent = name.rpartition(".")[0]
    imported = set() if name.startswith("paper_repro.") else {parent}
    with contextlib.suppress(SyntaxError, ValueError):
        imported |= {*_imports(ast.parse(content), name if path.name == "__init__.py" else parent)}
    return sha256_of_bytes(content)[:LENGTH], tuple(sorted(imported - {""}))


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that code imports, and the names that may be modules; not those for type checkers alone."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        with contextlib.suppress(ImportError):  # above the package
            home = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from (home, *(f"{home}.{alias.name}" for alias in node.names))
    elif isinstance(node, ast.stmt | ast.Module | ast.excepthandler):
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, package)


@functools.cache
def _file(name: str) -> Path | None:
    top, *rest = name.split(".")
    if top == "paper_repro" and not rest:  # it only joins the folders, and names what a notebook asks for
        return None
    homes = sys.modules[top].__path__ if top == "paper_repro" else filter(None, [own_packages().get(top)])
    for home in homes:
        path = Path(home, *rest)
        for found in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if found.is_file():
                return found
    return None

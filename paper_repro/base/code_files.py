"""The files that a result depends on: the code that its cell's classes import, and the data that its config names.

A record names a list of its code's files and their hashes by the hash of that list, which lies in the folder ``code``
beside ``cells``.  Results of before that have none.  Only files are read here: nothing is imported.
"""

import contextlib
import functools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paper_repro.base.files import read_regular, sha256_of_bytes, sha256_of_file, write_atomically
from paper_repro.base.identity import LENGTH, MACHINE, canonical_json, files_of, fingerprint
from paper_repro.base.packages import own_packages
from paper_repro.base.targets import modules

FOLDER = "code"
Hashes = dict[str, str]
_LIMIT_BYTES = 1_000_000
_IMPORT = re.compile(
    r"(?:^|;)[ \t]*(?:from[ \t]+(?P<home>[\w.]+)[ \t]+import[ \t]*(?P<names>\([^)]*\)|[^\n;]+)"
    r"|import[ \t]+(?P<plain>[^\n;]+))",
    re.MULTILINE,
)
_COMMENT = re.compile(r"#[^\n]*|\\\n")
"""A comment, or the end of a line that goes on."""
_TYPES_ONLY = re.compile(r"^if (?:typing\.)?TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)+", re.MULTILINE)


def code_of(config: Mapping[str, Any]) -> Hashes:
    """Return a hash of each module of ours, or of the user, that a config's classes import; as this process first read
    them.
    """
    return imported_by(modules(config))


def imported_by(names: Iterable[str]) -> Hashes:
    """Return a hash of each of these modules, and of each module of ours, or of the user, that they import."""
    found: Hashes = {}
    waiting = sorted(names)
    while waiting:
        name = waiting.pop()
        if name in found or (read := _read(name)) is None:
            continue
        found[name], imported = read
        waiting += imported
    return dict(sorted(found.items()))


def stamp(module: str) -> str:
    """Return a hash of the code of a module and of what it imports: a part of the name of what is kept of its work."""
    return fingerprint(imported_by([module]))


def keep(root: Path, code: Hashes) -> str:
    """Write a list of modules and hashes below ``root``, unless it is there; return its hash.

    Raises:
        OSError: the disk is full or the folder read-only.
    """
    name = fingerprint(code)
    path = root / FOLDER / f"{name}.json"
    if not path.is_file():
        write_atomically(path, canonical_json(code).encode() + b"\n")
    return name


@functools.lru_cache(maxsize=256)
def others(root: Path, name: str) -> tuple[str, ...] | None:
    """Return the files of the list of that hash, seen from the repository, that are others now, or gone; None where
    there is no such list.
    """
    code = read(root, name)
    if code is None:
        return None
    return tuple(_shown(module) for module, known in code.items() if (now := _read(module)) is None or now[0] != known)


def read(root: Path, name: str) -> Hashes | None:
    """Return the list of that hash; None where it is absent or damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        code = json.loads(read_regular(root / FOLDER / f"{name}.json", _LIMIT_BYTES))
        if isinstance(code, dict) and fingerprint(code) == name and all(isinstance(one, str) for one in code.values()):
            return code
    return None


def data_files(config: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return size, time of change and SHA-256 of each file that a config's data section names by its path, and of all
    files of a folder that it names; those under ``files`` enter the cell's id.
    """
    return {text: _state(path) for text, path in _paths(config)}


def other_data(config: Mapping[str, Any], known: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return which of a config's data files are not those that ``data_files`` returned, ``known``."""
    found = dict(_paths(config))
    return [text for text, state in known.items() if text not in found or not _is_same(found[text], state)]


def joined(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return hashes or states of files that a run has read twice; where the two differ, a hash that no file has."""
    other = {name: state for name, state in before.items() if name not in now or _hash(now[name]) != _hash(state)}
    return {**now, **{name: _of_none(state) for name, state in other.items()}}


def _hash(state: Any) -> Any:
    return state if isinstance(state, str) else state[2]


def _of_none(state: Any) -> Any:
    mixed = fingerprint([_hash(state)])
    return mixed if isinstance(state, str) else [0, 0, mixed]


@functools.cache
def _read(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the hash of a module's file and the modules that it names in imports; None where no file of ours is it."""
    path = _file(name)
    if path is None:
        return None
    content = path.read_bytes()
    text = _TYPES_ONLY.sub("", _COMMENT.sub("", content.decode(errors="replace")))
    parents = () if name.startswith("paper_repro.") else (name.rpartition(".")[0],)
    imported = {*parents, *_imported(text, name, path.name == "__init__.py")} - {""}
    return sha256_of_bytes(content)[:LENGTH], tuple(sorted(imported))


def _imported(text: str, name: str, is_package: bool) -> Iterator[str]:
    for match in _IMPORT.finditer(text):
        if match["plain"]:
            yield from (part.split()[0] for part in match["plain"].split(",") if part.split())
            continue
        home = match["home"]
        if level := len(home) - len(home.lstrip(".")):
            above = name.split(".")[: None if is_package and level == 1 else is_package - level]
            home = ".".join([*above, *filter(None, [home.lstrip(".")])])
        yield home
        yield from (f"{home}.{part.split()[0]}" for part in match["names"].strip("() \n").split(",") if part.split())


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


def _shown(name: str) -> str:
    root = Path(__file__).resolve().parents[2]
    path = _file(name)
    if path is None:
        return f"{name} (gone)"
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _paths(config: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Yield each text of the data section that is the path of a file or folder, and that path."""
    data = config.get("data")
    root = (config.get(MACHINE) or {}).get("data_root")
    left_out = {*files_of(config).values()}
    for text in sorted(_texts(data) - left_out):
        places = (Path(text).expanduser(), *((Path(root, text),) if root else ()))
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            if found := next((path for path in places if path.exists()), None):
                yield text, found


def _texts(node: Any) -> set[str]:
    if isinstance(node, str):  # a separator, as "." and "/" are, names no data
        return {node} if (os.sep in node or "." in node) and Path(node).name.strip(".") else set()
    if isinstance(node, Mapping):
        return set().union(*(_texts(value) for key, value in node.items() if key not in ("_target_", "prepare")))
    return set().union(*map(_texts, node)) if isinstance(node, list | tuple) else set()


def _state(path: Path) -> list[Any]:
    return [*_status(path), _digest(path)]


def _status(path: Path) -> list[int]:
    """Return size and time of change; of a folder the sum of its sizes, and a number for all names and times."""
    if path.is_file():
        status = path.stat()
        return [status.st_size, status.st_mtime_ns]
    inner = [(file.relative_to(path).as_posix(), _status(file)) for file in _files(path)]
    return [sum(status[0] for _, status in inner), int(fingerprint(inner), 16) // 2]


def _digest(path: Path) -> str:
    if path.is_file():
        return sha256_of_file(path)
    return fingerprint([[file.relative_to(path).as_posix(), sha256_of_file(file)] for file in _files(path)])


def _files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.is_file()]


def _is_same(path: Path, known: Sequence[Any]) -> bool:
    """Compare a file or folder with a state; it is read only where sizes or times of change are others."""
    return _status(path) == list(known[:2]) or _digest(path) == known[2]

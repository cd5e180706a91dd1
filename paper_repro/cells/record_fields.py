"""What each field of a run record may hold.

A record's seal is a hash, which anybody can compute: it shows that bits have flipped, not who wrote them.  A record
that comes from elsewhere is therefore checked field by field before anything is done with it.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from paper_repro.base.errors import UsageError, nearest
from paper_repro.cells.tasks import DIVERGED, FAILED, FILE_NAME, FINISHED, OUT_OF_MEMORY, check_attachment_name

STATUSES = (FINISHED, DIVERGED, OUT_OF_MEMORY, FAILED)
MOST_NESTING, MOST_KEYS = 24, 1_500
MOST_ATTACHMENTS = 50
_HASH = re.compile(r"[0-9a-f]{64}")
_LIST = re.compile(r"[0-9a-f]{16}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LARGEST = 2**63


def check_fields(content: Mapping[str, Any]) -> None:
    """Check kind and size of every field of a record, given as a dict without its seal.

    Raises:
        UsageError: a field is absent, unknown, of another kind, too large or too deeply nested.
    """
    _check(content, _FIELDS)


def check_measurement(content: Mapping[str, Any]) -> None:
    """Check kind and size of every field of a measurement, as ``check_fields`` does those of a record."""
    _check(content, _OF_A_MEASUREMENT)


def _check(content: Mapping[str, Any], fields: "Mapping[str, Kind]") -> None:
    for field in content:
        if field not in fields:
            raise UsageError(f"unknown field {str(field)[:100]!r}{nearest(str(field)[:100], fields)}")
    for field, (fits, expected) in fields.items():
        if field not in content and field not in _ADDED_LATER:
            raise UsageError(f"the field {field!r} is absent")
        if field in content and not fits(content[field]):
            raise UsageError(f"the field {field!r} is not {expected}")
    if (count := _keys(content, MOST_NESTING)) > MOST_KEYS:
        raise UsageError(f"{count} keys, at most {MOST_KEYS} are accepted")
    if len(content.get("attachments") or ()) > MOST_ATTACHMENTS:
        raise UsageError(f"more than {MOST_ATTACHMENTS} attachments")
    for name in content.get("attachments") or ():
        check_attachment_name(name)


def _keys(value: Any, levels: int) -> int:
    """Return the number of keys in all of a value, which is at most ``levels`` deep."""
    if levels == 0:
        raise UsageError(f"nested more than {MOST_NESTING} levels deep")
    count, parts = 0, value
    if isinstance(value, dict):
        if not {*map(type, value)} <= {str}:
            raise UsageError("a key that is no word")
        count, parts = len(value), value.values()
    return count + sum(_keys(part, levels - 1) for part in parts if isinstance(part, dict | list | tuple))


def _text(most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and len(value) <= most


def _number(value: Any) -> bool:
    if type(value) is int:
        return abs(value) <= _LARGEST
    return type(value) is float and math.isfinite(value)


def _not_negative(value: Any) -> bool:
    return _number(value) and value >= 0


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _or_null(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _each(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Mapping) and all(isinstance(key, str) and fits(item) for key, item in value.items())
    )


def _curve(value: Any) -> bool:
    if not isinstance(value, Mapping) or set(value) != {"step", "value"}:
        return False
    steps, values = value["step"], value["value"]
    lists = isinstance(steps, list) and isinstance(values, list) and len(steps) == len(values)
    return lists and all(map(_number, [*steps, *values]))


def _names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) and len(name) <= 200 for name in value)


def _provenance(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        key in _PROVENANCE and _PROVENANCE[key](item) for key, item in value.items()
    )


def _code(value: Any) -> bool:
    known = {**_CODE, "code": _listed}
    return (
        isinstance(value, Mapping) and {*_CODE} <= {*value} <= {*known} and all(known[key](value[key]) for key in value)
    )


def _listed(value: Any) -> bool:
    return isinstance(value, str) and _LIST.fullmatch(value) is not None


def _file_state(value: Any) -> bool:
    """Return whether a value is size, time of change and SHA-256 of a file, or of the files of a folder."""
    if not isinstance(value, list | tuple) or len(value) != 3:
        return False
    return _count(value[0]) and _count(value[1]) and isinstance(value[2], str) and len(value[2]) <= 64


_CODE: dict[str, Callable[[Any], bool]] = {
    "commit": lambda value: value is None or (isinstance(value, str) and _COMMIT.fullmatch(value) is not None),
    "dirty": lambda value: value is None or isinstance(value, bool),
}
_PROVENANCE: dict[str, Callable[[Any], bool]] = {
    **_CODE,
    "versions": _each(_text(200)),
    "device": _text(500),
    "code": _listed,
    "files": _each(_file_state),
    "data": _each(_text(200)),
    "compiled": _text(500),
    "probes": _each(_code),
}
Kind = tuple[Callable[[Any], bool], str]
"""Whether a value is one of a field, and what is expected there."""
_FIELDS: dict[str, Kind] = {
    "cell": (lambda value: isinstance(value, str) and FILE_NAME.fullmatch(value) is not None, "a cell's id"),
    "status": (lambda value: value in STATUSES, f"one of {', '.join(STATUSES)}"),
    "seed": (_count, "a whole number of 0 or more"),
    "config": (lambda value: isinstance(value, Mapping), "a section"),
    "metrics": (_each(_number), "a section of finite numbers"),
    "curves": (_each(_curve), "a section of curves, each with as many steps as values"),
    "parameters": (_or_null(_count), "a whole number of 0 or more, or null"),
    "multiply_adds": (_or_null(_count), "a whole number of 0 or more, or null"),
    "seconds": (_not_negative, "a number of 0 or more"),
    "peak_memory_mib": (_or_null(_not_negative), "a number of 0 or more, or null"),
    "note": (_text(1_000), "a text"),
    "provenance": (
        _provenance,
        "commit, dirty flag, versions, device, data, files, whether compiled, code of later probes",
    ),
    "attachments": (
        _each(lambda value: isinstance(value, str) and _HASH.fullmatch(value) is not None),
        "a section of file names and their SHA-256",
    ),
    "unavailable": (_each(_text(1_000)), "a section of metrics and what each lacks"),
    "measured": (_each(_names), "a section of probes and the names of what each gave"),
    "renamed": (_each(_text(1_000)), "a section of texts"),
}
_OF_A_MEASUREMENT: dict[str, Kind] = {
    **{
        name: _FIELDS[name]
        for name in ("cell", "config", "metrics", "unavailable", "attachments", "seconds", "provenance")
    },
    "probe": _FIELDS["cell"],
    "name": (_text(200), "a text"),
}
_ADDED_LATER = ("provenance", "attachments", "unavailable", "measured", "renamed")
"""Fields that the oldest records lack."""

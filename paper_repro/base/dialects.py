"""One reading of the files below ``conf``: what YAML 1.1 and YAML 1.2 understand in different ways is refused.

OmegaConf reads them as YAML 1.1, where ``1:30`` is 90, ``1_000`` is 1000, ``010`` is 8 and ``yes`` is true; who reads
today's YAML, as ``typed_yaml`` does, finds a text or ten.
"""

import functools
import re
from pathlib import Path

from paper_repro.base import typed_yaml
from paper_repro.base.errors import UsageError

_TEXT = "tag:yaml.org,2002:str"
_OCTAL = re.compile(r"[-+]?0[0-9]+")
_KINDS = {"int": "a number", "float": "a number", "bool": "true or false", "str": "a text", "null": "nothing"}


def check(path: Path) -> None:
    """Check that a file of ``conf`` has one reading.

    Raises:
        UsageError: a scalar that the two versions of YAML understand in different ways, an anchor or an alias, with
            file and line; or the file is no YAML.
    """
    status = path.stat()
    _check(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=1024)
def _check(path: Path, _changed: int, _size: int) -> None:
    for line, text, tag in typed_yaml.read(path, "inherit another file under 'defaults'").plain_scalars():
        old = _tag_of_yaml_1_1(text)
        if old != tag or _OCTAL.fullmatch(text):
            means = "an octal number" if old == tag else _KINDS.get(old.rpartition(":")[2], old)
            raise UsageError(
                f"{path}:{line}: {text} is read as {means} by YAML 1.1 and as {_said(tag)} by YAML 1.2: "
                f'write "{text}" in quotes for the text, or the value in full, such as 90, 1000 or true'
            )


def _said(tag: str) -> str:
    return _KINDS[tag.rpartition(":")[2]]


@functools.cache
def _tag_of_yaml_1_1(text: str) -> str:
    """Return the tag that OmegaConf's loader gives a scalar without quotes."""
    resolvers = _omegaconf_resolvers()
    for tag, pattern in [*resolvers.get(text[:1], []), *resolvers.get(None, [])]:
        if pattern.match(text):
            return str(tag)
    return _TEXT


@functools.cache
def _omegaconf_resolvers() -> dict[str | None, list[tuple[str, re.Pattern[str]]]]:
    from omegaconf._utils import get_yaml_loader

    found: dict[str | None, list[tuple[str, re.Pattern[str]]]] = get_yaml_loader().yaml_implicit_resolvers
    return found

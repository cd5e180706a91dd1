"""The docstrings of the installed Python and of named packages: English text that is already on every machine.

The stand-in for OpenWebText where that is not at hand.  Source files are parsed, never imported.  The same Python and
the same packages give the same documents in the same order.
"""

import ast
import importlib.metadata
import importlib.util
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes
from paper_repro.base.identity import mix

PACKAGES = ("torch", "numpy", "scipy")
SKIPPED = frozenset({"test", "tests", "testing", "idle_test", "site-packages", "dist-packages", "__pycache__"})
VAL_SHARE = 0.05
SPLIT_SEED = 2357
"""OpenWebText's in nanoGPT and NRGPT."""
LEAST_WORDS = 12
LEAST_PLAIN = 0.7
"""Share of characters that are letters or blanks; tables, doctests and signatures lie below it."""
LEAST_COMMON = 0.08
COMMONEST = "a an and are as be by can for from if in is it not of on or that the this to was will with"
COMMON = frozenset(COMMONEST.split())
WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True)
class Corpus:
    """Documents by split."""

    splits: dict[str, list[str]]
    source: dict[str, Any]
    """Their number, the hash of them all and what else describes them; the ids of cells follow from it."""
    origins: Any
    """The versions or projects that they were read from; another version may have the same documents."""


def collect(packages: Sequence[str] = PACKAGES, most: int | None = None) -> Corpus:
    """Return the English docstrings of the standard library and the packages, each once; the first ``most``.

    A document belongs to val if ``mix(2357, "val", its hash)`` lies in the lowest 5 %, so another package moves no
    document from one split to the other.

    Raises:
        UsageError: a package that is not installed, or that has no Python source.
    """
    folders = [Path(sysconfig.get_path("stdlib")), *(_folder(name) for name in packages)]
    texts = {sha256_of_bytes(text.encode()): text for folder in folders for text in _of_folder(folder)}
    ordered = sorted(texts)[:most]
    splits: dict[str, list[str]] = {"train": [], "val": []}
    for digest in ordered:
        split = "val" if mix(SPLIT_SEED, "val", digest) < VAL_SHARE * 2**63 else "train"
        splits[split].append(texts[digest])
    source = {
        "name": "docstrings",
        "split": f"val: mix({SPLIT_SEED}, 'val', sha256 of the document) in the lowest {VAL_SHARE:.0%}",
        "documents": len(ordered),
        "sha256": sha256_of_bytes("".join(ordered).encode()),
    }
    versions = {"python": platform.python_version(), **{name: _version(name) for name in sorted(set(packages))}}
    return Corpus(splits, source, versions)


def is_english(text: str) -> bool:
    """Return whether a text reads as English prose: enough words, mostly letters, many of the commonest words."""
    words = WORD.findall(text)
    if len(words) < LEAST_WORDS or not text.isascii():
        return False
    plain = sum(character.isalpha() or character.isspace() for character in text)
    common = sum(word.lower() in COMMON for word in words)
    return plain >= LEAST_PLAIN * len(text) and common >= LEAST_COMMON * len(words)


def _folder(package: str) -> Path:
    # The specification of a top-level package is found without running it.
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            f"package {package!r} is not installed as a folder of Python files: install it or leave it out"
        )
    return Path(spec.submodule_search_locations[0])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None  # installed without metadata, or under another name; the hash of the documents stands for it


def _of_folder(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        if SKIPPED.isdisjoint(path.relative_to(folder).parts):
            yield from of_source(path.read_bytes())


def of_source(content: bytes) -> Iterator[str]:
    """Yield the English docstrings of one source file, dedented; none of a file that does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = (ast.get_docstring(node) or "").strip()
            if is_english(text):
                yield text

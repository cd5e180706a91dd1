"""English prose from the documentation inside source distributions of Python projects.

The stand-in for OpenWebText, SlimPajama and RedPajama.  ``documentation.yaml`` pins each distribution by its SHA-256.
Whole projects are held out for validation and test, and a paragraph that repeats an earlier one is left out, so hardly
any text of one split occurs in another.  The same pins give the same documents on every machine.
"""

import concurrent.futures
import contextlib
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
import numpy.typing as npt

from paper_repro.base import configs
from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes
from paper_repro.datamodules.downloads import fetch, put

PINS = Path(__file__).with_suffix(".yaml")
TRAIN, VAL, TEST = SPLITS = ("train", "val", "test")
INDEX = "https://pypi.org/simple"
"""The index of packages, unless $PIP_INDEX_URL names another."""
DOWNLOADS_AT_ONCE = 8
ENDINGS = (".rst", ".txt", ".md")
SKIPPED = re.compile(
    r"(^|/)(tests?|testing|testdata|test-data|locale|locales|fixtures|vendor|_vendor|third_party|thirdparty|"
    r"node_modules|[^/]*\.(egg|dist)-info)(/|$)|requirements|licen[cs]e|copying|authors|contributors|thanks|"
    r"changelog|changes|history|news",
    re.IGNORECASE,
)
LEAST_WORDS = 6
LEAST_PLAIN = 0.85
"""Share of characters that are letters or blanks; signatures and formulas lie below it."""
LEAST_COMMON = 0.2
COMMON = frozenset(
    """a all also an and any are as at be been but by can do does each for from has have if in into is it its may more
    must no not of on one only or other same should so such than that the their then there these they this to up use
    used using was we when where which will with you your""".split()  # noqa: SIM905
)
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
DOCUMENT_CHARACTERS = 600
"""The paragraph that brings a document to so many characters closes it."""
GRAM = 13
"""Words of the n-grams by which text is compared, as in the evaluation of GPT-3 (Brown et al., 2020, appendix C)."""
MOST_REPEATED = 0.2
"""A paragraph is left out if a larger share of its n-grams occurs earlier."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Corpus:
    """Documents by split."""

    splits: dict[str, list[str]]
    source: dict[str, Any]
    """Their number, the hash of them all and what else describes them; the ids of cells follow from it."""
    projects: list[dict[str, Any]]
    """The projects that they were read from."""


@dataclass(frozen=True)
class Pin:
    """A source distribution: its project on the index, file, SHA-256, licence (as it names it), and split."""

    project: str
    file: str
    sha256: str
    licence: str
    split: str = TRAIN


def read_pins(path: Path = PINS) -> list[Pin]:
    """Return the pinned distributions; UsageError, with file and line, for an entry that lacks something."""
    found: list[Pin] = configs.convert(list[Pin], configs.read(path))
    return found


def collect(pins: Sequence[Pin], folder: Path, may_download: bool) -> Corpus:
    """Return the documents of distributions whose files are in a folder, absent ones downloaded if that is allowed.

    Its source says by split what share of its 13-grams occurs in train.

    Raises:
        UsageError: a file is absent, damaged or gone from the index, or the network or the disk fails.  Files that have
            arrived stay, so the same call goes on with the others.
    """
    absent = [pin for pin in pins if not (folder / pin.file).is_file()]
    if absent and not may_download:
        raise UsageError(
            f"{folder}: {len(absent)} of {len(pins)} source distributions are absent, the first {absent[0].file}: give "
            "--download, or --from DIR with their files"
        )
    with concurrent.futures.ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        list(pool.map(lambda pin: download(pin, folder), absent))
    # train comes last, so that it gives way where it repeats the others
    ordered = sorted(pins, key=lambda pin: (SPLITS.index(pin.split) or len(SPLITS), pin.project))
    with concurrent.futures.ProcessPoolExecutor() as processes:
        files = list(processes.map(_read, ordered, [folder] * len(ordered)))
    kept, leaks = without_repeats([(pin.split, own) for pin, own in zip(ordered, files, strict=True)])
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    projects = []
    for pin, own in zip(ordered, kept, strict=True):
        documents = [text for paragraphs in own for text in documents_of(paragraphs)]
        splits[pin.split] += documents
        projects.append({**vars(pin), "documents": len(documents), "characters": sum(map(len, documents))})
    digest = hashlib.sha256()
    for split in SPLITS:
        digest.update("\0".join([split, *splits[split]]).encode())
    source = {
        "name": "documentation",
        "documents": sum(map(len, splits.values())),
        "sha256": digest.hexdigest(),
        "13-grams in train": {split: round(leaks[split], 6) for split in (VAL, TEST)},
    }
    return Corpus(splits, source, projects)


def download(pin: Pin, folder: Path) -> None:
    """Download a distribution into a folder; UsageError: the index lacks it, or another content arrives."""
    page = f"{os.environ.get('PIP_INDEX_URL', INDEX).rstrip('/')}/{re.sub('[-_.]+', '-', pin.project).lower()}/"
    try:
        listed = json.loads(fetch(page, "application/vnd.pypi.simple.v1+json"))["files"]
        urls = [one["url"] for one in listed if one["hashes"].get("sha256") == pin.sha256]
        content = fetch(urljoin(page, urls[0])) if urls else b""
    except (UsageError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{pin.file} did not arrive ({error}); the same command goes on") from error
    if not urls:
        raise UsageError(f"{page}: has no {pin.file} with SHA-256 {pin.sha256[:12]}...: give --from DIR with it")
    put(folder / pin.file, checked(pin, content, page, "give --from DIR with the file"))


def checked(pin: Pin, content: bytes, where: object, advice: str = "remove it") -> bytes:
    """Return the content of a distribution; UsageError: its hash is not the pinned one."""
    if (found := sha256_of_bytes(content)) != pin.sha256:
        raise UsageError(f"{where}: {pin.file} has SHA-256 {found[:12]}..., expected {pin.sha256[:12]}...: {advice}")
    return content


def _read(pin: Pin, folder: Path) -> list[list[str]]:
    path = folder / pin.file
    texts = members(checked(pin, path.read_bytes(), path))
    return [found for text in texts if (found := list(english_paragraphs(text)))]


def members(content: bytes) -> Iterator[str]:
    """Yield the texts of a distribution that may hold documentation, by their paths; none that is not UTF-8."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            if member.isfile() and _is_documentation(member.name):
                stream = archive.extractfile(member)
                found[member.name] = stream.read() if stream else b""
    for path in sorted(found):
        with contextlib.suppress(UnicodeDecodeError):
            yield found[path].decode()


def _is_documentation(path: str) -> bool:
    inside = path.partition("/")[2]
    return inside.lower().endswith(ENDINGS) and SKIPPED.search(inside) is None


FENCED = re.compile(r"^ *(```|~~~).*?^ *\1[^\n]*$|<!--.*?-->", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"\.\. *(?:\|[^|]*\| *)?([\w:.-]+)::[ \d.]*")
NO_PROSE = frozenset(
    """bibliography cfgcmd click code code-block codeblock command-output console contents csv-table currentmodule
    digraph doctest figure graphviz grid grid-item-card highlight image include index ipython jupyter-execute
    list-table literal literalinclude math mermaid meta module moduleauthor only parsed-literal plot productionlist
    program-output prompt raw sectionauthor snippet sourcecode table tabularcolumns testcleanup testcode testoutput
    testsetup toctree uml versionhistory""".split()  # noqa: SIM905
)
"""Directives whose content is no prose, with all whose names begin with "auto"."""
TABLE = re.compile(r"[|+>$%]|[-=]{2,}\s+[-=]{2,}")
FIELD = re.compile(r":[\w -]+:")
RULE = re.compile(r"""([-=~^"'`#*+.:_<>])\1{2,}$""")
BULLET = re.compile(r"(?:[-*+]|\(?\d{1,3}[.)]|#\.|[a-z][.)])\s+")
PLAIN = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": " - ", "…": "...", "\u00a0": " ", "‑": "-", "→": "->"}
)
INLINE = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"!\[[^\]]*\]\([^)]*\)", ""),  # images and links of Markdown
        (r"\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])", r"\1"),
        (r":[a-zA-Z][\w:+.-]*:`[~!]*([^`<]*?)\s*(?:<[^`>]*>)?`", r"\1"),  # roles, literals, links of reStructuredText
        (r"``([^`]*)``", r"\1"),
        (r"`([^`<]+?)\s*(?:<[^`>]*>)?`_{0,2}", r"\1"),
        (r"\[[#\w*]+\]_", ""),
        (r"\*\*([^*]+)\*\*", r"\1"),
        (r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])", r"\1"),
        (r"(?<!\w)__?([^_\s][^_]*)__?(?!\w)", r"\1"),
        (r"\b(\w+)_(?=[\s.,;:)])", r"\1"),
        (r"<?https?://[^>\s]*>?", ""),
        (r"</?[A-Za-z][^<>]*>", ""),
        (r"\|([^|\s][^|]*)\|", r"\1"),
        (r"\\(.)", r"\1"),
        (r"\s+", " "),
        (r"[\s:]*:$", ":"),
    )
]


def english_paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a file in reStructuredText or Markdown that are English prose, without their markup."""
    for paragraph in paragraphs(text):
        plain = paragraph.translate(PLAIN)
        for pattern, replacement in INLINE:
            plain = pattern.sub(replacement, plain)
        if is_english(plain := plain.strip()):
            yield plain


def paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs and items of lists, each as one line, without code, comments, directives and tables."""
    dropped: int | None = None  # what is indented further than this belongs to a block that is no prose
    for lines in _blocks(FENCED.sub("", text)):
        indent = len(lines[0]) - len(lines[0].lstrip())
        if dropped is not None and indent > dropped:
            continue
        dropped, first = None, lines[0].strip()
        if first.startswith(".."):
            found = DIRECTIVE.match(first)
            name = found[1].rpartition(":")[2] if found else ""
            if found is None or name in NO_PROSE or name.startswith("auto"):
                dropped = indent
                continue
            first = first[found.end() :]
        yield from _items([first, *map(str.strip, lines[1:])])
        if lines[-1].endswith("::"):
            dropped = indent


def _blocks(text: str) -> Iterator[list[str]]:
    block: list[str] = []
    for line in [*text.expandtabs(4).splitlines(), ""]:
        if line.strip():
            block.append(line.rstrip())
        elif block:
            yield block
            block = []


def _items(lines: Sequence[str]) -> Iterator[str]:
    """Yield the items of a block, each joined; none of a table or a session of commands."""
    lines = [line for line in lines if not FIELD.match(line)]
    if any(TABLE.match(line) for line in lines) or sum("|" in line for line in lines) > 1:
        return
    item: list[str] = []
    for line in lines:
        rule, bullet = RULE.match(line), BULLET.match(line)
        if rule or bullet or line.startswith("#"):
            if not (rule and len(item) == 1):  # else it is a heading
                yield " ".join(item)
            item = []
        if not rule and not line.startswith("#"):
            item.append(line[bullet.end() :] if bullet else line)
    yield " ".join(item)


def is_english(text: str) -> bool:
    """Return whether a paragraph is prose: a sentence of ASCII, mostly letters, with enough of the commonest words."""
    words = WORD.findall(text)
    if len(words) < LEAST_WORDS or not text.isascii() or not (text[0].isupper() or text[0] in "\"'(`"):
        return False
    if text[-1] not in ".!?:)" or "{" in text or "}" in text:
        return False
    plain = sum(character.isalpha() or character == " " for character in text)
    common = sum(word.lower() in COMMON for word in words)
    return plain >= LEAST_PLAIN * len(text) and common >= LEAST_COMMON * len(words)


def documents_of(paragraphs: Sequence[str]) -> Iterator[str]:
    """Yield consecutive paragraphs of a file, a blank line between them, closed at ``DOCUMENT_CHARACTERS``."""
    document: list[str] = []
    for paragraph in paragraphs:
        document.append(paragraph)
        if sum(map(len, document)) >= DOCUMENT_CHARACTERS:
            yield "\n\n".join(document)
            document = []
    if document:
        yield "\n\n".join(document)


Files = Sequence[Sequence[str]]
"""The paragraphs of each file of a project."""


def without_repeats(projects: Sequence[tuple[str, Files]]) -> tuple[list[list[list[str]]], dict[str, float]]:
    """Leave out paragraphs that repeat earlier ones of projects, which are given as (split, files).

    Returns:
        The files that remain of each project, and by split the share of its different 13-grams that occur in train.
    """
    numbers: dict[str, int] = {}
    grams = [[_grams(text, numbers) for texts in files for text in texts] for _, files in projects]
    every = [one for own in grams for one in own]
    ends = np.cumsum([len(one) for one in every])
    whole = np.concatenate([np.zeros(0, np.uint64), *every])
    repeated = np.ones(len(whole), bool)
    repeated[np.unique(whole, return_index=True)[1]] = False
    shares = [float(part.mean()) for part in np.split(repeated, ends[:-1])] if every else []
    kept, by_split, place = [], {split: [np.zeros(0, np.uint64)] for split in SPLITS}, 0
    for split, files in projects:
        own = []
        for texts in files:
            chosen = [text for number, text in enumerate(texts, place) if shares[number] <= MOST_REPEATED]
            by_split[split] += [every[n] for n in range(place, place + len(texts)) if shares[n] <= MOST_REPEATED]
            own += [chosen] if chosen else []
            place += len(texts)
        kept.append(own)
    different = {split: np.unique(np.concatenate(found)) for split, found in by_split.items()}
    leaks = {
        split: float(np.isin(own, different[TRAIN]).mean()) if len(own) else 0.0 for split, own in different.items()
    }
    return kept, leaks


def _grams(text: str, numbers: dict[str, int]) -> npt.NDArray[np.uint64]:
    """Return the hashes of a text's 13-grams of words, or of all its words; new words are added to ``numbers``."""
    words = [numbers.setdefault(word, len(numbers) + 1) for word in WORD.findall(text.lower())]
    width = min(GRAM, len(words))
    mixed = np.array(words, np.uint64) * MULTIPLIER
    mixed ^= mixed >> np.uint64(29)
    found = np.zeros(len(words) - width + 1, np.uint64)
    for shift in range(width):
        found = found * MULTIPLIER + mixed[shift : len(mixed) - width + shift + 1]
    return found

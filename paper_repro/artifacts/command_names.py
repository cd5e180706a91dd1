"""Finds the artifacts that words of a command name: an id, a paper, a pattern, or a path as a shell completes it."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from paper_repro.artifacts import catalogue
from paper_repro.artifacts.axes import EXACT, SCALES
from paper_repro.base.errors import UsageError

FOLDERS = ("results", "runs", "papers")
"""What a path may have before the paper's folder."""


def artifacts(words: Sequence[str]) -> tuple[list[str], str]:
    """Return the ids that words name, each once and in their order, and the scale whose folder they name, or nothing.

    Raises:
        UsageError: as ``matching``, or the words name folders of several scales.
    """
    ids, scales = list[str](), set[str]()
    for word in _joined(words, _folded(catalogue.find())):
        found, scale = matching(word)
        ids += found
        scales |= {scale} - {""}
    if len(scales) > 1:
        raise UsageError(f"folders of the scales {' and '.join(sorted(scales))}: give those of one scale in a command")
    return list(dict.fromkeys(ids)), "".join(scales)


def matching(word: str) -> tuple[list[str], str]:
    """Return the ids that a word names, and the scale where it is the folder of one: an artifact in upper or lower
    case, its file or folder, a paper with all of its artifacts, or a pattern such as ``cem/*``.

    Raises:
        UsageError: there are none; with the nearest artifact or paper.
    """
    found = catalogue.find()
    if word in found:
        return [word], ""
    known, papers = _folded(found), {name.partition("/")[0] for name in found}
    if (path := Path(word)).suffix == ".yaml" and path.is_file():
        return [_of_file(path, found)], ""
    parts = [part for part in word.casefold().split("/") if part not in ("", ".")]
    for place in reversed(range(len(parts) - 1)):
        name, rest = f"{parts[place]}/{parts[place + 1].removesuffix('.yaml')}", parts[place + 2 :]
        led = place == 0 or parts[place - 1] in FOLDERS or path.is_dir()
        if name in known and led and (not rest or rest[0] in (*SCALES, EXACT)):
            return [known[name]], rest[0] if rest else ""
    if parts[-1:] and parts[-1] in papers and (len(parts) == 1 or parts[-2] in FOLDERS):
        return [name for name in found if name.startswith(f"{parts[-1]}/")], ""
    if chosen := fnmatch.filter(known, word.casefold() if "/" in word else f"{word.casefold()}/*"):
        return [known[name] for name in chosen], ""
    alike = [name for name in found if name.partition("/")[2].casefold() == "/".join(parts)]
    if alike:
        raise UsageError(f"artifact {word!r} lacks its paper: give {' or '.join(alike)}")
    raise UsageError(catalogue.unknown(word, [*found, *papers]))


def _folded(names: Mapping[str, Path]) -> dict[str, str]:
    return {name.casefold(): name for name in names}


def _joined(words: Sequence[str], known: Mapping[str, str]) -> Iterator[str]:
    """Yield the words; a paper and the names that follow it, ``cem table2 table3``, as ids."""
    paper = ""
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        if f"{word}/{after}".casefold() in known:
            paper = word
        elif f"{paper}/{word}".casefold() in known:
            yield f"{paper}/{word}"
        else:
            paper = ""
            yield word


def _of_file(path: Path, found: Mapping[str, Path]) -> str:
    for name, own in found.items():
        if own.samefile(path):
            return name
    path = path.resolve()
    if any(path.is_relative_to(folder.resolve()) for folder in catalogue.folders()):
        raise UsageError(catalogue.unknown(str(path), list(found)))
    folder, name = path.parents[1], f"{path.parent.name}/{path.stem}"
    raise UsageError(f"{path} is in no folder of papers: set {catalogue.EXTRA_PAPERS}={folder} and give {name}")

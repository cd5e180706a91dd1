"""Documentation of pinned distributions: prose without markup, no text in two splits, the same bytes anywhere."""

import hashlib
import http.client
import io
import itertools
import json
import os
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.datamodules import downloads
from paper_repro.datamodules.documentation import SPLITS, Pin, collect, english_paragraphs, read_pins, without_repeats

RST = """
A heading that is long enough to be taken for a sentence?
=========================================================

The :class:`~mylab.energy.Flow` descends an *energy* that you give, and `the guide <https://mylab.org/guide>`_ says how
it is trained. It returns the ``state`` of each of the steps::

    flow = Flow(energy)  # this line of code is not a sentence that you would read as prose.

.. note:: This is a note that begins on the line of its directive and is a sentence of its own.

.. code-block:: python

   This looks like a sentence of English, but it is the content of a block of code and so left out.

.. versionadded:: 2.1

   The argument is used by all of the models, and it can be set for each of them.

.. A comment that is not printed, even though it is a sentence that one could read.

* The first item of the list is a sentence that is joined
  over two of its lines.
* The second item of the list is also a sentence of its own.

======  =========================================================
Name    This is a table in which the sentences are left out too.
======  =========================================================

>>> print("This is a session, and it is not a part of the prose.")
"""
RST_PROSE = [
    "The mylab.energy.Flow descends an energy that you give, and the guide says how it is trained. It returns the "
    "state of each of the steps:",
    "This is a note that begins on the line of its directive and is a sentence of its own.",
    "The argument is used by all of the models, and it can be set for each of them.",
    "The first item of the list is a sentence that is joined over two of its lines.",
    "The second item of the list is also a sentence of its own.",
]
MARKDOWN = """
# A title

You can read [the guide](https://mylab.org) to see how the **models** are trained on all of the data.

```
This is a block of code that is fenced, and it is left out of the prose.
```

<!-- This comment is not shown to a reader, so it is not a part of the prose. -->
1. This is the first of the steps that you have to do.
"""
MARKDOWN_PROSE = [
    "You can read the guide to see how the models are trained on all of the data.",
    "This is the first of the steps that you have to do.",
]

PAIRS = [*itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=2)]


@pytest.mark.parametrize(("text", "prose"), [(RST, RST_PROSE), (MARKDOWN, MARKDOWN_PROSE)], ids=["rst", "markdown"])
def test_only_english_prose_is_left_of_a_file_and_no_markup(text: str, prose: list[str]) -> None:
    assert list(english_paragraphs(text)) == prose


def sentence(word: str, count: int = 20) -> str:
    """Return a sentence of words that no sentence of another word has."""
    return f"The {' '.join(f'{word}{first}{last} of the' for first, last in PAIRS[:count])} end."


def test_a_paragraph_that_repeats_an_earlier_one_is_left_out_and_the_rest_is_measured() -> None:
    held, own = sentence("held", 10), sentence("own", 10)
    partly = f"{sentence('other', 100)} {held}"
    kept, leaks = without_repeats([("val", [[held]]), ("train", [[own, held], [partly, own]])])
    assert kept == [[[held]], [[own], [partly]]]
    assert leaks["val"] == 1.0  # what a longer paragraph quotes stays, and is counted
    assert without_repeats([("val", [[held]]), ("train", [[own]])])[1]["val"] == 0.0


def distribution(path: Path, files: dict[str, str]) -> bytes:
    """Write a source distribution and return its content."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path.read_bytes()


@pytest.fixture
def pins(tmp_path: Path) -> list[Pin]:
    """Two small distributions below ``tmp_path / "sources"``; the second is held out."""
    folder = tmp_path / "sources"
    folder.mkdir()
    files = {
        "one-1.0.tar.gz": {"docs/a.rst": RST, "docs/b.txt": sentence("more"), "LICENSE.txt": sentence("licence")},
        "two-2.0.tar.gz": {"README.md": MARKDOWN, "tests/data.txt": sentence("test")},
    }
    found = []
    for (name, own), split in zip(files.items(), ("train", "val"), strict=True):
        content = distribution(folder / name, own)
        found.append(Pin(name.partition("-")[0], name, hashlib.sha256(content).hexdigest(), "MIT", split))
    return found


def test_projects_are_held_out_whole(pins: list[Pin], tmp_path: Path) -> None:
    found = collect(pins, tmp_path / "sources", may_download=False)
    assert found.splits["val"] == ["\n\n".join(MARKDOWN_PROSE)]
    assert found.splits["train"] == ["\n\n".join(RST_PROSE), sentence("more")]
    assert found.source["13-grams in train"] == {"val": 0.0, "test": 0.0}
    assert [(one["project"], one["documents"]) for one in found.projects] == [("two", 1), ("one", 2)]
    assert {pin.split for pin in read_pins()} == set(SPLITS)


COLLECT = """
import json, sys
from pathlib import Path
from paper_repro.datamodules.documentation import Pin, collect
found = collect([Pin(**pin) for pin in json.loads(sys.argv[1])], Path(sys.argv[2]), may_download=False)
print(json.dumps([found.splits, found.source]))
"""


def test_two_environments_collect_the_same_documents(pins: list[Pin], tmp_path: Path) -> None:
    told = []
    for number, own in enumerate((pins, pins[::-1])):
        given = {"PYTHONHASHSEED": str(number), "TZ": ("UTC", "Asia/Tokyo")[number], "LC_ALL": ("C", "C.UTF-8")[number]}
        command = [sys.executable, "-c", COLLECT, json.dumps([vars(pin) for pin in own]), str(tmp_path / "sources")]
        told.append(subprocess.run(command, env={**os.environ, **given}, capture_output=True, check=True).stdout)
    assert told[0] == told[1]


@pytest.fixture
def index(pins: list[Pin], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Serve an index of packages; returns by path its content or what reading it raises, which a test may change."""
    content: dict[str, Any] = {f"/files/{pin.file}": (tmp_path / "sources" / pin.file).read_bytes() for pin in pins}
    for pin in pins:
        listed = [{"filename": pin.file, "url": f"/files/{pin.file}", "hashes": {"sha256": pin.sha256}}]
        content[f"/simple/{pin.project}/"] = json.dumps({"files": listed}).encode()

    def urlopen(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        if request.selector not in content:
            raise urllib.error.HTTPError(request.full_url, 404, "Not Found", Message(), None)
        if isinstance(content[request.selector], Exception):
            raise content[request.selector]
        return io.BytesIO(content[request.selector])

    monkeypatch.setattr(downloads.urllib.request, "urlopen", urlopen)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index/simple")
    return content


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("gone", r"two-2\.0\.tar\.gz did not arrive .*404"),
        ("no network", r"two-2\.0\.tar\.gz did not arrive .*unreachable"),
        ("half", r"two-2\.0\.tar\.gz did not arrive .*3 bytes read"),
        ("other hash", "has no two-2.0.tar"),
        ("other content", "expected .* give --from DIR with the file"),
        ("no place", r"two-2\.0\.tar\.gz: could not be written \(.*\): make room"),
    ],
)
def test_a_download_that_fails_is_named_and_the_others_stay(pins, index, tmp_path, wrong, said):
    listing, file = "/simple/two/", f"/files/{pins[1].file}"
    if wrong == "gone":
        del index[listing]
    elif wrong == "other hash":
        index[listing] = index[listing].replace(pins[1].sha256.encode(), b"0" * 64)
    elif wrong == "other content":
        index[file] += b"!"
    elif wrong == "no place":
        (tmp_path / "fresh" / pins[1].file).mkdir(parents=True)
    elif wrong == "no network":
        index[listing] = urllib.error.URLError("Network is unreachable")
    else:
        index[file] = http.client.IncompleteRead(b"abc", 900)
    with pytest.raises(UsageError, match=said):
        collect(pins, tmp_path / "fresh", may_download=True)
    assert [one.name for one in (tmp_path / "fresh").iterdir() if one.is_file()] == [pins[0].file]


def test_files_that_are_absent_or_altered_are_refused(pins: list[Pin], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"2 of 2 source distributions are absent, the first one-1\.0\.tar\.gz"):
        collect(pins, tmp_path, may_download=False)
    path = tmp_path / "sources" / pins[0].file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"one-1\.0\.tar\.gz has SHA-256"):
        collect(pins, tmp_path / "sources", may_download=False)

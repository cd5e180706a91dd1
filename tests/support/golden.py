"""The one reader of golden records: numbers that code independent of ours made, in $PAPER_REPRO_GOLDEN/<paper>/.

A test is run for every file that ``files`` finds, or, with ``@pytest.mark.golden("<paper>", "<pattern>")`` and an
argument ``golden``, for every case of every file.  Sizes and switches come from the file, so another file put into the
folder is checked, too.  Without the folder the tests are skipped.
"""

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

VARIABLE = "PAPER_REPRO_GOLDEN"


def paths(paper: str, pattern: str, *names: str) -> list[Path]:
    """The files of a paper that match; of archives only those with arrays of all these names."""
    folder = os.environ.get(VARIABLE)
    found = sorted((Path(folder) / paper).glob(pattern)) if folder else []
    return [path for path in found if not names or set(names) <= read(path).keys()]


def absent(paper: str, pattern: str) -> str:
    """Why there is no such file."""
    folder = os.environ.get(VARIABLE)
    return f"no {paper}/{pattern} in {folder}" if folder else f"set {VARIABLE} to the folder of golden records"


def files(paper: str, pattern: str, *names: str) -> list[Any]:
    """One pytest parameter for every file of ``paths``, or one that is skipped with the reason."""
    found = paths(paper, pattern, *names)
    skipped = pytest.param(None, id="absent", marks=pytest.mark.skip(absent(paper, pattern)))
    return [pytest.param(path, id=path.stem) for path in found] or [skipped]


@lru_cache(maxsize=16)
def read(path: Path) -> dict[str, Any]:
    """The arrays of an archive by their names, ``cfg_*`` as plain numbers and words, and its ``meta`` if it has any."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    meta = {"meta": json.loads(str(arrays.pop("meta")))} if "meta" in arrays else {}
    return meta | {
        name: array.item() if name.startswith("cfg_") else torch.from_numpy(array) for name, array in arrays.items()
    }


def document(path: Path) -> Any:
    """The content of a JSON file, packed or not."""
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


@dataclass(frozen=True)
class GoldenCase:
    path: Path
    case: dict[str, Any]
    """The switches of this case, ``id`` among them; empty in a file without cases."""

    @property
    def meta(self) -> dict[str, Any]:
        found: dict[str, Any] = read(self.path)["meta"]
        return found

    def shared(self, name: str) -> torch.Tensor:
        """A copy of an array that all cases of the file share: inputs and parameters."""
        found: torch.Tensor = read(self.path)[name]
        return found.clone()

    def expected(self, name: str) -> torch.Tensor:
        """An array of this case."""
        return self.shared(f"{self.case['id']}_{name}")


def cases(paper: str, pattern: str) -> Iterator[Any]:
    """One pytest parameter for every case of every file, or one that is skipped with the reason."""
    for parameter in files(paper, pattern):
        (path,) = parameter.values
        if path is None:
            yield parameter
            continue
        for case in read(path)["meta"].get("cases") or [{}]:
            yield pytest.param(GoldenCase(path, case), id="-".join([path.stem, *([case["id"]] if case else [])]))

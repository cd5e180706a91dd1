"""The one reader of golden records: numbers that code independent of ours made, in $PAPER_REPRO_GOLDEN/<paper>/.

``files`` and ``cases`` are the parameters of a test: every file that matches, or every case of every file.  Sizes and
switches come from the file, so another file put into the folder is checked, too.  Without the folder the tests are
skipped.
"""

import gzip
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

VARIABLE = "PAPER_REPRO_GOLDEN"


def files(paper: str, pattern: str, *names: str) -> list[Any]:
    """One parameter for every file that matches, or one that is skipped; archives must have all these arrays."""
    folder = os.environ.get(VARIABLE)
    found = sorted(Path(folder, paper).glob(pattern)) if folder else []
    kept = [pytest.param(path, id=path.stem) for path in found if not names or set(names) <= read(path).keys()]
    reason = f"no {paper}/{pattern} in {folder}" if folder else f"set {VARIABLE} to the folder of golden records"
    return kept or [pytest.param(None, id="absent", marks=pytest.mark.skip(reason))]


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


def assert_golden(found: torch.Tensor, expected: torch.Tensor) -> None:
    """1e-9 of each number, or of the largest where one is a difference of larger ones."""
    torch.testing.assert_close(found.detach(), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


@dataclass(frozen=True)
class GoldenCase:
    path: Path
    case: dict[str, Any]
    """The switches of this case, ``id`` among them; empty in a file without cases."""

    @property
    def meta(self) -> Any:
        return read(self.path)["meta"]

    def shared(self, name: str) -> torch.Tensor:
        """A copy of an array that all cases of the file share: inputs and parameters."""
        found: torch.Tensor = read(self.path)[name]
        return found.clone()

    def expected(self, name: str) -> torch.Tensor:
        """An array of this case."""
        return self.shared(f"{self.case['id']}_{name}")


def cases(paper: str, pattern: str) -> list[Any]:
    """One parameter for every case of every file, or one that is skipped."""
    found = files(paper, pattern)
    paths = [parameter.values[0] for parameter in found if parameter.values[0] is not None]
    each = [GoldenCase(path, case) for path in paths for case in read(path)["meta"].get("cases") or [{}]]
    return [pytest.param(one, id=f"{one.path.stem}-{one.case.get('id', 0)}") for one in each] or found

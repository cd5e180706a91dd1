"""Golden records: float64 numbers made by independent loop implementations, in $PAPER_REPRO_GOLDEN/<paper>/<name>.npz.

A test asks for them with ``@pytest.mark.golden("<paper>", "<pattern>.npz")`` and an argument ``golden``.  It then runs
once for every case of every file that matches, with the file's stem and the case's id in its name; sizes and switches
come from the file, so another file put into the folder is checked too.  Without the folder the test is skipped.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported, which torch may do at any time

import numpy as np
import pytest
import torch

VARIABLE = "PAPER_REPRO_GOLDEN"


@dataclass(frozen=True)
class GoldenCase:
    path: Path
    case: dict[str, Any]
    """The switches of this case, ``id`` among them; empty in a file without cases."""

    @property
    def meta(self) -> dict[str, Any]:
        return _read(self.path)[0]

    def shared(self, name: str) -> torch.Tensor:
        """An array that all cases of the file share: inputs and parameters."""
        return torch.from_numpy(_read(self.path)[1][name].copy())

    def expected(self, name: str) -> torch.Tensor:
        """An array of this case."""
        return self.shared(f"{self.case['id']}_{name}")


@lru_cache(maxsize=16)
def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return json.loads(str(arrays.pop("meta"))), arrays


def golden_cases(paper: str, pattern: str) -> Iterator[Any]:
    """One pytest parameter for every case of every file, or one that is skipped with the reason."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        yield pytest.param(None, id="absent", marks=pytest.mark.skip(f"set {VARIABLE} to the folder of golden records"))
        return
    paths = sorted((Path(folder) / paper).glob(pattern))
    if not paths:
        reason = f"no {paper}/{pattern} in {folder}, to which {VARIABLE} points"
        yield pytest.param(None, id="absent", marks=pytest.mark.skip(reason))
    for path in paths:
        for case in _read(path)[0].get("cases") or [{}]:
            yield pytest.param(GoldenCase(path, case), id="-".join([path.stem, *([case["id"]] if case else [])]))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "golden(paper, pattern): run for every golden record that matches")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("golden")
    if marker is not None:
        metafunc.parametrize("golden", list(golden_cases(*marker.args)))

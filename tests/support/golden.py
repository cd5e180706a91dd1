"""Golden files without cases of their own: one parameter for every file, or one that is skipped with the reason."""

import json
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

VARIABLE = "PAPER_REPRO_GOLDEN"


def files(paper: str, pattern: str) -> Iterator[Any]:
    folder = os.environ.get(VARIABLE)
    paths = sorted((Path(folder) / paper).glob(pattern)) if folder else []
    if not paths:
        reason = f"no {paper}/{pattern} in {folder}" if folder else f"set {VARIABLE} to the folder of golden records"
        yield pytest.param(None, id="absent", marks=pytest.mark.skip(reason))
    for path in paths:
        yield pytest.param(path, id=path.stem)


@lru_cache(maxsize=8)
def read(path: Path) -> dict[str, Any]:
    """The arrays of a record by their names, and its ``meta``."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: torch.from_numpy(archive[name]) for name in archive.files if name != "meta"}
        return {"meta": json.loads(str(archive["meta"])), **arrays}

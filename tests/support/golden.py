"""Golden files without cases of their own: one parameter for every file, or one that is skipped with the reason."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "PAPER_REPRO_GOLDEN"


def files(paper: str, pattern: str) -> Iterator[Any]:
    folder = os.environ.get(VARIABLE)
    paths = sorted((Path(folder) / paper).glob(pattern)) if folder else []
    if not paths:
        reason = f"no {paper}/{pattern} in {folder}" if folder else f"set {VARIABLE} to the folder of golden records"
        yield pytest.param(None, id="absent", marks=pytest.mark.skip(reason))
    for path in paths:
        yield pytest.param(path, id=path.stem)

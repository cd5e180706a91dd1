"""Arrays that are kept in a cache under their names, as one file of numpy."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paper_repro.base.files import cached

Arrays = Mapping[str, npt.NDArray[Any]]


def cached_arrays(path: Path, build: Callable[[], Arrays]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that ``path`` keeps, built by whichever process asks first; a damaged file is built again."""
    with np.load(io.BytesIO(cached(path, lambda: _packed(build()))), allow_pickle=False) as archive:
        return dict(archive)


def _packed(arrays: Arrays) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()

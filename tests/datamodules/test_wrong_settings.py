"""Settings of data that a user gets wrong."""

from collections.abc import Callable
from typing import Any

import pytest

from paper_repro.datamodules.gaussian_process import GaussianProcessData
from paper_repro.datamodules.image_sources import Digits, Faces
from paper_repro.datamodules.images import CelebAData, ImageData, MaskedImageData
from paper_repro.datamodules.listops import ListOps
from paper_repro.datamodules.sudoku import GeneratedSudoku
from paper_repro.datamodules.text import TokenData

FILES = {"manifest": "celeba/manifest.json"}


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (CelebAData, {"files": {"train": "x"}}, "files must name manifest, got train"),
        (CelebAData, {"files": FILES, "scale": (0.9, 1.1)}, "scale must be two numbers up to 1"),
        (Faces, {"size": 26}, "at most 25"),
        (GaussianProcessData, {"kernel": "mattern"}, "did you mean 'matern'"),
        (GaussianProcessData, {"num_train": 50, "batch_size": 51}, r"batch_size must be at most num_train \(50\)"),
        (GeneratedSudoku, {"train_givens": [22, 40]}, "train_givens must be a whole number of at least 23, got 22"),
        (GeneratedSudoku, {"train_givens": [60, 50]}, "train_givens must be the fewest and the most givens"),
        (GeneratedSudoku, {"test_givens": [40, 82]}, "test_givens must be a whole number up to 81, got 82"),
        (ImageData, {"source": Faces(), "labelled": True}, "no labels"),
        (ListOps, {"modulus": 2}, "modulus must be a whole number of at least 3"),
        (ListOps, {"function_probability": 1.0}, "function_probability must be from 0 to below 1"),
        (ListOps, {"functions": "max"}, "functions must be a list of names"),
        (ListOps, {"functions": ("mx",)}, "did you mean 'max'"),
        (MaskedImageData, {"source": Digits(), "cell": 3}, "cells of 3 do not tile images of 8"),
        (MaskedImageData, {"source": Digits(), "cell": 2, "mask_ratio": 0}, "blanks 0 of 16 cells"),
        (TokenData, {"files": {"text": "x"}}, "files must name manifest, got text"),
    ],
)
def test_wrong_settings_are_refused_by_name(make: Callable[..., Any], given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**given)

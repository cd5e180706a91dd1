"""Architectures, one file per family; the only place with layers.

``from paper_repro.models import NGPT`` and the others below; each is imported when it is first asked for.  A
constructor raises a ValueError with the argument's name for a value out of range, an unknown word, and an option that
the others leave without effect.
"""

import importlib
from typing import Any

_FAMILIES = {
    "gpt": ("GPT", "RGPT", "RGPTParallel"),
    "llama": ("Llama", "gated_feed_forward", "rotary_attention"),
    "ngpt": ("NGPT", "BaselineGPT"),
    "nrgpt": ("NRGPT_H_FF1", "NRGPT_H_FF2", "NRGPT_H_FF2W"),
    "cem": ("CEMAttention", "CEMMLP", "GatedMLP", "GaussianProcessRegressor", "PlainMLP"),
    "cet": ("CET",),
    "ebt": ("EBT", "LatentEBT", "LatentTransformer", "TransformerPlusPlus"),
    "ebt_image": ("DiT", "ImageEBT"),
    "ebt_sudoku": ("SudokuEBT", "SudokuFeedForward", "SudokuRecursive"),
}
_FILES = {name: family for family, names in _FAMILIES.items() for name in names}
NAMES = (*_FILES,)


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_FILES])

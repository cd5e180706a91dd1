"""Measurements on trained models (energies, answers, texts, counts), and trivial baselines of the same metrics.

A probe has ``measure``; one with a wrong argument raises ValueError when it is built, and one that is given a model or
data that it does not measure, or damaged files, UsageError.

A module can be imported by its older names, too, which ``base/identity.yaml`` lists.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from paper_repro.base import identity


class _Older(ModuleType):
    """The older name of a module, which is imported when a class of it is asked for."""

    def __init__(self, name: str, today: str) -> None:
        super().__init__(name)
        self._today = today

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # as code asks that looks through all modules
            raise AttributeError(name)
        return getattr(importlib.import_module(self._today), name)


for _older, _today in identity.rules().moved.items():
    if _older.startswith(f"{__name__}."):
        _module = _older.rpartition(".")[0]
        sys.modules.setdefault(_module, _Older(_module, _today.rpartition(".")[0]))

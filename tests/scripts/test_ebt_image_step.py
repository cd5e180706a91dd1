"""The bench of EBT's step on images, at a tiny size."""

import sys
from importlib import import_module
from typing import Any

import pytest
import torch

from paper_repro.base.errors import ROOT


def test_time_memory_and_products_stand_beside_dits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benches"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benches" / "shared"))
    bench: Any = import_module("ebt_image_step")
    monkeypatch.setattr(sys.modules["side_by_side"], "ROUNDS", 1)
    monkeypatch.setattr(bench, "ON_CPU", bench.Size(16, 2, 2, 8, 4, 3))
    pair = bench._Pair(bench.ON_CPU, 1, False, torch.device("cpu"))
    times, memory, products = pair.comparisons()
    assert [item.unit for item in (times, memory, products)] == [
        "ms per step",
        "MiB that a step adds",
        "GFLOPs of matrix products per step",
    ]
    assert times.relative_error < 1e-4 and len(times.ours) == len(times.theirs) == 1
    assert products.ratio < 1 and memory.ratio > 0  # EBT needs more products
    two = bench._Pair(bench.ON_CPU, 2, False, torch.device("cpu"))
    *_, more = two.comparisons()
    assert more.ours[0] > 1.5 * products.ours[0] and more.theirs == products.theirs
    loading = bench._loading(bench.ON_CPU, torch.device("cpu"))
    assert loading.unit == "ms per batch" and loading.other == "a step of EBT"

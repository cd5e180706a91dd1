import sys
from importlib import import_module
from typing import Any

import pytest
import torch

from paper_repro.base.errors import ROOT


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benches"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benches" / "shared"))
    module = import_module("ebt_step")
    monkeypatch.setattr(sys.modules["side_by_side"], "ROUNDS", 1)
    monkeypatch.setattr(module, "ON_CPU", module.Size(8, 2, 2, 13, 16, 4, 5.0))
    return module


@pytest.mark.slow
def test_time_memory_and_products_of_both_streams_stand_beside_transformer_s(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    goals = {(case.variant, case.steps): (case.most_time, case.most_memory) for case in bench.CASES}
    assert goals == {
        ("default", 1): (3.2, 4.3),
        ("default", 2): (5.5, 6.7),
        ("time_embed", 1): (3.5, None),
        ("time_embed", 2): (6.5, None),
    }
    monkeypatch.setattr(bench, "CASES", bench.CASES[3:])
    found = list(bench.compare(torch.device("cpu")))
    assert [(item.unit, "split" in item.case, item.goal) for item in found] == [
        ("ms per step", True, 1 / 6.5),
        ("MiB that a step adds", True, None),
        ("GFLOPs of matrix products per step", True, None),
        ("ms per step", False, None),
        ("MiB that a step adds", False, None),
        ("GFLOPs of matrix products per step", False, None),
    ]
    assert 0 < found[0].relative_error < 1e-4  # two ways to the same gradients
    assert found[2].ratio > 1.2 * found[5].ratio and found[4].ratio < found[1].ratio < 1

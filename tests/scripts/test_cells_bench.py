"""The bench of cells: what it measures of a small one, and its line in the index."""

from importlib import import_module
from typing import Any

import pytest
import torch

from paper_repro.base.errors import ROOT
from paper_repro.training.machine import Machine, settings


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benches"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benches" / "shared"))
    return import_module("cells")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return import_module("results_index")


@pytest.mark.parametrize(("name", "place"), [("cem/table3", {"model": "t2"}), ("cet/table1", {"method": "ep"})])
def test_a_step_its_shares_and_its_line(
    cells: Any, index: Any, name: str, place: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    with settings(Machine(accelerator="cpu", threads=1)):
        found = cells.measured(name, place, scale="smoke", rounds=2)
    record = found.record()
    assert len(found.milliseconds) == 2 and min(found.milliseconds) > 0
    assert record["rate"] == pytest.approx(found.gigaflops / sum(found.milliseconds) * 2e3)
    assert 0 < found.products < 1 and 0 < found.others < 1 and found.products + found.others < 1.05
    assert len(found.slowest) == cells.SLOWEST
    assert not cells.PRODUCTS & {operation for operation, _ in found.slowest}
    assert sum(share for _, share in found.slowest) <= found.others + 1e-3
    assert found.evaluations == 0 and 0 < found.last < 1
    assert (found.compiled is None) == (name == "cet/table1")
    assert found.line().startswith(f"{name} {', '.join(place.values())}: ")
    line = index._cell(record, "here", "commit unknown")
    assert len(line) == len(index.CELL_HEADERS) and line[0] == found.case and line[-2:] == ["here", "commit unknown"]


def test_every_place_is_one_of_its_artifact(cells: Any) -> None:
    for name, place in cells.CELLS:
        assert cells._cell(name, place, "cpu").config["task"]["_target_"].endswith(".Fit")


def test_what_cannot_be_measured_says_so(cells: Any) -> None:
    with pytest.raises(LookupError, match=r"cem/table3 has no cell \{'model': 't99'\} at scale smoke"):
        cells.measured("cem/table3", {"model": "t99"}, scale="smoke")
    with pytest.raises(SystemExit, match="leave --device out"):
        next(cells.compare(torch.device("cuda")))

"""What cells were counted to cost is kept, and counted again where something that it follows from has changed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.cells import estimates
from paper_repro.cells.estimates import estimate
from paper_repro.cells.planned import PlannedCell, single
from paper_repro.cells.tasks import Cost

COST = Cost(parameters=7, multiply_adds=11, step_flops=13, steps=17, memory_bytes=19)


def cell(*overrides: str, seed: int = 0, place: str = "one") -> PlannedCell:
    return replace(single("cem/gaussian_process", overrides, seed), key=(("place", place),))


def ask(cells: Sequence[PlannedCell], runs: Path, cost: Cost | None = COST) -> tuple[int, list[Any]]:
    """Return how many cells are counted, and the cost of each."""
    counted: list[PlannedCell] = []

    def count(cells: Sequence[PlannedCell]) -> list[Cost | None]:
        counted.extend(cells)
        return [cost for _ in cells]

    found = estimate(cells, [], runs, count)
    return len(counted), [found[one.id].cost for one in cells]


def test_what_was_counted_once_is_not_counted_again(tmp_path: Path) -> None:
    cells = [cell(), cell(seed=1), cell("data.kernel=matern", place="two"), cell("model.width=8", place="three")]
    assert ask(cells, tmp_path) == (3, [COST] * 4)
    assert ask(cells, tmp_path, cost=None) == (0, [COST] * 4)
    assert ask([cell(seed=5)], tmp_path, cost=None) == (0, [COST])


@pytest.mark.parametrize(
    ("override", "asked"),
    [
        ("model.width=9", 1),
        ("data.kernel=matern", 1),
        ("machine.implementation=reference", 1),
        ("machine.workers=7", 0),
    ],
)
def test_what_a_count_follows_from_is_part_of_its_key(override: str, asked: int, tmp_path: Path) -> None:
    ask([cell()], tmp_path)
    assert ask([cell(override)], tmp_path)[0] == asked


def test_other_data_and_other_code_are_counted_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask([cell()], tmp_path)
    monkeypatch.setattr(estimates, "file_hashes", lambda _: {"text": "0" * 64})
    assert ask([cell()], tmp_path)[0] == 1
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "one.py").write_text("width = 1\n")
    monkeypatch.setattr("paper_repro.__path__", [str(tmp_path)])
    assert ask([cell()], tmp_path)[0] == 1


def test_a_damaged_file_and_a_folder_that_takes_nothing_cost_a_count_each(tmp_path: Path) -> None:
    ask([cell()], tmp_path)
    path = tmp_path / "cache" / "costs.json"
    path.write_bytes(path.read_bytes().replace(b"13", b"14"))
    assert ask([cell()], tmp_path)[0] == 1
    (tmp_path / "file").write_text("")
    assert ask([cell()], tmp_path / "file") == (1, [COST])


def test_a_config_that_cannot_be_built_is_named_by_its_place(tmp_path: Path) -> None:
    wrong = replace(
        cell(place="two"), id="other", config={**cell().config, "model": {**cell().config["model"], "width": 0}}
    )
    with pytest.raises(UsageError, match=r"the cells at place=two: .*width.*; --config place=two tells where"):
        estimate([cell(), wrong], [], kept=tmp_path)

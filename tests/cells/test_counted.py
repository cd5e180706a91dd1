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


class Counting:
    """Counts nothing but how often it is asked."""

    def __init__(self, cost: Cost | None = COST) -> None:
        self.cost = cost
        self.asked: list[tuple[int, int]] = []
        """Cells to count, and others to check."""

    def __call__(self, cells: Sequence[PlannedCell], others: Sequence[PlannedCell]) -> list[Cost | None]:
        self.asked.append((len(cells), len(others)))
        return [self.cost for _ in cells]


def cell(*overrides: str, seed: int = 0, place: str = "one") -> PlannedCell:
    return replace(single("cem/gaussian_process", overrides, seed), key=(("place", place),))


def ask(cells: Sequence[PlannedCell], runs: Path, cost: Cost | None = COST) -> tuple[list[tuple[int, int]], list[Any]]:
    counting = Counting(cost)
    found = estimate(cells, [], runs, counting)
    return counting.asked, [found[one.id].cost for one in cells]


def test_what_was_counted_once_is_not_counted_again(tmp_path: Path) -> None:
    cells = [cell(), cell(seed=1), cell("data.kernel=matern", place="two"), cell("model.width=8", place="three")]
    assert ask(cells, tmp_path) == ([(2, 1)], [COST] * 4)  # kernels vary within a stack: one shape
    assert ask(cells, tmp_path, cost=None) == ([(0, 0)], [COST] * 4)
    assert ask([cell(seed=5)], tmp_path, cost=None) == ([(0, 0)], [COST])


def test_another_config_of_a_known_shape_is_checked_before_its_cost_is_taken(tmp_path: Path) -> None:
    ask([cell()], tmp_path)
    asked, _ = ask([cell(), cell("data.kernel=matern", place="two")], tmp_path)
    assert asked == [(0, 1)]
    asked, _ = ask([cell("data.kernel=periodic")], tmp_path)  # the first of its shape in this plan
    assert asked == [(1, 0)]


@pytest.mark.parametrize(
    ("override", "asked"),
    [("model.width=9", (1, 0)), ("machine.implementation=reference", (1, 0)), ("machine.workers=7", (0, 0))],
)
def test_what_a_count_follows_from_is_part_of_its_key(override: str, asked: tuple[int, int], tmp_path: Path) -> None:
    ask([cell()], tmp_path)
    assert ask([cell(override)], tmp_path)[0] == [asked]


def test_other_data_and_other_code_are_counted_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask([cell()], tmp_path)
    monkeypatch.setattr(estimates, "file_hashes", lambda _: {"text": "0" * 64})
    assert ask([cell()], tmp_path)[0] == [(1, 0)]
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "one.py").write_text("width = 1\n")
    monkeypatch.setattr("paper_repro.__path__", [str(tmp_path)])
    assert ask([cell()], tmp_path)[0] == [(1, 0)]


def test_a_damaged_file_and_a_folder_that_takes_nothing_cost_a_count_each(tmp_path: Path) -> None:
    ask([cell()], tmp_path)
    path = tmp_path / "cache" / "costs.json"
    path.write_bytes(path.read_bytes().replace(b"13", b"14"))
    assert ask([cell()], tmp_path)[0] == [(1, 0)]
    (tmp_path / "file").write_text("")
    assert ask([cell()], tmp_path / "file") == ([(1, 0)], [COST])


def test_a_config_that_cannot_be_built_is_named_by_its_place(tmp_path: Path) -> None:
    wrong = replace(cell(place="two"), config={**cell().config, "model": {**cell().config["model"], "width": 0}})
    with pytest.raises(UsageError, match=r"the cells at place=two: .*width.*; --config place=two tells where"):
        estimate([cell(), wrong], [], kept=tmp_path)

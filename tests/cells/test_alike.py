from typing import Any

from paper_repro.cells.alike import told
from paper_repro.cells.planned import PlannedCell


def planned(number: int, compile: Any = "auto", **changes: Any) -> PlannedCell:
    config: dict[str, Any] = {
        "model": {"_target_": "m", "width": 8, "init": {"seed": number}},
        "module": {"_target_": "n"},
        "data": {"_target_": "d", "seed": number},
        "optimizer": {"lr": 0.1 * number},
        "training": {"steps": 100, "precision": "32-true"},
        "seed": number,
        "machine": {"compile": compile, "workers": 2},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        config[section] = {**config[section], name: value}
    return PlannedCell((), number, config, "", f"cell-{number}")


def steps(cells: list[PlannedCell]) -> list[Any]:
    return [cell.config["machine"].get("alike_steps") for cell in cells]


def test_cells_that_differ_in_seed_optimiser_and_length_alone_are_counted_together() -> None:
    cells = [
        *(planned(number) for number in range(3)),
        planned(3, training__steps=1000),
        planned(4, model__width=16),
        planned(5, training__precision="bf16-mixed"),
    ]
    assert steps(told(cells, cells)) == [1300, 1300, 1300, 1300, 100, 100]
    assert steps(told(cells, cells[1:3])) == [200, 200, 200, 200, 0, 0]
    assert steps(cells) == [None] * 6
    for cell, before in zip(told(cells, cells), cells, strict=True):
        assert cell.id == before.id and {**cell.config, "machine": {}} == {**before.config, "machine": {}}


def test_where_nothing_is_chosen_the_cells_stay_as_they_are() -> None:
    cells = [planned(0, compile=False), planned(1, compile=True)]
    assert told(cells, cells) == cells
    arithmetic = PlannedCell((), 0, {"seed": 0}, "", "id")
    assert told([arithmetic], [arithmetic]) == [arithmetic]

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import RESULTS, UsageError, run_main
from paper_repro.cells import records
from paper_repro.cells.records import record_path
from paper_repro.scripts import compare
from paper_repro.tables import plan, spec, view

FIRST, SECOND = "95071d22e59ea75a", "b8497c8947d73191"


def compared(capsys: Any, *words: str) -> str:
    assert run_main(compare.main, words) == 0
    return str(capsys.readouterr().out)


def row(text: str, *first: str) -> list[str]:
    """The cells of the one row that begins so."""
    found = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    (own,) = [cells for cells in found if cells[: len(first)] == [*first]]
    return own[len(first) :]


def test_two_cells_by_id_beginning_and_folder(capsys: Any) -> None:
    text = compared(capsys, FIRST, SECOND)
    one, two = (records.read(record_path(RESULTS, cell)) for cell in (FIRST, SECOND))
    assert row(text, "parameters") == [str(one.parameters), str(two.parameters)]
    assert row(text, "model.block.hidden") == ["170", "256"] and row(text, "model.block.num_steps") == ["2", "-"]
    values = (one.metrics["test_rmse"], two.metrics["test_rmse"])
    numbers = [*(f"{value:.6g}" for value in values), f"{values[1] - values[0]:+.4g}", f"{values[1] / values[0]:.4g}"]
    assert row(text, "test_rmse") == numbers
    ends = [f"{record.curves['train_loss']['value'][-1]:.6g}" for record in (one, two)]
    assert row(text, "train_loss", "3000")[:2] == ends
    assert "optimizer.lr" not in text and "seed" not in text.partition("config key")[2].partition("metric")[0]
    folders = [str(RESULTS / "cells" / cell) for cell in (FIRST, SECOND)]
    assert compared(capsys, FIRST[:6], SECOND[:4]) == compared(capsys, *folders) == text


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """Runs in which the cells of CEM-T2 on RBF have half the test error, and the rest is absent."""
    table = json.loads((RESULTS / "cem/table3/cpu/table.json").read_text())
    for cell, place in table["cells"].items():
        if (place.get("kernel"), place.get("model")) == ("rbf", "t2"):
            found = records.read(record_path(RESULTS, cell))
            found.metrics["test_rmse"] /= 2
            records.write(record_path(tmp_path, cell), found)
    (tmp_path / "cem/table3/cpu").mkdir(parents=True)
    shutil.copy(RESULTS / "cem/table3/cpu/table.json", tmp_path / "cem/table3/cpu")
    return tmp_path


def test_two_runs_folders_of_one_artifact(changed: Path, capsys: Any) -> None:
    text = compared(capsys, str(RESULTS), str(changed), "cem/table3", "scale=cpu")
    assert "configs: the same in all 10 pairs of cells" in text
    assert row(text, "rbf", "t2", "test_rmse") == ["0.010522", "0.00526098", "-0.005261", "0.5", "10 and 10"]
    assert row(text, "rbf", "plain", "test_rmse")[1:] == ["-", "-", "-", "10 and 0"]
    tables = [str(root / "cem/table3/cpu") for root in (RESULTS, changed)]
    assert compared(capsys, *tables).partition("\n\n")[2] == text.partition("\n\n")[2]


def test_an_altered_run_is_paired_by_place_and_seed(tmp_path: Path, capsys: Any) -> None:
    altered = plan.make(spec.load("cem/table3"), "cpu", None, ["optimizer.lr=0.003"])
    published = json.loads((RESULTS / "cem/table3/cpu/table.json").read_text())
    cells = {(*place.values(),): cell for cell, place in published["cells"].items()}
    for cell in altered.cells[:8]:
        source = records.read(record_path(RESULTS, cells[*(value for _, value in cell.key), cell.seed]))
        content = {**vars(source), "cell": cell.id, "config": {**cell.config}}
        content["config"].pop("machine")
        records.write(record_path(tmp_path, cell.id), records.Record(**content))
    folder = tmp_path / altered.folder
    folder.mkdir(parents=True)
    (folder / "table.json").write_text(json.dumps({**published, "overrides": ["optimizer.lr=0.003"]}))
    text = compared(capsys, str(RESULTS / "cem/table3/cpu"), str(folder))
    assert row(text, "optimizer.lr") == ["0.005", "0.003", "8"] and "pairs of 8" in text
    assert "model._target_" not in text  # records of any age are spelled as today


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((FIRST, "b8497c8947d73192"), f"did you mean '{SECOND}'"),
        ((FIRST, str(RESULTS / "cem/table3/cpu")), "one is a cell, the other a folder of many"),
        ((FIRST, str(RESULTS)), "say which artifact of it"),
        ((str(RESULTS / "cem/table3/cpu"), str(RESULTS / "cem/fig4/cpu")), "two artifacts have no cells to pair"),
        ((str(RESULTS / "cem/table3/cpu"),) * 2 + ("cem/table3",), "give the two folders alone"),
        ((FIRST, SECOND, "cem/table3"), "goes with two runs folders"),
        ((str(RESULTS), "runs/nowhere", "cem/table3"), "runs/nowhere: no runs folder, which has cells/"),
        ((FIRST, str(RESULTS / "cem")), f"{RESULTS / 'cem'}: no record.json in it, expected the folder of a cell"),
        ((FIRST, SECOND, "optimizer.lr=1"), "nothing is run here"),
        (("0", FIRST), "neither the folder of a cell"),
    ],
)
def test_wrong_words_are_one_line(words: tuple[str, ...], message: str, capsys: Any) -> None:
    assert run_main(compare.main, words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_damaged_table_or_record_and_a_folder_without_one(changed: Path, capsys: Any) -> None:
    assert run_main(compare.main, [str(RESULTS), str(changed), "cem/fig4"]) == 2
    assert f"{changed}: no record of cem/fig4 in it" in capsys.readouterr().err
    path = next(changed.glob("cells/*/record.json"))
    path.write_bytes(path.read_bytes()[:-5])
    assert run_main(compare.main, [str(path.parent), FIRST]) == 2
    assert re.search(r"record\.json.*delete it", capsys.readouterr().err)
    (changed / "cem/table3/cpu/table.json").write_text("{}")
    assert run_main(compare.main, [str(changed / "cem/table3/cpu"), str(RESULTS / "cem/table3/cpu")]) == 2
    assert "not the table of an artifact" in capsys.readouterr().err


def test_a_beginning_of_several_ids(tmp_path: Path, capsys: Any) -> None:
    record = vars(records.read(record_path(RESULTS, FIRST)))
    for cell in ("abcd000000000001", "abcd000000000002"):
        records.write(record_path(tmp_path, cell), records.Record(**{**record, "cell": cell}))
    assert run_main(compare.main, ["abcd", FIRST, f"runs={tmp_path}"]) == 2
    assert "abcd: 2 cells begin so, abcd000000000001, abcd000000000002; give more of the id" in capsys.readouterr().err


def test_a_published_cell_of_which_nobody_has_the_weights_is_told_how_to_train(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"published with cem/table3, weights are not: run reproduce.py cem/table3 sc"):
        view.find_record(FIRST, [tmp_path])
    with pytest.raises(UsageError, match=r"nor the id of one in [^;]*$"):
        view.find_record("0123456789abcdef", [tmp_path])

import json
import re
from pathlib import Path

import pytest

from paper_repro.artifacts import expected
from paper_repro.base.command_line import RESULTS
from paper_repro.base.config import CONF, experiments

HEAD = (
    "# @package _global_\n# Command:    python scripts/train.py x\n# Feeds:      {feeds}\n# Deviations: none\nkey: 1\n"
)
EXPERIMENT = "cem/gaussian_process"
WHERE = {"kernel": "rbf", "model": "plain"}


def results_with(folder: Path, scale: str = "cpu") -> Path:
    """Return a folder of results with one table of two cells, of 40 and 80 seconds."""
    row = {**WHERE, "quantity": "test_rmse", "own_mean": 0.0151, "own_std": 0.001, "own_seeds": 2}
    floor = {**row, "floor": "target_mean", "own_mean": 1.0}
    cells = {f"{name}": {**WHERE, "seed": seed} for seed, name in enumerate("ab")}
    table = folder / "cem" / "table3" / scale / "table.json"
    table.parent.mkdir(parents=True)
    table.write_text(json.dumps({"scale": scale, "rows": [floor, row], "cells": cells}))
    for name, seconds in (("a", 40.0), ("b", 80.0)):
        record = folder / "cells" / name / "record.json"
        record.parent.mkdir(parents=True)
        record.write_text(json.dumps({"seconds": seconds}))
    return folder


def test_the_head_names_the_number_its_spread_and_the_time(tmp_path: Path) -> None:
    text = HEAD.format(feeds="no/such, cem/table1, cem/table3, fig2")
    found = expected.with_expectation(text, results_with(tmp_path), EXPERIMENT)
    said = " ".join(line.lstrip("# ") for line in found.splitlines()[3:5])
    assert said == (
        "Expected:   not run at these settings; reproduce.py cem/table3 at scale cpu, RBF, Plain: Test RMSE "
        "0.0151 ± 0.0010 over 2 seeds; its 2 cells took 2 min of one processor core"
    )
    assert found.splitlines()[5] == "# Deviations: none"
    assert expected.with_expectation(found, tmp_path, EXPERIMENT) == found


@pytest.mark.parametrize("feeds", ["cem/table1", "none yet", ""])
def test_without_a_published_table_nothing_is_expected(tmp_path: Path, feeds: str) -> None:
    text = HEAD.format(feeds="cem/table3")
    written = expected.with_expectation(text, results_with(tmp_path), EXPERIMENT)
    without = HEAD.format(feeds=feeds)
    assert expected.with_expectation(without, tmp_path, EXPERIMENT) == without
    assert expected.with_expectation(written.replace("cem/table3\n", f"{feeds}\n"), tmp_path, EXPERIMENT) == without


def test_an_artifact_of_the_experiment_goes_before_others(tmp_path: Path) -> None:
    results, text = results_with(tmp_path), HEAD.format(feeds="cem/fig2a, cem/table3")
    table = results / "cem" / "fig2a" / "cpu" / "table.json"
    table.parent.mkdir(parents=True)
    table.write_text(json.dumps({"scale": "cpu", "rows": [], "cells": {"a": {"seed": 0}}}))
    assert "reproduce.py cem/table3" in expected.with_expectation(text, results, EXPERIMENT)
    assert "reproduce.py cem/fig2a" in expected.with_expectation(text, results, "cem/slimpajama")


def test_a_command_that_makes_the_number_needs_no_other(tmp_path: Path) -> None:
    text = HEAD.format(feeds="cem/table3").replace("scripts/train.py x", "scripts/reproduce.py cem/table3")
    said = expected.with_expectation(text, results_with(tmp_path), EXPERIMENT).splitlines()[3]
    assert said.startswith("# Expected:   cem/table3 at scale cpu")


def test_of_an_exact_artifact_no_time_is_told(tmp_path: Path) -> None:
    found = expected.with_expectation(HEAD.format(feeds="cem/table3"), results_with(tmp_path, "exact"), EXPERIMENT)
    assert "nothing is trained" in found and "took" not in found and "Test RMSE 0.0151" in found


@pytest.mark.parametrize("experiment", experiments())
def test_every_experiment_says_what_to_expect(experiment: str) -> None:
    text = (CONF / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8")
    published = [name for name in re.findall(r"\b\w+/\w+\b", text) if (RESULTS / name).is_dir()]
    assert ("# Expected:" in text) == bool(published)

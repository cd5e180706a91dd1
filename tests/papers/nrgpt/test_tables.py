"""NRGPT's tables: what is counted, computed and scored beside the measured numbers."""

import math
from collections.abc import Mapping

import pytest

from paper_repro.tables import spec
from paper_repro.tables.table import table_of
from paper_repro.tests.support.made_up import Made, Place, view

GOOD = {"perplexity": 20.0, "distinct_1": 0.7, "distinct_2": 0.9, "gqs_paper": 0.9, "apcs_lines": 0.4}


def test_the_table_tells_which_counts_give_each_printed_number() -> None:
    counts = {"gpt": 124e6, "rgpt_parallel": 85e6, "ff2w": 99e6}

    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        return {"paper_parameters_untied": counts[place["model"]], "paper_parameters_tied": 1e6}

    found = table_of(view("nrgpt/table2", Made(metrics, noise=0.0)))
    assert [row[-1] for row in found.grid().rows] == ["untied", "untied", "none of ours"]
    assert found.remarks() != []
    assert table_of(view("nrgpt/table2", Made())).remarks() == []


def test_ideal_ranges_stand_above_and_name_the_metrics_outside() -> None:
    made = {
        "shakespeare": GOOD,
        "prose": {**GOOD, "distinct_2": 0.97, "apcs_lines": 0.2},
        "one_word": {"gqs_paper": 0.8},
    }
    records = view("nrgpt/table3", Made(lambda place, seed: made.get(place["text"], {}), noise=0.0, scale="exact"))
    rows = [[row[0], row[-1]] for row in table_of(records).grid().rows]
    assert table_of(records).grid().rows[0][1:6] == ["15 to 50", "0.6 to 0.9", "0.8 to 0.95", "0.8 to 1", "0.3 to 0.6"]
    outside = dict(
        zip(["ideal", *spec.load("nrgpt/table3").axes["text"].values], (text for _, text in rows), strict=True)
    )
    assert outside["shakespeare"] == "none (of 5 measured)"
    assert outside["prose"] == "Distinct-2, Avg. cosine similarity (lines) (of 5 measured)"
    assert outside["one_word"] == "none (of 1 measured)"


def test_chance_of_mmlu_has_the_noise_of_every_question_and_printed_columns_their_mean() -> None:
    records = view("nrgpt/table6", Made(scale="paper"))
    columns = records.plan.cells[0].config["probes"]["mmlu"]["columns"]
    variance = 0.0
    for subjects in columns.values():
        for size in subjects.values():
            weight = 1 / (size * len(subjects) * len(columns))  # of one question in the average
            variance += size * weight**2 * 0.25 * 0.75
    summary = table_of(records).summary()
    assert summary["chance_half_width"] == pytest.approx(1.959964 * 100 * math.sqrt(variance), rel=1e-9)
    assert summary["printed_ff2w"] == pytest.approx(207.8 / 7)

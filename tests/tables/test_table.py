import pytest

from paper_repro.cells import records
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import DIVERGED, FAILED, FINISHED, Outcome
from paper_repro.tables import table
from paper_repro.tables.spec import Column, Metric, Number, Tolerance
from paper_repro.tables.table import (
    ALTERED,
    NOT_RUN,
    OFF,
    REDUCED,
    REPRODUCED,
    agreement,
    on_column,
    on_metric,
)

METRIC = Metric("Error", "nats", "lower", digits=2)
STDS = Tolerance("why", published_stds=1.0)
RELATIVE = Tolerance("why", relative=0.1)
ABSOLUTE = Tolerance("why", absolute=0.05)
PRINTED = Tolerance("why", printed_digits=True)


def judge(found: float, printed: Number, tolerance: Tolerance, metric: Metric = METRIC) -> tuple[str, str]:
    return on_metric(metric, printed, {0: found}, tolerance, comparable=True, altered=False)


@pytest.mark.parametrize(
    ("tolerance", "inside", "outside"),
    [
        (STDS, [0.5, 0.25, 0.75], [0.2499, 0.7501]),
        (Tolerance("why", published_stds=2.0), [0.0, 1.0], [-0.001, 1.001]),
        (RELATIVE, [0.46, 0.54], [0.449, 0.551]),
        (ABSOLUTE, [0.46, 0.54], [0.449, 0.551]),
        (PRINTED, [0.5, 0.4951, 0.5049], [0.494, 0.506]),
    ],
)
def test_each_rule_says_reproduced_inside_and_off_outside(
    tolerance: Tolerance, inside: list[float], outside: list[float]
) -> None:
    printed = Number(0.5, 0.25)
    assert {judge(value, printed, tolerance)[0] for value in inside} == {REPRODUCED}
    assert {judge(value, printed, tolerance)[0] for value in outside} == {OFF}


def test_the_text_carries_the_difference() -> None:
    printed = Number(0.5, 0.1)
    assert judge(0.51, printed, STDS)[1] == "reproduced (+2 %)"
    assert judge(0.501, printed, STDS)[1] == "reproduced (+0.2 %)"
    assert judge(0.75, printed, STDS)[1] == "off by +50 %"
    assert judge(0.25, printed, STDS)[1] == "off by -50 %"
    assert judge(-0.75, Number(-0.5, 0.1), STDS)[1] == "off by -50 %"
    assert judge(0.25, Number(0.0, 0.1), STDS)[1] == "off by +0.25"
    assert judge(0.5, printed, STDS)[1] == "reproduced (+0 %)"


def test_only_the_papers_scale_with_its_own_settings_is_judged() -> None:
    for found in (0.5, 5.0):
        reduced = on_metric(METRIC, Number(0.5, 0.1), {0: found}, STDS, comparable=False, altered=False)
        altered = on_metric(METRIC, Number(0.5, 0.1), {0: found}, STDS, comparable=True, altered=True)
        both = on_metric(METRIC, Number(0.5, 0.1), {0: found}, STDS, comparable=False, altered=True)
        assert (reduced[0], altered[0], both[0]) == (REDUCED, ALTERED, ALTERED)
        assert reduced[1] == "reduced scale" and altered[1].startswith("altered (")


def test_without_results_it_is_not_run_whatever_else_is_true() -> None:
    for printed in (None, Number(0.5)):
        for comparable in (True, False):
            assert on_metric(METRIC, printed, {}, STDS, comparable, altered=True) == (NOT_RUN, "not run")


def test_without_a_printed_number_there_is_no_verdict() -> None:
    assert on_metric(METRIC, None, {0: 1.0}, None, comparable=True, altered=False) == ("", "")


def test_the_mean_over_seeds_is_judged_in_the_papers_unit() -> None:
    metric = Metric("Parameters (M)", "parameters", "none", digits=2, factor=1e6)
    verdict = on_metric(metric, Number(2.0), {0: 1.9e6, 1: 2.1e6}, PRINTED, comparable=True, altered=False)
    assert verdict[0] == REPRODUCED
    assert judge(2.0, Number(2.0), PRINTED, metric)[0] == OFF


def test_published_standard_deviations_need_one() -> None:
    with pytest.raises(ValueError, match="needs a published one"):
        judge(0.5, Number(0.5), STDS)


@pytest.mark.parametrize(
    ("printed", "found", "word", "text"),
    [
        (Number(33.98), 33_985.0, REPRODUCED, "33.98K = 33,985"),  # 33.985 is a little less in binary
        (Number(33.98), 33_986.0, OFF, "33.98K, ours 33,986"),
        (Number(22.66), 22_657.0, REPRODUCED, "22.66K = 22,657"),
        (Number(22.66), 22_666.0, OFF, "22.66K, ours 22,666"),
        (Number(22.66), None, NOT_RUN, "not run"),
        (None, None, NOT_RUN, "not run"),
        (None, 22_657.0, "", "22.66K"),
    ],
)
def test_counted_columns_must_agree_with_the_printed_digits(
    printed: Number | None, found: float | None, word: str, text: str
) -> None:
    assert on_column(Column("Parameters", "parameters", "K", 1000.0, 2), printed, found) == (word, text)


def record(seed: int, status: str, note: str = "") -> Record:
    return records.from_outcome("c", {"seed": seed}, Outcome(status, note=note), {})


def test_trouble_names_seed_status_and_reason() -> None:
    found = {
        2: record(2, FAILED, "RuntimeError: broke"),
        0: record(0, FINISHED),
        1: record(1, DIVERGED, "loss is nan at step 40; lower optimizer.lr"),
        3: record(3, FAILED),
    }
    expected = (
        "seed 1 diverged: loss is nan at step 40; lower optimizer.lr; seed 2 failed: RuntimeError: broke; seed 3 failed"
    )
    assert table.trouble(found) == expected
    assert table.trouble({0: record(0, FINISHED)}) == ""


@pytest.mark.parametrize(
    ("own", "reference", "expected"),
    [
        ({}, {0: 1.0}, ""),
        ({0: 1.0}, {}, ""),
        ({0: 1.0}, {0: 1.0}, "equal"),
        ({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}, "equal"),
        ({0: 1.0}, {0: 1.0001}, "one seed"),
        ({0: 1.0, 1: 1.1}, {0: 1.0}, "one seed"),
        ({0: 1.0, 1: 1.1, 2: 0.9}, {0: 1.02, 1: 1.12, 2: 0.9}, "agrees"),
        ({0: 1.0, 1: 1.1, 2: 0.9}, {0: 2.0, 1: 2.1, 2: 1.9}, "differs"),
        ({0: 1.0, 1: 1.0}, {0: 1.0 + 1e-9, 1: 1.0 + 1e-9}, "differs"),
    ],
)
def test_agreement_with_the_reference(own: dict[int, float], reference: dict[int, float], expected: str) -> None:
    assert agreement(own, reference) == expected
    assert agreement(reference, own) == expected

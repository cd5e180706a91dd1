"""Views: attachments by seed, the reference of absent or other data, derived metrics, and records as a table."""

import json
import logging
import re
from pathlib import Path

import pytest

from paper_repro.base.files import DATA_VARIABLE
from paper_repro.cells import records
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import FINISHED, Outcome
from paper_repro.tables.plan import Plan
from paper_repro.tables.spec import Metric
from paper_repro.tables.table import Table
from paper_repro.tables.view import build, with_derived
from paper_repro.tests.support import synthetic
from paper_repro.tests.support.synthetic import ARTIFACT

NAME = "trace.csv"
PLACE = {"task": "easy", "model": "old"}


def cells_at(plan: Plan, place: dict[str, str]) -> dict[int, str]:
    return {cell.seed: cell.id for cell in plan.cells if dict(cell.key) == place}


def test_attachments_come_by_seed_from_the_records_that_are_judged(tmp_path: Path) -> None:
    plan = synthetic.plan(tmp_path)
    runs, results = tmp_path / "runs", tmp_path / "results"
    ids = cells_at(plan, PLACE)
    synthetic.fill(results, plan, synthetic.attached(results))
    found = build(plan, runs, results).attachments(NAME, PLACE)
    assert found == {seed: f"results {cell}".encode() for seed, cell in ids.items()} and len(found) == 3
    synthetic.fill(runs, plan, synthetic.attached(runs))
    view = build(plan, runs, results)
    assert view.attachments(NAME, PLACE) == {seed: f"runs {cell}".encode() for seed, cell in ids.items()}
    assert view.attachments("other.csv", PLACE) == {}
    as_reference = build(plan, results, None).attachments(NAME, PLACE)
    assert as_reference == {seed: f"results {cell}".encode() for seed, cell in ids.items()}


def test_a_damaged_attachment_counts_as_absent_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = synthetic.plan(tmp_path)
    synthetic.fill(tmp_path / "runs", plan, synthetic.attached(tmp_path / "runs"))
    ids = cells_at(plan, PLACE)
    (record_path(tmp_path / "runs", ids[0]).parent / NAME).write_bytes(b"something else")
    (record_path(tmp_path / "runs", ids[2]).parent / NAME).unlink()
    with caplog.at_level(logging.WARNING):
        found = build(plan, tmp_path / "runs", tmp_path / "results").attachments(NAME, PLACE)
    assert found.keys() == {1}
    assert "not the file that the record beside it names" in caplog.text and "which is absent" in caplog.text


@pytest.mark.parametrize("data", ["absent", "others"])
@pytest.mark.parametrize("table", ["some text", "another text", "damaged", "of others"])
def test_of_data_that_a_reader_lacks_the_published_table_says_which_records_are_the_reference(
    table: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    results, runs, corpus = tmp_path / "results", tmp_path / "runs", tmp_path / "corpus.txt"
    text = re.sub(r"\{trunk\.layers: (\d)\}", r"{trunk.layers: \1, +data: {files: {corpus: corpus.txt}}}", ARTIFACT)
    plans: dict[str, Plan] = {}
    for content in ("some text", "another text"):
        corpus.write_text(content)
        plan = plans[content] = synthetic.plan(tmp_path, text)
        synthetic.fill(results, plan, synthetic.attached(results))
        if table == content:
            Table(build(plan, results, None)).write(results / plan.folder)
    if table not in plans:
        written = results / plan.folder / "table.json"
        written.parent.mkdir(parents=True)
        (results / "cells" / ("e" * 16)).mkdir()
        (results / "cells" / ("e" * 16) / "record.json").write_text('{"config": 1}')
        others = {cell: {} for cell in ("f" * 16, "e" * 16, "..")}
        written.write_text("[" if table == "damaged" else json.dumps({"cells": others}))
    corpus.write_text("a reader's own") if data == "others" else corpus.unlink()

    plan, published = synthetic.plan(tmp_path, text), plans[table].cells if table in plans else ()
    view = build(plan, runs, results)
    found = [record.cell for point in view.points.values() for record in point.reference.values()]
    assert found == [cell.id for cell in published] and not any(point.own for point in view.points.values())
    expected = {cell.seed: f"results {cell.id}".encode() for cell in published if dict(cell.key) == PLACE}
    assert view.attachments(NAME, PLACE) == expected
    if published:
        assert [*Table(view).document()["cells"]] == found
    if published and data == "others":  # the user's own results stand beside the reference, under ids of their own
        synthetic.fill(runs, plan, synthetic.attached(runs))
        view = build(plan, runs, results)
        assert all(len(point.reference) == len(point.own) == 3 for point in view.points.values())
        assert Table(view).document()["cells"].keys() == {cell.id for cell in plan.cells}


METRICS = {
    "perplexity": Metric("Perplexity", "", "lower", derived={"exp": ["val_loss"]}),
    "gain": Metric("Gain", "%", "higher", derived={"gain": ["plain_loss", "val_loss"]}),
}


def derived(metrics: dict[str, float], **unavailable: str) -> records.Record:
    outcome = Outcome(FINISHED, metrics, unavailable=unavailable)
    return with_derived(records.from_outcome("cell", {}, outcome, {}), METRICS)


def test_what_follows_from_what_was_measured_lacks_what_that_lacks() -> None:
    record = derived({"val_loss": 2.0, "plain_loss": 2.5})
    assert record.metrics["perplexity"] == pytest.approx(7.38905609893)
    assert record.metrics["gain"] == pytest.approx(39.3469340287) and not record.unavailable
    record = derived({"val_loss": 2.0}, plain_loss="needs gpt2")
    assert record.unavailable == {"plain_loss": "needs gpt2", "gain": "needs gpt2"} and "perplexity" in record.metrics


@pytest.mark.parametrize(("loss", "wrong"), [(1e4, set()), (float("nan"), {"val_loss"})])
def test_what_is_not_finite_says_so(loss: float, wrong: set[str]) -> None:
    found = derived({"val_loss": loss, "plain_loss": 4.0}).unavailable
    assert found == dict.fromkeys({"perplexity", "gain", *wrong}, "not finite")

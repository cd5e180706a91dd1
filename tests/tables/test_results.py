"""The committed reference is what its own records say, and no record of it breaks the rules."""

import base64
import csv
import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from paper_repro.base.errors import RESULTS
from paper_repro.cells import records
from paper_repro.exports import card
from paper_repro.tables import plan, spec
from paper_repro.tables.publish import render

PUBLISHED = sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.glob("*/*/*/table.json"))


@pytest.mark.slow
@pytest.mark.parametrize("place", PUBLISHED)
def test_published_tables_and_figures_are_rendered_from_the_published_records(place: str, tmp_path: Path) -> None:
    name, _, scale = place.rpartition("/")
    (tmp_path / "cells").symlink_to(RESULTS / "cells")
    (tmp_path / place).mkdir(parents=True)
    shutil.copy(RESULTS / place / "table.json", tmp_path / place)  # names the records of data that are absent here
    render(plan.make(spec.load(name), scale), tmp_path, None)
    # Not the PNG: the last bit of an antialiased pixel may depend on the processor.
    written = {path.name for path in (tmp_path / place).iterdir()}
    assert written == {path.name for path in (RESULTS / place).iterdir()} >= {"table.md", "table.csv", "table.json"}
    for file in sorted(written - {"figure.png"}):
        assert (tmp_path / place / file).read_bytes() == (RESULTS / place / file).read_bytes(), file


def test_published_records_are_whole_small_finished_and_from_committed_code() -> None:
    paths = sorted(RESULTS.glob("cells/*/record.json"))
    assert len(paths) >= 130
    for path in paths:
        record = records.read(path)
        assert path.stat().st_size <= records.LIMIT_BYTES and record.done and record.cell == path.parent.name
        assert record.provenance["dirty"] is False and record.provenance["commit"]


def test_every_published_record_belongs_to_a_published_artifact() -> None:
    # The first test renders these files anew, with the ids of the cells that today's code plans.
    documents = [json.loads((RESULTS / place / "table.json").read_text()) for place in PUBLISHED]
    cells = {cell for document in documents for cell in document["cells"]}
    cells |= {model["cell"] for model in card.listed()["models"].values()}
    assert cells == {path.parent.name for path in RESULTS.glob("cells/*/record.json")}


@pytest.mark.slow
def test_what_a_published_record_names_lies_beside_it_and_nothing_else_does() -> None:
    for path in sorted(RESULTS.glob("cells/*/record.json")):
        record = records.read(path)
        assert {file.name for file in path.parent.iterdir()} == {"record.json", *record.attachments}
        assert all(records.attachment(RESULTS, record, name) for name in record.attachments)


KNOWN = Path(__file__).with_name("published_numbers.json")  # of commit 65785f78, and of later trainings of nGPT
"""By file below results/: four bytes of the hash of each row without ``WORDS``, sorted, in base 64."""
WORDS = ("verdict", "as_reference", "claim", "sweep")
SIZE = 4


def hashes(path: Path) -> Counter[bytes]:
    """Return how often each row of a CSV file occurs, by a hash of what stands in it."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows = [[value for name, value in row.items() if value and name not in WORDS] for row in csv.DictReader(lines)]
    return Counter(hashlib.sha256("\x1f".join(row).encode()).digest()[:SIZE] for row in rows)


def known() -> dict[str, Counter[bytes]]:
    found = {name: base64.b64decode(text) for name, text in json.loads(KNOWN.read_text()).items()}
    return {
        name: Counter(rows[place : place + SIZE] for place in range(0, len(rows), SIZE)) for name, rows in found.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(known()))
def test_each_published_row_is_there(name: str) -> None:
    lost = known()[name] - hashes(RESULTS / name)
    assert not lost, f"{name}: {lost.total()} of {known()[name].total()} rows have other numbers"


SUMMARIES = json.loads(Path(__file__).with_name("published_summaries.json").read_text())
"""By table.json below results/: the numbers computed from the whole table, by name."""


@pytest.mark.parametrize("name", sorted(SUMMARIES))
def test_each_published_summary_is_there(name: str) -> None:
    found = json.loads((RESULTS / name).read_text())["summary"]
    assert {key: found[key]["ours"] for key in SUMMARIES[name]} == pytest.approx(SUMMARIES[name], rel=1e-9)

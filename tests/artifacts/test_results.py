"""The committed reference is what its own records say, and no record of it breaks the rules."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paper_repro.artifacts import catalogue, plan
from paper_repro.artifacts.render import render
from paper_repro.base.command_line import RESULTS
from paper_repro.cells import records

PUBLISHED = sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.glob("*/*/*/table.json"))


@pytest.mark.parametrize("place", PUBLISHED)
def test_published_tables_and_figures_are_rendered_from_the_published_records(place: str, tmp_path: Path) -> None:
    name, _, scale = place.rpartition("/")
    (tmp_path / "cells").symlink_to(RESULTS / "cells")
    render(plan.make(catalogue.load(name), scale), tmp_path, None)
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
    assert cells == {path.parent.name for path in RESULTS.glob("cells/*/record.json")}


def test_what_a_published_record_names_lies_beside_it_and_nothing_else_does() -> None:
    for path in sorted(RESULTS.glob("cells/*/record.json")):
        record = records.read(path)
        assert {file.name for file in path.parent.iterdir()} == {"record.json", *record.attachments}
        assert all(records.attachment(RESULTS, record, name) for name in record.attachments)


def test_every_claim_that_fails_at_a_reduced_scale_has_a_likely_reason_in_the_notes() -> None:
    silent = []
    for place in PUBLISHED:
        document = json.loads((RESULTS / place / "table.json").read_text())
        reasons = " ".join(note for note in document["notes"] if ", likely " in note or "because of the claim" in note)
        failing = [claim["id"] for claim in document["claims"] if claim["verdict"] == "fails"]
        silent += [f"{place} {name}" for name in failing if document["scale"] != "exact" and name not in reasons]
    assert silent == [], "say in the artifact's notes why it likely fails: scale, our setting or the claim"


EQUAL_ENDS = re.compile(r"\[([^\[\],]+), \1\]")


def test_every_published_claim_rests_on_an_interval_or_on_exact_arithmetic() -> None:
    for place in PUBLISHED:
        for claim in json.loads((RESULTS / place / "table.json").read_text())["claims"]:
            for leaf in _leaves(claim):
                assert "no interval (" not in leaf["because"], (place, claim["id"])
                assert not EQUAL_ENDS.search(leaf["because"]), f"{place} {claim['id']}: an interval of no width"
                if leaf["verdict"] in ("holds", "fails", "no difference"):
                    assert leaf["exact"] or "[" in leaf["because"], (place, claim["id"])


def _leaves(judgement: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not judgement["parts"]:
        yield judgement
    for part in judgement["parts"]:
        yield from _leaves(part)

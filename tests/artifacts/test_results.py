"""The committed reference is what its own records say, and no record of it breaks the rules."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
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
    if (looks := RESULTS / place / "looks.json").exists():  # to how many seeds each claim was taken
        (tmp_path / place).mkdir(parents=True)
        shutil.copy(looks, tmp_path / place)
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


REASONS = (
    ", likely for its scale:",
    ", likely because of our setting:",
    ", likely because of the claim",
    " because of the claim",
)
SAID = {
    "fail": "fails",
    "fails": "fails",
    "show no difference": "no difference",
    "shows no difference": "no difference",
}


@pytest.mark.parametrize("place", PUBLISHED)
def test_notes_give_a_likely_reason_for_what_fails_or_shows_no_difference_and_for_nothing_else(place: str) -> None:
    document = json.loads((RESULTS / place / "table.json").read_text())
    found = {claim["id"]: claim["verdict"] for claim in document["claims"]}
    reasoned = set()
    for note in document["notes"]:
        said = set(_said(note, found))
        assert all(found[name] == verdict for name, verdict in said), f"{place}: not what the table says: {note}"
        reasoned |= said if any(reason in note for reason in REASONS) else set()
    wanted = {(name, verdict) for name, verdict in found.items() if verdict in SAID.values()}
    assert wanted <= reasoned, "say in the artifact's notes why it likely is so: its scale, our setting or the claim"


def test_a_note_says_what_its_verbs_say() -> None:
    names = ["one", "another", "third_one"]
    assert list(_said("one and another fail at scale cpu, likely for its scale: third_one fails less.", names)) == [
        ("one", "fails"),
        ("another", "fails"),
        ("third_one", "fails"),
    ]
    assert list(_said("third_one shows no difference, likely because of our setting: so it is.", names)) == [
        ("third_one", "no difference")
    ]
    assert not list(_said("The authors' code fails where one is too short.", names))


def _said(note: str, claims: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Return which claims a note names in front of a verb, and what the verb says of them."""
    for part in re.split(r"[.:;]", note):
        verb = re.search(r"\b(shows? no difference|fails?)\b", part)
        head = re.findall(r"\w+", part[: verb.start()]) if verb else []
        behind = re.findall(r"\w+", part.partition(", likely")[0]) if head else []
        for name in claims:
            if verb and (name in head or (head and head[0] in claims and name in behind)):
                yield name, SAID[verb[0]]


EQUAL_ENDS = re.compile(r"\[([^\[\],]+), \1\]")


def test_every_published_claim_rests_on_an_interval_or_on_exact_arithmetic() -> None:
    for place in PUBLISHED:
        for claim in json.loads((RESULTS / place / "table.json").read_text())["claims"]:
            for leaf in _leaves(claim):
                assert "no interval (" not in leaf["because"], (place, claim["id"])
                assert not EQUAL_ENDS.search(leaf["because"]), f"{place} {claim['id']}: an interval of no width"
                if leaf["verdict"] in ("holds", "fails", "no difference"):
                    assert leaf["exact"] or "[" in leaf["because"], (place, claim["id"])


def test_every_published_scale_whose_claims_are_judged_over_seeds_plans_its_looks() -> None:
    """Looks that are planned after the whole level was spent decide wrongly more often than the level says."""
    tables = [json.loads((RESULTS / place / "table.json").read_text()) for place in PUBLISHED]
    trained = [table for table in tables if table["scale"] != "exact" and len(table["seeds"]) > 1]
    assert len(trained) > 30
    for table in trained:
        judged = any(not leaf["exact"] for claim in table["claims"] for leaf in _leaves(claim))
        assert table["looks"] or not judged, table["artifact"]


def _leaves(judgement: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not judgement["parts"]:
        yield judgement
    for part in judgement["parts"]:
        yield from _leaves(part)

"""The numbers of the published tables and figures stay as they are; words and layout may change.

They are those of commit 65785f78, and of later trainings of nGPT's figures 1, 2 and 7.
"""

import base64
import csv
import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from paper_repro.base.errors import RESULTS

KNOWN = Path(__file__).with_name("published_numbers.json")
"""By file below results/: four bytes of the hash of each row without ``WORDS``, sorted, in base 64."""
WORDS = ("verdict", "as_reference", "claim", "sweep")
SIZE = 4


def hashes(path: Path) -> Counter[bytes]:
    """Return how often each row of a CSV file occurs, by a hash of what stands in it."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows = [[value for name, value in row.items() if value and name not in WORDS] for row in csv.DictReader(lines)]
    return Counter(hashlib.sha256("\x1f".join(row).encode()).digest()[:SIZE] for row in rows)


def encoded(found: Counter[bytes]) -> str:
    return base64.b64encode(b"".join(sorted(found.elements()))).decode()


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

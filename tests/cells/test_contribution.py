"""Records that somebody contributes: an honest one is accepted, each kind of forged one is refused for its reason."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base import identity
from paper_repro.base.errors import RESULTS, ROOT, UsageError
from paper_repro.base.files import git
from paper_repro.cells import records
from paper_repro.cells.contribution import Finding, check
from paper_repro.cells.records import Record
from paper_repro.tables import plan as plans
from paper_repro.tables import spec


@pytest.fixture
def published() -> list[Record]:
    """Two cells of one published table, equal but for their seed."""
    cells = plans.make(spec.load("cem/table3"), "cpu", [0, 1]).cells[:2]
    found = [records.find(RESULTS, cell.id) for cell in cells]
    assert found[0] is not None and found[1] is not None
    return [found[0], found[1]]


@pytest.fixture
def contribute(tmp_path: Path, published: list[Record]) -> Callable[..., Finding]:
    known = git(ROOT, "rev-parse", "HEAD")
    if known is None:
        pytest.skip("only a checkout knows commits")

    def contribute(name: str = "", **changes: Any) -> Finding:
        """Check the first cell with changed fields under a valid seal."""
        record = published[0]
        origin = {**record.provenance, "commit": known, **changes.pop("provenance", {})}
        path = records.record_path(tmp_path / "runs", name or record.cell)
        records.write(path, replace(record, provenance=origin, **changes))
        (finding,) = check(path.parent, published, {identity.settings(record.config): "cem/table3 cpu"}, ROOT)
        return finding

    return contribute


def test_an_honest_record_is_accepted(contribute: Callable[..., Finding], published: list[Record]) -> None:
    assert contribute() == Finding(published[0].cell, "cem/table3 cpu", "")


def test_what_contradicts_its_id_the_published_records_or_itself_is_refused(contribute, published):
    record, other = published
    (name, curve), *_ = record.curves.items()
    config = json.loads(json.dumps(record.config))
    config["optimizer"]["lr"] *= 2
    changes: list[tuple[dict[str, Any], str]] = [
        ({"config": config}, f"the id of this config is {identity.settings(config)}"),
        ({"provenance": {"dirty": True}}, "uncommitted changes"),
        ({"provenance": {"commit": "f" * 40}}, "no commit ffffffffff here"),
        ({"provenance": {"commit": None}}, "no commit"),
        ({"curves": other.curves}, f"the loss curves are of published cell {other.cell}"),
        ({"curves": {name: {key: values[:-1] for key, values in curve.items()}}}, " ends at step "),
        ({"metrics": {**record.metrics, name: 0.5 * curve["value"][-1]}}, "its curve ends at"),
        ({"parameters": 1}, "1 parameters, "),
        ({"attachments": {"test_losses.json": "0" * 64}}, "absent"),
    ]
    for change, reason in changes:
        assert reason in contribute(**change).refused, change
    config = {**record.config, "seed": 99}
    cell = identity.settings(config)
    found = contribute(cell, config=config, cell=cell, curves={})
    assert found == Finding(cell, "", "no artifact plans this cell")


def test_a_folder_without_records_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no record\.json there"):
        check(tmp_path, [], {}, tmp_path)

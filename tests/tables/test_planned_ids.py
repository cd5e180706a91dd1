"""The ids of all planned cells stay as they are: with another id a trained cell is trained again.

After an intended change: WRITE_PLANNED_IDS=1 python -m pytest tests/tables/test_planned_ids.py
"""

import gc
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paper_repro.base import files, identity
from paper_repro.tables import plan, spec

KNOWN = Path(__file__).with_name("planned_ids.json")
"""A digest of the ids of the cells and probes of each artifact's scale, for seed 0 and without data."""
SCALES = ("cpu", "exact", "gpu", "paper")
PAPERS = sorted({name.partition("/")[0] for name in spec.find()})


@pytest.fixture(autouse=True)
def few_collections() -> Iterator[None]:
    """Plans make little garbage; to look for it takes half of the time."""
    before = gc.get_threshold()
    gc.set_threshold(50_000)
    yield
    gc.set_threshold(*before)


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_no_planned_cell_has_another_id(paper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DATA", tmp_path)
    monkeypatch.delenv(files.DATA_VARIABLE, raising=False)
    found = {}
    for name in spec.matching(paper):
        artifact = spec.load(name)
        for scale in [scale for scale in SCALES if scale in artifact.scales]:
            cells = plan.make(artifact, scale, [0]).all_cells
            ids = sorted(f"{cell.name} {cell.id} {sorted(identity.probes(cell.config).items())}" for cell in cells)
            found[f"{name} {scale}"] = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]
    known = json.loads(KNOWN.read_bytes()) if KNOWN.exists() else {}
    if os.environ.get("WRITE_PLANNED_IDS"):
        others = {place: ids for place, ids in known.items() if not place.startswith(f"{paper}/")}
        KNOWN.write_text(json.dumps(others | found, indent=1, sort_keys=True) + "\n")
    else:
        assert found == {place: ids for place, ids in known.items() if place.startswith(f"{paper}/")}

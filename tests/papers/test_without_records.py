"""Every figure is drawn and every claim is left open where no cell has run."""

from pathlib import Path

import pytest

from paper_repro.base.errors import RESULTS
from paper_repro.tables import spec
from paper_repro.tables.figure import figure_of
from paper_repro.tables.table import table_of
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made

DRAWN = sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.glob("*/*/*/figure.svg"))
NO_RECORD = ("paper", "optimum")
"""Sources and kinds of rows that need none."""


@pytest.mark.parametrize("place", DRAWN)
def test_a_figure_is_drawn_without_records(place: str, tmp_path: Path) -> None:
    artifact, _, scale = place.rpartition("/")
    figure = figure_of(made_up.without(made_up.view(artifact, Made(scale=scale))))
    assert figure is not None
    assert all(row.get("source", row.get("kind")) in NO_RECORD for row in figure.rows())
    assert {path.suffix for path in figure.write(tmp_path)} == {".csv", ".png", ".svg"}


@pytest.mark.parametrize("name", spec.find())
def test_without_records_nothing_is_estimated(name: str) -> None:
    for scale in {(claim.scales or ["cpu"])[0] for claim in spec.load(name).claims}:
        table = table_of(made_up.without(made_up.view(name, Made(scale=scale))))
        assert [one.claim.id for one in table.judgements if one.estimate.interval is not None] == []
        assert table.markdown()

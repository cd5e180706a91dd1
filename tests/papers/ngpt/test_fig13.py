import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED
from paper_repro.artifacts.claims import judge as judge_claim
from paper_repro.artifacts.views import View
from paper_repro.base.files import sha256_of_bytes, write_atomically
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Outcome
from paper_repro.tests.support.synthetic import fill, finished

PLAN = plans.make(catalogue.load("ngpt/fig13"), "cpu")
LENGTHS = (128, 256, 512, 1024)


def view_of(root: Path, rises: Mapping[str, float]) -> View:
    """Perplexities that are multiplied by a model's ``rises`` with every doubling; seeds differ by a thousandth."""

    def outcome(cell: PlannedCell) -> Outcome | None:
        rise = rises.get(dict(cell.key)["model"])
        if rise is None:
            return None
        curve = {length: 30 * (1 + cell.seed / 1000) * rise**index for index, length in enumerate(LENGTHS)}
        found = finished(perplexity_x1=curve[128], perplexity_x8=curve[1024], perplexity_ratio_x8=rise**3)
        perplexity = {str(length): value for length, value in curve.items()}
        content = json.dumps({"joined": False, "texts": 33, "tokens": 33792, "perplexity": perplexity}).encode()
        write_atomically(root / "cells" / cell.id / "lengths.json", content)
        found.attachments["lengths.json"] = sha256_of_bytes(content)
        return found

    fill(root, PLAN, outcome)
    return views.build(PLAN, root, None)


@pytest.mark.parametrize(
    ("rises", "verdicts"),
    [
        ({"gpt": 2.0, "gpt_qk": 1.2, "ngpt": 1.01}, (HOLDS, HOLDS, HOLDS)),
        ({"gpt": 2.0, "gpt_qk": 1.0, "ngpt": 1.2}, (FAILS, HOLDS, FAILS)),
        ({"gpt": 0.9, "gpt_qk": 1.0, "ngpt": 0.99}, (FAILS, FAILS, HOLDS)),
        ({"ngpt": 1.01}, (UNDECIDED, UNDECIDED, UNDECIDED)),
    ],
)
def test_what_the_paper_says_is_judged_from_the_perplexities(
    tmp_path: Path, rises: dict[str, float], verdicts: tuple[str, ...]
) -> None:
    view = view_of(tmp_path, rises)
    assert tuple(judge_claim(claim, view).verdict for claim in view.artifact.claims) == verdicts


def test_the_figure_draws_every_length_of_every_seed_and_the_table_says_what_was_read(tmp_path: Path) -> None:
    view = view_of(tmp_path, {"gpt": 2.0, "ngpt": 1.0})
    companion = view.artifact.companions()[0]
    figure = companion.Figure13(view)
    rows = figure.rows()
    assert len(rows) == 2 * len(PLAN.seeds) * len(LENGTHS)
    assert {"model": "gpt", "seed": 0, "length": 1024, "perplexity": 240.0} in rows
    assert {path.name for path in figure.write(tmp_path / "out")} == {"figure.csv", "figure.png", "figure.svg"}
    assert companion.Table13(view).remarks() == ["Scored: 33,792 tokens of 33 beginnings of documents."]


@pytest.mark.parametrize("scale", ["smoke", "cpu", "gpu"])
def test_its_cells_are_those_of_the_other_figures_that_look_at_trained_models(scale: str) -> None:
    own = {cell.settings for cell in plans.make(catalogue.load("ngpt/fig13"), scale).cells}
    assert own == {cell.settings for cell in plans.make(catalogue.load("ngpt/fig4"), scale).cells}

import json
from pathlib import Path

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.base.files import sha256_of_bytes, write_atomically
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import FINISHED, Outcome
from paper_repro.papers.nrgpt.fig5 import ATTACHMENT, MEANINGS, SCORES, Figure5
from paper_repro.tests.support.synthetic import write_record


def footer(root: Path, scores: dict[str, float]) -> str:
    """Return what stands below a figure of one text a model, each with these scores."""
    plan = plans.make(catalogue.load("nrgpt/fig5"), "cpu", [0])
    for cell in plan.cells:
        written = json.dumps({"texts": [{"prompt": "def", "text": "def f", "scores": scores}]}).encode()
        write_atomically(record_path(root, cell.id).parent / ATTACHMENT, written)
        write_record(root, cell, Outcome(FINISHED, attachments={ATTACHMENT: sha256_of_bytes(written)}))
    figure = Figure5(views.build(plan, root, None))
    return figure.footer(figure.rows())


def test_only_the_scores_that_are_shown_are_explained(tmp_path: Path) -> None:
    assert list(MEANINGS) == list(SCORES)
    every = footer(tmp_path / "every", dict.fromkeys(SCORES, 0.5))
    assert all(f"{short}: {MEANINGS[key]}" in every for key, short in SCORES.items())
    two = footer(tmp_path / "two", {"gqs_paper": 0.5, "distinct_1": 0.5})
    assert two.endswith(" gqs: grammar quality score; d-1: share of distinct words.")
    assert "ppl" not in two and "apcs" not in two
    assert footer(tmp_path / "none", {}).endswith("above it, its scores.")

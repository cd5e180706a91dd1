from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, judge
from paper_repro.artifacts.tables import Table
from paper_repro.artifacts.views import View
from paper_repro.base import config as configs
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Cell, Outcome
from paper_repro.probes.model_size import ModelSize, count
from paper_repro.tests.support.synthetic import fill, finished

PLAN = plans.make(catalogue.load("cem/table1"), "exact")
SIZES = {
    "m86": (672, 8, 8, 1792),
    "m108": (672, 12, 12, 1792),
    "m134": (768, 12, 12, 2048),
    "m162": (864, 12, 12, 2304),
}
"""D, K, L, m."""


def by_formula(size: str, model: str) -> int:
    """2 V D + D, and for each layer the two parts with their norms."""
    width, heads, layers, hidden = SIZES[size]
    attention = {"llama": 4, "mlp": 4, "mlp_matched": 4}.get(model, 2) * width**2
    factor = {"llama": 3, "attention": 3, "mlp_matched": 3}.get(model, 2)
    extras = width + 2 + heads * width * (1 + 2 * 4) + width * (1 + 2 * 16) if model == "full" else 0
    return 2 * 32000 * width + width + layers * (attention + factor * width * hidden + 2 * width + extras)


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    def counted(cell: PlannedCell) -> Outcome:
        (outcome,) = ModelSize().run([Cell(cell.id, cell.config)], Path(), None)  # type: ignore[arg-type]
        return outcome

    root = tmp_path_factory.mktemp("runs")
    fill(root, PLAN, counted)
    return views.build(PLAN, root, None)


def test_every_count_is_the_formulas(view: View) -> None:
    assert len(view.points) == 4 * 6
    for key in view.points:
        place = dict(key)
        whole, width = by_formula(place["size"], place["model"]), SIZES[place["size"]][0]
        assert view.samples("parameters", place) == {0: whole}, place
        assert view.samples("parameters_counted_early", place) == {0: whole - 32000 * width}
        assert view.samples("parameters_other_vocabulary", place) == {0: whole - 2 * (32000 - 2048) * width}


def test_the_claims_are_decided_by_the_counts(view: View, tmp_path: Path) -> None:
    wrong = {"printed_counts_are_rounded", "printed_counts_are_of_tied_tables"}
    found = {claim.id: judge(claim, view).verdict for claim in view.artifact.claims}
    assert found == {name: FAILS if name in wrong else HOLDS for name in found}
    empty = views.build(PLAN, tmp_path / "empty", None)
    assert {judge(claim, empty).verdict for claim in view.artifact.claims} == {UNDECIDED}

    def more(cell: PlannedCell) -> Outcome:
        (own,) = view.samples("parameters", dict(cell.key)).values()
        return finished(
            parameters=own + 1e6 * (dict(cell.key)["model"] in ("attention", "mlp")), parameters_counted_early=own
        )

    fill(tmp_path, PLAN, more)
    other = views.build(PLAN, tmp_path, None)
    turned = {claim.id: judge(claim, other).verdict for claim in view.artifact.claims}
    assert turned["half_of_the_attention"] == turned["two_thirds_of_the_mlp"] == FAILS
    assert turned["printed_counts_are_of_tied_tables"] == HOLDS


def test_what_the_paper_prints_is_reproduced(view: View) -> None:
    table = Table(view)
    words = {
        table.verdict("parameters", point).word for key, point in view.points.items() if dict(key)["model"] == "llama"
    }
    assert words == {"reproduced"}
    assert "ours" not in table.markdown().partition("## Claims")[0].replace(
        "Parameters (M): ours", ""
    )  # no setting is off


@pytest.mark.parametrize(
    ("model", "overrides"),
    [
        ("llama", []),
        ("attention", ["attention=cem", "model.attention.diagonal=none", "model.attention.slopes=none"]),
        ("mlp", ["feed_forward=cem"]),
        ("mlp_matched", ["feed_forward=cem", "model.hidden=2688"]),
        (
            "full",
            [
                "attention=cem",
                "feed_forward=cem",
                "model.attention.num_steps=2",
                "model.feed_forward.num_steps=2",
                "model.attention.preconditioner=diagonal_low_rank",
                "model.feed_forward.preconditioner=diagonal_low_rank",
            ],
        ),
    ],
)
def test_what_is_counted_is_what_is_trained(model: str, overrides: list[str], view: View) -> None:
    trained = configs.compose("cem/slimpajama", overrides)["model"]
    assert {0: count(trained)} == view.samples("parameters", {"size": "m86", "model": model})

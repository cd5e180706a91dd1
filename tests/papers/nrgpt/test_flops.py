from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED
from paper_repro.artifacts.claims import judge as judge_claim
from paper_repro.artifacts.views import View
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Cell, Outcome
from paper_repro.probes.block_cost import BlockCost, count
from paper_repro.tests.support.synthetic import fill, finished

MODELS = {
    "rgpt": "gpt.RGPT",
    "rgpt_parallel": "gpt.RGPTParallel",
    "ff1": "nrgpt.model.NRGPT_H_FF1",
    "ff2w": "nrgpt.model.NRGPT_H_FF2W",
    "ff2": "nrgpt.model.NRGPT_H_FF2",
}
PLAN = plans.make(catalogue.load("nrgpt/flops"), "exact")


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, float]]:
    """What the task counts for every cell of the plan."""
    return {cell.id: _run(cell.config).metrics for cell in PLAN.cells}


def _flops() -> Any:
    return PLAN.artifact.companions()[0]


def _block(kind: str, width: int, heads: int, window: int, hidden_factor: int = 4) -> dict[str, Any]:
    return {
        "_target_": f"paper_repro.models.{MODELS[kind]}",
        "vocabulary_size": 7,
        "block_length": window,
        "width": width,
        "num_heads": heads,
        "num_steps": 1,
        "hidden_factor": hidden_factor,
    }


def _run(config: dict[str, Any]) -> Outcome:
    (outcome,) = BlockCost().run([Cell("cell", config)], Path(), None)  # type: ignore[arg-type]
    return outcome


def _view(folder: Path, outcome: Callable[[PlannedCell], Outcome | None]) -> View:
    fill(folder, PLAN, outcome)
    return views.build(PLAN, folder, None)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("width", "heads", "window", "factor"), [(24, 1, 5, 4), (24, 3, 2, 8), (48, 12, 33, 4), (768, 2, 128, 1)]
)
def test_every_product_of_a_block_is_counted(kind: str, width: int, heads: int, window: int, factor: int) -> None:
    """Also those inside a custom autograd function: a hidden product would leave the count below the formula."""
    counts = count(_block(kind, width, heads, window, factor), window)
    assert counts.total == _flops().flops_by_formula(kind, width, heads, window, factor)
    eta = 0 if kind.startswith("rgpt") else 2 * window * width**2
    assert counts.total == counts.attention + counts.feed_forward + eta


@pytest.mark.parametrize("heads", [1, 2, 12])
@pytest.mark.parametrize("kind", ["ff1", "ff2w", "ff2"])
def test_the_width_of_equal_parameters_is_the_nearest(kind: str, heads: int) -> None:
    block = _block(kind, 96, heads, 8)
    found = _run({"block": block, "window": 8, "equal_parameters": True}).metrics
    wanted = count(_block("rgpt", 96, heads, 8), 8).parameters
    assert wanted == 12 * 96**2 + 10 * 96
    assert found["parameters_ratio"] == found["parameters"] / wanted
    assert found["width"] % heads == 0
    for width in (int(found["width"]) - heads, int(found["width"]) + heads):
        other = count({**block, "width": width}, 8).parameters
        assert abs(other - wanted) >= abs(found["parameters"] - wanted)


def test_a_baseline_is_its_own_measure() -> None:
    for equal in (False, True):
        config = {"block": _block("rgpt", 48, 4, 16), "window": 16, "equal_parameters": equal}
        found = _run(config).metrics
        ratios = {name: value for name, value in found.items() if name.endswith("ratio")}
        assert len(ratios) == 4 and set(ratios.values()) == {1.0}
        assert found["width"] == 48


def test_appendix_d_is_judged_from_the_counts(tmp_path: Path, counted: dict[str, dict[str, float]]) -> None:
    view = _view(tmp_path, lambda cell: finished(**counted[cell.id]))
    verdicts = {claim.id: judge_claim(claim, view).verdict for claim in view.artifact.claims}
    assert verdicts == {
        "flops_1_to_2": FAILS,
        "flops_1_to_2_one_head": HOLDS,
        "heads_add_parameters": HOLDS,
        "one_head_attention_about_the_same": FAILS,
        "one_head_attention_fewer": HOLDS,
        "many_heads_cost_more": FAILS,
        "feed_forward_twice": FAILS,
        "ff1_8d_feed_forward_doubles": HOLDS,
    }


def test_the_verdicts_follow_the_records(tmp_path: Path) -> None:
    def outcome(cell: PlannedCell) -> Outcome | None:
        place = dict(cell.key)
        if place["window"] == "t128":
            return None
        return finished(ratio=1.5, parameters=5.0, attention_ratio=1.0, feed_forward_ratio=2.0)

    view = _view(tmp_path, outcome)
    verdicts = {claim.id: judge_claim(claim, view).verdict for claim in view.artifact.claims}
    assert verdicts["flops_1_to_2"] == verdicts["one_head_attention_about_the_same"] == UNDECIDED
    assert verdicts["feed_forward_twice"] == HOLDS and verdicts["heads_add_parameters"] == FAILS


def test_summary_compares_the_models_that_the_paper_compares(tmp_path: Path) -> None:
    table = _flops().Flops(_view(tmp_path, lambda cell: None)).summary()
    own = count(_block("ff2w", 1536, 12, 1024), 1024).total
    baseline = count(_block("rgpt_parallel", 1740, 12, 1024), 1024).total
    assert table["ratio_table5"] == own / baseline
    assert set(table) == set(PLAN.artifact.summary)

"""The predicate ``bracketed``, and the figure of the artifacts that have one."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from paper_repro.artifacts import catalogue, plan, render, views
from paper_repro.artifacts.brackets import Bracketed
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Claim, Judgement, judge
from paper_repro.artifacts.names import Place
from paper_repro.artifacts.rates_figure import RatesFigure
from paper_repro.base.errors import UsageError
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import DIVERGED, Outcome
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made
from paper_repro.tests.support.synthetic import fill, finished


def swept() -> list[tuple[str, Claim]]:
    """Every claim of the catalogue whose predicate is ``bracketed``."""
    loaded = [catalogue.load(name) for name in catalogue.find()]
    return [(one.id, claim) for one in loaded for claim in one.claims if isinstance(claim.predicate, Bracketed)]


def losses(predicate: Bracketed, artifact: str, lowest: float, middle: float, highest: float) -> Made:
    """The losses at the ends of the grid of scale cpu and between them, the same for every model."""
    keys = [dict(cell.key) for cell in plan.make(catalogue.load(artifact), "cpu").cells]
    others = [axis for axis in keys[0] if axis != predicate.axis]

    def loss(place: Place, seed: int) -> dict[str, float]:
        alike = [key for key in keys if all(key[axis] == place[axis] for axis in others)]
        grid = list(dict.fromkeys(key[predicate.axis] for key in alike))
        found = {grid[0]: lowest, grid[-1]: highest}.get(place[predicate.axis], middle)
        name = predicate.side.metric
        return {{"perplexity": "val_loss"}.get(name, name): found}  # it is derived of that loss

    return Made(loss)


@pytest.mark.parametrize(("artifact", "claim"), swept(), ids=[name for name, _ in swept()])
def test_the_best_setting_is_inside_the_grid_or_it_is_not(artifact: str, claim: Claim) -> None:
    predicate = claim.predicate
    assert isinstance(predicate, Bracketed)
    for levels, expected in (((3.6, 3.0, 3.7), HOLDS), ((3.6, 3.0, 2.4), FAILS), ((2.4, 3.0, 3.6), FAILS)):
        found = judge(claim, made_up.view(artifact, losses(predicate, artifact, *levels)))
        assert found.verdict == expected, found


@pytest.mark.parametrize(("rate", "expected"), [("low", HOLDS), ("one", UNDECIDED), ("high", HOLDS)])
def test_a_setting_at_which_a_seed_diverged_is_worse_than_all_others(tmp_path: Path, rate: str, expected: str) -> None:
    """By the means of the other seeds it would be the best of the grid."""
    planned = plan.make(catalogue.load("nrgpt/rates"), "cpu")
    (claim,) = planned.artifact.claims
    levels = {"low": 3.4, "one": 3.0, "high": 3.3}

    def outcome(cell: PlannedCell) -> Outcome:
        key = dict(cell.key)
        if (key["model"], key["rate"]) == ("ff2w", rate):
            return Outcome(DIVERGED) if cell.seed == 1 else finished(best_val_loss=1.0)
        return finished(best_val_loss=levels.get(key["rate"], 3.5) + cell.seed / 100)

    fill(tmp_path, planned, outcome)
    found = judge(claim, views.build(planned, tmp_path, None))
    (part,) = (part for label, part in found.parts if label.startswith("NRGPT"))
    assert part.verdict == expected, part


MINE = """like: nrgpt/owt_models
title: Mine
source: {{where: a test}}
axes:
  rate:
    title: Rate (factor)
    values:
      low: {{label: "0.5", overrides: {{optimizer.lr: {{times: 0.5}}}}}}
      one: {{label: "1"}}
      high: {{label: "2", overrides: {{optimizer.lr: {{times: 2}}}}}}
scales: {{cpu: {{about: small, seeds: [0, 1, 2]}}}}
columns: {{lr: {{title: Rate, from: optimizer.lr}}}}
metrics: {{best_val_loss: {{title: Loss, unit: nats per token, direction: lower}}}}
claims:
  - id: mine
    ours: true
    says: The best rate lies inside the grid
    where: a test
    over: [{over}]
    smallest: {{{smallest}, reason: a test}}
    predicate: {{bracketed: {{{bracketed}}}}}
"""
RIGHT = "metric: best_val_loss, axis: rate, by: lr"


@pytest.mark.parametrize(
    ("bracketed", "over", "smallest", "message"),
    [
        (RIGHT.replace("best_val_loss", "best_val_los"), "model", "ratio: 0.1", "unknown metric 'best_val_los'"),
        (RIGHT.replace("axis: rate", "axis: rat"), "model", "ratio: 0.1", "unknown axis 'rat'"),
        (RIGHT.replace("by: lr", "by: rl"), "model", "ratio: 0.1", "unknown column 'rl'"),
        (RIGHT.replace(", by: lr", ""), "model", "ratio: 0.1", "missing 'by' in 'bracketed'"),
        (RIGHT, "", "ratio: 0.1", "axis 'model' is left open"),
        (RIGHT, "model, rate", "ratio: 0.1", "axis 'rate' is both fixed and under 'over'"),
        (RIGHT, "model", "absolute: 0.1", "'smallest' needs 'ratio'"),
    ],
)
def test_a_predicate_that_names_nothing_known_is_refused(
    bracketed: str, over: str, smallest: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINE.format(bracketed=bracketed, over=over, smallest=smallest))
    with pytest.raises(UsageError, match=message):
        catalogue.load_file(path)
    path.write_text(MINE.format(bracketed=RIGHT, over="model", smallest="ratio: 0.1"))
    assert catalogue.load_file(path).claims[0].predicate == swept_of("nrgpt/rates")


def swept_of(artifact: str) -> Any:
    (found,) = (claim.predicate for name, claim in swept() if name == artifact)
    return found


def test_the_figure_has_a_row_a_run_and_takes_metric_and_rates_from_the_claim(tmp_path: Path) -> None:
    planned = plan.make(catalogue.load("ebt/denoising_rates"), "cpu")
    fill(tmp_path, planned, lambda cell: finished(in_mse=100.0 + cell.seed, in_psnr=26.0, out_psnr=20.0))
    figure = render.figure_of(views.build(planned, tmp_path, None))
    assert figure is not None and figure.metric == "in_mse"
    rows = figure.rows()
    settings = [row["setting"] for row in rows if row["model"] == "ebt" and row["seed"] == 1]
    assert settings == [0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008]
    assert len(rows) == len(planned.cells) and len(figure.write(tmp_path / "figure")) == 3


@pytest.mark.parametrize(("worst", "scale"), [(1.5, "linear"), (30.0, "log")])
def test_losses_far_apart_stand_on_a_logarithmic_axis(tmp_path: Path, worst: float, scale: str) -> None:
    planned = plan.make(catalogue.load("nrgpt/rates"), "cpu")
    fill(tmp_path, planned, lambda cell: finished(best_val_loss=worst if dict(cell.key)["rate"] == "high" else 1.0))
    figure = render.figure_of(views.build(planned, tmp_path, None))
    assert figure is not None
    canvas = Canvas()
    FigureCanvasAgg(canvas)
    figure.draw(canvas, figure.rows())
    (axes,) = canvas.axes
    assert axes.get_yscale() == scale
    assert {0.0004, 0.0016, 0.004, 0.01, 0.04} <= {round(place, 6) for place in axes.get_xticks()}


def test_a_column_that_does_not_tell_settings_apart_decides_nothing() -> None:
    predicate = swept_of("cem/own_rates")
    view = made_up.view("cem/own_rates", losses(predicate, "cem/own_rates", 3.2, 3.0, 3.3))
    found = Bracketed(predicate.side, predicate.axis, "steps").judge(view, {"size": "reduced", "model": "llama"})
    assert found == Judgement(UNDECIDED, "column 'steps' is the same at several values of axis 'lr'")


def test_the_figure_of_an_artifact_without_such_a_claim_says_what_is_missing(tmp_path: Path) -> None:
    view = views.build(plan.make(catalogue.load("cem/fig2a"), "cpu"), tmp_path, None)
    with pytest.raises(UsageError, match=r"fig2a\.yaml: RatesFigure draws the sweeps of claims whose predicate"):
        RatesFigure(view)

"""What CEM's artifacts train: counts, settings, and cells that figures share."""

from pathlib import Path

import pytest

from paper_repro.base import configs
from paper_repro.cells.tasks import Cell
from paper_repro.probes.settings import ModelSize, OptimisationSettings, count
from paper_repro.tables import plan as plans
from paper_repro.tables import spec

BEST = ["model.attention.preconditioner=diagonal_low_rank", "model.feed_forward.preconditioner=diagonal_low_rank"]
TRAINED = {
    "llama": [],
    "attention": ["attention=cem", "model.attention.diagonal=none", "model.attention.slopes=none"],
    "mlp": ["feed_forward=cem"],
    "mlp_matched": ["feed_forward=cem", "model.hidden=2688"],
    "full": ["attention=cem", "feed_forward=cem", *BEST],
}
"""The overrides of each model of table 1 with which it is trained."""


def by_formula(model: str) -> int:
    """2 V D + D, and for each layer the two parts with their norms, at 86M."""
    width, heads, layers, hidden = 672, 8, 8, 1792
    attention = {"llama": 4, "mlp": 4, "mlp_matched": 4}.get(model, 2) * width**2
    factor = {"llama": 3, "attention": 3, "mlp_matched": 3}.get(model, 2)
    extras = width + 2 + heads * width * (1 + 2 * 4) + width * (1 + 2 * 16) if model == "full" else 0
    return 2 * 32000 * width + width + layers * (attention + factor * width * hidden + 2 * width + extras)


def test_counts_are_the_formulas_and_of_the_models_that_train() -> None:
    cells = [cell for cell in plans.make(spec.load("cem/table1"), "exact").cells if dict(cell.key)["size"] == "m86"]
    assert len(cells) == 6
    for cell in cells:
        (outcome,) = ModelSize().run([Cell(cell.id, cell.config)], Path(), None)  # type: ignore[arg-type]
        model = dict(cell.key)["model"]
        whole = by_formula(model)
        assert outcome.metrics["parameters"] == whole, model
        assert outcome.metrics["parameters_counted_early"] == whole - 32000 * 672
        assert outcome.metrics["parameters_other_vocabulary"] == whole - 2 * (32000 - 2048) * 672
        if model in TRAINED:
            assert count(configs.compose("cem/slimpajama", TRAINED[model])["model"]) == whole


def test_table_2_asks_the_optimiser_that_trains() -> None:
    trained = configs.compose("cem/slimpajama", ["attention=cem", "feed_forward=cem"])
    artifact = spec.load("cem/table2")
    for cell in plans.make(artifact, "exact").cells:
        for section in ("optimizer", "schedule"):
            assert cell.config[section] == trained[section]
        (outcome,) = OptimisationSettings().run([Cell(cell.id, cell.config)], Path(), None)  # type: ignore[arg-type]
        measured = [name for name, metric in artifact.metrics.items() if metric.measured and metric.published]
        printed = {name: number.mean for name in measured if (number := artifact.printed(cell.key, name))}
        assert len(printed) == 7 and {name: outcome.metrics[name] for name in printed} == pytest.approx(printed)


@pytest.mark.parametrize(("name", "width"), [("fig2a", 0), ("fig5", 1024)])
def test_steps_are_twenty_tokens_for_each_parameter_of_llama(name: str, width: int) -> None:
    artifact = spec.load(f"cem/{name}")
    for cell in plans.make(artifact, "paper", [0]).cells:
        if dict(cell.key)["model"] == "llama":
            sizes = artifact.axes["size"].values[dict(cell.key)["size"]].overrides
            parameters = count(configs.compose("cem/slimpajama", sizes.items)["model"])
            assert cell.config["training"]["steps"] == round(20 * parameters / (128 * 2048))
    layers = {
        (dict(cell.key)["model"], cell.config["model"]["num_layers"])
        for cell in plans.make(artifact, "paper", [0]).cells
    }
    assert not width or layers == {("llama", 15), ("full", 17)}


def test_the_wide_mlp_is_half_as_wide_again_at_every_size_and_scale() -> None:
    artifact = spec.load("cem/fig2b")
    for scale in artifact.scales:
        cells = plans.make(artifact, scale, [0]).cells
        widths = {tuple(dict(cell.key).values()): cell.config["model"]["hidden"] for cell in cells}
        for (size, rate, model), width in widths.items():
            assert 2 * width == (3 if model == "mlp_matched" else 2) * widths[size, rate, "llama"]

"""What CEM's artifacts train: counts, settings, and cells that figures share."""

from pathlib import Path

from paper_repro.base import configs
from paper_repro.cells.tasks import Cell
from paper_repro.probes.settings import ModelSize, count
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

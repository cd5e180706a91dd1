"""nGPT's sizes, optimisation settings and sweeps: counted, asked and planned as the paper prints them."""

import math
from pathlib import Path

import pytest

from paper_repro.base import configs
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Cell
from paper_repro.probes.settings import ModelSize, count
from paper_repro.tables import plan as plans
from paper_repro.tables import spec

TABLE2 = plans.make(spec.load("ngpt/table2"), "exact")
SIZES = {"small": (24, 1024), "large": (36, 1280)}


def cells(name: str, scale: str) -> dict[str, PlannedCell]:
    """Return a cell of each setting of the first seed, by the values of its axes."""
    found = plans.make(spec.load(f"ngpt/{name}"), scale, [0]).cells
    return {",".join(value for _, value in cell.key): cell for cell in found}


# Table 2


def by_formula(model: str, vocabulary: int, layers: int, width: int) -> int:
    """2 V d + 16 L d^2, and GPT's gains or nGPT's scales: alpha_A, alpha_M, s_qk (d), s_u, s_nu (4 d), s_z (V)."""
    own = (2 * layers + 1) * width if model == "gpt" else (3 + 2 * 4) * layers * width + vocabulary
    return 2 * vocabulary * width + 16 * layers * width**2 + own


@pytest.mark.parametrize("cell", TABLE2.cells, ids=lambda cell: "-".join(value for _, value in cell.key))
def test_every_count_is_the_formulas_and_the_papers_cut_off(cell: PlannedCell) -> None:
    (outcome,) = ModelSize().run([Cell(cell.id, cell.config)], Path(), None)  # type: ignore[arg-type]
    place, found = dict(cell.key), outcome.metrics
    layers, width = SIZES[place["size"]]
    whole = by_formula(place["model"], 32000, layers, width)
    assert found["parameters"] == whole
    assert found["parameters_counted_early"] == whole - (width if place["model"] == "gpt" else 32000)
    assert found["parameters_other_vocabulary"] == by_formula(place["model"], 50304, layers, width)
    printed = TABLE2.artifact.printed(cell.key, "parameters")
    assert printed is not None and math.floor(whole / 1e5) / 10 == printed.mean


@pytest.mark.parametrize("model", ["gpt", "ngpt"])
def test_the_counted_model_is_the_trained_one(model: str) -> None:
    trained = configs.compose("ngpt/speedup", [f"model=ngpt/{model}"])["model"]
    assert count(trained) == by_formula(model, 32000, *SIZES["small"])


# Table 3


# Cells that figures share, and their tokens


def tokens(cell: PlannedCell) -> int:
    data, training = cell.config["data"], cell.config["training"]
    return int(data["window"] * data["batch_size"] * training["accumulate"] * training["steps"])

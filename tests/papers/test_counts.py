"""The sizes that tables count: by formula, as the published code counts them, and of the models that train."""

import math
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base import configs
from paper_repro.cells.tasks import Cell
from paper_repro.probes.settings import ModelSize, completion_settings, count
from paper_repro.tables import plan as plans
from paper_repro.tables import spec
from paper_repro.tables.plan import Plan
from paper_repro.training.step_time import parameters


def exact(name: str) -> Plan:
    return plans.make(spec.load(name), "exact")


def by_formula(model: str, vocabulary: int, layers: int, width: int) -> int:
    """2 V d + 16 L d^2, and GPT's gains or nGPT's scales: alpha_A, alpha_M, s_qk (d), s_u, s_nu (4 d), s_z (V)."""
    own = (2 * layers + 1) * width if model == "gpt" else (3 + 2 * 4) * layers * width + vocabulary
    return 2 * vocabulary * width + 16 * layers * width**2 + own


def test_counts_of_ngpt_are_the_formulas_and_the_papers_cut_off() -> None:
    plan = exact("ngpt/table2")
    assert len(plan.cells) == 4
    for cell in plan.cells:
        (outcome,) = ModelSize().run([Cell(cell.id, cell.config)], Path(), None)  # type: ignore[arg-type]
        place, found = dict(cell.key), outcome.metrics
        layers, width = {"small": (24, 1024), "large": (36, 1280)}[place["size"]]
        whole = by_formula(place["model"], 32000, layers, width)
        assert found["parameters"] == whole
        assert found["parameters_counted_early"] == whole - (width if place["model"] == "gpt" else 32000)
        assert found["parameters_other_vocabulary"] == by_formula(place["model"], 50304, layers, width)
        printed = plan.artifact.printed(cell.key, "parameters")
        assert printed is not None and math.floor(whole / 1e5) / 10 == printed.mean


BEST = ["model.attention.preconditioner=diagonal_low_rank", "model.feed_forward.preconditioner=diagonal_low_rank"]
TRAINED = {
    ("ngpt/table2", "gpt", "ngpt/speedup"): ["model=ngpt/gpt"],
    ("ngpt/table2", "ngpt", "ngpt/speedup"): ["model=ngpt/ngpt"],
    ("cem/table1", "llama", "cem/slimpajama"): [],
    ("cem/table1", "attention", "cem/slimpajama"): [
        "attention=cem",
        "model.attention.diagonal=none",
        "model.attention.slopes=none",
    ],
    ("cem/table1", "mlp", "cem/slimpajama"): ["feed_forward=cem"],
    ("cem/table1", "mlp_matched", "cem/slimpajama"): ["feed_forward=cem", "model.hidden=2688"],
    ("cem/table1", "full", "cem/slimpajama"): ["attention=cem", "feed_forward=cem", *BEST],
}
"""By table, model of its first size, and experiment: the words with which the model is trained."""


@pytest.mark.parametrize(("artifact", "model", "experiment"), TRAINED)
def test_the_counted_model_is_the_trained_one(artifact: str, model: str, experiment: str) -> None:
    counted = next(cell.config for cell in exact(artifact).cells if dict(cell.key)["model"] == model)
    trained = configs.compose(experiment, TRAINED[artifact, model, experiment])
    (outcome,) = ModelSize().run([Cell("", counted)], Path(), None)  # type: ignore[arg-type]
    assert outcome.metrics["parameters"] == count(trained["model"])


def test_table_2_of_cet_is_of_the_model_that_trains() -> None:
    ours, trained = configs.compose("cet/settings"), configs.compose("cet/celeba")
    assert ours["counted"] == trained["model"] and ours["optimizer"] == trained["optimizer"]
    assert ours["schedule"] == trained["schedule"] and ours["training"]["steps"] == trained["training"]["steps"]
    found = completion_settings(ours)
    assert found["parameters"] == 5_475_843 and found["num_patches"] == 121


TRANSFORMER = {
    "xxs": 6_198_144,
    "xs": 12_395_904,
    "small": 49_564_416,
    "medium": 176_210_944,
    "large": 396_436_992,
    "xl": 704_743_424,
}
ADALN = {"xxs": 11.8, "xs": 23.3, "small": 93.3, "medium": 329.5, "large": 741.1, "xl": 1317.4}
TOTALS = {"xxs": 44.81, "xs": 51.01, "small": 126.79, "medium": 279.18, "large": 550.89, "xl": 910.68}


def test_counts_of_ebt_are_those_of_the_published_code() -> None:
    found: dict[str, dict[str, Any]] = {}
    for cell in exact("ebt/tableD2").cells:
        place = dict(cell.key)
        found.setdefault(place["size"], {})[place["model"]] = {**cell.config["model"], **parameters(cell.config)}
    for size, number in TRANSFORMER.items():
        counts = {model: own["parameters"] for model, own in found[size].items()}
        width = found[size]["transformer"]["width"]
        assert counts["transformer"] == number
        assert counts["one_step"] == counts["two_steps"] == number + width
        assert counts["time_embed"] == number + 3 * width
        assert round(counts["adaln"] / 1e6, 1) == ADALN[size]
        assert round(found[size]["transformer"]["parameters_total"] / 1e6, 2) == TOTALS[size]

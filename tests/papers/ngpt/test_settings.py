"""nGPT's sizes, optimisation settings and sweeps: counted, asked and planned as the paper prints them."""

import math
from pathlib import Path

import pytest

from paper_repro.base import configs
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Cell
from paper_repro.probes.settings import ModelSize, count
from paper_repro.probes.settings import optimisation_settings as settings
from paper_repro.tables import plan as plans
from paper_repro.tables import spec

TABLE2 = plans.make(spec.load("ngpt/table2"), "exact")
TABLE3 = plans.make(spec.load("ngpt/table3"), "exact")
SETTINGS = {dict(cell.key)["model"]: cell for cell in TABLE3.cells}
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


@pytest.mark.parametrize("model", ["gpt", "ngpt"])
def test_the_settings_are_those_of_training_and_the_papers(model: str) -> None:
    trained = configs.compose("ngpt/speedup", [f"model=ngpt/{model}"])
    own = SETTINGS[model].config
    assert own["schedule"] == trained["schedule"] and own["training"] == trained["training"]
    assert own["optimizer"] == {**trained["optimizer"], "lr": 1e-3}
    assert own["data"] == {**trained["data"], "files": None}
    found = settings(own)
    for name in TABLE3.artifact.tolerances:
        printed = TABLE3.artifact.printed(SETTINGS[model].key, name)
        assert printed is None or found[name] == printed.mean, name


@pytest.mark.parametrize("model", ["gpt", "ngpt"])
def test_the_rate_follows_half_a_cosine_after_the_warm_up(model: str) -> None:
    found = settings(SETTINGS[model].config)
    for name, share in (("quarter", 0.25), ("half", 0.5), ("end", 1.0)):
        assert found[f"factor_{name}"] == pytest.approx((1 + math.cos(math.pi * share)) / 2, abs=1e-9)
    assert found["factor_first"] == (1 / 2001 if model == "gpt" else 1.0)
    assert 0 < found["factor_last"] < 1e-9
    assert (found["windows"], found["tokens"]) == (8 * 64, 8 * 64 * 1024)


# Cells that figures share, and their tokens


def tokens(cell: PlannedCell) -> int:
    data, training = cell.config["data"], cell.config["training"]
    return int(data["window"] * data["batch_size"] * training["accumulate"] * training["steps"])


@pytest.mark.parametrize("scale", ["smoke", "cpu", "gpu", "paper"])
def test_figures_4_5_6_and_13_look_at_the_same_trained_cells(scale: str) -> None:
    ids = {name: {cell.settings for cell in cells(name, scale).values()} for name in ("fig4", "fig5", "fig6", "fig13")}
    assert ids["fig4"] == ids["fig5"]
    assert ids["fig13"] <= ids["fig4"]
    assert ids["fig4"] & ids["fig6"]


def test_figure_3_trains_the_runs_of_figure_2_and_measures_more() -> None:
    own, other = (configs.compose(name) for name in ("ngpt/downstream", "ngpt/speedup"))
    assert list(own["probes"]) == ["downstream"] and {**own, "probes": {}} == other
    shared, runs = cells("fig3", "paper"), cells("fig2", "paper")
    assert shared.keys() <= runs.keys()
    assert all({**cell.config, "probes": {}} == {**runs[key].config, "probes": {}} for key, cell in shared.items())


def test_the_sweeps_of_figure_14_change_one_thing_and_keep_the_tokens() -> None:
    for scale, factor in (("cpu", 4), ("gpu", 4), ("paper", 2)):
        found = cells("fig6", scale)
        base = found["base"]
        as_long = found.pop("context_steps", None)  # ours, which keeps the steps
        assert as_long is None or tokens(as_long) == 2 * tokens(base)
        longer = [cell for run, cell in found.items() if run.startswith("context_")]
        assert longer and all(tokens(cell) == tokens(base) for cell in longer)
        assert all(cell.config["data"]["window"] > base.config["data"]["window"] for cell in longer)
        shorter = next(cell for run, cell in found.items() if run.startswith("tokens_"))
        assert tokens(base) == factor * tokens(shorter)
        rates = {cell.config["optimizer"]["lr"] for run, cell in found.items() if run.startswith("lr_")}
        assert base.config["optimizer"]["lr"] not in rates
        assert len({cell.config["model"]["width"] // cell.config["model"]["num_heads"] for cell in found.values()}) == 1
    sizes = [found[run].config["model"] for run in ("base", "size_1b")]
    assert [(own["width"], own["num_layers"], own["num_heads"]) for own in sizes] == [(1024, 24, 16), (1280, 36, 20)]
    assert tokens(found["base"]) == 100_000 * 512 * 1024  # the paper's 52 billion


def test_a_timed_step_has_as_many_tokens_or_windows_at_every_context() -> None:
    steps = [cell.config["step"] for cell in cells("steptime", "cpu").values()]
    assert {step["window"] * step["batch_size"] * step["accumulate"] for step in steps} == {4096}
    steps = [cell.config["step"] for cell in cells("steptime", "paper").values()]
    assert {step["batch_size"] * step["accumulate"] for step in steps} == {8}

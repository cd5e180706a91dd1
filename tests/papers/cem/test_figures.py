"""Rows of CEM's figures from made-up records, and effects as they are drawn."""

import math
from collections.abc import Mapping

import pytest
from matplotlib.figure import Figure as Canvas

from paper_repro.tables.figure import Figure, figure_of
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made, Place

LANGUAGE = ("fig2a", "fig2b", "fig2c", "fig2d", "fig3b", "fig3c", "fig4")
NAMES = (*LANGUAGE, "fig3a", "fig5", "inner_steps", "table3")


def made(scale: str = "cpu", seeds: tuple[int, ...] | None = (0, 1)) -> Made:
    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        loss = 4.0 + 0.01 * seed + 0.1 * (place["model"] != "llama") - 0.02 * (place.get("steps") == "t2")
        loss += 0.05 * math.log2(float(place.get("lr", 0.004)) / 0.004) ** 2
        name = "val_loss" if scale != "paper" else "test_loss"
        return {name: loss, "test_rmse": loss, **dict.fromkeys(("perplexity_T2", "energy_attention_T8"), 20.0 + seed)}

    return Made(metrics, noise=0.0, scale=scale, seeds=seeds, parameters=lambda place: 400_000 + len(place["model"]))


def figure(name: str, given: Made, empty: bool = False) -> Figure:
    view = made_up.view(f"cem/{name}", given)
    found = figure_of(made_up.without(view) if empty else view)
    assert found is not None
    return found


@pytest.mark.parametrize("name", LANGUAGE)
def test_each_run_is_a_row_with_its_parameters_and_tokens(name: str) -> None:
    found = figure(name, made())
    rows, rated = found.rows(), "lr" in found.artifact.axes
    cells = [cell for cell in found.view.plan.cells if dict(cell.key).get("lr", "4e-3") == "4e-3"]  # the best rate
    assert len(rows) == len(cells)
    for row in rows:
        loss = 4.0 + 0.01 * row["seed"] + 0.1 * (row["model"] != "llama") - 0.02 * (row.get("steps") == "t2")
        assert row["perplexity"] == pytest.approx(math.exp(loss), abs=1e-7)
        assert row["parameters"] == 400_000 + len(row["model"]) and row["tokens"] == (4096 if rated else 1000) * 8 * 128


def test_tokens_at_scale_paper_are_twenty_for_each_parameter_of_llama() -> None:
    rows = figure("fig2a", made("paper", (0,))).rows()
    assert {row["tokens"] for row in rows} == {steps * 128 * 2048 for steps in (6590, 8244, 10_231, 12_422)}


def drawn(name: str, scale: str = "cpu") -> list[float]:
    """Return the means that an effect figure draws, in percent and from top to bottom."""
    found, canvas = figure(name, made(scale)), Canvas()
    found.draw(canvas, found.rows())
    (axes,) = canvas.axes
    lines = [(line.get_xydata(), line.get_marker()) for line in axes.lines]
    return [float(data[0][0]) for data, marker in lines if marker != "None"]  # type: ignore[index]


def test_effects_are_in_percent_of_the_reference() -> None:
    above, step = 100 * math.expm1(0.1), 100 * math.expm1(-0.02)
    assert drawn("fig2a") == pytest.approx([above])
    assert drawn("fig2a", "paper") == pytest.approx([above] * 8)
    assert drawn("fig3b") == pytest.approx([100 * math.expm1(-0.1), 0.0, 0.0], abs=1e-6)
    assert drawn("fig3c") == pytest.approx([step] * 5) and drawn("fig4") == pytest.approx([step] * 3)


def test_a_sweep_has_each_run_and_its_optimum() -> None:
    rows = figure("fig3a", made()).rows()
    runs = [row for row in rows if row["kind"] == "run"]
    assert len(runs) == 2 * 5 * 2
    best = {row["model"]: row for row in rows if row["kind"] == "optimum"}
    assert {model: row["rate"] for model, row in best.items()} == pytest.approx({"llama": 0.004, "full": 0.004})
    # The interpolant is of perplexities that are averaged over the two seeds.
    assert best["llama"]["perplexity"] == pytest.approx((math.exp(4.0) + math.exp(4.01)) / 2)


def test_inner_steps_are_read_off_the_names_of_the_metrics() -> None:
    rows = figure("inner_steps", made()).rows()
    assert {(row["kind"], row["steps"]) for row in rows} == {("perplexity", 2), ("energy_attention", 8)}
    assert {row["value"] for row in rows if row["seed"] == 1} == {21.0}


def test_regression_rows_are_the_papers_and_ours() -> None:
    rows = figure("table3", made()).rows()
    paper = next(row for row in rows if (row["kernel"], row["model"], row["source"]) == ("rbf", "t2", "paper"))
    ours = next(row for row in rows if (row["kernel"], row["model"], row["source"]) == ("rbf", "t2", "ours"))
    assert (paper["mean"], paper["std"]) == (0.0092, 0.0008)
    assert ours["mean"] == pytest.approx(4.105) and ours["std"] == pytest.approx(0.01 / math.sqrt(2))
    assert len(rows) == 2 * 5 * 6


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_drawn_with_one_seed_and_without_records(name: str) -> None:
    one = figure(name, made(seeds=(0,)))
    one.draw(Canvas(), one.rows())
    empty = figure(name, made(), empty=True)
    assert all(row.get("source") == "paper" or row.get("kind") == "optimum" for row in empty.rows())
    empty.draw(Canvas(), empty.rows())

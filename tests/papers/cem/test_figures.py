"""Rows of CEM's figures from made-up records, and effects as they are drawn."""

import math
from collections.abc import Mapping

import pytest
from matplotlib.figure import Figure as Canvas

from paper_repro.tables.figure import Figure, figure_of
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made, Place


def made(scale: str = "cpu", seeds: tuple[int, ...] | None = (0, 1)) -> Made:
    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        loss = 4.0 + 0.01 * seed + 0.1 * (place["model"] != "llama") - 0.02 * (place.get("steps") == "t2")
        loss += 0.05 * math.log2(float(place.get("lr", 0.004)) / 0.004) ** 2
        name = "val_loss" if scale != "paper" else "test_loss"
        return {name: loss, "test_rmse": loss, **dict.fromkeys(("perplexity_T2", "energy_attention_T8"), 20.0 + seed)}

    return Made(metrics, noise=0.0, scale=scale, seeds=seeds, parameters=lambda place: 400_000 + len(place["model"]))


def figure(name: str, given: Made) -> Figure:
    found = figure_of(made_up.view(f"cem/{name}", given))
    assert found is not None
    return found


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
    for name, pairs in (("fig3c", 5), ("fig4", 3)):
        assert drawn(name) == pytest.approx([step] * 2) and drawn(name, "paper") == pytest.approx([step] * 4 * pairs)

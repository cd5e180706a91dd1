"""Rows of nGPT's figures from small records, and each figure drawn once."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure as Canvas

from paper_repro.papers.ngpt import fig1, fig2, fig3, fig7, fig13
from paper_repro.papers.ngpt.fig4 import Figure4
from paper_repro.papers.ngpt.fig5 import Appendix5, Figure5
from paper_repro.papers.ngpt.fig6 import Appendix6, Figure6, Steps
from paper_repro.papers.ngpt.inspection import Series, average, bins
from paper_repro.tables.figure import Row, figure_of
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made, MadeUpView

Place = Mapping[str, str]
LINEAR = [0.0, 1.0, 2.0, 3.0]
TABLE = {"norms": [0.0, 1.0, 0.0], "eigenvalues": [2.0, 1.0], "dots": [0.25, 0.5, 0.25]}
EMBEDDINGS: dict[str, Any] = {
    "edges": {"norm": [0.5, 0.9, 1.1, 2.0], "dot": [-1.0, -0.1, 0.1, 1.0]},
    **dict.fromkeys(("in", "out"), TABLE),
}
CONDITIONS = {name: [2.0, 3.0] for name in ("query", "key", "value", "output", "u", "nu", "mlp_output")}
MATRICES: dict[str, Any] = {
    "edges": [0.1, 1.0, 10.0],
    "conditions": {"plain": CONDITIONS, "renormalized": CONDITIONS},
    "layers": {"2": {name: {"norms": [1.0, 0.0], "singular": [0.5, 0.5]} for name in list(CONDITIONS)[:4]}},
}
VECTORS = ("alpha_A", "alpha_M", "s_qk", "s_u", "s_nu", "s_z")
SCALES: dict[str, Any] = {
    "edges": dict.fromkeys(VECTORS, LINEAR),
    "means": {name: [1.5] if name == "s_z" else [0.2, 0.4] for name in (*VECTORS, "|s_qk|")},
    "shares": {name: [0.0, 0.75, 0.25] for name in VECTORS},
}
FILES = {"fig4": ("embeddings.json", EMBEDDINGS), "fig5": ("matrices.json", MATRICES), "fig6": ("scales.json", SCALES)}
FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig13")


def view(name: str) -> MadeUpView:
    """Losses that a seed raises by 0.1 and the highest rate by 10; files whose numbers are the same in all seeds."""

    def metrics(place: Place, seed: int) -> dict[str, float]:
        far = name == "fig7" and place["budget"] == "f1"
        low = 0.05 * (place.get("model") == "ngpt")
        lr = {"2e-2": 10.0 if far else 0.1, "5e-3": low}.get(place.get("lr", ""), 0.0)
        budgets = {"f8": 0.6, "f4": 0.3} if name == "fig3" else {"f2": 0.3, "f34": 0.25}
        own = 0.2 * (place.get("model") == "gpt") + budgets.get(place.get("budget", ""), 0.0)
        loss = 3.0 + own + 0.1 * seed + lr
        return {
            "val_loss": loss,
            "test_loss": loss + 0.5,
            "continuations_1": 100.0 - loss,
            "mean_alpha_A": 0.25,
            "mean_alpha_M": 0.3,
        }

    def files(place: Place, seed: int) -> dict[str, bytes]:
        if name == "fig13":
            found: Any = {"perplexity": {"128": 30.0 + seed, "256": 40.0}}
            return {"lengths.json": json.dumps(found).encode()}
        attachment, content = FILES.get(name, ("", {}))
        return {attachment: json.dumps(content).encode()}

    def curves(place: Place, seed: int) -> dict[str, Sequence[tuple[int, float]]]:
        return {"val_loss": [(128, 5.0 + seed), (256, 4.0 + seed)]}

    made = Made(metrics=metrics, files=files, curves=curves, noise=0.0, seeds=(0, 1, 2))
    return made_up.view(f"ngpt/{name}", made)


def chosen(rows: Sequence[Row], **fixed: Any) -> list[Row]:
    return [row for row in rows if fixed.items() <= row.items()]


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_is_drawn_and_has_no_rows_without_records(name: str, tmp_path: Path) -> None:
    own = view(name)
    figure, empty = figure_of(own), figure_of(made_up.without(own))
    assert figure is not None and empty is not None
    assert {path.name for path in figure.write(tmp_path)} >= {"figure.csv", "figure.png", "figure.svg"}
    assert empty.rows() == []
    empty.draw(Canvas(layout="constrained"), [])


def test_figure_1_has_every_seed_and_the_means() -> None:
    rows = chosen(fig1.Figure1(view("fig1")).rows(), model="ngpt", budget="f1", lr="1e-2", step=256)
    assert [(row["seed"], row["tokens"], row["val_loss"]) for row in rows] == [
        (0, 256 * 1024, 4.0),
        (1, 256 * 1024, 5.0),
        (2, 256 * 1024, 6.0),
        ("mean", 256 * 1024, 5.0),
    ]


def test_figure_2_has_the_best_mean_of_each_budget_and_the_speedups() -> None:
    figure = fig2.Figure2(view("fig2"))
    rows = figure.rows()
    best = chosen(rows, kind="best", context="c1k", model="ngpt")
    assert [(row["tokens"], row["rate"]) for row in best] == [(3 * 2**21, 0.01), (2**23, 0.01)]
    assert [row["loss"] for row in best] == pytest.approx([3.85, 3.6])  # of test
    assert len(chosen(rows, kind="run", context="c1k", model="ngpt", tokens=2**23)) == 3 * 3  # rates, seeds
    speedups = chosen(rows, kind="speedup", context="c1k", model="gpt")
    assert [(float(row["speedup"]), row["bound"]) for row in speedups] == [
        (pytest.approx(2 ** (5 / 6) / 1.5, rel=1e-5), "="),
        (1.0, ">"),
    ]
    assert not chosen(rows, kind="speedup", model="ngpt")
    printed = [(one.panel, one.at, one.value) for one in figure.printed(rows)]
    longest = pytest.approx(3.8)
    assert printed == [(0, 2**23 / 4, longest), (0, 2**23, longest), (1, None, 4.0)]


def test_figure_3_takes_the_rate_with_the_lowest_loss() -> None:
    rows = chosen(fig3.Figure3(view("fig3")).rows(), task="continuations_1", model="ngpt", budget="f2")
    assert [(row["rate"], row["tokens"]) for row in rows] == [(0.01, 2**21)] * 3
    assert [row["accuracy"] for row in rows] == pytest.approx([97.0, 96.9, 96.8])


def test_figure_7_has_every_run_and_draws_no_line_to_a_point_outside_its_panel() -> None:
    figure = fig7.Figure7(view("fig7"))
    rows = figure.rows()
    assert len(chosen(rows, context="c1k", budget="f1", model="ngpt")) == 3 * 3
    canvas = Canvas()
    figure.draw(canvas, rows)
    drawn = 0
    for axes in canvas.axes:
        tops = [loss for curve in axes.lines for loss in curve.get_ydata() if math.isfinite(loss)]
        assert all(loss <= axes.get_ylim()[1] for loss in tops)
        drawn += len(tops)
    means = {(row["context"], row["budget"], row["model"], row["rate"]) for row in rows}
    far = {mean for mean in means if mean[1:] == ("f1", "ngpt", 0.02)}
    assert len(far) == 1 and drawn == len(means - far)


def test_figure_13_has_each_seed_and_length() -> None:
    rows = chosen(fig13.Figure13(view("fig13")).rows(), model="ngpt")
    assert [(row["seed"], row["length"], row["perplexity"]) for row in rows[:3]] == [
        (0, 128, 30.0),
        (0, 256, 40.0),
        (1, 128, 31.0),
    ]


def test_documents_are_averaged_number_by_number_and_bins_trimmed() -> None:
    found = average([{"a": [1.0, 2.0], "b": {"c": 4.0}}, {"a": [3.0, 2.0], "b": {"c": 0.0}}])
    assert found == {"a": [2.0, 2.0], "b": {"c": 2.0}}
    edges = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    rows = list(bins(edges, [0.0, 0.5, 0.0, 0.5, 0.0]))
    assert [(row["low"], row["high"], row["value"]) for row in rows] == [(1, 2, 0.5), (2, 3, 0.0), (3, 4, 0.5)]
    assert list(bins(edges, [0.0] * 5)) == []


def test_figure_4_has_the_bins_and_the_ranks_of_the_eigenvalues() -> None:
    rows = chosen(Figure4(view("fig4")).rows(), series="GPT", table="in")
    norms = [(row["low"], row["high"], row["value"]) for row in chosen(rows, quantity="norm")]
    assert norms == [(0.9, 1.1, 1.0)]
    eigenvalues = [(row["low"], row["high"], row["value"]) for row in chosen(rows, quantity="eigenvalue")]
    assert eigenvalues == [(0.0, 0.5, 2.0), (0.5, 1.0, 1.0)]


def test_figure_5_counts_layers_from_one_and_its_appendix_has_the_inspected_layers() -> None:
    series = [Series("one", MATRICES)]
    plain = chosen(Figure5(series).rows(), quantity="condition plain", matrix="key")
    assert [(row["layer"], row["value"]) for row in plain] == [(1, 2.0), (2, 3.0)]
    assert {row["layer"] for row in Appendix5(series).rows()} == {2}
    Appendix5([Series("none", {**MATRICES, "layers": {}})]).draw(Canvas(), [])


def test_figure_6_has_the_base_and_its_appendix_a_column_for_each_sweep() -> None:
    runs = ("base", "size_half", "context_double", "tokens_quarter")
    series = [Series(run, SCALES, {"run": run}) for run in runs]
    main, appendix = Figure6(series), Appendix6(series)
    assert {row["series"] for row in main.rows()} == {"base"}
    means = chosen(main.rows(), quantity="mean", vector="alpha_A")
    assert [(row["layer"], row["value"]) for row in means] == [(1, 0.2), (2, 0.4)]
    canvas = Canvas()
    appendix.draw(canvas, appendix.rows())
    assert len(canvas.axes) == len(VECTORS) * 3
    assert Steps(view("fig6")).summary() == pytest.approx({"alpha_A_small": 0.25, "alpha_M_small": 0.3})
    printed = Figure6(view("fig6")).printed(Figure6(view("fig6")).rows())
    assert {one.value for one in printed if one.panel == 0} == {0.25, 0.37}

import csv
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure as Canvas

from paper_repro.artifacts import catalogue, palette, render, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement
from paper_repro.artifacts.claims import judge as judge_claim
from paper_repro.artifacts.plan import Plan
from paper_repro.base.files import sha256_of_bytes, write_atomically
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import FINISHED, Outcome
from paper_repro.papers.ngpt.fig4 import Figure4
from paper_repro.papers.ngpt.fig5 import Appendix5, Figure5
from paper_repro.papers.ngpt.fig6 import Appendix6, Figure6
from paper_repro.papers.ngpt.inspection import Series, average, bins
from paper_repro.tests.support.synthetic import apart, write_record

ARTIFACTS = {name: catalogue.load(f"ngpt/{name}") for name in ("fig4", "fig5", "fig6")}
PLANS = {name: plans.make(artifact, "cpu") for name, artifact in ARTIFACTS.items()}
LINEAR = [0.0, 1.0, 2.0, 3.0]
EMBEDDINGS: dict[str, Any] = {
    "edges": {"norm": [0.5, 0.9, 1.1, 2.0], "dot": [-1.0, -0.1, 0.1, 1.0]},
    **{
        name: {"norms": [0.0, 1.0, 0.0], "eigenvalues": [2.0, 1.0], "dots": [0.25, 0.5, 0.25]} for name in ("in", "out")
    },
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
FIGURES: dict[str, Any] = {"fig4": Figure4, "fig5": Figure5, "fig6": Figure6}
Place = Mapping[str, str]


def fill(root: Path, plan: Plan, metrics: Callable[[Place, int], dict[str, float]], file: Any = None) -> views.View:
    """Records with these metrics and, beside them, a file given as (name, content), or (name, content of a cell)."""
    for cell in plan.cells:
        attachments = {}
        if file is not None:
            name, content = file
            written = json.dumps(content(cell) if callable(content) else content).encode()
            write_atomically(record_path(root, cell.id).parent / name, written)
            attachments = {name: sha256_of_bytes(written)}
        found = {"val_loss": 1.0, **metrics(dict(cell.key), cell.seed)}
        write_record(root, cell, apart(cell, Outcome(FINISHED, found, parameters=7, attachments=attachments)))
    for floor in plan.floors:
        for cell in floor.cells.values():
            write_record(root, cell, Outcome(FINISHED, {"val_loss": 9.0}))
    return views.build(plan, root, None)


def judged(root: Path, name: str, metrics: Callable[[Place, int], dict[str, float]]) -> dict[str, Judgement]:
    view = fill(root, PLANS[name], metrics)
    return {claim.id: judge_claim(claim, view) for claim in ARTIFACTS[name].claims}


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((path / "figure.csv").open()))


# What is run


def test_every_claim_of_the_catalogue_is_here() -> None:
    found = {claim.catalogue for artifact in ARTIFACTS.values() for claim in artifact.claims} - {None}
    own = {"condition_numbers", "embedding_norms_fixed", "embedding_conditioning", "modest_steps", "sqk_stable"}
    assert found == own


@pytest.mark.parametrize("scale", ["smoke", "cpu", "gpu", "paper"])
def test_the_three_figures_are_drawn_from_the_same_trained_cells(scale: str) -> None:
    ids = {name: {cell.settings for cell in plans.make(artifact, scale).cells} for name, artifact in ARTIFACTS.items()}
    assert ids["fig4"] == ids["fig5"]
    shared = {"smoke": 1, "cpu": 3, "gpu": 3, "paper": 6}[scale]
    assert len(ids["fig4"] & ids["fig6"]) == shared


def test_the_sweeps_change_one_thing_and_keep_the_tokens() -> None:
    def tokens(cell: PlannedCell) -> int:
        config = cell.config
        windows = config["data"]["batch_size"] * config["training"]["accumulate"]
        return int(windows * config["data"]["window"] * config["training"]["steps"])

    for scale, factor in (("cpu", 4), ("gpu", 4), ("paper", 2)):
        cells = {dict(cell.key)["run"]: cell for cell in plans.make(ARTIFACTS["fig6"], scale).cells}
        base = tokens(cells["base"])
        as_long = cells.pop("context_steps", None)  # ours, which keeps the steps
        longer = [cell for run, cell in cells.items() if run.startswith("context_")]
        assert [tokens(cell) for cell in longer] == [base] * len(longer) and longer
        if as_long is not None:
            assert tokens(as_long) == 2 * base
            longer.append(as_long)
        assert all(cell.config["data"]["window"] > cells["base"].config["data"]["window"] for cell in longer)
        assert base == factor * tokens(next(cell for run, cell in cells.items() if run.startswith("tokens_")))
        rates = {cell.config["optimizer"]["lr"] for run, cell in cells.items() if run.startswith("lr_")}
        assert cells["base"].config["optimizer"]["lr"] not in rates
        head = {cell.config["model"]["width"] // cell.config["model"]["num_heads"] for cell in cells.values()}
        assert len(head) == 1
    sizes = {run: cells[run].config["model"] for run in ("base", "size_1b")}
    assert [(m["width"], m["num_layers"], m["num_heads"]) for m in sizes.values()] == [(1024, 24, 16), (1280, 36, 20)]
    assert tokens(cells["base"]) == 100_000 * 512 * 1024  # the paper's 52 billion


# Rows and panels


def test_documents_are_averaged_number_by_number_and_bins_trimmed() -> None:
    found = average([{"a": [1.0, 2.0], "b": {"c": 4.0}}, {"a": [3.0, 2.0], "b": {"c": 0.0}}])
    assert found == {"a": [2.0, 2.0], "b": {"c": 2.0}}
    edges = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    rows = list(bins(edges, [0.0, 0.5, 0.0, 0.5, 0.0]))
    assert [(row["low"], row["high"], row["value"]) for row in rows] == [(1, 2, 0.5), (2, 3, 0.0), (3, 4, 0.5)]
    assert list(bins(edges, [0.0] * 5)) == []


@pytest.mark.parametrize("name", ARTIFACTS)
def test_a_figure_draws_means_over_seeds_and_nothing_without_records(tmp_path: Path, name: str) -> None:
    fill(tmp_path, PLANS[name], lambda *_: {}, FILES[name])
    render.render(PLANS[name], tmp_path, None)
    folder = tmp_path / PLANS[name].folder
    rows = rows_of(folder)
    labels = {axis: spec.values for axis, spec in ARTIFACTS[name].axes.items()}
    axis = "run" if name == "fig6" else "model"
    drawn = {labels[axis][dict(cell.key)[axis]].label for cell in PLANS[name].cells}
    if name == "fig6":  # the sweeps are in the appendix
        with (folder / "figure_appendix.csv").open() as file:
            assert {row["run"] for row in rows if row["run"]} == {"base"}
            rows = list(csv.DictReader(file))
    rows = [row for row in rows if row["series"]]  # not those of the paper's numbers
    assert {row["series"] for row in rows} == drawn
    svg = (folder / ("figure_appendix.svg" if name == "fig6" else "figure.svg")).read_text()
    assert all(label.replace(" ", "") in svg.replace(" ", "") for label in drawn)
    empty = FIGURES[name](views.build(PLANS[name], tmp_path / "empty", None))
    assert empty.rows() == []
    empty.draw(Canvas(), [])


def test_figure_4_s_rows_are_the_files_numbers(tmp_path: Path) -> None:
    def of(cell: PlannedCell) -> dict[str, Any]:
        both = {"norms": [0.0, 1.0, 0.0], "eigenvalues": [2.0 + cell.seed, 1.0], "dots": [0.0, 1.0, 0.0]}
        return {**EMBEDDINGS, "in": both}

    view = fill(tmp_path, PLANS["fig4"], lambda *_: {}, ("embeddings.json", of))
    rows = [row for row in Figure4(view).rows() if (row["series"], row["table"]) == ("GPT", "in")]
    norms = [row for row in rows if row["quantity"] == "norm"]
    assert [(row["low"], row["high"], row["value"]) for row in norms] == [(0.9, 1.1, 1.0)]
    eigenvalues = [(row["low"], row["high"], row["value"]) for row in rows if row["quantity"] == "eigenvalue"]
    assert eigenvalues == [(0.0, 0.5, 3.0), (0.5, 1.0, 1.0)]  # seeds 0, 1, 2


def test_figure_5_counts_layers_from_one_and_has_panels_for_each_layer_inspected() -> None:
    series = [Series("one", MATRICES)]
    rows = Figure5(series).rows()
    plain = [row for row in rows if (row["quantity"], row["matrix"]) == ("condition plain", "key")]
    assert [(row["layer"], row["value"]) for row in plain] == [(1, 2.0), (2, 3.0)]
    assert {row["layer"] for row in Appendix5(series).rows()} == {2} and isinstance(
        Figure5(series).appendix(), Appendix5
    )
    titles = {}
    for name, kind in (("main", Figure5), ("appendix", Appendix5)):
        figure, canvas = kind(series), Canvas()
        figure.draw(canvas, figure.rows())
        titles[name] = [axes.get_title() for axes in canvas.axes]
    assert titles["main"] == ["W_q", "W_k", "W_v", "W_o", "W_u", "W_nu", "W_oMLP", ""]
    below = [f"{matrix}, layer 2" for matrix in ("W_q", "W_k", "W_v", "W_o")]
    assert titles["appendix"] == 2 * below
    Appendix5([Series("none", {**MATRICES, "layers": {}})]).draw(Canvas(), [])


@pytest.mark.filterwarnings("error")
def test_figure_6_puts_every_sweep_into_a_column_with_the_base() -> None:
    runs = ("base", "size_half", "context_double", "tokens_quarter")
    series = [Series(run, SCALES, {"run": run}) for run in runs]
    canvas, main = Canvas(), Canvas()
    for figure, on in ((Figure6(series), main), (Appendix6(series), canvas)):
        figure.draw(on, figure.rows())
    columns = [axes for axes in canvas.axes if axes.get_title() in ("size", "context", "tokens")]
    assert [axes.get_title() for axes in columns] == ["size", "context", "tokens"]
    labels = [axes.get_legend_handles_labels()[1] for axes in columns]
    assert labels == [["base", "size_half"], ["base", "context_double"], ["base", "tokens_quarter"]]
    curves = [len(axes.lines) for axes in main.axes[:3]]
    assert curves == [2, 2, 2]  # figure 6 has the base run alone here
    assert {line.get_color() for axes in main.axes[:3] for line in axes.lines} == {palette.model("ngpt/fig6", "ngpt")}
    gpt = {"edges": {}, "means": {}, "shares": {}}
    assert Figure6([Series("GPT", gpt)]).rows() == []
    only = Series("QK norm", {part: {"s_qk": SCALES[part]["s_qk"]} for part in SCALES})
    for figure in (Figure6([only]), Appendix6([only])):
        figure.draw(Canvas(), figure.rows())  # warnings are errors here


# Claims


def norms(place: Place, error: float = 2e-7, variation: float = 0.3) -> dict[str, float]:
    own = place["model"] == "ngpt"
    return {
        f"{table}_norm_{name}": value
        for table in ("in", "out")
        for name, value in (("error", error if own else 3.0), ("variation", 0.0 if own else variation))
    }


def dots(place: Place, gpt: float, gpt_output: float = 2.0) -> dict[str, float]:
    """Mean dot products: nGPT's are 0.1 in both tables."""
    if place["model"] != "gpt":
        return {"in_dot_mean": 0.1, "out_dot_mean": 0.1}
    return {"in_dot_mean": gpt, "out_dot_mean": gpt_output}


def test_norms_are_fixed_in_every_trained_model_or_the_claim_fails(tmp_path: Path) -> None:
    claim = "embedding_norms_fixed"
    found = judged(tmp_path / "good", "fig4", lambda place, _: norms(place))[claim]
    assert found.verdict == HOLDS and len(found.parts) == 4
    off = judged(tmp_path / "off", "fig4", lambda place, seed: norms(place, error=1e-5 if seed == 2 else 1e-7))[claim]
    assert off.verdict == FAILS
    rigid = judged(tmp_path / "rigid", "fig4", lambda place, _: norms(place, variation=0.009))[claim]
    assert rigid.verdict == FAILS
    assert judged(tmp_path / "none", "fig4", lambda *_: {})[claim].verdict == UNDECIDED


@pytest.mark.parametrize(
    ("largest", "verdict"), [(lambda seed: 3.0, HOLDS), (lambda seed: 0.5, FAILS), (lambda seed: 0.2 + seed, UNDECIDED)]
)
def test_eigenvalue_spread_needs_both_measures(tmp_path: Path, largest: Callable[[int], float], verdict: str) -> None:
    def metrics(place: Place, seed: int) -> dict[str, float]:
        gpt = place["model"] == "gpt"
        spread = {"in_spread_95": 2.0 if gpt else 1.5, "in_spread_max": largest(seed) if gpt else 1.0}
        return {**norms(place), **spread, **dots(place, 0.5)}

    found = judged(tmp_path, "fig4", metrics)
    assert found["embedding_conditioning"].verdict == verdict
    assert found["larger_dot_products"].verdict == HOLDS


@pytest.mark.parametrize(("inputs", "outputs"), [(0.02, 2.0), (2.0, 0.02)])
def test_larger_dot_products_need_input_and_output_embeddings(tmp_path: Path, inputs: float, outputs: float) -> None:
    found = judged(tmp_path, "fig4", lambda place, _: {**norms(place), **dots(place, inputs, outputs)})
    assert found["larger_dot_products"].verdict == FAILS


@pytest.mark.parametrize(("after", "verdict"), [(3.0, HOLDS), (1.5, FAILS)])
def test_condition_numbers_are_compared_before_and_after_renormalising(
    tmp_path: Path, after: float, verdict: str
) -> None:
    def metrics(place: Place, seed: int) -> dict[str, float]:
        if place["model"] == "ngpt":
            return {"condition_attention": 2.0 + 0.01 * seed, "condition_attention_renormalized": 100.0}
        return {"condition_attention": 6.0, "condition_attention_renormalized": after}

    found = judged(tmp_path, "fig5", metrics)
    assert found["condition_numbers"].verdict == verdict
    assert found["renormalizing_lowers"].verdict == HOLDS


def steps(attention: float = 0.2, mlp: float = 0.35, spread: float = 1.2) -> dict[str, float]:
    return {"mean_alpha_A": attention, "mean_alpha_M": mlp, "sqk_spread": spread}


@pytest.mark.parametrize(
    ("metrics", "verdict"),
    [
        (lambda seed: steps(), HOLDS),
        (lambda seed: steps(attention=0.05), FAILS),
        (lambda seed: steps(mlp=0.5), FAILS),
        (lambda seed: steps(attention=0.36), FAILS),
        (lambda seed: steps(attention=0.1 + 0.05 * (seed - 1)), UNDECIDED),
    ],
)
def test_steps_are_modest_and_the_mlp_s_larger(
    tmp_path: Path, metrics: Callable[[int], dict[str, float]], verdict: str
) -> None:
    def only_base(place: Place, seed: int) -> dict[str, float]:
        return metrics(seed) if place["run"] == "base" else steps(attention=0.9, mlp=0.9)

    assert judged(tmp_path, "fig6", only_base)["modest_steps"].verdict == verdict


def test_s_qk_has_to_be_stable_in_every_run(tmp_path: Path) -> None:
    assert judged(tmp_path / "stable", "fig6", lambda *_: steps(spread=1.4))["sqk_stable"].verdict == HOLDS

    def one_run(place: Place, seed: int) -> dict[str, float]:
        return steps(spread=1.6 if place["run"] == "lr_double" else 1.1)

    found = judged(tmp_path / "one", "fig6", one_run)["sqk_stable"]
    assert found.verdict == FAILS and len(found.parts) == 6
    assert [part.verdict for label, part in found.parts if "rate" in label] == [FAILS]
    noisy = judged(tmp_path / "noisy", "fig6", lambda place, seed: steps(spread=1.4 + 0.1 * seed))["sqk_stable"]
    assert noisy.verdict == UNDECIDED


def test_the_text_s_numbers_stand_beside_the_means_over_seeds(tmp_path: Path) -> None:
    fill(tmp_path, PLANS["fig6"], lambda place, seed: steps(attention=0.2 + 0.01 * seed, mlp=0.3))
    table, _ = render.render(PLANS["fig6"], tmp_path, None)
    assert table.summary() == pytest.approx({"alpha_A_small": 0.21, "alpha_M_small": 0.3})
    text = (tmp_path / PLANS["fig6"].folder / "table.md").read_text()
    assert "| Mean |alpha_A|, 0.5B" in text.replace("\\|", "|") and "0.25" in text


def test_one_seed_judges_what_is_exact_alone(tmp_path: Path) -> None:
    artifact: Artifact = ARTIFACTS["fig4"]
    plan = plans.make(artifact, "cpu", seeds=[0])
    view = fill(tmp_path, plan, lambda place, _: {**norms(place), "in_spread_95": math.pi, "in_spread_max": 9.0})
    found = {claim.id: judge_claim(claim, view).verdict for claim in artifact.claims}
    assert (found["embedding_norms_fixed"], found["embedding_conditioning"]) == (UNDECIDED, UNDECIDED)
    parts = next(judge_claim(claim, view).parts for claim in artifact.claims if claim.id == "embedding_norms_fixed")
    assert {label.split(", ")[1]: part.word for label, part in parts} == {"nGPT": "holds (exact)", "GPT": UNDECIDED}

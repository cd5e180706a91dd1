import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement
from paper_repro.artifacts.claims import judge as judge_claim
from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.artifacts.judgements import OTHER_SCALE
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import DIVERGED, FINISHED, Outcome
from paper_repro.tests.support.synthetic import fill

ARTIFACT = catalogue.load("nrgpt/fig4")
PLAN = plans.make(ARTIFACT, "cpu")
COMPANION: Any = ARTIFACT.companions()[0]
PER_SQUARE = {"gpt": 36, "rgpt_parallel": 13, "ff1": 7, "ff2w": 10}
WIDTHS = {"w32": 32, "w64": 64, "w128": 128}
OUTER = {"w32": "lr1e-2", "w64": "lr5e-3", "w128": "lr5e-4"}
"""A rate of each width; with lr2e-3 and these, its rates are three."""
OTHER = {"w32": "lr5e-3", "w64": "lr1e-3", "w128": "lr1e-3"}
Place = Mapping[str, str]


def _loss(place: Place, seed: int) -> float:
    """Straight in the logarithm of the parameters, lr2e-3 best by 0.05; the same noise for all."""
    parameters = PER_SQUARE[place["model"]] * WIDTHS[place["width"]] ** 2
    return 4 - 0.2 * math.log(parameters) + 0.05 * (place["setting"] != "lr2e-3") + 0.01 * seed


def _outcome(
    cell: PlannedCell, loss: Callable[[Place, int], float], gap: Callable[[Place, int], float] = lambda *_: 0.2
) -> Outcome:
    place = dict(cell.key)
    best = loss(place, cell.seed)
    found = {"best_val_loss": best, "val_loss": best + 0.1, "train_loss": best + 0.1 - gap(place, cell.seed)}
    return Outcome(
        FINISHED, {**found, "best_step": 200.0}, parameters=PER_SQUARE[place["model"]] * WIDTHS[place["width"]] ** 2
    )


def _judged(root: Path, outcome: Callable[[PlannedCell], Outcome | None]) -> dict[str, Judgement]:
    fill(root, PLAN, outcome)
    view = views.build(PLAN, root, None)
    everywhere = [replace(claim, scales=[]) for claim in ARTIFACT.claims]  # one is made of larger scales
    return {claim.id: judge_claim(claim, view) for claim in everywhere}


def _parity(root: Path, factor: Callable[[Place, int], float]) -> Judgement:
    def loss(place: Place, seed: int) -> float:
        return _loss(place, seed) * (factor(place, seed) if place["model"].startswith("ff") else 1.0)

    return _judged(root, lambda cell: _outcome(cell, loss))["shakespeare_parity"]


def test_equal_curves_are_on_par_at_every_common_size(tmp_path: Path) -> None:
    found = _parity(tmp_path, lambda *_: 1.0)
    assert found.verdict == HOLDS
    sizes = {f"{PER_SQUARE[model] * width**2:,}" for model in PER_SQUARE for width in WIDTHS.values() if model != "gpt"}
    smallest, largest = 13 * 32**2, 10 * 128**2  # from the baseline's smallest model to NRGPT's largest
    common = {size for size in sizes if smallest <= int(size.replace(",", "")) <= largest}
    assert {label.split(", ")[1].split()[0] for label, _ in found.parts} == common
    # Interpolating a straight line is exact; noise is paired away.
    assert all(part.because == "ratio 1.000 [1.000, 1.000], 3 pairs" for _, part in found.parts)


def test_parity_takes_the_better_variant_and_has_a_margin(tmp_path: Path) -> None:
    def only_ff1_is_bad(place: Place, seed: int) -> float:
        return 1.2 if place["model"] == "ff1" and place["width"] != "w128" else 1.0

    assert _parity(tmp_path / "better", only_ff1_is_bad).verdict == HOLDS
    assert _parity(tmp_path / "inside", lambda *_: 1.02).verdict == HOLDS
    assert _parity(tmp_path / "outside", lambda *_: 1.04).verdict == FAILS
    assert _parity(tmp_path / "lower", lambda *_: 0.8).verdict == HOLDS
    assert _parity(tmp_path / "noisy", lambda _, seed: 1.0 + 0.05 * seed).verdict == UNDECIDED


@pytest.mark.parametrize(
    ("nrgpt", "verdict"),
    [(lambda seed: 0.1, HOLDS), (lambda seed: 0.3, FAILS), (lambda seed: 0.1 * seed, UNDECIDED)],
)
def test_overfitting_is_judged_at_the_largest_width_in_the_best_setting(
    tmp_path: Path, nrgpt: Callable[[int], float], verdict: str
) -> None:
    def gap(place: Place, seed: int) -> float:
        if place["setting"] != "lr2e-3" or place["width"] != "w128":
            return 0.2 if place["model"].startswith("ff") else -5.0  # would turn the verdict if it were read
        return nrgpt(seed) if place["model"].startswith("ff") else 0.2

    found = _judged(tmp_path, lambda cell: _outcome(cell, _loss, gap))["shakespeare_no_overfit"]
    assert found.verdict == verdict
    assert len(found.parts) == 2


def test_sensitivity_compares_spreads_over_settings_at_each_width(tmp_path: Path) -> None:
    def wider(model: str) -> Callable[[Place, int], float]:
        def loss(place: Place, seed: int) -> float:
            bad = place["setting"] == OUTER[place["width"]] and place["model"].startswith(model)
            return _loss(place, seed) + (0.1 + 0.01 * seed) * bad

        return loss

    found = _judged(tmp_path / "nrgpt", lambda cell: _outcome(cell, wider("ff")))["hyperparameter_sensitivity"]
    assert found.verdict == HOLDS
    assert len(found.parts) == 2 * len(WIDTHS)
    # 0.1, 0.11 and 0.12 more than GPT's 0.05: t(0.975, 2) = 4.3027 times 0.01 / sqrt(3) either way.
    assert found.parts[0][1].because == "difference -0.1100 [-0.1348, -0.0852], 3 pairs"
    reverse = _judged(tmp_path / "gpt", lambda cell: _outcome(cell, wider("gpt")))["hyperparameter_sensitivity"]
    assert reverse.verdict == FAILS


def test_both_ends_of_a_spread_have_to_be_below_the_floor(tmp_path: Path) -> None:
    def loss(place: Place, seed: int) -> float:
        ours = place["model"].startswith("ff")
        width = place["width"]
        bad = {OUTER[width]: 3.0 if width == "w32" else 0.2, OTHER[width]: 0.1}.get(place["setting"], 0.0)
        return 2.0 + 0.001 * seed + (bad + 0.01 * seed if ours else 0.0)

    fill(tmp_path, PLAN, lambda cell: _outcome(cell, loss), {"best_val_loss": 4.0, "val_loss": 4.0})
    claims = {claim.id: claim for claim in ARTIFACT.claims}
    found = judge_claim(claims["hyperparameter_sensitivity"], views.build(PLAN, tmp_path, None))
    assert found.verdict == NOT_JUDGED
    assert [part.verdict for _, part in found.parts] == [NOT_JUDGED] * 2 + [HOLDS] * 4


@pytest.mark.parametrize(("name", "claim"), [("fig4", "shakespeare_no_overfit"), ("table2", "diversity_distinct_2")])
def test_what_a_short_run_or_a_short_text_cannot_show_is_judged_at_larger_scales(
    tmp_path: Path, name: str, claim: str
) -> None:
    artifact = catalogue.load(f"nrgpt/{name}")
    verdicts = {}
    for scale in artifact.scales:
        view = views.build(plans.make(artifact, scale), tmp_path, None)
        verdicts[scale] = {one.id: judge_claim(one, view).verdict for one in artifact.claims}[claim]
    assert verdicts == {"smoke": OTHER_SCALE, "cpu": OTHER_SCALE, "gpu": UNDECIDED, "paper": UNDECIDED}


def test_a_diverged_setting_is_in_no_spread_and_nothing_run_is_undecided(tmp_path: Path) -> None:
    def diverges(cell: PlannedCell) -> Outcome:
        if dict(cell.key)["setting"] == OUTER[dict(cell.key)["width"]]:
            return Outcome(DIVERGED, parameters=7)
        return _outcome(cell, lambda place, seed: _loss(place, seed) + 0.1 * sensitive(place))

    def sensitive(place: Place) -> bool:
        return place["model"].startswith("ff") and place["setting"] == OTHER[place["width"]]

    judged = _judged(tmp_path / "diverged", diverges)
    assert judged["shakespeare_parity"].verdict == HOLDS
    sensitivity = judged["hyperparameter_sensitivity"]
    assert {part.because for _, part in sensitivity.parts} == {"difference -0.1000 [-0.1000, -0.1000], 3 pairs"}
    empty = _judged(tmp_path / "empty", lambda cell: None)
    assert {(found.verdict, found.because) for found in empty.values()} == {(UNDECIDED, "not run")}


def test_the_figure_has_every_run_and_draws_the_better_half(tmp_path: Path) -> None:
    fill(tmp_path, PLAN, lambda cell: _outcome(cell, _loss))
    figure = COMPANION.Figure4(views.build(PLAN, tmp_path, None))
    written = {path.name: path for path in figure.write(tmp_path / "figure")}
    assert set(written) == {"figure.csv", "figure.png", "figure.svg"}
    rows = [row for row in csv.DictReader(written["figure.csv"].open()) if not row["floor"]]
    assert {row["metric"] for row in rows} == {"best_val_loss", "train_loss"}
    runs = [row for row in rows if row["metric"] == "best_val_loss" and row["kind"] == "run"]
    assert len(runs) == len(PLAN.cells)
    own = [row for row in runs if row["model"] == "ff1" and row["width"] == "w64"]
    drawn = sorted(float(row["value"]) for row in own if row["drawn"] == "1")
    assert drawn == sorted(float(row["value"]) for row in own)[:5]  # of 9
    (best,) = (
        row
        for row in rows
        if (row["metric"], row["kind"], row["model"], row["width"]) == ("best_val_loss", "best", "ff1", "w64")
    )
    assert (best["setting"], best["seed"], int(best["parameters"])) == ("lr2e-3", "mean", 7 * 64**2)
    assert float(best["value"]) == pytest.approx(4 - 0.2 * math.log(7 * 64**2) + 0.01, rel=2e-6)
    assert "NRGPT_H_FF1" in written["figure.svg"].read_text()


def test_a_figure_without_records_is_empty_axes(tmp_path: Path) -> None:
    figure = COMPANION.Figure4(views.build(PLAN, tmp_path, None))
    assert figure.rows() == []
    assert len(figure.write(tmp_path / "figure")) == 3


def test_scales_run_what_they_say() -> None:
    assert len(PLAN.cells) == 4 * 3 * 3 * 3
    base = next(cell.config for cell in PLAN.cells if dict(cell.key)["setting"] == "lr1e-3")
    assert (base["training"]["steps"], base["data"]["batch_size"], base["model"]["block_length"]) == (2000, 8, 128)
    paper = ARTIFACT.scales["paper"]
    assert len(ARTIFACT.points(paper)) == 4 * 7 * 3 * 3 * 9
    for key in ARTIFACT.points(paper):
        place = dict(key)
        assert int(place["width"][1:]) % int(place["heads"][1:]) == 0

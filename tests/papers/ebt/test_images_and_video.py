"""EBT on images, video and Sudoku: estimates with their sides, words, and the rows of figures."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paper_repro.papers.ebt.fig8 import Figure8
from paper_repro.papers.ebt.figB1 import FigureB1
from paper_repro.papers.ebt.figB2 import FigureB2
from paper_repro.papers.ebt.figB6 import FigureB6
from paper_repro.papers.ebt.table5 import Figure5
from paper_repro.probes.attachments import png
from paper_repro.tables.baselines import MeasuredBaseline
from paper_repro.tables.claims import CANNOT_TELL, NO_DIFFERENCE, NOT_BEATEN, OPPOSITE, SEEN
from paper_repro.tables.figure import Figure
from paper_repro.tables.table import table_of
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made, MadeUpView, Place

WIDTHS = ["less", "one", "more", "double"]
STRIP = png(torch.zeros(2, 1, 4, 4))


def by_model(**metrics: tuple[float, float]) -> Made:
    """Metrics of EBT and of every other model."""
    return Made(lambda place, seed: {name: both[place["model"] != "ebt"] for name, both in metrics.items()})


def video(**powers: float) -> Made:
    """Losses that fall as powers of the width."""

    def width(place: Place) -> float:
        return float(2 ** WIDTHS.index(place["width"]))

    return Made(
        lambda place, seed: {
            "test_loss": 0.04 * width(place) ** -powers[place["model"]],
            "trunk_parameters": 1000.0 * width(place),
        },
        counted=lambda place: {"width": width(place)},
        noise=1e-6,
    )


def denoised(passes: tuple[float, ...]) -> Made:
    """PSNRs of EBT after each pass at more noise; DiT has one whole pass and one of two steps."""

    def files(place: Place, seed: int) -> Mapping[str, bytes]:
        rows = [f"out,1,{count},{count},{psnr + 0.01 * seed * count}" for count, psnr in enumerate(passes, 1)]
        if place["model"] == "dit":
            rows = [f"out,200,1,200,{19.0 + seed}", f"out,2,1,2,{20.0 + seed}"]
        table = "\n".join(["level,steps,passes,nfe,psnr", "in,1,1,1,25", *rows]).encode()
        return {"denoising.csv": table, "original.png": STRIP, "out_found.png": STRIP}

    return Made(lambda place, seed: {"out_psnr": 22.0 if place["model"] == "ebt" else 18.0}, files=files, noise=0.0)


def turned(**metrics: tuple[float, float]) -> tuple[Made, Made]:
    return by_model(**metrics), by_model(**{name: both[::-1] for name, both in metrics.items()})


CASES = {
    "figB1#video_scaling": ((video(ebt=0.5, transformer=0.1), video(ebt=0.1, transformer=0.5)), 0.4),
    "figB2#frame_energy_is_uncertainty": ((by_model(energy_rank=(0.3, 0)), by_model(energy_rank=(-0.3, 0))), 0.3),
    "figB6#more_passes_help_at_more_noise": ((denoised((14.0, 20.0, 21.0)), denoised((21.0, 20.0, 14.0))), 7.0),
    "table4#denoise_fewer_passes": (turned(in_psnr=(27.0, 26.0)), 1.0),
    "table4#better_features": (turned(top_1=(0.5, 0.2)), 0.3),
    "table5#sudoku_order": (turned(boards=(0.5, 0.3), blanks=(0.9, 0.9)), 0.2),
}


def judged(view: MadeUpView, claim: str) -> tuple[float | None, str]:
    """Return a claim's estimate and word."""
    found = next(one for one in table_of(view).judgements if one.claim.id == claim)
    interval = found.estimate.interval
    return None if interval is None else interval.mean, found.verdict


@pytest.mark.parametrize("name", CASES)
def test_an_estimate_has_its_value_and_its_side(name: str) -> None:
    (made, other), expected = CASES[name]
    artifact, _, claim = name.partition("#")
    views = [made_up.view(f"ebt/{artifact}", one) for one in (made, other)]
    assert judged(views[0], claim) == (pytest.approx(expected, rel=0.01), SEEN)
    assert judged(views[1], claim) == (pytest.approx(-expected, rel=0.01), OPPOSITE)
    assert judged(made_up.without(views[0]), claim) == (None, CANNOT_TELL)


def test_two_metrics_of_one_model_are_compared() -> None:
    metrics = {"boards": 0.5, "boards_2x": 0.8, "boards_best_of_10": 0.4, "blanks": 0.9}
    view = made_up.view("ebt/table5", Made(lambda place, seed: metrics))
    assert judged(view, "more_steps_help_ebt") == (pytest.approx(0.3, rel=0.01), SEEN)
    assert judged(view, "energy_chooses_boards") == (pytest.approx(-0.1, rel=0.01), OPPOSITE)
    psnr = made_up.view("ebt/table4", Made(lambda place, seed: {"in_psnr": 25.0, "in_psnr_double": 26.0}))
    assert judged(psnr, "better_at_equal_time") == (pytest.approx(-1.0, rel=0.01), OPPOSITE)


def test_the_smallest_effect_is_the_claims_own() -> None:
    view = made_up.view("ebt/table4", by_model(in_psnr=(25.05, 25.0), top_1=(0.505, 0.5)))
    assert {judged(view, name)[1] for name in ("denoise_fewer_passes", "better_features")} == {NO_DIFFERENCE}


def with_baselines(view: MadeUpView, **values: Mapping[str, float]) -> MadeUpView:
    """Return the view with measured baselines: by name, their metrics."""
    record = next(iter(next(iter(view.points.values())).own.values()))
    found = [
        MeasuredBaseline(one, {seed: replace(record, metrics=values[one.name]) for seed in range(3)}, {}, (0, 1, 2))
        for one in view.plan.baselines
        if one.name in values
    ]
    return replace(view, baselines=tuple(found))


def test_features_below_raw_pixels_decide_nothing() -> None:
    view = made_up.view("ebt/table4", by_model(top_1=(0.8, 0.7)))
    pixels, chance = ({name: {"top_1": 0.9}} for name in ("pixels", "frequent_classes"))
    assert judged(with_baselines(view, **pixels), "better_features")[1] == NOT_BEATEN
    assert judged(with_baselines(view, **chance), "better_features")[1] == SEEN


def test_images_are_drawn_with_their_errors() -> None:
    view = made_up.view("ebt/fig8", denoised((20.0,)))
    rows = Figure8(with_baselines(view, wiener={"out_psnr": 21.0})).rows()
    assert [tuple(row.values()) for row in rows] == [("wiener", 0, 21.0), ("dit", 0, 18.0), ("ebt", 0, 22.0)]


def test_whole_passes_of_dit_are_apart_from_short_ones() -> None:
    view = with_baselines(made_up.view("ebt/figB6", denoised((14.0, 20.0))), wiener={"in_psnr": 24.0, "out_psnr": 21.0})
    rows = [row for row in FigureB6(view).rows() if row["level"] == "out" and row["seed"] == 1]
    found = {(row["series"], row["evaluations"]): row["psnr"] for row in rows}
    assert found == {("ebt", 1): 14.01, ("ebt", 2): 20.02, ("dit", 200): 20.0, ("dit_short", 2): 21.0}
    assert [(line.value, line.panel) for line in FigureB6(view).baselines()] == [(24.0, 0), (21.0, 1)]


def test_each_run_on_video_has_a_point_over_width_and_over_parameters() -> None:
    rows = FigureB1(made_up.view("ebt/figB1", video(ebt=1.0, transformer=0.0))).rows()
    own = {(row["panel"], row["x"]): row["loss"] for row in rows if (row["model"], row["seed"]) == ("ebt", 2)}
    assert own["width", 8] == own["trunk_parameters", 8000] == pytest.approx(0.005, rel=1e-4)
    assert len(rows) == 2 * 2 * 4 * 3


def frames(place: Place, seed: int) -> Mapping[str, bytes]:
    lines = [f"{kind},{frame},{frame + seed},0.1" for kind in ("goes_on", "still", "cut") for frame in (2, 3)]
    return {"frames.csv": "\n".join(["kind,frame,energy,loss", *lines]).encode(), "still.png": STRIP}


FRAMES = Made(lambda place, seed: {"energy_rank": 0.3}, files=frames)


def test_each_frame_of_each_kind_of_clip_is_a_row() -> None:
    rows = FigureB2(made_up.view("ebt/figB2", FRAMES)).rows()
    assert len(rows) == 3 * 2 * 11
    assert {row["energy"] for row in rows if (row["kind"], row["frame"]) == ("cut", 3)} == {3.0 + n for n in range(11)}


BOARDS = Made(lambda place, seed: {"boards": 0.2, "boards_of_30": 0.3, "boards_of_40": 0.4}, noise=0.0)


def test_boards_are_drawn_over_blanks_beside_the_rules() -> None:
    view = with_baselines(made_up.view("ebt/table5", BOARDS), rules={"boards_of_30": 0.9, "boards_of_40": 1.0})
    rows = {(row["model"], row["blanks"]): row["solved"] for row in Figure5(view).rows() if row["seed"] == 0}
    assert (rows["ebt", 51], rows["ebt", 41], rows["rules", 51], rows["rules", 41]) == (30.0, 40.0, 90.0, 100.0)


@pytest.mark.parametrize(
    ("kind", "name", "made"),
    [
        (Figure8, "fig8", denoised((20.0,))),
        (FigureB1, "figB1", video(ebt=1.0, transformer=0.5)),
        (FigureB2, "figB2", FRAMES),
        (FigureB6, "figB6", denoised((20.0, 21.0))),
        (Figure5, "table5", BOARDS),
    ],
)
def test_a_figure_is_drawn_and_is_empty_without_records(
    kind: type[Figure], name: str, made: Made, tmp_path: Path
) -> None:
    view = made_up.view(f"ebt/{name}", made)
    assert [path.suffix for path in kind(view).write(tmp_path)] == [".csv", ".png", ".svg"]
    empty = kind(made_up.without(view))
    assert empty.rows() == [] and len(empty.write(tmp_path)) == 3

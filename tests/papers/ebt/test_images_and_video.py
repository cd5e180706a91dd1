"""EBT on images, video and Sudoku: estimates with their sides, words, and the rows of figures."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from paper_repro.probes.attachments import png
from paper_repro.tables.claims import CANNOT_TELL, NOT_BEATEN, OPPOSITE, SEEN
from paper_repro.tables.table import table_of
from paper_repro.tables.view import MeasuredBaseline
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


def frames(place: Place, seed: int) -> Mapping[str, bytes]:
    lines = [f"{kind},{frame},{frame + seed},0.1" for kind in ("goes_on", "still", "cut") for frame in (2, 3)]
    return {"frames.csv": "\n".join(["kind,frame,energy,loss", *lines]).encode(), "still.png": STRIP}

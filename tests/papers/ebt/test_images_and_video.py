"""EBT's artifacts on images and video: claims follow the records, and figures draw what these hold."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, judge
from paper_repro.artifacts.figures import Figure
from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.artifacts.plan import Plan
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import Outcome
from paper_repro.papers.ebt.fig8 import Figure8
from paper_repro.papers.ebt.figB1 import FigureB1
from paper_repro.papers.ebt.figB2 import FigureB2
from paper_repro.papers.ebt.figB6 import FigureB6
from paper_repro.probes.pictures import png
from paper_repro.tests.support.synthetic import apart, finished, write_record

STRIP = png(torch.zeros(2, 1, 4, 4))
PSNR = {"noised": (16.0, 10.0), "wiener": (24.0, 20.0), "total_variation": (24.5, 21.0)}
FLOORS = {
    **{name: {"in_psnr": low, "out_psnr": high} for name, (low, high) in PSNR.items()},
    "pixels": {"top_1": 0.9},
    "frequent_classes": {"top_1": 0.1},
    "last_frame": {"test_loss": 0.09},
    "linear_frames": {"test_loss": 0.08},
}
DRAWN = ["figure.csv", "figure.png", "figure.svg"]
Made = Callable[[PlannedCell], tuple[Outcome, dict[str, bytes]]]


def made(root: Path, plan: Plan, outcome: Made) -> views.View:
    """A view of records with their attachments."""
    floors = [(cell, floor.name) for floor in plan.floors for cell in floor.cells.values()]
    outcomes = [(cell, *outcome(cell)) for cell in plan.cells]
    everything = [(cell, apart(cell, found), files) for cell, found, files in outcomes]
    everything += [(cell, finished(**FLOORS[name]), {"out_found.png": STRIP}) for cell, name in floors]
    for cell, found, files in everything:
        folder = record_path(root, cell.id).parent
        folder.mkdir(parents=True)
        for name, content in files.items():
            found.attach(folder, name, content)
        write_record(root, cell, found)
    return views.build(plan, root, None)


def judged(view: views.View) -> dict[str, Judgement]:
    return {claim.id: judge(claim, view) for claim in view.artifact.claims}


def denoised(ebt: float = 26.0, dit: float = 25.0, probe: float = 0.97, third: float = 1.0) -> Made:
    """PSNR of 26 dB at the noise of training stands for EBT, and 25 for DiT; 4 dB less at more noise."""

    def outcome(cell: PlannedCell) -> tuple[Outcome, dict[str, bytes]]:
        model, spread = dict(cell.key)["model"], 0.01 * cell.seed
        base = spread + (ebt if model == "ebt" else dit)
        rows = ["level,steps,passes,nfe,psnr,image_psnr,mse,energy"]
        for level, drop, times in (("in", 0.0, 100), ("out", 4.0, 200)):
            for passes in (1, 2, 3, 4):
                steps = 1 if model == "ebt" else times
                psnr = base - drop - third * (3 - passes) * (level == "out") + 0.1 * spread * passes * (model == "ebt")
                rows.append(f"{level},{steps},{passes},{steps * passes},{psnr},0,0,")
            if model == "dit":
                rows.append(f"{level},2,1,2,{base - drop - 2},0,0,")
        metrics = {"in_psnr": base, "out_psnr": base - 4, "top_1": probe + (0.01 if model == "ebt" else 0.0)}
        for name in ("equal", "double"):
            metrics |= {f"in_psnr_{name}": base + 0.5, f"out_psnr_{name}": base - 3.5}
        files = {"denoising.csv": "\n".join(rows).encode(), "original.png": STRIP, "out_found.png": STRIP}
        return finished(**metrics), files

    return outcome


def plan_of(name: str) -> Plan:
    return plans.make(catalogue.load(f"ebt/{name}"), "cpu")


def test_claims_on_denoising_follow_the_records(tmp_path: Path) -> None:
    found = judged(made(tmp_path, plan_of("table4"), denoised()))
    verdicts = {name: judgement.verdict for name, judgement in found.items()}
    assert verdicts == {**dict.fromkeys(verdicts, HOLDS), "better_at_equal_evaluations": HOLDS}
    shorter = judged(made(tmp_path / "shorter", plan_of("table4"), denoised(dit=25.9)))
    assert shorter["denoise_fewer_passes"].verdict == HOLDS and shorter["better_at_equal_time"].verdict == FAILS


@pytest.mark.parametrize("worse", [{"ebt": 24.2}, {"dit": 24.2}])
def test_a_model_below_a_filter_decides_nothing(worse: dict[str, float], tmp_path: Path) -> None:
    found = judged(made(tmp_path, plan_of("table4"), denoised(**worse)))["denoise_fewer_passes"]
    assert found.verdict == NOT_JUDGED
    assert all("Total variation 24.50" in judgement.because for _, judgement in found.parts)


def test_features_below_raw_pixels_decide_nothing(tmp_path: Path) -> None:
    found = judged(made(tmp_path, plan_of("table4"), denoised(probe=0.8)))["better_features"]
    assert found.verdict == NOT_JUDGED and "raw pixels 90.00" in found.because


def test_passes_are_judged_and_drawn(tmp_path: Path) -> None:
    view = made(tmp_path, plan_of("figB6"), denoised())
    found = judged(view)
    assert {name: judgement.verdict for name, judgement in found.items()} == dict.fromkeys(found, HOLDS)
    rows = FigureB6(view).rows()
    assert {line.value for line in FigureB6(view).floors()} == {value for pair in PSNR.values() for value in pair}
    of_dit = {
        (row["series"], row["evaluations"]) for row in rows if row["level"] == "out" and row["series"][:3] == "dit"
    }
    assert of_dit == {("dit_short", 2), *(("dit", 200 * passes) for passes in (1, 2, 3, 4))}
    down = judged(made(tmp_path / "down", plan_of("figB6"), denoised(third=-1.0)))
    assert down["more_passes_help_at_more_noise"].verdict == FAILS
    none = judged(views.build(plan_of("figB6"), tmp_path / "none", None))
    assert {judgement.verdict for judgement in none.values()} == {UNDECIDED}


def test_pictures_are_drawn_with_their_errors(tmp_path: Path) -> None:
    rows = Figure8(made(tmp_path, plan_of("fig8"), denoised())).rows()
    assert {row["model"]: row["psnr"] for row in rows}["ebt"] == 22.0 and {row["seed"] for row in rows} == {0}


def on_video(ebt: tuple[float, ...] = (0.05, 0.036, 0.026, 0.02), rise: float = 0.1) -> Made:
    """Losses of EBT over four widths; those of Transformer++ fall from 0.04 by a tenth each time."""

    def outcome(cell: PlannedCell) -> tuple[Outcome, dict[str, bytes]]:
        place, spread = dict(cell.key), 1 + 0.01 * cell.seed
        index = ["less", "one", "more", "double"].index(place.get("width", "one"))
        loss = spread * (ebt[index] if place["model"] == "ebt" else 0.04 * 0.9**index)
        metrics = {"test_loss": loss, "trunk_parameters": 1000.0 * 4**index}
        metrics |= {"energy_rank": 0.3 * spread, "still_fall": spread, "cut_rise": spread * rise}
        lines = [f"{kind},{frame},{frame + cell.seed},0.1" for kind in ("goes_on", "still", "cut") for frame in (2, 3)]
        files = {"frames.csv": "\n".join(["kind,frame,energy,loss", *lines]).encode(), "still.png": STRIP}
        return finished(**metrics), files if place["model"] == "ebt" else {}

    return outcome


def test_video_scaling_follows_the_records(tmp_path: Path) -> None:
    plan = plan_of("figB1")
    assert judged(made(tmp_path / "as", plan, on_video()))["video_scaling"].verdict == HOLDS
    slow = judged(made(tmp_path / "slow", plan, on_video((0.05, 0.0495, 0.049, 0.0485))))["video_scaling"]
    assert slow.verdict == FAILS and slow.parts[0][1].verdict == HOLDS
    below = judged(made(tmp_path / "below", plan, on_video((0.085, 0.03, 0.02, 0.015))))["video_scaling"]
    assert below.verdict == NOT_JUDGED and "Linear map of two frames 0.08000" in below.parts[0][1].because
    rows = FigureB1(views.build(plan, tmp_path / "as", None)).rows()
    assert {row["x"] for row in rows if row["panel"] == "trunk_parameters" and row["model"] == "ebt"} == {
        1000,
        4000,
        16000,
        64000,
    }
    drawn = FigureB1(views.build(plan, tmp_path / "as", None)).floors()
    heights = {line.label: line.value for line in drawn}
    assert heights == {"The last frame again": 0.09, "Linear map of two frames": 0.08}


def test_energies_of_frames_are_judged_where_ebt_is_below_the_floors(tmp_path: Path) -> None:
    plan = plan_of("figB2")
    found = judged(made(tmp_path / "as", plan, on_video()))
    assert {name: judgement.verdict for name, judgement in found.items()} == dict.fromkeys(found, HOLDS)
    assert judged(made(tmp_path / "falls", plan, on_video(rise=-0.1)))["a_cut_raises_the_energy"].verdict == FAILS
    below = judged(made(tmp_path / "below", plan, on_video((0.2, 0.2, 0.2))))
    assert {judgement.verdict for judgement in below.values()} == {NOT_JUDGED}
    assert len(FigureB2(views.build(plan, tmp_path / "as", None)).rows()) == 18


@pytest.mark.parametrize(
    ("figure", "name", "outcome"),
    [
        (FigureB6, "figB6", denoised()),
        (Figure8, "fig8", denoised()),
        (FigureB1, "figB1", on_video()),
        (FigureB2, "figB2", on_video()),
    ],
)
def test_figures_are_drawn_and_are_empty_without_records(
    figure: type[Figure], name: str, outcome: Made, tmp_path: Path
) -> None:
    plan = plan_of(name)
    drawn = figure(made(tmp_path / "records", plan, outcome))
    assert [path.name for path in drawn.write(tmp_path / "drawn")] == DRAWN
    empty = figure(views.build(plan, tmp_path / "none", None))
    assert empty.rows() == [] and len(empty.write(tmp_path / "empty")) == 3

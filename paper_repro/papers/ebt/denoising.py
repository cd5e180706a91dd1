"""What EBT's artifacts on noised images share: errors over forward passes, and whether a model is above the floors."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass

from paper_repro.artifacts.claims import HOLDS, UNDECIDED, Judgement, Order, Place, Side
from paper_repro.artifacts.views import View

EBT, DIT = {"model": "ebt"}, {"model": "dit"}
LEVELS = {"in": "at the noise of training", "out": "at more noise"}
FLOORS = {"in": ("noised", "wiener", "total_variation"), "out": ("noised",)}
"""What a model must be above to say anything, by level; filters are fitted to more noise, and the models are not."""


@dataclass(frozen=True)
class Passed:
    """What one way of denoising found in all test images of a level."""

    seed: int
    level: str
    steps: int
    """Steps of a pass."""
    passes: int
    evaluations: int
    psnr: float


def passed(view: View, place: Place) -> list[Passed]:
    """Return every way of the finished cells at a place."""
    found = []
    for seed, content in sorted(view.attachments("denoising.csv", place).items()):
        for row in csv.DictReader(io.StringIO(content.decode())):
            whole = {name: int(row[name]) for name in ("steps", "passes")}
            found.append(Passed(seed, row["level"], **whole, evaluations=int(row["nfe"]), psnr=float(row["psnr"])))
    return found


def not_above(view: View, name: str, models: Iterable[Place], floors: Iterable[str]) -> Judgement | None:
    """Return why a claim is undecided: a model whose metric is not above a floor's; None: all are."""
    labels = {key: value.label for key, value in view.artifact.axes["model"].values.items()}
    for place in models:
        for floor in floors:
            learned = Order(Side(name, place), Side(name, {"model": floor})).judge(view, {})
            if learned.verdict != HOLDS:
                what = f"{labels[place['model']]} is not above '{labels[floor]}': {learned.because}"
                return Judgement(UNDECIDED, what)
    return None


def not_learned(view: View, level: str) -> Judgement | None:
    """Return why nothing is decided about a level: EBT or DiT is not above its floors, or not above those at the noise
    of training; None: both are.
    """
    reasons = (not_above(view, f"{one}_psnr", (EBT, DIT), FLOORS[one]) for one in dict.fromkeys(("in", level)))
    return next((reason for reason in reasons if reason is not None), None)

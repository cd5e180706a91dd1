"""What EBT's artifacts on noised images share: errors over forward passes."""

import csv
import io
from dataclasses import dataclass

from paper_repro.artifacts.claims import Place
from paper_repro.artifacts.views import View

EBT, DIT = {"model": "ebt"}, {"model": "dit"}
LEVELS = {"in": "at the noise of training", "out": "at more noise"}


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

"""CET, figure 3: energies along relaxations far longer than those of the training."""

from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, exactly, tested
from paper_repro.artifacts.shares import every, share
from paper_repro.artifacts.views import View
from paper_repro.papers.cet.relaxations import ENERGY_MARKS, EP, RelaxationFigure

IMAGES = 16
"""Images of each model that are relaxed."""
SOME = 0.01
"""The smallest share of images that the word "some" can mean."""
STEP_SIZES = {"long": "step size 1", "tenth": "step size 0.1"}


class Figure3(RelaxationFigure):
    size = (10.0, 4.0)
    name = "long"
    marks = ENERGY_MARKS
    energies = True


def judge_energy_falls_each_step(view: View) -> Judgement:
    """Judge whether the energy of every image falls in every recorded interval of every model."""
    parts = []
    for name, label in STEP_SIZES.items():
        found, looked = (view.samples(f"{name}_{metric}", EP) for metric in ("rises", "intervals"))
        if not found:
            parts.append((label, Judgement(UNDECIDED, view.absence(f"{name}_rises", EP))))
            continue
        rises, intervals = sum(found.values()), sum(looked.values())
        if rises:
            largest = max(view.samples(f"{name}_rise_largest", EP).values())
            text = f"{rises:,.0f} rises in {intervals:,.0f} intervals of {len(found)} models"
            parts.append((label, exactly(False, f"{text}, the largest {largest:.1e} of the terms' magnitudes")))
        else:
            text = f"images have a rise, in {intervals:,.0f} intervals"
            parts.append((label, every(dict.fromkeys(found, (0, IMAGES)), text)))
    return combine(parts, FAILS, HOLDS)


def judge_saddles(view: View) -> Judgement:
    """Judge whether the share of images that leave a plateau is above ``SOME``."""
    found = view.samples("long_late", EP)
    if not found:
        return Judgement(UNDECIDED, view.absence("long_late", EP))
    numbers = ", ".join(f"{found[seed]:.0f}" for seed in sorted(found))
    interval = share({seed: (round(number), IMAGES) for seed, number in found.items()})
    text = f"{numbers} of {IMAGES} images, by seed: share {interval}, above {SOME:g} wanted"
    return tested(interval, text, SOME)

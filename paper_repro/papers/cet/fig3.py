"""CET, figure 3: energies along relaxations far longer than those of the training."""

from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine
from paper_repro.artifacts.views import View
from paper_repro.papers.cet.relaxations import EP, RelaxationFigure

IMAGES = 16
"""Images of each model that are relaxed."""
SOME = 0.01
"""The smallest share of images that the word "some" can mean."""
STEP_SIZES = {"long": "step size 1", "tenth": "step size 0.1"}


class Figure3(RelaxationFigure):
    size = (10.0, 4.0)
    name = "long"
    energies = True


def judge_energy_falls_each_step(view: View) -> Judgement:
    """Judge whether the energy rises in no recorded interval of any model."""
    parts = []
    for name, label in STEP_SIZES.items():
        found, looked = (view.samples(f"{name}_{metric}", EP) for metric in ("rises", "intervals"))
        if not found:
            parts.append((label, Judgement(UNDECIDED, view.absence(f"{name}_rises", EP))))
            continue
        rises = sum(found.values())
        largest = max(view.samples(f"{name}_rise_largest", EP).values())
        text = f"{rises:,.0f} rises in {sum(looked.values()):,.0f} intervals of {len(found)} models"
        text += f", the largest {largest:.1e} of the terms' magnitudes" if rises else ""
        parts.append((label, Judgement(FAILS if rises else HOLDS, text)))
    return combine(parts, FAILS, HOLDS)


def judge_saddles(view: View) -> Judgement:
    """Judge whether in every model an image leaves a plateau.

    Where none does in any, too few images may have been looked at: it fails only if the exact 95 % bound of the share
    of images that do is below ``SOME``.
    """
    found = view.samples("long_late", EP)
    if not found:
        return Judgement(UNDECIDED, view.absence("long_late", EP))
    numbers = [found[seed] for seed in sorted(found)]
    text = f"{', '.join(f'{number:.0f}' for number in numbers)} of {IMAGES} images, by seed"
    if any(numbers):
        return Judgement(HOLDS if all(numbers) else UNDECIDED, text)
    most = 1 - 0.05 ** (1 / (IMAGES * len(numbers)))
    verdict = FAILS if most < SOME else UNDECIDED
    return Judgement(verdict, f"{text}: none was seen, by which up to {100 * most:.1f} % of all images may leave one")

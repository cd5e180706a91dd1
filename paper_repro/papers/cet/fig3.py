"""CET, figure 3: energies along relaxations far longer than those of the training."""

from paper_repro.papers.cet.relaxations import ENERGY_MARKS, EP, IMAGES, RelaxationFigure
from paper_repro.tables import claims
from paper_repro.tables.view import View


class Figure3(RelaxationFigure):
    size = (8.0, 3.2)
    name = "long"
    marks = ENERGY_MARKS
    energies = True


def estimate_energy_falls_each_step(view: View) -> claims.Estimate:
    """Return the share of images whose energy rises somewhere, at step size 1 or 0.1; a rise counts as one image."""
    long, tenth = (view.samples(f"{name}_rises", EP) for name in ("long", "tenth"))
    rises = {seed: round(long[seed] + tenth[seed]) for seed in long.keys() & tenth.keys()}
    return claims.share(
        "share of images with a rise of the energy",
        {seed: (min(count, IMAGES), IMAGES) for seed, count in rises.items()},
    )


def estimate_saddles(view: View) -> claims.Estimate:
    """Return the share of images that leave a plateau after T1."""
    late = view.samples("long_late", EP)
    counts = {seed: (round(count), IMAGES) for seed, count in late.items()}
    return claims.share("share of images that leave a plateau", counts)

"""Made-up records for CET's predicates."""

import json
from collections.abc import Mapping

from paper_repro.papers.cet.table2 import PARAMETERS, TENSORS
from paper_repro.tests.support.made_up import Made
from paper_repro.tests.support.predicates.case import Case

KNOWN = Made(known=True)


def ep(seeds: int = 3, **metrics: float) -> Made:
    return Made(lambda place, seed: metrics if place["method"] in ("ep", "tbpte") else {}, seeds=tuple(range(seeds)))


def trace(falls: list[float], growths: list[float], late: float = 0.5, shift: float = 0.0) -> bytes:
    """A relaxation of images that fall so much after T1 = 2, and whose errors grow so much."""
    count = len(falls)
    document = {
        "trained": 2,
        "steps": [0, 1, 2, 4],
        "energies": [[10.0] * count, [5.0] * count, [1.0] * count, [1 + shift - fall for fall in falls]],
        "shown": [2, 4],
        "errors": [[0.1] * count, [0.1 + growth for growth in growths]],
        "before": [9.0] * count,
        "after": falls,
        "late": [fall > late for fall in falls],
    }
    return json.dumps(document).encode()


def relaxed(seeds: int = 3, **files: bytes) -> Made:
    named = {f"{name}.json": content for name, content in files.items()}
    return Made(files=lambda place, seed: named, seeds=tuple(range(seeds)))


FALLS = [0.1 * index for index in range(16)]


def correlated(order: int) -> Made:
    """Errors that grow as energies fall (1) or the other way round (-1), but for two images, others in each seed."""

    def files(place: Mapping[str, str], seed: int) -> dict[str, bytes]:
        growths = list(FALLS)
        growths[0], growths[seed + 1] = growths[seed + 1], growths[0]
        return {"long.json": trace(FALLS, growths[::order])}

    return Made(files=files)


FULL = {"long_intervals": 10.0, "tenth_intervals": 10.0, "long_rise_largest": 1e-3, "tenth_rise_largest": 1e-3}


def tensors(more: float) -> Made:
    """The tensors of the built model, the last of which has so many numbers more."""
    share = PARAMETERS // len(TENSORS)
    sizes = dict.fromkeys(TENSORS, float(share)) | {TENSORS[-1]: PARAMETERS - share * (len(TENSORS) - 1) + more}
    sizes["parameters"] = float(PARAMETERS)
    return Made(lambda place, seed: {"value": sizes[place["item"]]} if place["item"] in sizes else {}, 0.0, known=True)


CASES = {
    # It holds only of so many models that fewer than one in twenty can have a rise.
    "cet.fig3.energy_falls_each_step": Case(
        "cet/fig3", ep(72, long_rises=0.0, tenth_rises=0.0, **FULL), ep(long_rises=0.0, tenth_rises=1.0, **FULL)
    ),
    # It fails only of so many models that fewer than one in a hundred can have an image that leaves a plateau.
    "cet.fig3.saddles": Case("cet/fig3", ep(long_late=5.0), ep(370, long_late=0.0)),
    "cet.fig4.spurious_minima": Case("cet/fig4", correlated(1), correlated(-1)),
    "cet.fig5.step_size_insensitive": Case(
        "cet/fig5",
        relaxed(36, long=trace(FALLS, FALLS), tenth=trace(FALLS, FALLS, shift=0.05)),
        # The same energies, and other images collapse: with the small step those of smaller falls, too.
        relaxed(long=trace(FALLS, FALLS, late=1.3), tenth=trace(FALLS, FALLS, late=0.5)),
    ),
    "cet.table1.ep_second_order": Case("cet/table1", ep(estimate_order=2.01), ep(estimate_order=1.0)),
    "cet.table1.bfloat16_suffices": Case(
        "cet/table1", ep(gradient_cosine_bfloat16=0.9995), ep(gradient_cosine_bfloat16=0.99)
    ),
    "cet.table2.dimensions_multiply_out": Case(
        "cet/table2", KNOWN, Made(lambda place, seed: {"value": 7.5}, noise=0.0, known=True)
    ),
    "cet.table2.parameters_add_up": Case("cet/table2", tensors(0.0), tensors(1.0)),
}

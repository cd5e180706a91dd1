"""CET, figures 3 to 5: energies and images along relaxations far longer than those of the training.

Letters: S steps (the paper's T), R recorded steps, N shown steps, B images; T1 is the number of steps of the training's
free phase, as in the paper.
"""

import copy
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.errors import at_least, positive
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.cet import CET, CETClamped, CETState
from paper_repro.models.descent import Trajectory
from paper_repro.probes.completion.tools import completing, first_images
from paper_repro.probes.pictures import png
from paper_repro.training.module import PaperModule

EVERY = 300
"""So many first steps are all recorded."""
ROUNDING = 1e-7
"""A rise counts from this share of the sum of the terms' magnitudes on: that of a float32 state, whose numbers are
rounded by 6e-8 of their size."""
LATE_SHARE, PLATEAU_SHARE = 0.05, 0.5
"""An image leaves a plateau if its energy falls after T1 by more than the first share of its fall before, and within
the second half of T1 by less than the second share of its fall after."""
METRICS = ("rises", "rise_largest", "intervals", "late", "energy_trained", "energy_end", "mse_trained", "mse_end")


@dataclass(frozen=True)
class RelaxationTrace:
    """Relaxes test images once, in the model's own precision, and evaluates the energies in float64.

    The first 300 steps are recorded one by one, later ones as pairs of neighbours evenly spaced in the logarithm: no
    interval between two records may show a rise if the energy falls at every step.  Leaves ``<name>.json`` and a strip
    of images ``<name>_<S>.png`` for each S of ``shown`` and for T1.  Metrics, each with the name in front:

    * ``rises`` of ``intervals``: how often an image's energy was higher than at the record before it, beyond rounding;
      ``rise_largest``: the largest such rise over the sum of the magnitudes of the energy's terms, 0 if there is none.
    * ``late``: images that leave a plateau after T1, see ``LATE_SHARE``.
    * ``energy_trained``, ``energy_end``, ``mse_trained``, ``mse_end``: means over images, after T1 and the last step.

    Args:
        name: of the metrics and files.
        shown: the steps S at which images are kept; the largest ends the relaxation.
        free_steps, trained_step_size: of the training; T1 = free_steps trained_step_size / step_size.
        step_size: of this relaxation.
        num_images: B; 16 in the paper.
        per_decade: recorded pairs of later steps.

    Raises:
        ValueError: an argument out of range, or a relaxation that is not longer than T1.
    """

    name: str
    shown: Sequence[int]
    free_steps: int
    trained_step_size: float = 1.0
    step_size: float = 1.0
    num_images: int = 16
    per_decade: int = 20

    def __post_init__(self) -> None:
        for name in ("free_steps", "num_images", "per_decade"):
            at_least(name, getattr(self, name))
        positive("step_size", self.step_size)
        positive("trained_step_size", self.trained_step_size)
        if not self.shown or max(at_least("shown", number) for number in self.shown) <= self.trained:
            raise ValueError(f"shown must reach beyond the {self.trained} steps of the training, got {self.shown}")

    @property
    def trained(self) -> int:
        """Return T1, in steps of this relaxation."""
        return max(1, round(self.free_steps * self.trained_step_size / self.step_size))

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Trace the first test images.

        Raises:
            UsageError: a model that is no CET, or too few test images.
        """
        model = completing(module, self.name)
        masked, images = first_images(data, self.num_images, module.device)
        shown = sorted({*self.shown, self.trained})
        steps = recorded(shown, self.per_decade)
        trajectory = self._relaxed(model, masked, steps, shown)
        completed = [model.patches.images(y) for y in trajectory.states.y]  # N of (B, C, H, H)
        errors = torch.stack([(some - images).square().flatten(1).mean(1).double() for some in completed])  # (N, B)
        traced = Traced(steps, shown, self.trained, *(part.cpu() for part in (*trajectory.energies, errors)))
        if not bool(torch.isfinite(traced.energies).all()):
            clamped = model.clamp(masked)
            found = model.divergence(model.first(clamped), clamped, steps[-1], self.step_size)
            why = str(found or "diverged: an energy was not finite")
            return Findings(unavailable={f"{self.name}_{metric}": why for metric in METRICS})
        measured = {f"{self.name}_{metric}": value for metric, value in metrics(traced).items()}
        strips = {f"{self.name}_{step}.png": png(some) for step, some in zip(shown, completed, strict=True)}
        return Findings(measured, {**strips, f"{self.name}.json": document(traced)})

    def _relaxed(self, model: CET, masked: Tensor, steps: Sequence[int], shown: Sequence[int]) -> Trajectory[CETState]:
        """Relax masked images; records energies, the sums of their terms' magnitudes, (R, B), and the shown states."""
        exact = copy.deepcopy(model).double()
        clamped, exactly = model.clamp(masked), exact.clamp(masked.double())
        return model.relax(
            model.first(clamped),
            clamped,
            steps[-1],
            self.step_size,
            energy=lambda state: _energies(exact, state, exactly),
            energies_at=frozenset(steps),
            states_at=shown,
        )


@dataclass(frozen=True)
class Traced:
    """The numbers of a relaxation from which the metrics follow."""

    steps: Sequence[int]
    shown: Sequence[int]
    trained: int
    energies: Tensor
    """(R, B), float64."""
    scales: Tensor
    """Sums of the magnitudes of the energy's terms, (R, B)."""
    errors: Tensor
    """Mean squared errors at the shown steps, (len(shown), B)."""

    def drops(self) -> tuple[Tensor, Tensor, Tensor]:
        """Measure how far each image's energy falls until T1, after it, and within the second half of T1, (B,) each."""
        at, half = self.steps.index(self.trained), max(s for s in self.steps if s <= (self.trained + 1) // 2)
        first, middle, then, last = (self.energies[i] for i in (0, self.steps.index(half), at, -1))
        return first - then, then - last, middle - then

    def late(self) -> Tensor:
        """Return whether each image leaves a plateau after T1, (B,)."""
        before, after, within = self.drops()
        return (after > LATE_SHARE * before) & (within < PLATEAU_SHARE * after)


def recorded(shown: Sequence[int], per_decade: int) -> list[int]:
    """List the recorded steps: 0, the first 300, pairs of later ones evenly spaced in the logarithm, those shown."""
    last = max(shown)
    found = {*range(min(EVERY, last) + 1), *shown}
    for number in itertools.count(1):
        step = round(EVERY * 10 ** (number / per_decade))
        if step >= last:
            return sorted({*found, max(last - 1, 0)})
        found |= {step, step + 1}
    raise AssertionError("unreachable")


def metrics(traced: Traced) -> dict[str, float]:
    """Compute the metrics of ``RelaxationTrace``, without the name in front."""
    rises = (traced.energies[1:] - traced.energies[:-1]) / traced.scales[1:]
    above = rises > ROUNDING
    at = traced.shown.index(traced.trained)
    return {
        "rises": float(above.sum()),
        "rise_largest": float(rises[above].max()) if bool(above.any()) else 0.0,
        "intervals": float(rises.numel()),
        "late": float(traced.late().sum()),
        "energy_trained": float(traced.energies[traced.steps.index(traced.trained)].mean()),
        "energy_end": float(traced.energies[-1].mean()),
        "mse_trained": float(traced.errors[at].mean()),
        "mse_end": float(traced.errors[-1].mean()),
    }


def document(traced: Traced) -> bytes:
    """Write Write as JSON: steps, energies of each (8 digits), the shown steps with their errors, and each image's
    falls.
    """
    before, after, _ = traced.drops()
    content: dict[str, Any] = {
        "trained": traced.trained,
        "steps": list(traced.steps),
        "energies": _rounded(traced.energies, 8),
        "shown": list(traced.shown),
        "errors": _rounded(traced.errors, 5),
        "before": _rounded(before, 5),
        "after": _rounded(after, 5),
        "late": traced.late().tolist(),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _energies(exact: CET, state: CETState, clamped: CETClamped) -> tuple[Tensor, Tensor]:
    found = exact.energies(CETState(*(part.double() for part in state)), clamped)
    terms = torch.stack(list(found.values()))  # (terms, B)
    return terms.sum(0), terms.abs().sum(0)  # (B,) each


def _rounded(values: Tensor, digits: int) -> Any:
    if values.ndim > 1:
        return [_rounded(row, digits) for row in values]
    return [float(f"{value:.{digits}g}") for value in values.tolist()]

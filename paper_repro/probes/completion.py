"""CET, section 3 and figures 2 to 5: completed images, energies along relaxations far longer than the training's, and
how good a gradient Equilibrium Propagation gives.

Letters: S steps (the paper's T), R recorded steps, N shown steps, B images, C channels, H image side; T1 is the number
of steps of the training's free phase, as in the paper.
"""

import copy
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, one_of
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.cet import (
    CET,
    PRECISIONS,
    CETState,
    Phases,
    equilibrium_propagation,
    full_backpropagation,
)
from paper_repro.probes.attachments import png, rounded
from paper_repro.training.module import PaperModule

NUM_IMAGES = 16
"""Test images that are completed, the paper's number."""
EVERY, PER_DECADE = 300, 20
"""So many first steps are all recorded, and of later steps so many pairs for each power of ten."""
ROUNDING = 1e-7
"""A smaller rise, as a share of the sum of the terms' magnitudes, is rounding of a float32 state."""
LATE_SHARE, PLATEAU_SHARE = 0.05, 0.5
"""An image leaves a plateau if its energy falls after T1 by more than the first share of its fall before, and within
the second half of T1 by less than the second share of its fall after."""
METRICS = ("rises", "rise_largest", "intervals", "late", "energy_trained", "energy_end", "mse_trained", "mse_end")
SMALL = {"channels": 2, "size": 8, "patch": 4, "stride": 2, "width": 6, "num_heads": 2, "head_width": 3}
STRENGTHS = {"num_memories": 5, "init_std": 0.12, "attention_std": 0.2}  # attention and memory matter, it converges
CONVERGED, PUSH = 1e-8, 1e-2
"""A free phase has converged if, pushed by the second number, it comes back to within the first: far below what beta
moves.  A residual alone would take a saddle for an equilibrium."""
ATTEMPTS, NUM_STEPS = 100, 400
"""Models that are tried, and steps of each phase of one: so many that all phases converge."""


def completing(module: PaperModule, probe: str) -> CET:
    """Return the module's model; raise UsageError if it is no CET."""
    if not isinstance(module.model, CET):
        raise UsageError(f"probes.{probe}: {type(module.model).__name__} does not relax; it measures a CET")
    return module.model


def first_images(data: CounterBasedDataModule, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the first masked images and images of the test split, (B, C, H, H) each; UsageError: it has fewer."""
    batches, found = [], 0
    for batch in data.evaluation_batches("test"):
        batches.append(batch)
        found += len(batch[0])
        if found >= NUM_IMAGES:
            masked, images = (torch.cat(parts)[:NUM_IMAGES].to(device) for parts in zip(*batches, strict=True))
            return masked, images
    raise UsageError(f"{NUM_IMAGES} test images are completed, {found} are evaluated: raise data.num_evaluation_images")


def strips_of(images: Tensor, masked: Tensor, completed: Tensor) -> Findings:
    """Return strips of images, of the same masked and completed, (B, C, H, H) each, and the errors of the last."""
    errors = (completed - images).square().flatten(1).mean(1)  # (B,)
    strips = {"images.png": png(images), "masked.png": png(masked), "completed.png": png(completed)}
    numbers = json.dumps(rounded(errors)).encode()
    return Findings({"completed_mse": float(errors.mean())}, {**strips, "completed.json": numbers})


@dataclass(frozen=True)
class Reconstructions:
    """Leaves strips of the first test images, of the same masked, and of the model's completions.

    ``completed_mse`` is their mean squared error over all pixels, ``completed.json`` holds that of each.

    Args:
        free_steps, step_size: of the relaxation.
    """

    free_steps: int
    step_size: float = 1.0

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        model = completing(module, "reconstructions")
        masked, images = first_images(data, module.device)
        return strips_of(images, masked, model(masked, self.free_steps, self.step_size))


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
    """

    name: str
    shown: Sequence[int]
    free_steps: int
    trained_step_size: float = 1.0
    step_size: float = 1.0

    @property
    def trained(self) -> int:
        """T1, in steps of this relaxation."""
        return max(1, round(self.free_steps * self.trained_step_size / self.step_size))

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        model = completing(module, self.name)
        masked, images = first_images(data, module.device)
        shown = sorted({*self.shown, self.trained})
        steps = recorded(shown)
        exact = copy.deepcopy(model).double()
        clamped, exactly = model.clamp(masked), exact.clamp(masked.double())

        def energies(state: CETState) -> tuple[Tensor, Tensor]:
            """Return the energy in float64, and the sum of the magnitudes of its terms, (B,) each."""
            found = exact.energies(CETState(*(part.double() for part in state)), exactly)
            terms = torch.stack(list(found.values()))  # (terms, B)
            return terms.sum(0), terms.abs().sum(0)

        start, at = model.first(clamped), frozenset(steps)
        trajectory = model.relax(
            start, clamped, steps[-1], self.step_size, energy=energies, energies_at=at, states_at=shown
        )
        completed = [model.patches.images(y) for y in trajectory.states.y]  # N of (B, C, H, H)
        errors = torch.stack([(some - images).square().flatten(1).mean(1).double() for some in completed])  # (N, B)
        traced = Traced(steps, shown, self.trained, *(part.cpu() for part in (*trajectory.energies, errors)))
        if not bool(torch.isfinite(traced.energies).all()):
            return Findings(
                unavailable={f"{self.name}_{metric}": "diverged: an energy was not finite" for metric in METRICS}
            )
        measured = {f"{self.name}_{metric}": value for metric, value in traced.metrics().items()}
        strips = {f"{self.name}_{step}.png": png(some) for step, some in zip(shown, completed, strict=True)}
        return Findings(measured, {**strips, f"{self.name}.json": traced.document()})


@dataclass(frozen=True)
class Traced:
    """The numbers of a relaxation from which the metrics follow."""

    steps: Sequence[int]
    shown: Sequence[int]
    trained: int
    energies: Tensor  # (R, B), float64
    scales: Tensor  # sums of the magnitudes of the energy's terms, (R, B)
    errors: Tensor  # mean squared errors at the shown steps, (N, B)

    def drops(self) -> tuple[Tensor, Tensor, Tensor]:
        """Measure how far each image's energy falls until T1, after it, and within the second half of T1, (B,) each."""
        at, half = self.steps.index(self.trained), max(s for s in self.steps if s <= (self.trained + 1) // 2)
        first, middle, then, last = (self.energies[i] for i in (0, self.steps.index(half), at, -1))
        return first - then, then - last, middle - then

    def late(self) -> Tensor:
        """Return whether each image leaves a plateau after T1, (B,)."""
        before, after, within = self.drops()
        return (after > LATE_SHARE * before) & (within < PLATEAU_SHARE * after)

    def metrics(self) -> dict[str, float]:
        """Compute the metrics of ``RelaxationTrace``, without the name in front."""
        rises = (self.energies[1:] - self.energies[:-1]) / self.scales[1:]
        above = rises > ROUNDING
        found = (
            above.sum(),
            rises[above].max() if bool(above.any()) else 0.0,
            rises.numel(),
            self.late().sum(),
            self.energies[self.steps.index(self.trained)].mean(),
            self.energies[-1].mean(),
            self.errors[self.shown.index(self.trained)].mean(),
            self.errors[-1].mean(),
        )
        return {name: float(value) for name, value in zip(METRICS, found, strict=True)}

    def document(self) -> bytes:
        """Write as JSON: steps, energies of each (8 digits), the shown steps with their errors, each image's falls."""
        before, after, _ = self.drops()
        content: dict[str, Any] = {
            "trained": self.trained,
            "steps": list(self.steps),
            "energies": rounded(self.energies, 8),
            "shown": list(self.shown),
            "errors": rounded(self.errors),
            "before": rounded(before),
            "after": rounded(after),
            "late": self.late().tolist(),
        }
        return json.dumps(content, separators=(",", ":")).encode()


def recorded(shown: Sequence[int]) -> list[int]:
    """List the recorded steps: 0, the first 300, pairs of later ones evenly spaced in the logarithm, those shown."""
    last = max(shown)
    found = {*range(min(EVERY, last) + 1), *shown, max(last - 1, 0)}
    later = (round(EVERY * 10 ** (number / PER_DECADE)) for number in itertools.count(1))
    for step in itertools.takewhile(lambda step: step < last, later):
        found |= {step, step + 1}
    return sorted(found)


@dataclass(frozen=True)
class EstimateOrder:
    """Errors of the centred estimate (equation 6) in float64, against backpropagation through all steps.

    |estimate - gradient| / |gradient| of a small untrained model and two images: the first, of those that follow from
    the seed, whose free phase converges to a stable state, because the estimate is about equilibria.

    Metrics: ``estimate_error``, that at ``beta``; ``estimate_order`` and ``estimate_order_first``, the slopes of
    log(error) against log(beta) between the two smallest and the two largest of ``betas``: 2 where the error falls as
    beta squared.

    Args:
        betas: falling.
        beta: of the training.
    """

    betas: Sequence[float] = (1e-2, 3e-3, 1e-3, 3e-4)
    beta: float = 0.01

    def __post_init__(self) -> None:
        if len(self.betas) < 2 or any(one <= two for one, two in itertools.pairwise(self.betas)):
            raise ValueError(f"betas must be two or more, each below the one before, got {self.betas}")

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        model, masked, images = self._instance(seed)
        full_backpropagation(model, masked, images, NUM_STEPS)
        expected = _taken(model)

        def error(beta: float) -> float:
            equilibrium_propagation(model, masked, images, Phases(NUM_STEPS, NUM_STEPS, beta))
            return float((_taken(model) - expected).norm() / expected.norm())

        errors = {beta: error(beta) for beta in dict.fromkeys((*self.betas, self.beta))}
        pairs = itertools.pairwise(self.betas)
        orders = [math.log(errors[one] / errors[two]) / math.log(one / two) for one, two in pairs]
        found = {"order": orders[-1], "order_first": orders[0], "error": errors[self.beta]}
        return Findings({f"estimate_{name}": value for name, value in found.items()})

    def _instance(self, seed: int) -> tuple[CET, Tensor, Tensor]:
        """Return a model with masked images and images; raise UsageError if no model converges."""
        for attempt in range(ATTEMPTS):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(mix(seed, "estimate order", attempt))
                model = CET(**SMALL, **STRENGTHS).double()  # type: ignore[arg-type]
                images = torch.rand(2, 2, 8, 8, dtype=torch.float64) * 2 - 1
                push = CETState(torch.randn(2, 9, 6, dtype=torch.float64), torch.randn(2, 4, 4, 8, dtype=torch.float64))
            masked = images.clone()
            masked[:, :, :4] = 0
            clamped = model.clamp(masked)
            ended = model.relax(model.first(clamped), clamped, NUM_STEPS).state
            pushed = CETState(*(one + PUSH * two for one, two in zip(ended, push, strict=True)))
            back = model.relax(pushed, clamped, NUM_STEPS).state
            if max(float((one - two).abs().max()) for one, two in zip(ended, back, strict=True)) < CONVERGED:
                return model, masked, images
        raise UsageError(f"probes.order: no model of {ATTEMPTS} converges in {NUM_STEPS} steps: take another seed")


@dataclass(frozen=True)
class GradientPrecision:
    """Cosines between the trained model's EP gradients with float32 products, and with others in the relaxation.

    ``gradient_cosine_bfloat16``, ``..._tf32``: the factors rounded to these, sums and state float32; TF32 is n/a off
    CUDA.  ``..._float64``: everything in float64.

    Args:
        narrow: the precisions, among ``PRECISIONS``.
        free_steps, nudged_steps, beta, step_size: see ``Phases``.
    """

    narrow: Sequence[str]
    free_steps: int
    nudged_steps: int
    beta: float
    step_size: float = 1.0

    def __post_init__(self) -> None:
        for precision in self.narrow:
            one_of("narrow", precision, PRECISIONS)

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        model, findings = copy.deepcopy(completing(module, "gradient_precision")), Findings()
        masked, images = first_images(data, module.device)
        phases = Phases(self.free_steps, self.nudged_steps, self.beta, self.step_size)

        def gradient(precision: str, dtype: torch.dtype = masked.dtype) -> Tensor:
            model.precision = precision
            equilibrium_propagation(model.to(dtype), masked.to(dtype), images.to(dtype), phases)
            return _taken(model).double()

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")  # on a GPU machine.tf32 may have set another
        try:
            plain = gradient("float32")
            for precision in self.narrow:
                name = f"gradient_cosine_{precision}"
                try:
                    found = gradient(precision)
                except ValueError as error:
                    findings.unavailable[name] = f"needs a GPU: {error}"
                    continue
                if torch.equal(found, plain):
                    findings.unavailable[name] = f"needs {precision} products: this processor computes them in float32"
                else:
                    findings.metrics[name] = float(torch.cosine_similarity(found, plain, dim=0))
            exact = gradient("float32", torch.float64)
            findings.metrics["gradient_cosine_float64"] = float(torch.cosine_similarity(exact, plain, dim=0))
        finally:
            torch.set_float32_matmul_precision(before)
        return findings


def _taken(model: CET) -> Tensor:
    """Return the gradients that lie in ``.grad``, as one vector, and leave none there."""
    found = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad(set_to_none=True)
    return torch.cat(found)

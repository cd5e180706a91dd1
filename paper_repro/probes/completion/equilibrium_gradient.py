"""CET, section 3: how good a gradient Equilibrium Propagation gives, against beta and under rounded products."""

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, at_least, one_of
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.cet import CET, PRECISIONS, CETState, Phases, equilibrium_propagation, full_backpropagation
from paper_repro.probes.completion.tools import completing, first_images
from paper_repro.training.module import PaperModule

SMALL = {"channels": 2, "size": 8, "patch": 4, "stride": 2, "width": 6, "num_heads": 2, "head_width": 3}
STRENGTHS = {"num_memories": 5, "init_std": 0.12, "attention_std": 0.2}
"""Attention and memory matter, and the relaxation converges."""
CONVERGED, PUSH = 1e-8, 1e-2
"""A free phase has converged if, pushed by the second number, it comes back to within the first: far below what beta
moves.  A residual alone would take a saddle for an equilibrium."""
ATTEMPTS = 100


@dataclass(frozen=True)
class EstimateOrder:
    """Errors of the centred estimate (equation 6) in float64, against backpropagation through all steps.

    |estimate - gradient| / |gradient| of a small untrained model and two images: the first, of those that follow from
    the seed, whose free phase converges to a stable state, for the estimate is about equilibria.

    Metrics: ``estimate_error``, that at ``beta``; ``estimate_order`` and ``estimate_order_first``, the slopes of
    log(error) against log(beta) between the two smallest and the two largest of ``betas``: 2 where the error falls as
    beta squared.

    Args:
        betas: falling.
        num_steps: of the free phase, of each nudged phase and of the backpropagation: so many that all converge.
        beta: of the training.

    Raises:
        ValueError: fewer than two betas, or one out of range.
    """

    betas: Sequence[float] = (1e-2, 3e-3, 1e-3, 3e-4)
    num_steps: int = 400
    beta: float = 0.01

    def __post_init__(self) -> None:
        for beta in (*self.betas, self.beta):
            Phases(self.num_steps, self.num_steps, beta)
        if len(self.betas) < 2 or any(one <= two for one, two in itertools.pairwise(self.betas)):
            raise ValueError(f"betas must be two or more, each below the one before, got {self.betas}")

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Measure; neither the trained module nor the data are looked at.

        Raises:
            UsageError: no small model converges in ``num_steps``.
        """
        model, masked, images = self._instance(seed)
        full_backpropagation(model, masked, images, self.num_steps)
        expected = taken(model)

        def error(beta: float) -> float:
            equilibrium_propagation(model, masked, images, Phases(self.num_steps, self.num_steps, beta))
            return float((taken(model) - expected).norm() / expected.norm())

        errors = {beta: error(beta) for beta in dict.fromkeys((*self.betas, self.beta))}
        pairs = itertools.pairwise(self.betas)
        orders = [math.log(errors[one] / errors[two]) / math.log(one / two) for one, two in pairs]
        found = {"order": orders[-1], "order_first": orders[0], "error": errors[self.beta]}
        return Findings({f"estimate_{name}": value for name, value in found.items()})

    def _instance(self, seed: int) -> tuple[CET, Tensor, Tensor]:
        """Return a model with masked images and images."""
        for attempt in range(ATTEMPTS):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(mix(seed, "estimate order", attempt))
                model = CET(**SMALL, **STRENGTHS).double()  # type: ignore[arg-type]
                images = torch.rand(2, 2, 8, 8, dtype=torch.float64) * 2 - 1
                push = CETState(torch.randn(2, 9, 6, dtype=torch.float64), torch.randn(2, 4, 4, 8, dtype=torch.float64))
            masked = images.clone()
            masked[:, :, :4] = 0
            clamped = model.clamp(masked)
            ended = model.relax(model.first(clamped), clamped, self.num_steps).state
            pushed = CETState(*(one + PUSH * two for one, two in zip(ended, push, strict=True)))
            back = model.relax(pushed, clamped, self.num_steps).state
            if max(float((one - two).abs().max()) for one, two in zip(ended, back, strict=True)) < CONVERGED:
                return model, masked, images
        raise UsageError(
            f"probes.order: none of {ATTEMPTS} models converges in {self.num_steps} steps: give more steps"
        )


@dataclass(frozen=True)
class GradientPrecision:
    """Cosines between the trained model's EP gradients with float32 products, and with others in the relaxation.

    ``gradient_cosine_bfloat16``, ``..._tf32``: the factors rounded to these, sums and state float32; TF32 is n/a off
    CUDA.  ``..._float64``: everything in float64.

    Args:
        narrow: the precisions, among ``PRECISIONS``.
        free_steps, nudged_steps, beta, step_size: see ``Phases``.
        num_images: of the test split, in one batch.

    Raises:
        ValueError: phases out of range, an unknown precision, or no image.
    """

    narrow: Sequence[str]
    free_steps: int
    nudged_steps: int
    beta: float
    step_size: float = 1.0
    num_images: int = 16

    def __post_init__(self) -> None:
        self.phases()
        for precision in self.narrow:
            one_of("narrow", precision, PRECISIONS)
        at_least("num_images", self.num_images)

    def phases(self) -> Phases:
        return Phases(self.free_steps, self.nudged_steps, self.beta, self.step_size)

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Compare the gradients of one batch.

        Raises:
            UsageError: a model that is no CET, or too few test images.
        """
        model = copy.deepcopy(completing(module, "gradient_precision"))
        batch = first_images(data, self.num_images, module.device)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")  # on a GPU machine.tf32 may have set another
        try:
            return self._compared(model, batch)
        finally:
            torch.set_float32_matmul_precision(before)

    def _compared(self, model: CET, batch: tuple[Tensor, Tensor]) -> Findings:
        findings = Findings()
        plain = self._gradient(model, batch, "float32")
        for precision in self.narrow:
            name = f"gradient_cosine_{precision}"
            try:
                found = self._gradient(model, batch, precision)
            except ValueError as error:
                findings.unavailable[name] = f"needs a GPU: {error}"
                continue
            if torch.equal(found, plain):
                findings.unavailable[name] = f"needs {precision} products: this processor computes them in float32"
            else:
                findings.metrics[name] = _cosine(found, plain)
        masked, images = batch
        exact = self._gradient(model.double(), (masked.double(), images.double()), "float32")
        findings.metrics["gradient_cosine_float64"] = _cosine(exact, plain)
        return findings

    def _gradient(self, model: CET, batch: tuple[Tensor, Tensor], precision: str) -> Tensor:
        model.precision = precision
        equilibrium_propagation(model, *batch, self.phases())
        return taken(model)


def taken(model: CET) -> Tensor:
    """Return the gradients that lie in ``.grad``, as one vector, and none left there."""
    found = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad(set_to_none=True)
    return torch.cat(found)


def _cosine(one: Tensor, two: Tensor) -> float:
    return float(torch.cosine_similarity(one.double(), two.double(), dim=0))

"""CEM, section 5.2: what more or fewer inner steps than a model was trained with do to its perplexity and energies."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from paper_repro.base.arguments import at_least
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.cem.descent import CEMPart
from paper_repro.models.llama import Llama
from paper_repro.training.module import PaperModule
from paper_repro.training.probe import Findings


@dataclass(frozen=True)
class InnerSteps:
    """Evaluates the first windows of validation with T inner steps in every part that descends an energy.

    Metrics for each T: ``perplexity_T<T>``, and for each kind of part that descends, ``energy_attention_T<T>`` and
    ``energy_feed_forward_T<T>``: the energy at the last state, the mean over tokens and layers.  A model without such
    parts has none.

    Args:
        steps: the numbers T.
        num_batches: of the evaluation split.

    Raises:
        ValueError: no T, one below 1 or one twice, or no batch.
    """

    steps: Sequence[int] = (1, 2, 3, 4, 8)
    num_batches: int = 4

    def __post_init__(self) -> None:
        at_least("num_batches", self.num_batches)
        if not self.steps or len(set(self.steps)) < len(self.steps):
            raise ValueError(f"steps must be different numbers of inner steps, got {list(self.steps)}")
        for number in self.steps:
            at_least("steps", number)

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """The same windows for every T; the module's own T is put back."""
        model, findings = module.model, Findings()
        if not isinstance(model, Llama) or not list(model.descents()):
            return findings
        device = next(model.parameters()).device
        batches = [
            (ids.to(device), following.to(device))
            for (ids, following), _ in zip(data.evaluation_batches("val"), range(self.num_batches), strict=False)
        ]
        for number in self.steps:
            with _inner_steps(model, number), _energies(model) as energies:
                losses = torch.cat([model.negative_log_likelihoods(*batch).double().flatten() for batch in batches])
                findings.metrics[f"perplexity_T{number}"] = math.exp(min(float(losses.mean()), 700.0))
                for kind, found in energies.items():
                    findings.metrics[f"energy_{kind}_T{number}"] = float(torch.stack(found).mean())
        return findings


@contextmanager
def _inner_steps(model: Llama, number: int) -> Iterator[None]:
    before = [(part, part.num_steps) for part in model.descents()]
    model.set_inner_steps(number)
    try:
        yield
    finally:
        for part, own in before:
            part.num_steps = own


@contextmanager
def _energies(model: Llama) -> Iterator[dict[str, list[Tensor]]]:
    """Collects the mean energy of every part at the end of each of its forward passes, by its name in the block."""
    found: dict[str, list[Tensor]] = {}

    def collect(kind: str, part: CEMPart, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        energy = part.energy(part.point(output), part.context(inputs[0]))
        found.setdefault(kind, []).append(energy.double().mean())

    handles = []
    for block in model.blocks:
        for kind, part in block.named_children():
            if isinstance(part, CEMPart):
                handles.append(part.register_forward_hook(lambda *given, kind=kind: collect(kind, *given)))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()

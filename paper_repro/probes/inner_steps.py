"""CEM, section 5.2: what more or fewer inner steps than a model was trained with do to its perplexity and energies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paper_repro.base.errors import at_least
from paper_repro.base.identity import IGNORED
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.llama import Llama
from paper_repro.training.module import PaperModule


@dataclass(frozen=True)
class InnerSteps:
    """Evaluates the first windows of validation with S inner steps in every part that descends an energy.

    Metrics for each S: ``perplexity_T<S>``, and for each kind of part that descends, ``energy_attention_T<S>`` and
    ``energy_feed_forward_T<S>`` (the paper writes T for the steps): the energy at the last state, the mean over tokens
    and layers.  A model without such parts has none.

    Args:
        steps: the numbers S.
        num_batches: of the evaluation split.

    Raises:
        ValueError: no S, one below 1 or one twice, or no batch.
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
        """Measure the same windows for every S."""
        model, findings = module.model, Findings()
        if not isinstance(model, Llama) or not list(model.descents()):
            return findings
        device = next(model.parameters()).device
        batches = [
            (ids.to(device), following.to(device))
            for (ids, following), _ in zip(data.evaluation_batches("val"), range(self.num_batches), strict=False)
        ]
        for number in self.steps:
            losses, energies = [], dict[str, list[Tensor]]()
            for ids, following in batches:  # (B, T) each
                trace = model.trace(ids, number)
                counted = following != IGNORED
                losses.append(model.negative_log_likelihoods_of(trace.state, following).double()[counted])  # (tokens,)
                for kind, own in trace.energies.items():
                    energies.setdefault(kind, []).extend(energy.double()[counted] for energy in own)
            findings.metrics[f"perplexity_T{number}"] = math.exp(min(float(torch.cat(losses).mean()), 700.0))
            for kind, found in energies.items():
                findings.metrics[f"energy_{kind}_T{number}"] = float(torch.cat(found).mean())
        return findings

"""What is measured on a trained model beyond its losses: energies along the recurrences, answers, generated texts."""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.training.module import PaperModule


@dataclass
class Findings:
    """What a probe found; it goes into the cell's record."""

    metrics: dict[str, float] = field(default_factory=dict)
    attachments: dict[str, bytes] = field(default_factory=dict)
    """File name to content: what is too long for a record (texts, traces); it lies beside the record."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Metric to what it lacks and the command that mends it, for example "needs gpt2: ..."; printed as n/a."""


@runtime_checkable
class Probe(Protocol):
    """Called once, after training, with the weights that are kept; a config lists its probes under ``probes``.

    The module is in evaluation mode and on its device, gradients are off.  A probe draws its random numbers from
    generators that it seeds with ``mix(seed, ...)``, and leaves module and data as it found them.
    """

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Measure the trained ``module.model``."""

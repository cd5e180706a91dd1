"""What is measured on a trained model beyond its losses: energies along the recurrences, answers, generated texts."""

from typing import Protocol, runtime_checkable

from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.training.module import PaperModule


@runtime_checkable
class Probe(Protocol):
    """Called once, after training, with the weights that are kept; a config lists its probes under ``probes``.

    The module is in evaluation mode and on its device, gradients are off.  A probe draws its random numbers from
    generators that it seeds with ``mix(seed, ...)``, and leaves module and data as it found them.
    """

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Measure the trained ``module.model``."""


@runtime_checkable
class CheckedProbe(Probe, Protocol):
    """A probe that says before training whether it will be able to measure."""

    def check(self, module: PaperModule, data: CounterBasedDataModule) -> None:
        """Check the module and the data, neither of them trained or read yet; the module may lie on the meta device.

        Raises:
            UsageError: they cannot be measured.
        """

"""Probes and an optimiser for tests, named by configs as ``paper_repro.tests.support.probes....``."""

import os
from pathlib import Path
from typing import Any

import torch

from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.training.module import PaperModule

STEPS_VARIABLE = "PROBED_STEPS_LOG"


class Summing:
    """Measures the sum of all weights as ``metric`` and leaves it in ``file``, blanks behind it up to ``size`` bytes.

    Where the file ``needs`` is absent, ``lacking`` is not available; where it is there, its content is measured.
    """

    def __init__(
        self, metric: str = "total", file: str = "total.txt", size: int = 0, needs: str = "", lacking: str = "score"
    ) -> None:
        self.metric, self.file, self.size, self.needs, self.lacking = metric, file, size, needs, lacking

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        assert not module.training and not torch.is_grad_enabled()
        total = float(sum(tensor.double().sum() for tensor in module.state_dict().values()))
        findings = Findings({self.metric: total}, {self.file: f"{total!r} {seed}".encode().ljust(self.size)})
        if self.needs and Path(self.needs).is_file():
            findings.metrics[self.lacking] = float(Path(self.needs).read_text())
        elif self.needs:
            findings.unavailable[self.lacking] = f"needs gpt2: write {self.needs}"
        return findings


class LoggedAdamW(torch.optim.AdamW):
    """Notes each of its steps in the file that $PROBED_STEPS_LOG names."""

    def step(self, closure: Any = None) -> Any:
        with Path(os.environ[STEPS_VARIABLE]).open("a") as stream:
            stream.write("step\n")
        return super().step(closure)

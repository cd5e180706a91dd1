"""What a training step of one of EBT's autoregressive models costs, counted."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.kernels.preferences import prefer
from paper_repro.training.counting import count_flops, num_parameters
from paper_repro.training.module import PaperModule

OUTSIDE_THE_TRUNK = ("token_embedding", "prediction_embedding", "embedding", "output", "step_size_parameter")
"""What leads into the trunk and out of it, for tokens the tables with a row or a column for each id; and alpha."""


@dataclass(frozen=True)
class TrainingFlops:
    """Counts a training step of a module on the meta device, with the ops' definitions.

    * ``trunk_parameters``: N, all but what leads into the trunk and out of it, and alpha.
    * ``step_flops``: the matrix products of one batch, forward and backward, two FLOPs for each multiply-add; where
      the number of steps of a prediction is random, with the most.
    """

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Count; the trained weights are not looked at."""
        twin = copy.deepcopy(module).to("meta")
        batch = data.example_batch()
        batch = batch.to("meta") if isinstance(batch, Tensor) else tuple(part.to("meta") for part in batch)
        with prefer("reference"), torch.enable_grad():
            counted = count_flops(lambda: twin.counted_step(batch))
        parameters = num_parameters(twin.model, leave_out=OUTSIDE_THE_TRUNK)
        return Findings({"trunk_parameters": float(parameters), "step_flops": float(counted)})

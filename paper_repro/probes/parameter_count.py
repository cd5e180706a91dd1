"""Parameters of a model at its paper's size, whatever the size of the model that was trained."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.common import CausalLanguageModel
from paper_repro.training.counting import num_parameters
from paper_repro.training.module import PaperModule


@dataclass(frozen=True)
class ParameterCount:
    """Counts a language model on the meta device, in each way in which NRGPT's tables may have counted theirs.

    * ``paper_parameters_untied``: all, frozen ones too, the output matrix being one of its own.
    * ``paper_parameters_tied``: without the output matrix, V D, which is the token embedding then; its bias stays.
    * ``paper_parameters_without_positions``: untied, without the position embeddings, P D, as nanoGPT reports them.

    Args:
        model: gives the model at the paper's size; a ``_partial_: true`` node in a config.  Tied or not, it counts
            the same.

    Raises:
        UsageError: ``model`` gives no CausalLanguageModel.
    """

    model: Callable[[], object]

    def __post_init__(self) -> None:
        self.counts()  # before hours are spent on the training

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        return Findings({f"paper_parameters_{name}": float(number) for name, number in self.counts().items()})

    def counts(self) -> dict[str, int]:
        """Count in each way; the keys are untied, tied and without_positions."""
        with torch.device("meta"):
            model = self.model()
        if not isinstance(model, CausalLanguageModel):
            raise UsageError(f"ParameterCount counts a CausalLanguageModel, found {type(model).__name__}")
        output = model.vocabulary_size * model.width
        shared = output if model.get_parameter("output.weight") is model.token_embedding.weight else 0
        untied = num_parameters(model, frozen=True) + shared
        positions = model.block_length * model.width
        return {"untied": untied, "tied": untied - output, "without_positions": untied - positions}

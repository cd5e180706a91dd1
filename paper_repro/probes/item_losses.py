"""Losses of the single batches of a split, for intervals that carry the error of the test sample."""

import json
from dataclasses import dataclass

from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.training.module import PaperModule

DIGITS = 6


@dataclass(frozen=True)
class ItemLosses:
    """Measures the loss of each evaluation batch of a split, and keeps the N of them in ``<split>_losses.json``.

    The batches and their order are the same for all models and seeds on the same data, so two models can be compared
    item by item.  A batch of whole-split evaluation is a run of neighbouring windows: more than one text, and another
    text than the next batch's.

    Args:
        split: of the data.
    """

    split: str = "test"

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        losses = [round(loss, DIGITS) for loss in module.batch_losses(data, self.split)]
        content = json.dumps({"losses": losses}).encode()
        return Findings({f"{self.split}_items": len(losses)}, attachments={f"{self.split}_losses.json": content})

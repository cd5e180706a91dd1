"""nGPT, section 3 and appendix A: language modelling by nGPT and the GPT that it is held against."""

from typing import Any

from paper_repro.lightning_modules.next_token import ChunkedNextTokenModule
from paper_repro.models.ngpt import NGPT


class NGPTSpeedup(ChunkedNextTokenModule):
    """Next-token cross-entropy; nGPT's matrices are projected to unit rows right after every optimiser step.

    Weight decay, which nGPT has none of, is for matrices only.
    """

    def parameter_groups(self) -> list[dict[str, Any]]:
        matrices, others = super().parameter_groups()
        return [{**matrices, "unit_rows": isinstance(self.model, NGPT)}, others]

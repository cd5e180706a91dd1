"""Names the command that serves a trained model."""

from torch import nn

from paper_repro.models.common import CausalLanguageModel
from paper_repro.models.ebt import EBT
from paper_repro.models.ebt_image import ImageEBT
from paper_repro.models.ebt_sudoku import SudokuEBT

KINDS = {"prompt": EBT, "board": SudokuEBT, "image": ImageEBT}
"""The EBTs that think.py serves, by the option that asks them."""


def command_for(model: nn.Module) -> str:
    """Say which command serves a model, for the error of one that does not."""
    if isinstance(model, CausalLanguageModel):
        return "generate.py continues texts with this one"
    for option, kind in KINDS.items():
        if isinstance(model, kind):
            return f"think.py --{option} shows how this one thinks"
    return "compare.py shows results of this one, export.py writes its weights"

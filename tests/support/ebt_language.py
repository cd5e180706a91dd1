"""Small documents, and small modules of EBT on language, for tests of what is measured on them."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paper_repro.datamodules.documents import DocumentData
from paper_repro.datamodules.token_shards import write_shards
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.lightning_modules.ebt_language import EBTLanguage, TransformerLanguage
from paper_repro.models.ebt import EBT, TransformerPlusPlus
from paper_repro.training.schedules import Constant

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran"]
WINDOW = 16


def prose(seed: int, documents: int) -> list[str]:
    """Documents of 4 to 12 words."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) for _ in range(draw.randint(4, 12))) for _ in range(documents)]


TOKENIZER = BytePairTokenizer.train(prose(0, 60), 280)


def documents(folder: Path, **given: Any) -> DocumentData:
    """Write 60 and 20 documents below ``folder`` and read them."""
    splits = {"train": prose(0, 60), "val": prose(1, 20)}
    write_shards(folder / "corpus", splits, {"name": "test"}, TOKENIZER)
    return DocumentData({"manifest": "corpus/manifest.json"}, 4, WINDOW, data_root=folder, **given)


def ebt_module(num_landscapes: int = 1, **thinking: Any) -> EBTLanguage:
    """An EBT away from its start, in evaluation mode."""
    torch.manual_seed(0)
    variant = "time_embed" if num_landscapes > 1 else "default"
    size = TOKENIZER.vocabulary_size
    model = EBT(size, WINDOW, 8, 2, 2, variant=variant, num_landscapes=num_landscapes, step_size=3.0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "step_size_parameter":
                parameter.add_(0.3 * torch.randn_like(parameter))
    return EBTLanguage(model, partial(torch.optim.AdamW), Constant(), thinking).eval()


def transformer_module(num_passes: int = 1) -> TransformerLanguage:
    """A Transformer++ at its start, in evaluation mode."""
    torch.manual_seed(0)
    model = TransformerPlusPlus(TOKENIZER.vocabulary_size, WINDOW, 8, 2, 2, num_passes=num_passes)
    return TransformerLanguage(model, partial(torch.optim.AdamW), Constant()).eval()

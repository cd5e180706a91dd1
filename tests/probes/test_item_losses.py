import json
from functools import partial
from pathlib import Path

import pytest
import torch

from paper_repro.datamodules.text import TokenData
from paper_repro.datamodules.token_shards import write_shards
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.lightning_modules.ngpt_speedup import NGPTSpeedup
from paper_repro.models.ngpt import NGPT
from paper_repro.probes.item_losses import ItemLosses
from paper_repro.training.schedules import Constant

TEXTS = [f"Document {index} says {'word ' * (index % 7)}and ends." for index in range(80)]
TOKENIZER = BytePairTokenizer.train(TEXTS, 300)


def test_the_losses_of_the_batches_of_a_split_are_kept_in_order_and_average_to_its_loss(tmp_path: Path) -> None:
    splits = {"train": TEXTS[:60], "val": TEXTS[60:70], "test": TEXTS[70:]}
    write_shards(tmp_path / "corpus", splits, {"name": "made up"}, TOKENIZER, say=lambda _: None)
    manifest = {"manifest": "corpus/manifest.json"}
    data = TokenData(manifest, 2, 8, num_evaluation_batches=None, test=True, data_root=tmp_path)
    torch.manual_seed(0)
    module = NGPTSpeedup(NGPT(300, 8, 16, 2, 1), partial(torch.optim.AdamW, lr=1e-3), Constant())
    found = ItemLosses().measure(module, data, 0)
    losses = json.loads(found.attachments["test_losses.json"])["losses"]
    sizes = [following.numel() for _, following in data.evaluation_batches("test")]
    assert len(losses) == len(sizes) == found.metrics["test_items"] > 3 and len(set(losses)) == len(losses)
    mean = sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)
    assert mean == pytest.approx(module.evaluate(data)["test_loss"], rel=1e-5)
    assert module.training

"""What every data module promises: batches that follow from the seed and the step alone, and counting without data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.documents import DocumentData
from paper_repro.datamodules.gaussian_process import GaussianProcessData
from paper_repro.datamodules.image_sources import Digits, Photographs
from paper_repro.datamodules.images import CelebAData, ImageData, MaskedImageData
from paper_repro.datamodules.listops import ListOps, ListOpsData
from paper_repro.datamodules.sudoku import GeneratedSudoku, SATNetAndRRN
from paper_repro.datamodules.text import CharacterData, TokenData
from paper_repro.datamodules.token_shards import write_shards
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.datamodules.video_sources import SampleClips
from paper_repro.datamodules.videos import VideoData

TEXTS = [f"Document {index} says {'word ' * (index % 7)}and ends." for index in range(80)]
MANIFEST = {"manifest": "corpus/manifest.json"}
SMALL: dict[str, Callable[..., CounterBasedDataModule]] = {
    "characters": lambda root, **own: CharacterData({"text": "text"}, 4, 16, 3, data_root=root, **own),
    "tokens": lambda root, **own: TokenData(MANIFEST, 4, 16, 3, data_root=root, **own),
    "documents": lambda root, **own: DocumentData(MANIFEST, 4, 16, 3, data_root=root, **own),
    "images": lambda _, **own: ImageData(Digits(), 5, labelled=True, num_evaluation_images=9, **own),
    "masked": lambda _, **own: MaskedImageData(Photographs(24), cell=4, batch_size=3, num_evaluation_images=9, **own),
    "clips": lambda _, **own: VideoData(SampleClips(8, 8), 4, batch_size=3, num_evaluation_windows=5, **own),
    "listops": lambda _, **own: ListOpsData(ListOps(10, num_train=300, num_test=20), 5, 16, 3, **own),
    "sudoku": lambda _, **own: GeneratedSudoku(20, 5, 1, (50, 60), (60, 60), **own),
    "functions": lambda _, **own: GaussianProcessData(num_train=50, num_test=9, batch_size=20, num_features=8, **own),
}
ALSO_EVALUATED = ("listops", "functions")
"""Modules whose evaluations follow from ``seed`` as well."""
CACHED = ("documents", "clips", "listops", "sudoku", "functions")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tokenizer = BytePairTokenizer.train(TEXTS, 300)
    splits = {"train": TEXTS[:60], "val": TEXTS[60:]}
    write_shards(tmp_path / "corpus", splits, {"name": "test"}, tokenizer, 100)
    (tmp_path / "text").write_text("\n".join(TEXTS))
    return tmp_path


def flat(batches: Any) -> list[torch.Tensor]:
    return [batches] if isinstance(batches, torch.Tensor) else [one for batch in batches for one in flat(batch)]


def same(one: Any, other: Any) -> bool:
    left, right = flat(one), flat(other)
    return len(left) == len(right) and all(torch.equal(*pair) for pair in zip(left, right, strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_batches_follow_from_seed_and_step_alone(root: Path, name: str) -> None:
    data, again, other = (SMALL[name](root, **own) for own in ({}, {}, {"seed": 1}))
    for step in (9, 4, 0):
        assert same(data.train_batch(step), again.train_batch(step))
        assert not same(data.train_batch(step), other.train_batch(step))
    assert not same(data.train_batch(0), data.train_batch(1))
    for split in data.splits:
        assert same(data.evaluation_batches(split), again.evaluation_batches(split))
        assert same(data.evaluation_batches(split), other.evaluation_batches(split)) == (name not in ALSO_EVALUATED)
    with pytest.raises(ValueError, match="split must be one of"):
        list(data.evaluation_batches("nowhere"))
    shapes = [[(one.shape, one.dtype) for one in flat(batch)] for batch in (data.example_batch(), data.train_batch(2))]
    assert shapes[0] == shapes[1]
    assert data.data_hashes() == again.data_hashes() and data.data_hashes()


@pytest.mark.parametrize(
    "data",
    [
        CharacterData({"text": "nowhere"}),
        TokenData({"manifest": "a"}),
        DocumentData({"manifest": "nowhere"}),
        CelebAData(files={"manifest": "nowhere"}),
        SATNetAndRRN({"features": "a", "labels": "b", "test": "c"}),
        ListOpsData(),
    ],
    ids=lambda data: type(data).__name__,
)
def test_counting_reads_no_data(data: CounterBasedDataModule) -> None:
    assert all(len(one) == data.batch_size for one in flat(data.example_batch()))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CACHED)
def test_a_cache_gives_the_same_data(root: Path, name: str) -> None:
    data, first, second = (SMALL[name](root, **own) for own in ({}, *[{"cache": root / "cache"}] * 2))
    assert data.data_hashes() == first.data_hashes() and same(data.train_batch(3), first.train_batch(3))
    kept = {path: path.stat().st_mtime_ns for path in (root / "cache").rglob("*.npz")}
    assert kept and same(data.train_batch(3), second.train_batch(3))
    assert kept == {path: path.stat().st_mtime_ns for path in (root / "cache").rglob("*.npz")}

import copy
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes
from paper_repro.datamodules import array_shards
from paper_repro.datamodules.array_shards import Manifest, Shard, StoredArrays, described
from paper_repro.datamodules.token_shards import TokenManifest

PAIRS = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)
"""Items of 3 bytes: what follows them in a file is not aligned."""
SETTINGS = {"name": "test", "arrays": described({"pairs": np.dtype(("|u1", (3,))), "marks": np.dtype("<i8")})}


def written(folder: Path) -> Manifest:
    """Two shards of five pairs, with marks behind them, and their manifest."""
    folder.mkdir(exist_ok=True)
    shards = []
    for index, pairs in enumerate(PAIRS):
        content = pairs.tobytes() + (1000 * index - np.arange(5)).astype("<i8").tobytes()
        (folder / f"train-{index}.bin").write_bytes(content)
        shards.append(Shard(f"train-{index}.bin", "train", {"pairs": 5, "odd": index}, sha256_of_bytes(content)))
    manifest = Manifest(SETTINGS, tuple(shards))
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    return manifest


def test_the_arrays_of_a_shard_are_read_back_across_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = written(tmp_path)
    assert Manifest.read(tmp_path / "manifest.json") == manifest
    assert manifest.totals() == {"train": {"pairs": 10, "odd": 1}}
    manifest.verify(tmp_path)
    monkeypatch.setattr(array_shards, "MOST_MAPS", 1)
    stored = StoredArrays(manifest, tmp_path / "manifest.json", "train")
    for index in (9, 0, 4, 5, 7):
        assert np.array_equal(stored.item("pairs", index), PAIRS.reshape(10, 3)[index])
        assert stored.item("marks", index) == 1000 * (index // 5) - index % 5
        assert len(stored._maps) == 1
    assert not copy.copy(stored)._maps, "a process that is spawned maps the files itself"
    for index in (-1, 10):
        with pytest.raises(IndexError, match=f"item {index}: there are 10"):
            stored.item("marks", index)
    with pytest.raises(UsageError, match="split 'val' has no items"):
        StoredArrays(manifest, tmp_path / "manifest.json", "val")


def test_the_manifest_of_tokens_has_the_bytes_that_published_ids_were_made_with(tmp_path: Path) -> None:
    tokenizer = {"file": "tokenizer.json", "fingerprint": "ab", "vocabulary_size": 300, "end_of_text": 0}
    settings = {"source": {"name": "x"}, "tokenizer": tokenizer, "dtype": "<u2", "shard_tokens": 100}
    shard = {"file": "train-00000.bin", "split": "train", "documents": 2, "tokens": 7, "bytes": 9, "sha256": "cd"}
    totals = {"train": {"documents": 2, "tokens": 7, "bytes": 9}}
    published = json.dumps({"format": 1, **settings, "totals": totals, "shards": [shard]}, indent=1).encode() + b"\n"
    (tmp_path / "manifest.json").write_bytes(published)
    manifest = TokenManifest.read(tmp_path / "manifest.json")
    assert manifest.to_bytes() == published
    counts = {"documents": 2, "tokens": 7, "bytes": 9}
    assert manifest == TokenManifest(settings, (Shard("train-00000.bin", "train", counts, "cd"),))


def test_a_file_that_is_not_what_the_manifest_says_is_refused(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    path = tmp_path / "train-0.bin"
    whole = path.read_bytes()
    for damaged, message in ((whole[:-8], "has 47 bytes, expected 55 for 5 items"), (whole[::-1], "altered")):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=message):
            manifest.check(tmp_path, manifest.shards[0], tmp_path / "stamps")
    path.unlink()
    with pytest.raises(UsageError, match=r"train-0\.bin: this shard is missing"):
        manifest.verify(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"format": 1', '"format": 2', "its format is 2, expected 1"),
        ('"dtype": "|u1"', '"dtype": "|O"', "not a manifest of shards .*an array of "),
        ('"file": "train-1.bin"', '"file": "../x"', r"a shard called '\.\./x'"),
        ('"sha256"', '"sha512"', "KeyError.*'sha256'"),
        # A shard of the split "trzin" would be left out of training unseen.
        ('"split": "train"', '"split": "trzin"', "its totals are"),
        ('"pairs": 5', '"pairs": 7', "its totals are"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    written(tmp_path)
    path = tmp_path / "manifest.json"
    head, found, tail = path.read_text().rpartition(old)
    assert found
    path.write_text(head + new + tail)
    with pytest.raises(UsageError, match=message):
        Manifest.read(path)


@pytest.mark.parametrize("hours", [25, -25])
def test_a_file_that_keeps_its_time_of_change_is_trusted_for_a_day(tmp_path: Path, hours: float) -> None:
    manifest = written(tmp_path)
    first, path, stamps = manifest.shards[0], tmp_path / "train-0.bin", tmp_path / "stamps"
    manifest.check(tmp_path, first, stamps)
    whole, changed = path.read_bytes(), path.stat()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    os.utime(path, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    forget = array_shards.hash_once.cache_clear  # as in a new process
    forget()
    manifest.check(tmp_path, first, stamps)
    (stamp,) = (path for path in stamps.iterdir() if len(path.name) == 20)
    os.utime(stamp, (time.time() - 3600 * hours,) * 2)
    forget()
    with pytest.raises(UsageError, match="this shard is altered: its SHA-256 is"):
        manifest.check(tmp_path, first, stamps)

"""What ``scripts/prepare_data.py`` has written, and how it refuses words."""

from pathlib import Path

import numpy as np
import pytest

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.token_shards import TokenManifest
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.scripts import prepare_data


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, without its locks."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".lock")}


def refusal(*words: str) -> str:
    """Return the one line with which the command refuses these words."""
    with pytest.raises(UsageError) as caught:
        prepare_data.main(words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def texts(folder: Path, split: str, tokenizer: BytePairTokenizer) -> list[str]:
    """Return the documents of a split; an end of text follows each."""
    shards = TokenManifest.read(folder / "manifest.json").of(split)
    ids = np.concatenate([np.fromfile(folder / shard.file, np.uint16) for shard in shards])
    parts = np.split(ids, np.flatnonzero(ids == tokenizer.end_of_text) + 1)
    assert not len(parts[-1])
    return [tokenizer.decode(part[:-1].tolist()) for part in parts[:-1]]

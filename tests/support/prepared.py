"""What ``scripts/prepare_data.py`` has written, and how it refuses words; small text and clips."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from paper_repro.base.errors import ROOT, UsageError
from paper_repro.datamodules.token_shards import TokenManifest, write_shards
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.scripts import prepare_data


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, without its locks."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".lock")}


def documentation(root: Path, vocabulary: int) -> Path:
    """Write token shards of the repository's own pages as documentation-<vocabulary> below ``root``."""
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    splits = {"train": pages[:-4], "val": pages[-4:-2], "test": pages[-2:]}
    folder = root / f"documentation-{vocabulary}"
    folder.mkdir(parents=True)
    write_shards(folder, splits, {"name": "pages"}, BytePairTokenizer.train(splits["train"], vocabulary))
    return folder


def said_of(action: Callable[[], object]) -> str:
    """Return the one line of the UsageError with which an action ends."""
    with pytest.raises(UsageError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refusal(*words: str) -> str:
    """Return the one line with which the command refuses these words."""
    return said_of(lambda: prepare_data.main(words))


def clip_of(values: Sequence[int], times: Sequence[int] | None = None, side: int = 32) -> bytes:
    """Return a clip of grey frames, 10 ticks a second; without loss but for the change of colour space."""
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format="matroska") as container:
        video = container.add_stream("ffv1", rate=10)
        video.width, video.height, video.pix_fmt = side, side, "yuv444p"
        for number, value in enumerate(values):
            frame = av.VideoFrame.from_ndarray(np.full((side, side, 3), value, np.uint8), format="rgb24")
            frame.pts = number if times is None else times[number]
            container.mux(video.encode(frame))
        container.mux(video.encode())
    return stream.getvalue()


def sound() -> bytes:
    """Return a file of sound, which has no video stream."""
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format="wav") as container:
        audio = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        frame.sample_rate = 8000
        container.mux(audio.encode(frame))
    return stream.getvalue()


def texts(folder: Path, split: str, tokenizer: BytePairTokenizer) -> list[str]:
    """Return the documents of a split; an end of text follows each."""
    shards = TokenManifest.read(folder / "manifest.json").of(split)
    ids = np.concatenate([np.fromfile(folder / shard.file, np.uint16) for shard in shards])
    parts = np.split(ids, np.flatnonzero(ids == tokenizer.end_of_text) + 1)
    assert not len(parts[-1])
    return [tokenizer.decode(part[:-1].tolist()) for part in parts[:-1]]

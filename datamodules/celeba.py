"""CelebA's faces (CET, appendix C), as ``scripts/prepare_data.py celeba`` decoded them: uint8 pixels, memory-mapped.

A folder holds ``manifest.json`` and the files of each split, in order; a file is its images one after the other, each
178 x 178 x 3 bytes: the central square of the aligned 178 x 218 image.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from paper_repro.base.arguments import at_least
from paper_repro.base.data_files import absent, find_data
from paper_repro.base.errors import UsageError
from paper_repro.base.files import cached, sha256_of_file
from paper_repro.datamodules.image_sources import TEST, TRAIN, VAL, ImageSource
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.datamodules.pixels import Pixels, interval, random_resized_crop, resized

SIDE = 178
SHAPE = (SIDE, SIDE, 3)
BYTES = SIDE * SIDE * 3
MANIFEST = "manifest.json"
FORMAT = 1
PREPARE = "python scripts/prepare_data.py celeba --download"


@dataclass(frozen=True)
class Shard:
    """One file of images, as the manifest has it."""

    file: str
    split: str
    images: int
    sha256: str
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Images that were left out, by name, and why."""


@dataclass(frozen=True)
class Manifest:
    """What a folder of prepared images holds."""

    settings: Mapping[str, Any]
    """Where the images come from."""
    shards: tuple[Shard, ...]

    @property
    def skipped(self) -> dict[str, str]:
        return {name: reason for shard in self.shards for name, reason in shard.skipped.items()}

    def of(self, split: str) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    def totals(self) -> dict[str, int]:
        """Return images of each split."""
        return {split: sum(shard.images for shard in self.of(split)) for split in (TRAIN, VAL, TEST)}

    def to_bytes(self) -> bytes:
        shards = [vars(shard) for shard in self.shards]
        content = {"format": FORMAT, "settings": self.settings, "totals": self.totals(), "shards": shards}
        return json.dumps(content, indent=1).encode() + b"\n"

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Return the manifest in a file.

        Raises:
            UsageError: it is no manifest, or one of another format.
        """
        try:
            content = json.loads(path.read_bytes())
            version = content["format"]
            manifest = cls(dict(content["settings"]), tuple(Shard(**shard) for shard in content["shards"]))
            named = [len(Path(shard.file).parts) == 1 and int(shard.images) >= 0 for shard in manifest.shards]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}: not a manifest of images ({error!r}): prepare the data again") from error
        if version != FORMAT or not all(named):
            raise UsageError(f"{path}: manifest of format {version!r}, expected {FORMAT}: prepare the data again")
        return manifest


def check_shard(path: Path, shard: Shard, stamps: Path | None) -> None:
    """Compare a file with what the manifest says: its size always, its content once.

    What was found is kept in this process, and in the folder ``stamps`` under the file's path, size and time of change.

    Raises:
        UsageError: it is missing, truncated or altered.
    """
    if not path.is_file():
        raise UsageError(f"{path}: this file of images is missing")
    status = path.stat()
    if status.st_size != shard.images * BYTES:
        raise UsageError(
            f"{path}: {status.st_size:,} bytes, expected {shard.images * BYTES:,}, {shard.images:,} images of "
            f"{SIDE} x {SIDE}: it is truncated or altered"
        )
    found = _sha256_once(str(path.resolve()), status.st_size, status.st_mtime_ns, stamps)
    if found != shard.sha256:
        raise UsageError(f"{path}: altered: its SHA-256 is {found[:12]}..., the manifest says {shard.sha256[:12]}...")


@lru_cache(maxsize=4096)
def _sha256_once(path: str, size: int, changed: int, stamps: Path | None) -> str:
    if stamps is None:
        return sha256_of_file(Path(path))
    key = hashlib.sha256(f"{path}/{size}/{changed}".encode()).hexdigest()
    return cached(stamps / f"images-{key[:20]}.txt", lambda: sha256_of_file(Path(path)).encode()).decode()


class CelebAImages(ImageSource):
    """CelebA's official splits "train", "val" and "test".

    An evaluated image is its central square resized to H x H; a training image is a random crop of that square, see
    ``random_resized_crop``.  The paper gives the crop's scale and not its ratio: torchvision's 3/4 to 4/3 by default,
    (1, 1) is the other reading.

    Args:
        files: ``{manifest: PATH}``, relative to ``data_root``, $PAPER_REPRO_DATA or the repository's data/.
        size: H.
        scale: of a crop's area over the square's, uniform between these two.
        ratio: of a crop's width over its height, uniform in its logarithm.
        prepare: the command that makes the files, named where they are absent or wrong.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        size: int = 120,
        scale: Sequence[float] = (0.9, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        prepare: str = PREPARE,
    ) -> None:
        self.files, self.size = dict(files), at_least("size", size)
        if set(self.files) != {"manifest"}:
            raise ValueError(f"files must name manifest, got {', '.join(self.files) or 'none'}")
        self.scale, self.ratio = interval("scale", scale, 1.0), interval("ratio", ratio)
        self.prepare = prepare
        self._maps: dict[Path, Pixels] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        return (TRAIN, VAL, TEST)

    @cached_property
    def shards(self) -> Mapping[str, list[tuple[Path, int]]]:
        """The files of each split and where each ends, in images; checked.

        Raises:
            UsageError: one is absent or not what the manifest says, or a split has none.
        """
        path = self._manifest()
        stamps = None if self.cache is None else self.cache / "images"
        found = {}
        try:
            manifest = Manifest.read(path)
            for split in self.splits:
                shards = [shard for shard in manifest.of(split) if shard.images]
                if not shards:
                    raise UsageError(f"{path}: split {split!r} has no images")
                for shard in shards:
                    check_shard(path.parent / shard.file, shard, stamps)
                ends = accumulate(shard.images for shard in shards)
                found[split] = [(path.parent / shard.file, end) for shard, end in zip(shards, ends, strict=True)]
        except UsageError as error:
            raise UsageError(f"{error}; run: {self.prepare}") from error
        return found

    @cached_property
    def counts(self) -> Mapping[str, int]:
        return {split: shards[-1][1] for split, shards in self.shards.items()}

    def square(self, split: str, index: int) -> Pixels:
        """Return the central square of an image, (178, 178, 3)."""
        shards = self.shards[split]
        path, end = shards[bisect_right(shards, index, key=lambda shard: shard[1])]
        if path not in self._maps:
            self._maps[path] = np.memmap(path, np.uint8, "r").reshape(-1, *SHAPE)
        return self._maps[path][index - end]

    def image(self, split: str, index: int) -> Pixels:
        return resized(self.square(split, index), self.size)

    def augmented(self, index: int, draws: Sequence[Sequence[float]]) -> Pixels:
        return random_resized_crop(self.square(TRAIN, index), self.size, self.scale, self.ratio, draws)

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of the manifest, which holds those of the files."""
        _ = self.counts
        return {"manifest": sha256_of_file(self._manifest())}

    def _manifest(self) -> Path:
        path = find_data(self.files["manifest"], self.data_root)
        if path is None or not path.is_file():
            raise UsageError(absent(self.files["manifest"], self.data_root, self.prepare))
        return path


class CelebAData(MaskedImageData):
    """CelebA's images with cells blanked.

    Args:
        data_root: the first folder in which the manifest is looked for.
        cache: folder that remembers which files were checked; None: they are checked once a process.

    The other arguments are those of ``CelebAImages`` and ``MaskedImageData``.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        size: int = 120,
        cell: int = 20,
        mask_ratio: float = 0.5,
        batch_size: int = 128,
        evaluation_batch_size: int | None = None,
        num_evaluation_images: int | None = 2_000,
        scale: Sequence[float] = (0.9, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        seed: int = 0,
        evaluation_seed: int = 0,
        data_root: str | Path | None = None,
        cache: str | Path | None = None,
        prepare: str = PREPARE,
    ) -> None:
        super().__init__(
            CelebAImages(files, size, scale, ratio, prepare),
            cell,
            mask_ratio,
            batch_size,
            evaluation_batch_size,
            num_evaluation_images,
            seed,
            evaluation_seed,
            data_root,
            cache,
        )

"""What every preparation of data shares: the request of the command, what is downloaded, and checks."""

import contextlib
import http.client
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paper_repro.base.errors import UsageError, Words
from paper_repro.base.files import DATA, DATA_VARIABLE, write_atomically
from paper_repro.datamodules.array_shards import MANIFEST, Manifest

TO = "to"
"""The option that every preparation takes."""
SECONDS_OF_SILENCE = 60


@dataclass(frozen=True)
class Request:
    """What the command was asked for: the name of the data, and its options."""

    name: str
    words: Words

    @property
    def root(self) -> Path:
        """The folder of all data: ``--to``, else $PAPER_REPRO_DATA if that can be written, else data/ here."""
        if TO in self.words.settings:
            return Path(self.words.settings[TO]).expanduser()
        shared = os.environ.get(DATA_VARIABLE)
        return Path(shared) if shared and os.access(shared, os.W_OK) else DATA

    def folder(self, usual: str | None = None) -> Path:
        """Return the folder of this preparation: ``--folder``, else ``usual``, else the name."""
        return self.root / self.words.settings.get("folder", usual or self.name)

    @property
    def source(self) -> Path | None:
        """``--from``."""
        given = self.words.settings.get("from")
        return None if given is None else Path(given).expanduser()

    @property
    def download(self) -> bool:
        return "--download" in self.words.flags

    @property
    def verify(self) -> bool:
        return "--verify" in self.words.flags

    def text(self, option: str) -> str | None:
        return self.words.settings.get(option)

    def number(self, option: str) -> int | None:
        """Return a whole number above 0, None if it was not given; UsageError for something else."""
        text = self.words.settings.get(option)
        if text is None:
            return None
        plain = text.replace("_", "")
        if not plain.isascii() or not plain.isdigit() or not int(plain):
            raise UsageError(f"--{option} {text}: give a whole number above 0")
        return int(plain)

    def check_source(self, where: str) -> None:
        """Raise UsageError if neither ``--from`` nor ``--download`` was given; ``where`` says what they may be."""
        if self.source is None and not self.download:
            raise UsageError(f"{self.name}: {where}")


def verify(folder: Path, kind: type[Manifest]) -> None:
    """Read again what a manifest of a kind names, and print what it holds; UsageError if it is not what it says."""
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder / MANIFEST} is not there: give the command without --verify to prepare the data")
    try:
        manifest = kind.read(folder / MANIFEST)
        manifest.verify(folder)
    except UsageError as error:
        raise UsageError(f"{error}; give the command without --verify to make it again") from error
    summary(folder, manifest)


def summary(folder: Path, manifest: Manifest) -> None:
    """Print what a folder that was prepared holds."""
    print("\n".join(manifest.summary()))
    print(f"{folder / MANIFEST}: whole, {len(manifest.shards)} shards")


@contextlib.contextmanager
def given(source: str | Path, advice: str) -> Iterator[None]:
    """Turn whatever a library raises that reads a data set of the hub, or a file or folder, into a UsageError."""
    try:
        yield
    except Exception as error:  # the network's, the hub's client's, the library's own and pyarrow's errors
        if isinstance(source, Path):
            raise UsageError(f"{source}: cannot be read: {error}; {advice}") from error
        raise UsageError(f"{source}: the hub did not give it ({error}): {advice}") from error


def fetch(url: str, kind: str = "*/*") -> bytes:
    """Return the answer of an address, of a media type; UsageError if there is none, or half of it."""
    try:
        request = urllib.request.Request(url, headers={"Accept": kind})
        with urllib.request.urlopen(request, timeout=SECONDS_OF_SILENCE) as answer:
            content: bytes = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise UsageError(f"{url} did not answer ({error}): get the file elsewhere and give --from PATH") from error
    return content


def put(path: Path, content: bytes) -> None:
    """Write a file whole; UsageError if the operating system refuses."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UsageError(f"{path}: could not be written ({error.strerror}): make room, or give another --to") from error

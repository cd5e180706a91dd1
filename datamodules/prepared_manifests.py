"""The manifest of data that ``scripts/prepare_data.py`` made: found by its name, opened, hashed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from paper_repro.base.errors import UsageError
from paper_repro.base.files import absent, find_data
from paper_repro.base.identity import data_hash

T = TypeVar("T")


class PreparedManifest:
    """Finds the manifest that a config names.

    Args:
        files: ``{manifest: PATH}``, relative to the folder of data, $PAPER_REPRO_DATA or the repository's data/.
        prepare: the command that makes it, named where it is absent or wrong.

    Raises:
        ValueError: other files.
    """

    def __init__(self, files: Mapping[str, str], prepare: str) -> None:
        if set(files) != {"manifest"}:
            raise ValueError(f"files must name manifest, got {', '.join(files) or 'none'}")
        self.name, self.prepare = files["manifest"], prepare

    def path(self, data_root: str | Path | None) -> Path:
        """Return where it is.

        Raises:
            UsageError: nowhere.
        """
        found = find_data(self.name, data_root)
        if found is None or not found.is_file():
            raise UsageError(absent(self.name, data_root, self.prepare))
        return found

    def opened(self, data_root: str | Path | None, open_data: Callable[[Path], T]) -> T:
        """Open what it describes.

        Raises:
            UsageError: it is absent, or what it describes is not what it must be.
        """
        path = self.path(data_root)
        try:
            return open_data(path)
        except UsageError as error:
            raise UsageError(f"{error}; run: {self.prepare}") from error

    def hashes(self, data_root: str | Path | None) -> dict[str, str]:
        """Return its SHA-256; it holds those of the files."""
        return {"manifest": data_hash(self.path(data_root))}

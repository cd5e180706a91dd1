"""Which cells other runners have recorded since some time: one listing instead of a look at each record.

A mark is an empty file ``ended/<cell>``, made after the record.  One that is absent costs a look at the record and
nothing else, so the folder may be deleted at any time.
"""

import contextlib
from pathlib import Path

_LOOKS = 64
_NAMES_A_LOOK = 8
"""So many names of a listing cost a file server about as much as one look at a file."""


class Ended:
    """The marks of a folder of runs, as one of several runners makes and reads them.

    Args:
        runs: the folder of records.
        since: in nanoseconds of the folder's file system, the time after which marks count, also those of runners that
            have ended; None: now.
    """

    def __init__(self, runs: Path, since: int | None = None) -> None:
        self._folder = runs / "ended"
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._before = self._marked(since)
        self._since = set[str]() if since is None else self._marked() - self._before
        self._misses = 0

    def add(self, cell: str) -> None:
        """Mark a cell whose record was written."""
        with contextlib.suppress(OSError):
            (self._folder / cell).touch()

    def knows(self, cell: str) -> bool:
        """Return whether a cell was marked since then, as far as this runner knows.

        The marks are listed anew after many answers of no.
        """
        if cell not in self._since:
            self._misses += 1
            if self._misses >= max(_LOOKS, (len(self._before) + len(self._since)) // _NAMES_A_LOOK):
                self._misses = 0
                self._since = self._marked() - self._before
        return cell in self._since

    def _marked(self, until: int | None = None) -> set[str]:
        """Return the cells that are marked, or that were marked ``until`` then."""
        try:
            return {path.name for path in self._folder.iterdir() if until is None or path.stat().st_mtime_ns <= until}
        except OSError:
            return set()

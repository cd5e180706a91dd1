"""Which cells other runners have recorded since this one began: one listing instead of a look at each record.

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
    """

    def __init__(self, runs: Path) -> None:
        self._folder = runs / "ended"
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._before = self._marked()
        self._since = set[str]()
        self._misses = 0

    def add(self, cell: str) -> None:
        """Mark a cell whose record was written."""
        with contextlib.suppress(OSError):
            (self._folder / cell).touch()

    def knows(self, cell: str) -> bool:
        """Return whether a cell was marked after this runner began, as far as it knows.

        The marks are listed anew after many answers of no.
        """
        if cell not in self._since:
            self._misses += 1
            if self._misses >= max(_LOOKS, (len(self._before) + len(self._since)) // _NAMES_A_LOOK):
                self._misses = 0
                self._since = self._marked() - self._before
        return cell in self._since

    def _marked(self) -> set[str]:
        try:
            return {path.name for path in self._folder.iterdir()}
        except OSError:
            return set()

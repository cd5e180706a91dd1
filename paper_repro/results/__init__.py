"""Records as data: ``frame`` makes a tidy table, ``comparison`` puts two runs side by side.  Neither imports torch."""

from paper_repro.results.tidy import frame

__all__ = ["frame"]

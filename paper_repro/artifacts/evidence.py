"""What a claim is judged from."""

from collections.abc import Mapping
from typing import Any, Protocol


class Evidence(Protocol):
    """What a claim is judged from: an artifact joined with its records (``paper_repro.artifacts.views.View``)."""

    @property
    def artifact(self) -> Any: ...

    @property
    def scale_name(self) -> str: ...

    def covers(self, place: Mapping[str, str]) -> bool:
        """Return whether the scale has a point at a (partial) place."""

    def samples(self, name: str, place: Mapping[str, str]) -> dict[int, float]:
        """Return a metric by seed, of the finished cells at a place."""

    def absence(self, name: str, place: Mapping[str, str]) -> str:
        """Return why there are no samples: "not run", or what the metric lacks."""

    def witness(self) -> Any:
        """Return the same evidence, which notes what is read of it; its ``shortfall()`` is a judgement or None."""

    def without_floors(self) -> Any:
        """Return the same evidence, of which nothing is held against a floor."""

    def counted(self, name: str, place: Mapping[str, str]) -> float | None:
        """Return a column's value at a place."""

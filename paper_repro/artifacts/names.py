"""What a predicate may refer to, and what is wrong where it refers to something else."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts.judgements import Smallest
from paper_repro.base.errors import nearest
from paper_repro.base.typed_yaml import Node

if TYPE_CHECKING:
    from paper_repro.artifacts.artifact import Artifact

Place = dict[str, str]
NO_SMALLEST = (
    "give it 'smallest', the smallest effect that matters with its reason, as {ratio: 0.02, reason: ...} or "
    "{absolute: 0.1, reason: ...}"
)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a metric at a place."""

    metric: str
    place: Place

    @classmethod
    def read(cls, node: Node, metric: str | None) -> "Side":
        place = {key: child.text() for key, child in node.items().items()}
        own = place.pop("metric", metric)
        if own is None:
            raise node.error("missing 'metric'")
        return cls(own, place)


def comparison_names(artifact: "Artifact", comparisons: Sequence[tuple[Side, str, Side] | None]) -> list[str]:
    """Name comparisons, each two sides and a word between them, by what differs between the sides.

    None is named by nothing.  Comparisons that would have one name are told apart by their metrics.
    """

    def title(side: Side) -> str:
        return artifact.metrics[side.metric].title if side.metric in artifact.metrics else side.metric

    def name(side: Side, than: Side) -> str:
        own = {axis: value for axis, value in side.place.items() if than.place.get(axis) != value}
        labels = [artifact.axes[axis].values[value].label for axis, value in own.items()]
        return ", ".join(([title(side)] if side.metric != than.metric or not labels else []) + labels)

    found = ["" if one is None else f"{name(one[0], one[2])} {one[1]} {name(one[2], one[0])}" for one in comparisons]
    if len(set(found)) == len(found):
        return found
    return [f"{title(one[0])}: {text}" if one else text for one, text in zip(comparisons, found, strict=True)]


@dataclass(frozen=True)
class Names:
    """What a predicate may refer to."""

    axes: Mapping[str, Any]
    measured: Sequence[str]
    columns: Sequence[str]
    over: Sequence[str]
    smallest: Smallest | None = None

    def size_problems(self, relative: bool, within: float = math.inf) -> Iterator[str]:
        """Yield what is wrong with the smallest effect that matters, for a predicate in ratios or in differences."""
        if self.smallest is None:
            yield NO_SMALLEST
        elif relative and self.smallest.ratio is None:
            yield f"its predicate compares ratios: 'smallest' needs 'ratio', not only 'absolute' {self.smallest}"
        elif relative and self.smallest.ratio is not None and self.smallest.ratio >= within:
            yield f"the smallest effect that matters, {self.smallest}, is not below 'within', {100 * within:g} %"

    def metric_problems(self, side: Side) -> Iterator[str]:
        """Yield what is wrong with a side that is measured over seeds."""
        if side.metric not in self.measured:
            yield f"unknown metric '{side.metric}'{nearest(side.metric, self.measured)}"
        yield from self._open_axes(side.place)

    def column_problems(self, side: Side) -> Iterator[str]:
        """Yield what is wrong with a side that is counted."""
        if side.metric not in self.columns:
            yield f"unknown column '{side.metric}'{nearest(side.metric, self.columns)}"
        yield from self._open_axes(side.place)

    def _open_axes(self, place: Place) -> Iterator[str]:
        yield from place_problems(self.axes, place)
        for axis in self.axes:
            if axis not in place and axis not in self.over:
                yield f"axis '{axis}' is left open: give its value, or put it under 'over'"
            if axis in place and axis in self.over:
                yield f"axis '{axis}' is both fixed and under 'over'"


def place_problems(axes: Mapping[str, Any], place: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with a partial place in an artifact, in words."""
    for axis, value in place.items():
        if axis not in axes:
            yield f"unknown axis '{axis}'{nearest(axis, axes)}"
        elif value not in axes[axis].values:
            yield f"unknown value '{value}' of axis '{axis}'{nearest(value, axes[axis].values)}"

"""One table or figure of a paper: what was printed, which cells make it up, and how it is judged."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from paper_repro.artifacts import axes as layers
from paper_repro.artifacts import companions
from paper_repro.artifacts.axes import EXACT, SCALES, Axis, Restriction, Scale
from paper_repro.artifacts.claims import Claim
from paper_repro.artifacts.floors import Floor
from paper_repro.artifacts.judgements import Smallest
from paper_repro.artifacts.names import place_problems
from paper_repro.base import typed_yaml
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.overrides import Override
from paper_repro.base.typed_yaml import Node
from paper_repro.cells.planned import Key

AXIS = "axis."
"""How a column names an axis."""


@dataclass(frozen=True)
class Source:
    """Where the paper prints it."""

    paper: str
    where: str = ""

    def placed(self, node: Node, is_ablation: bool) -> "Source":
        """Return the same with a place; only an artifact over a base that prints no numbers may leave it out."""
        if not self.where and not is_ablation:
            raise node.error("missing 'where' in 'source'")
        return self if self.where else dataclasses.replace(self, where="an ablation of it")


@dataclass(frozen=True)
class Metric:
    """A column that is measured (or, with ``measured: false``, taken from the paper as input of a computation)."""

    title: str
    unit: str
    direction: str
    """lower | higher | none: which way is better."""
    digits: int = 4
    factor: float = 1.0
    """Values are divided by this before they are printed or compared with the paper's."""
    format: str = "f"
    measured: bool = True
    published: bool | None = None
    """Whether the paper prints it; not given: if the artifact has a published table."""
    derived: dict[str, list[str]] = field(default_factory=dict)
    """The function and the metrics that it follows from, for example ``{exp: [val_loss]}`` (``artifacts.derived``)."""
    scales: list[str] = field(default_factory=list)
    """The scales that measure it; at others it is not shown (empty: all)."""

    def __post_init__(self) -> None:
        if self.direction not in ("lower", "higher", "none"):
            raise ValueError(f"direction is lower, higher or none, not {self.direction!r}")
        if self.format not in ("f", "e", "g"):
            raise ValueError(f"format is f, e or g, not {self.format!r}")
        _check_printing(self.digits, self.factor)

    def text(self, value: float) -> str:
        return format(value, f".{self.digits}{self.format}")


@dataclass(frozen=True)
class Column:
    """A column printed beside the metrics.

    ``from`` names ``parameters``, ``multiply_adds``, a config key (or with " or " between them several, of which a cell
    has one), or as ``axis.NAME`` an axis whose labels are numbers.
    """

    title: str
    source: str
    unit: str = ""
    factor: float = 1.0
    digits: int = 0
    published: bool | None = None
    only: dict[str, list[str]] = field(default_factory=dict)
    """Restricts it to some values of axes, where cells elsewhere have no such number."""

    @classmethod
    def from_yaml(cls, node: Node) -> "Column":
        hints = {"from" if name == "source" else name: hint for name, hint in cls.__annotations__.items()}
        found = typed_yaml.entries(node, ("title", "from"), [name for name in hints if name not in ("title", "from")])
        values: dict[str, Any] = {key: typed_yaml.convert(hints[key], child) for key, child in found.items()}
        try:
            return cls(source=values.pop("from"), **values)
        except ValueError as error:
            raise node.error(str(error)) from error

    def __post_init__(self) -> None:
        _check_printing(self.digits, self.factor)

    @property
    def sources(self) -> list[str]:
        """The config keys of which a cell has one."""
        return self.source.split(" or ")

    @property
    def axis(self) -> str | None:
        """The axis that it reads; None if it reads something else."""
        return self.source.removeprefix(AXIS) if self.source.startswith(AXIS) else None

    def is_at(self, key: Key) -> bool:
        """Return whether a point has such a number."""
        return all(value in self.only.get(axis, [value]) for axis, value in key)

    def text(self, value: float) -> str:
        return f"{value / self.factor:.{self.digits}f}{self.unit}"


@dataclass(frozen=True)
class Number:
    """A printed number: a value, or mean and spread, or one value per seed."""

    mean: float
    std: float | None = None
    per_seed: tuple[tuple[int, float], ...] = ()

    @classmethod
    def from_yaml(cls, node: Node) -> "Number":
        plain = node.plain()
        if _is_number(plain):
            return cls(float(plain))
        if isinstance(plain, list) and len(plain) == 2 and all(map(_is_number, plain)) and plain[1] >= 0:
            return cls(float(plain[0]), float(plain[1]))
        if isinstance(plain, dict) and set(plain) == {"seeds"} and isinstance(plain["seeds"], dict) and plain["seeds"]:
            wrong = [item for item in plain["seeds"].items() if not (item[0].isdecimal() and _is_number(item[1]))]
            if wrong:
                raise node.error(
                    f"'{node.name}': seeds maps whole numbers to numbers, not {wrong[0][0]} to {wrong[0][1]!r}"
                )
            values = tuple((int(seed), float(value)) for seed, value in plain["seeds"].items())
            numbers = [value for _, value in values]
            mean = math.fsum(numbers) / len(numbers)
            spread = math.sqrt(math.fsum((value - mean) ** 2 for value in numbers) / max(len(numbers) - 1, 1))
            return cls(mean, spread if len(numbers) > 1 else None, values)
        raise node.error(f"'{node.name}' is a number, [mean, std] or {{seeds: {{seed: value}}}}, not {plain!r}")


@dataclass(frozen=True)
class PublishedRow:
    at: dict[str, str]
    values: dict[str, Number | None]
    """None, written "-": the paper prints no number there."""
    where: str

    @classmethod
    def from_yaml(cls, node: Node) -> "PublishedRow":
        entries = node.items()
        if "at" not in entries:
            raise node.error("missing 'at' (which axis values this row is for)")
        at = {axis: child.text() for axis, child in entries["at"].items().items()}
        values = {
            key: None if child.plain() == "-" else Number.from_yaml(child)
            for key, child in entries.items()
            if key != "at"
        }
        return cls(at, values, node.where)


@dataclass(frozen=True)
class Published:
    repeats: str
    """How many seeds the paper averaged over, in the paper's words or as "not given"."""
    rows: list[PublishedRow]


@dataclass(frozen=True)
class Tolerance:
    """How far from the printed number still counts as reproduced; one rule, with its reason."""

    reason: str = ""
    """In YAML, not given: that of the artifact's default tolerance."""
    published_stds: float | None = None
    relative: float | None = None
    absolute: float | None = None
    printed_digits: bool | None = None

    def __post_init__(self) -> None:
        rules = [self.published_stds, self.relative, self.absolute, self.printed_digits]
        if sum(rule is not None for rule in rules) != 1:
            raise ValueError("a tolerance is one of published_stds, relative, absolute, printed_digits")
        if self.printed_digits is False:
            raise ValueError("printed_digits is true, or another rule is given")
        if any(rule is not None and rule < 0 for rule in rules):
            raise ValueError("a tolerance is not negative")


@dataclass(frozen=True)
class Summary:
    """A number that is computed from the whole table (by the Python file beside the YAML)."""

    title: str
    digits: int
    unit: str = ""
    published: float | None = None
    tolerance: Tolerance | None = None
    from_paper: bool = False
    """Whether it is computed from printed numbers alone, and so judged at every scale."""
    fitted: bool = False
    """Whether the way to compute it was chosen because it gives the printed number, which it then does not confirm."""


@dataclass(frozen=True)
class Agreement:
    """What the cells must have in common that the artifact compares; it is checked when they are planned."""

    keys: list[str]
    """Keys of the config; ``tokens`` means those of the whole training."""
    within: list[str] = field(default_factory=list)
    """The axes that may tell cells apart in it: those with the same values on them must agree (none: all cells)."""


@dataclass(frozen=True)
class DataNeed:
    """Data that the user must bring: a path below $PAPER_REPRO_DATA and how to get it."""

    path: str
    title: str
    command: str
    scales: list[str] = field(default_factory=list)
    """The scales that read them (empty: all)."""

    def __post_init__(self) -> None:
        for word in self.scales:
            if word not in SCALES:
                raise ValueError(f"unknown scale '{word}'{nearest(word, SCALES)}")


@dataclass(frozen=True)
class Artifact:
    """The typed content of ``papers/<paper>/<name>.yaml``."""

    id: str
    path: Path
    title: str
    source: Source
    experiment: str
    metrics: dict[str, Metric]
    axes: dict[str, Axis]
    scales: dict[str, Scale]
    columns: dict[str, Column] = field(default_factory=dict)
    published: Published | None = None
    fitted: bool = False
    """Whether its settings were fitted to the printed numbers, which ours are then not said to reproduce."""
    tolerances: dict[str, Tolerance] = field(default_factory=dict)
    summary: dict[str, Summary] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    floors: dict[str, Floor] = field(default_factory=dict)
    """What costs nothing to reach on the same data, by name; every artifact that trains has one."""
    smallest: Smallest | None = None
    """The smallest effect that matters to each claim that names none of its own."""
    notes: list[str] = field(default_factory=list)
    needs: list[DataNeed] = field(default_factory=list)
    best_within: list[str] = field(default_factory=list)
    """The axes within whose values the best result is set in bold (empty: nothing is)."""
    agree: list[Agreement] = field(default_factory=list)
    fewest: dict[str, int] = field(default_factory=dict)
    """How many values of an axis a scale runs at least, wherever it runs any: three rates, for an interpolant."""
    runs: Restriction = field(default_factory=Restriction)
    """Which points every scale is restricted to; a scale may restrict itself further."""
    table: str | None = None
    """The dotted path of the kind of table; not given: the one beside the YAML or a base, or a plain one."""
    figure: str | None = None
    """The dotted path of the kind of figure; not given: the one beside the YAML or a base, or none."""
    bases: tuple[Path, ...] = ()
    """The files that ``path`` lies over, the nearest first."""

    def __post_init__(self) -> None:
        for problem in self._axis_problems():
            raise UsageError(f"{self.path}: {problem}")

    def _axis_problems(self) -> Iterator[str]:
        """Yield what is wrong with the axes, or with what names them."""
        self.points()
        for name, column in self.columns.items():
            if column.axis is not None and column.axis not in self.axes:
                yield f"column '{name}': unknown axis '{column.axis}'{nearest(column.axis, self.axes)}"
            elif column.axis is not None:
                for value in self.axes[column.axis].values.values():
                    if value.number is None:
                        yield f"column '{name}': the label '{value.label}' of axis '{column.axis}' is no number"
        named = [("agree", axis) for rule in self.agree for axis in rule.within]
        for key, axis in named + [("fewest", axis) for axis in self.fewest]:
            if axis not in self.axes:
                yield f"'{key}': unknown axis '{axis}'{nearest(axis, self.axes)}"
        values = (value for spec in self.axes.values() for value in spec.values.values())
        for place in ({axis: other} for value in values for axis in value.beside for other in value.beside[axis]):
            for problem in place_problems(self.axes, place):
                yield f"'beside': {problem}"

    @property
    def quantities(self) -> dict[str, Metric | Column]:
        """Everything a row prints, by name."""
        return {**self.columns, **self.metrics}

    @functools.cached_property
    def _points(self) -> list[Key]:
        return layers.points(self.axes)

    def points(self, scale: Scale | None = None) -> list[Key]:
        """Return every point of the axes' product, the last axis running fastest; of a scale, those that it runs."""
        if scale is None:
            return self._points
        return [key for key in self._points if self.runs.runs(key) and scale.runs(key)]

    def overrides(self, key: Key, scale: Scale) -> list[Override]:
        """Return the overrides of one point, a later one over an earlier one: see ``axes``."""
        word = next(name for name, spec in self.scales.items() if spec is scale)
        return layers.layers(self.axes, key, word, scale)

    def printed(self, key: Key, name: str) -> Number | None:
        """Return what the paper prints for a metric or column at a point."""
        place = dict(key)
        for row in self.published.rows if self.published else ():
            if name in row.values and row.at.items() <= place.items():
                return row.values[name]
        return None

    def scale(self, word: str) -> tuple[str, Scale]:
        """Return the scale of that name (for exact artifacts: any of the scale words means ``exact``).

        Raises:
            UsageError: the artifact has no such scale.
        """
        if EXACT in self.scales and word in (*SCALES, EXACT):
            return EXACT, self.scales[EXACT]
        if word not in self.scales:
            raise UsageError(f"{self.id} has no scale {word!r}{nearest(word, self.scales)}")
        return word, self.scales[word]

    def at_scale(self, word: str) -> "Artifact":
        """Return the artifact with the metrics that a scale measures, and their tolerances."""
        metrics = {name: spec for name, spec in self.metrics.items() if not spec.scales or word in spec.scales}
        hidden = self.metrics.keys() - metrics.keys()
        tolerances = {name: rule for name, rule in self.tolerances.items() if name not in hidden}
        return dataclasses.replace(self, metrics=metrics, tolerances=tolerances) if hidden else self

    def companions(self) -> list[ModuleType]:
        """Return the Python files beside the YAML and its bases: a figure draws there, a table computes, a claim is
        judged.

        The artifact's own is the first, a base's comes before that of the base below it.
        """
        return companions.load(self.id, [self.path, *self.bases])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_printing(digits: int, factor: float) -> None:
    if digits < 0:
        raise ValueError(f"digits are 0 or more, not {digits}")
    if factor <= 0:
        raise ValueError(f"a factor is above 0, not {factor:g}")

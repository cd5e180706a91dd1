"""One table or figure of a paper: what was printed, which cells make it up, and how it is judged."""

import importlib.util
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from paper_repro.artifacts.claims import Claim, place_problems
from paper_repro.base import typed_yaml
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.typed_yaml import Node
from paper_repro.cells.planned import Key

SCALES = ("smoke", "cpu", "gpu", "paper")
EXACT = "exact"
"""The scale of arithmetic and counting: nothing is trained, so every scale word means the same."""


@dataclass(frozen=True)
class Source:
    """Where the paper prints it."""

    paper: str
    where: str


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
    published: bool = True

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
    """A column printed beside the metrics: ``from`` names parameters, multiply_adds or a config key."""

    title: str
    source: str
    unit: str = ""
    factor: float = 1.0
    digits: int = 0
    published: bool = True

    @classmethod
    def from_yaml(cls, node: Node) -> "Column":
        hints = {"from" if name == "source" else name: hint for name, hint in cls.__annotations__.items()}
        values: dict[str, Any] = {}
        for key, child in node.items().items():
            if key not in hints:
                raise UsageError(f"{node.path}:{child.key_line}: unknown key '{key}'{nearest(key, hints)}")
            values[key] = typed_yaml.convert(hints[key], child)
        for key in ("title", "from"):
            if key not in values:
                raise node.error(f"missing '{key}' in '{node.name}'")
        try:
            return cls(source=values.pop("from"), **values)
        except ValueError as error:
            raise node.error(str(error)) from error

    def __post_init__(self) -> None:
        _check_printing(self.digits, self.factor)

    def text(self, value: float) -> str:
        return f"{value / self.factor:.{self.digits}f}{self.unit}"


@dataclass(frozen=True)
class AxisValue:
    label: str
    overrides: list[str] = field(default_factory=list)
    at_scale: dict[str, list[str]] = field(default_factory=dict)
    """Further overrides by scale, for example a smaller width; they win over the scale's own."""
    beside: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Further overrides by axis and value of another axis, for what follows from both; the scale's win over them."""


@dataclass(frozen=True)
class Axis:
    title: str
    values: dict[str, AxisValue]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("an axis needs at least one value")


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
        at = {axis: str(child.plain()) for axis, child in entries["at"].items().items()}
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

    reason: str
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


@dataclass(frozen=True)
class Scale:
    """What is run under one scale word, and whether its numbers may be held against the paper's."""

    comparable: bool
    seeds: list[int]
    about: str
    overrides: list[str] = field(default_factory=list)
    only: dict[str, list[str]] = field(default_factory=dict)
    """Restricts axes to some of their values."""
    any_of: list[dict[str, list[str]]] = field(default_factory=list)
    """Restrictions like ``only``, of which a point has to satisfy one; none: no further restriction."""

    def __post_init__(self) -> None:
        check_seeds(self.seeds)

    def runs(self, key: Key) -> bool:
        """Whether a point of the axes' product is one of this scale's."""
        place = dict(key)

        def inside(restriction: dict[str, list[str]]) -> bool:
            return all(place[axis] in chosen for axis, chosen in restriction.items())

        return inside(self.only) and (not self.any_of or any(map(inside, self.any_of)))


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
    tolerances: dict[str, Tolerance] = field(default_factory=dict)
    summary: dict[str, Summary] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    needs: list[DataNeed] = field(default_factory=list)
    best_within: list[str] = field(default_factory=list)
    """The axes within whose values the best result is set in bold (empty: nothing is)."""
    agree: list[Agreement] = field(default_factory=list)
    fewest: dict[str, int] = field(default_factory=dict)
    """How many values of an axis a scale runs at least, wherever it runs any: three rates, for an interpolant."""
    bases: tuple[Path, ...] = ()
    """The files that ``path`` lies over, the nearest first."""

    def __post_init__(self) -> None:
        for problem in self._axis_problems():
            raise UsageError(f"{self.path}: {problem}")

    def _axis_problems(self) -> Iterator[str]:
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

    def points(self, scale: Scale | None = None) -> list[Key]:
        """Every point of the axes' product, the last axis running fastest; of a scale, those that it runs."""
        choices = [[(axis, value) for value in spec.values] for axis, spec in self.axes.items()]
        return [tuple(key) for key in itertools.product(*choices) if scale is None or scale.runs(tuple(key))]

    def overrides(self, key: Key, scale: Scale) -> list[str]:
        """The overrides of one point: the axes' first, then the scale's, then the axes' own at that scale."""
        word = next(name for name, spec in self.scales.items() if spec is scale)
        values = [self.axes[axis].values[value] for axis, value in key]
        own = [text for value in values for text in value.overrides]
        own += [text for value in values for place in key for text in value.beside.get(place[0], {}).get(place[1], ())]
        return own + list(scale.overrides) + [text for value in values for text in value.at_scale.get(word, ())]

    def printed(self, key: Key, name: str) -> Number | None:
        """What the paper prints for a metric or column at a point."""
        place = dict(key)
        for row in self.published.rows if self.published else ():
            if name in row.values and row.at.items() <= place.items():
                return row.values[name]
        return None

    def scale(self, word: str) -> tuple[str, Scale]:
        """The scale of that name (for exact artifacts: any of the scale words means ``exact``).

        Raises:
            UsageError: the artifact has no such scale.
        """
        if EXACT in self.scales and word in (*SCALES, EXACT):
            return EXACT, self.scales[EXACT]
        if word not in self.scales:
            raise UsageError(f"{self.id} has no scale {word!r}{nearest(word, self.scales)}")
        return word, self.scales[word]

    def companions(self) -> list[ModuleType]:
        """The Python files beside the YAML and its bases: a figure draws there, a table computes, a claim is judged.

        The artifact's own is the first, a base's comes before that of the base below it.
        """
        names = [self.id.replace("/", "."), *(f"{path.parent.parent.name}.bases.{path.stem}" for path in self.bases)]
        files = [path.with_suffix(".py") for path in (self.path, *self.bases)]
        found = zip(names, files, strict=True)
        return [_module(f"paper_repro.papers.{name}", path) for name, path in found if path.is_file()]


def _module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_printing(digits: int, factor: float) -> None:
    if digits < 0:
        raise ValueError(f"digits are 0 or more, not {digits}")
    if factor <= 0:
        raise ValueError(f"a factor is above 0, not {factor:g}")


def check_seeds(seeds: Sequence[int]) -> None:
    """Raises ValueError for an empty list, a negative seed or one given twice."""
    if not seeds:
        raise ValueError("at least one seed is needed")
    for seed in seeds:
        if seed < 0:
            raise ValueError(f"seed {seed} is negative")
        if list(seeds).count(seed) > 1:
            raise ValueError(f"seed {seed} is given twice: a repeated seed is no further evidence")

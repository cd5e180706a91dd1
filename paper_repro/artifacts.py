"""One table or figure of a paper: what was printed, which cells make it up, and how it is judged.

``papers/<paper>/<name>.yaml`` is found by scanning; its id is ``<paper>/<name>``.  A further folder with the same
layout may be given in ``$PAPER_REPRO_PAPERS``.
"""

import importlib.util
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from paper_repro import typed_yaml
from paper_repro.claims import Predicate, check_predicate, place_problems
from paper_repro.errors import UsageError, nearest
from paper_repro.typed_yaml import Node

PAPERS = Path(__file__).parent / "papers"
EXTRA_PAPERS = "PAPER_REPRO_PAPERS"
SCALES = ("smoke", "cpu", "gpu", "paper")
EXACT = "exact"
"""The scale of arithmetic and counting: nothing is trained, so every scale word means the same."""

Key = tuple[tuple[str, str], ...]
"""The place of a cell in its artifact: (axis, value) pairs in the artifact's order of axes."""


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
        entries = node.items()
        if "from" not in entries:
            raise node.error(f"missing 'from' in '{node.name}'")
        plain = node.plain()
        plain["source"] = plain.pop("from")
        allowed = {"title", "source", "unit", "factor", "digits", "published"}
        for key, child in entries.items():
            if key != "from" and key not in allowed - {"source"}:
                raise UsageError(f"{node.path}:{child.key_line}: unknown key '{key}'{nearest(key, allowed)}")
        if "title" not in plain:
            raise node.error(f"missing 'title' in '{node.name}'")
        return cls(**plain)

    def text(self, value: float) -> str:
        return f"{value / self.factor:.{self.digits}f}{self.unit}"


@dataclass(frozen=True)
class AxisValue:
    label: str
    overrides: list[str] = field(default_factory=list)


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
        if isinstance(plain, (int, float)) and not isinstance(plain, bool):
            return cls(float(plain))
        if isinstance(plain, list) and len(plain) == 2 and all(isinstance(item, (int, float)) for item in plain):
            return cls(float(plain[0]), float(plain[1]))
        if isinstance(plain, dict) and set(plain) == {"seeds"} and plain["seeds"]:
            try:
                values = tuple((int(seed), float(value)) for seed, value in plain["seeds"].items())
            except (TypeError, ValueError) as error:
                raise node.error(f"'{node.name}': seeds maps whole numbers to numbers: {error}") from error
            numbers = [value for _, value in values]
            mean = math.fsum(numbers) / len(numbers)
            spread = math.sqrt(math.fsum((value - mean) ** 2 for value in numbers) / max(len(numbers) - 1, 1))
            return cls(mean, spread if len(numbers) > 1 else None, values)
        raise node.error(f"'{node.name}' is a number, [mean, std] or {{seeds: {{seed: value}}}}, not {plain!r}")


@dataclass(frozen=True)
class PublishedRow:
    at: dict[str, str]
    values: dict[str, Number]
    where: str

    @classmethod
    def from_yaml(cls, node: Node) -> "PublishedRow":
        entries = node.items()
        if "at" not in entries:
            raise node.error("missing 'at' (which axis values this row is for)")
        at = {axis: str(child.plain()) for axis, child in entries["at"].items().items()}
        values = {key: Number.from_yaml(child) for key, child in entries.items() if key != "at"}
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


@dataclass(frozen=True)
class Claim:
    """What the paper says in words or shows, as a predicate over cells."""

    id: str
    says: str
    where: str
    predicate: Predicate
    catalogue: str | None = None
    """The id of the claim in the catalogue of all papers' claims that this one is a part of."""
    over: list[str] = field(default_factory=list)
    """Axes over whose every combination of values the predicate is judged; the claim holds if it holds everywhere."""
    only: dict[str, list[str]] = field(default_factory=dict)
    """Restricts an axis of ``over`` to some of its values."""
    somewhere: bool = False
    """Whether it is enough that the predicate holds at one of the places."""
    scales: list[str] = field(default_factory=list)
    """The scales at which it may honestly be judged (empty: all)."""


@dataclass(frozen=True)
class Summary:
    """A number that is computed from the whole table (by the Python file beside the YAML)."""

    title: str
    digits: int
    unit: str = ""
    published: float | None = None
    tolerance: Tolerance | None = None


@dataclass(frozen=True)
class Scale:
    """What is run under one scale word, and whether its numbers may be held against the paper's."""

    comparable: bool
    seeds: list[int]
    about: str
    overrides: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_seeds(self.seeds)


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

    def points(self) -> list[Key]:
        """Every point of the axes' product, the last axis running fastest."""
        choices = [[(axis, value) for value in spec.values] for axis, spec in self.axes.items()]
        return [tuple(key) for key in itertools.product(*choices)]

    def overrides(self, key: Key, scale: Scale) -> list[str]:
        """The overrides of one point: the axes' first, then the scale's."""
        own = [text for axis, value in key for text in self.axes[axis].values[value].overrides]
        return own + list(scale.overrides)

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

    def companion(self) -> ModuleType | None:
        """The Python file beside the YAML, where a figure draws or a table computes; None if there is none."""
        path = self.path.with_suffix(".py")
        if not path.is_file():
            return None
        spec = importlib.util.spec_from_file_location(f"paper_repro.papers.{self.id.replace('/', '.')}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def check_seeds(seeds: Sequence[int]) -> None:
    """Raises ValueError for an empty list, a negative seed or one given twice."""
    if not seeds:
        raise ValueError("at least one seed is needed")
    for seed in seeds:
        if seed < 0:
            raise ValueError(f"seed {seed} is negative")
        if list(seeds).count(seed) > 1:
            raise ValueError(f"seed {seed} is given twice: a repeated seed is no further evidence")


def find() -> dict[str, Path]:
    """Every artifact's id and file, found by scanning.

    Raises:
        UsageError: two files have one id, or $PAPER_REPRO_PAPERS names no folder.
    """
    folders = [PAPERS]
    if extra := os.environ.get(EXTRA_PAPERS):
        folders.append(Path(extra))
        if not folders[-1].is_dir():
            raise UsageError(f"${EXTRA_PAPERS} is {extra!r}, which is no folder")
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/*.yaml")):
            name = f"{path.parent.name}/{path.stem}"
            if name in found:
                raise UsageError(f"duplicate artifact id '{name}': {found[name]} and {path}")
            found[name] = path
    return found


def load(name: str) -> Artifact:
    """The artifact of that id.

    Raises:
        UsageError: unknown id (with the nearest), or an error in its file, with file and line.
    """
    found = find()
    if name not in found:
        raise UsageError(f"unknown artifact {name!r}{nearest(name, found)}; --list shows them all")
    return load_file(found[name])


def load_file(path: Path) -> Artifact:
    """The artifact that a file describes, checked whole."""
    root = typed_yaml.read(path)
    entries = root.items()
    allowed = {name: hint for name, hint in Artifact.__annotations__.items() if name not in ("id", "path")}
    for key, child in entries.items():
        if key not in allowed:
            raise UsageError(f"{path}:{child.key_line}: unknown key '{key}'{nearest(key, allowed)}")
    values: dict[str, Any] = {key: typed_yaml.convert(allowed[key], child) for key, child in entries.items()}
    for required in ("title", "source", "experiment", "metrics", "axes", "scales"):
        if required not in values:
            raise root.error(f"missing '{required}'")
    artifact = Artifact(id=f"{path.parent.name}/{path.stem}", path=path, **values)
    _check(artifact, entries)
    return artifact


def _check(artifact: Artifact, entries: Mapping[str, Node]) -> None:
    for word, child in entries["scales"].items().items():
        if word not in (*SCALES, EXACT):
            raise UsageError(f"{child.path}:{child.key_line}: unknown scale '{word}'{nearest(word, (*SCALES, EXACT))}")
    if EXACT in artifact.scales and len(artifact.scales) > 1:
        raise entries["scales"].error("an exact artifact has the scale 'exact' alone")
    names = {**artifact.metrics, **artifact.columns}
    for name, tolerance in entries["tolerances"].items().items() if "tolerances" in entries else ():
        if name not in names:
            raise UsageError(f"{tolerance.path}:{tolerance.key_line}: unknown metric '{name}'{nearest(name, names)}")
    for name, spec in names.items():
        judged = spec.published and getattr(spec, "measured", True) and artifact.published is not None
        if judged and name not in artifact.tolerances:
            raise entries.get("tolerances", entries["title"]).error(f"no tolerance for the published '{name}'")
    for axis in artifact.best_within:
        if axis not in artifact.axes:
            raise entries["best_within"].error(f"unknown axis '{axis}'{nearest(axis, artifact.axes)}")
    _check_published(artifact, entries)
    _check_claims(artifact, entries)


def _check_published(artifact: Artifact, entries: Mapping[str, Node]) -> None:
    if artifact.published is None:
        return
    names = [name for name, spec in [*artifact.metrics.items(), *artifact.columns.items()] if spec.published]
    seen: dict[tuple[str, Key], str] = {}
    for row in artifact.published.rows:
        for problem in place_problems(artifact.axes, row.at):
            raise UsageError(f"{row.where}: {problem}")
        for name in row.values:
            if name not in names:
                raise UsageError(f"{row.where}: unknown metric or column '{name}'{nearest(name, names)}")
            for key in artifact.points():
                if row.at.items() <= dict(key).items():
                    if (name, key) in seen:
                        raise UsageError(f"{row.where}: '{name}' was already given at {seen[name, key]}")
                    seen[name, key] = row.where
    for key in artifact.points():
        for name in names:
            if (name, key) not in seen:
                place = ", ".join(f"{axis}: {value}" for axis, value in key)
                raise entries["published"].error(f"no published '{name}' for {{{place}}}")


def _check_claims(artifact: Artifact, entries: Mapping[str, Node]) -> None:
    seen: dict[str, str] = {}
    nodes = entries["claims"].elements() if "claims" in entries else []
    for claim, node in zip(artifact.claims, nodes, strict=True):
        if claim.id in seen:
            raise node.error(f"duplicate claim id '{claim.id}' (first at {seen[claim.id]})")
        seen[claim.id] = node.where
        for axis in claim.over:
            if axis not in artifact.axes:
                raise node.error(f"unknown axis '{axis}'{nearest(axis, artifact.axes)}")
        for axis, chosen in claim.only.items():
            if axis not in claim.over:
                raise node.error(f"'only' restricts axis '{axis}', which is not under 'over'")
            for problem in (text for value in chosen for text in place_problems(artifact.axes, {axis: value})):
                raise node.error(problem)
        check_predicate(claim.predicate, artifact.axes, artifact.metrics, artifact.columns, claim.over, node)

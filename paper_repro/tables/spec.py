"""Artifacts: what a table or figure of a paper printed, which cells make it up, and its claims.

``papers/<paper>/<name>.yaml`` has the id ``<paper>/<name>``; with ``like: <paper>/<base>`` it lies over
``papers/<paper>/bases/<base>.yaml``.  ``$PAPER_REPRO_PAPERS`` and ``papers`` of a user's package are laid out alike.

The overrides of a cell come in this order, a later one over an earlier one: the scale's ``overrides``, those of its
axis values, ``beside`` of its axis values, the scale's ``over_axes``, ``at_scale`` of its axis values; and after all
values the factors (``{times: 2}``), wherever they are written.  Of axis values that set one key the last axis wins.

A trivial baseline is what is reached without learning on the data of a model: a cell with the config of the artifact's
scale, the models' data, and a task that trains nothing, which artifacts on the same data share.
``papers/baselines.yaml`` defines baselines, and an artifact names what they bound:
``baselines: {bigram: {metrics: [val_loss]}}``.  A model that does not beat its baseline is marked in the table.
"""

import contextlib
import dataclasses
import fnmatch
import functools
import importlib.util
import itertools
import math
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from paper_repro.base import configs
from paper_repro.base.configs import LARGEST, Node, Override, Overrides, experiments, file_of, override_of, own_packages
from paper_repro.base.errors import UsageError, nearest
from paper_repro.cells.planned import Key
from paper_repro.tables import stats
from paper_repro.tables.claims import COUNT, NO_EFFECT, NO_SMALLEST, Claim, Contrast, Smallest

PAPERS = Path(__file__).parents[1] / "papers"
SCALES = SMOKE, *_ = ("smoke", "cpu", "gpu", "paper")
ABOUT_SMOKE = "a few steps of tiny models, to see that everything runs."
EXACT = "exact"  # the scale of arithmetic and counting
COMPARABLE = ("paper", EXACT)
NO_OVERRIDES = Overrides()


@dataclass(frozen=True)
class AxisValue:
    """One value of an axis."""

    label: str
    overrides: Overrides = NO_OVERRIDES
    at_scale: dict[str, Overrides] = field(default_factory=dict)
    """Further overrides by scale, for example a smaller width; they win over the scale's own."""
    beside: dict[str, dict[str, Overrides]] = field(default_factory=dict)
    """Further overrides by axis and value of another axis, for what follows from both."""

    @property
    def number(self) -> int | float | None:
        """The number that the label is; None where it is none."""
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(self.label)
        return None


@dataclass(frozen=True)
class Axis:
    """One way in which an artifact's cells differ.

    In YAML, ``sets: KEY`` names the config key that the values set.  Values are then a list of scalars, or a mapping
    from names to scalars or to axis values with a ``value``.  Without a ``title`` it is the axis's name.
    """

    title: str
    values: dict[str, AxisValue]

    @classmethod
    def from_yaml(cls, node: Node) -> "Axis":
        entries = configs.entries(node, required=("values",), optional=("title", "sets"))
        listed, title = entries["values"], node.name.replace("_", " ").capitalize()
        if listed.is_sequence:
            children = {child.text(): child for child in listed.elements()}
            if len(children) < len(listed.elements()):
                raise listed.error("'values' lists a value twice")
        else:
            children = listed.items()
        values = {name: _axis_value(name, child, entries.get("sets")) for name, child in children.items()}
        return cls(configs.convert(str, entries["title"]) if "title" in entries else title, values)


CHANGED = "setting"  # the axis of an artifact that gives ``overrides``: without them, and with them


def _with_change(axes: Mapping[str, Axis], change: Node, scales: Sequence[str]) -> dict[str, Axis]:
    """Return the axes and one more, which compares what they give with the same under some overrides."""
    own = Overrides.from_yaml(change)
    if CHANGED in axes or not own:
        raise change.error(f"'overrides' make an axis '{CHANGED}': it is empty, or there is one of that name")
    label = ", ".join(f"{item.key}={item.value}" for item in own)
    values = {"default": AxisValue("unchanged"), "changed": AxisValue(label, at_scale=dict.fromkeys(scales, own))}
    return {**axes, CHANGED: Axis("Setting", values)}


def _axis_value(name: str, node: Node, sets: Node | None) -> AxisValue:
    value: Node | None = node
    if not node.is_mapping:
        label, found = node.text(), dict[str, Any]()
    else:
        hints = typing.get_type_hints(AxisValue)
        entries = configs.entries(node, optional=("value", *hints))
        value = entries.get("value")
        found = {key: configs.convert(hints[key], child) for key, child in entries.items() if key != "value"}
        label = found.pop("label", name)
    if value is not None and sets is not None:
        own = found.get("overrides", NO_OVERRIDES)
        found["overrides"] = Overrides((*own, override_of(sets.text(), value)))
    elif value is not None and value is not node:
        raise value.error("'value' needs the key that the axis sets: give the axis 'sets'")
    return AxisValue(label, **found)


@dataclass(frozen=True)
class Restriction:
    """Which points of the axes' product are run."""

    only: dict[str, list[str]] = field(default_factory=dict)
    """Restricts axes to some of their values."""
    any_of: list[dict[str, list[str]]] = field(default_factory=list)
    """Restrictions like ``only``; a point satisfies at least one. None: no further restriction."""

    def runs(self, key: Key) -> bool:
        place = dict(key) if self.only or self.any_of else {}

        def inside(restriction: dict[str, list[str]]) -> bool:
            return all(place[axis] in chosen for axis, chosen in restriction.items())

        return inside(self.only) and (not self.any_of or any(map(inside, self.any_of)))


@dataclass(frozen=True)
class MoreSeeds:
    """Places that have more seeds than others of their scale."""

    at: dict[str, list[str]]
    seeds: int


@dataclass(frozen=True)
class Scale(Restriction):
    """What is run under one scale word, and whether its numbers may be held against the paper's."""

    about: str = field(kw_only=True)
    """In YAML, not given at scale smoke: a few steps of tiny models."""
    comparable: bool = field(kw_only=True)
    """In YAML, not given: at the scales ``paper`` and ``exact``."""
    seeds: list[int] = field(default_factory=lambda: [0], kw_only=True)
    """In YAML their number, for 0, 1, 2, or the list that a paper prints."""
    more_seeds: list[MoreSeeds] = field(default_factory=list, kw_only=True)
    data: str = field(default="", kw_only=True)
    """The words for its data where their class does not say them (``papers/data_names.yaml``)."""
    overrides: Overrides = field(default=NO_OVERRIDES, kw_only=True)
    over_axes: Overrides = field(default=NO_OVERRIDES, kw_only=True)
    """Overrides that win over those of the axes."""
    notes: list[str] = field(default_factory=list, kw_only=True)
    """Printed below the notes of the artifact, at this scale alone."""

    @classmethod
    def from_yaml(cls, node: Node) -> "Scale":
        hints = typing.get_type_hints(cls)
        found = configs.entries(node, ("about",) if node.name != SMOKE else (), list(hints))
        values = {name: configs.convert(hints[name], child) for name, child in found.items() if name != "seeds"}
        if (seeds := found.get("seeds")) is not None:
            listed = seeds.is_sequence
            values["seeds"] = configs.convert(list[int], seeds) if listed else [*range(configs.convert(int, seeds))]
            for problem in seed_problems(values["seeds"]):
                raise seeds.error(problem)
        return cls(**{"comparable": node.name in COMPARABLE, "about": ABOUT_SMOKE, **values})

    def seeds_at(self, key: Key) -> list[int]:
        """Return the seeds of a point: those of the scale, and the whole numbers above them where it has more."""
        place, count = dict(key), len(self.seeds)
        for more in self.more_seeds:
            if all(place.get(axis) in values for axis, values in more.at.items()):
                count = more.seeds
        return [*self.seeds, *range(max(self.seeds) + 1, max(self.seeds) + 1 + count - len(self.seeds))][:count]


def seed_problems(seeds: Sequence[int]) -> Iterator[str]:
    if not seeds:
        yield "seeds: at least one is needed"
    for seed in seeds:
        if seed < 0:
            yield f"seed {seed} is negative"
        if seed > LARGEST:
            yield f"seed {seed} is above {LARGEST}, the largest that a record can hold"
        if list(seeds).count(seed) > 1:
            yield f"seed {seed} is given twice, and repeating a seed adds no evidence"


def unknown(kind: str, names: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    known = list(known)
    return (f"unknown {kind} '{name}'{nearest(name, known)}" for name in names if name not in known)


def place_problems(axes: Mapping[str, Axis], place: Mapping[str, str]) -> Iterator[str]:
    for axis, value in place.items():
        if axis not in axes:
            yield from unknown("axis", [axis], axes)
        elif value not in axes[axis].values:
            yield f"unknown value '{value}' of axis '{axis}'{nearest(value, axes[axis].values)}"


DIRECTIONS = ("lower", "higher")
MODEL, METRICS, NOTHING = "model", "metrics", "nothing"
JUDGES = (MODEL, METRICS, NOTHING)


@dataclass(frozen=True)
class Baseline:
    """A trivial baseline as an artifact names it."""

    label: str
    direction: str
    """lower | higher: the side of the baseline on which a model has learned something."""
    metrics: dict[str, str]
    """The metrics that it bounds, each with the name that the baseline's own record gives it."""
    about: str = ""
    """How it is computed, in a sentence for the notes."""
    task: tuple[Override, ...] = ()
    """The task that measures it; none where ``values`` are given."""
    at_scale: dict[str, Overrides] = field(default_factory=dict)
    """Further overrides of the task by scale."""
    values: dict[str, float] = field(default_factory=dict)
    """Values that need no data, by metric; ``about`` gives the reason."""
    at: dict[str, str] = field(default_factory=dict)
    """Axis values at which it is measured, where models differ in other data."""
    judges: str = MODEL
    """The claims that a model which does not beat it cannot support: all, those that read ``metrics``, or none."""

    @classmethod
    def from_yaml(cls, node: Node) -> "Baseline":
        known, hints = registry(), cls.__annotations__
        entries = configs.entries(configs.over(known.get(node.name, node), node), optional=list(hints))
        if not {"label", "direction"} <= entries.keys():
            raise node.error(
                f"baseline '{node.name}' is none of papers/baselines.yaml{nearest(node.name, known)}, and lacks label, "
                "direction, and task or values"
            )
        if ("task" in entries) == ("values" in entries):
            raise node.error(f"baseline '{node.name}' has a task that measures it, or values: give one")
        task, named, at = (entries.pop(key, None) for key in ("task", "metrics", "at"))
        values: dict[str, Any] = {key: configs.convert(hints[key], child) for key, child in entries.items()}
        if values.get("values") and not values.get("about"):
            raise entries["values"].error(f"baseline '{node.name}' gives numbers without their reason: add 'about'")
        for key, words in (("direction", DIRECTIONS), ("judges", JUDGES)):
            if values.get(key, words[0]) not in words:
                raise entries[key].error(f"{key} is {', '.join(words)}, not {values[key]!r}")
        values["metrics"] = {name: name for name in values.get("values", {})}
        if named is not None and named.is_sequence:
            values["metrics"] = {child.text(): child.text() for child in named.elements()}
        elif named is not None:
            values["metrics"] = configs.convert(dict[str, str], named)
        if not values["metrics"] and values.get("judges") != NOTHING:
            raise node.error(f"baseline '{node.name}' bounds no metric: give it 'metrics', or judges: nothing")
        if task is not None:
            values["task"] = (override_of("task", task),)
        if at is not None:
            values["at"] = {axis: child.text() for axis, child in at.items().items()}
        return cls(**values)


@functools.cache
def registry() -> dict[str, Node]:
    return configs.read(PAPERS / "baselines.yaml").items()


def gain(before: float, after: float) -> float:
    """Return by how many percent the perplexity falls from one loss to another."""
    return 100 * (1 - math.exp(after - before))


DERIVED: dict[str, tuple[Callable[..., float], int]] = {"exp": (math.exp, 1), "gain": (gain, 2), "first": (float, 1)}
"""The functions of ``derived``, each with the number of its metrics; ``first`` is the metric itself."""


@dataclass(frozen=True)
class Source:
    """Where the paper prints it."""

    paper: str
    where: str = ""


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
    """Whether the paper prints it, where the artifact has a published table."""
    derived: dict[str, list[str]] = field(default_factory=dict)
    """The function and the metrics that it follows from, for example ``{exp: [test_loss or val_loss]}``."""
    scales: list[str] = field(default_factory=list)
    """The scales that measure and show it (empty: all)."""

    def __post_init__(self) -> None:
        if self.direction not in ("lower", "higher", "none"):
            raise ValueError(f"direction is lower, higher or none, not {self.direction!r}")

    def text(self, value: float) -> str:
        return format(value, f".{self.digits}{self.format}")


@dataclass(frozen=True)
class Column:
    """A column printed beside the metrics.

    ``from`` names ``parameters``, ``multiply_adds``, or a config key (or several, with " or ": a cell has one of them).
    """

    title: str
    source: str = field(metadata={"key": "from"})
    unit: str = ""
    factor: float = 1.0
    digits: int = 0
    published: bool = True

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
        if isinstance(plain, dict) and plain.keys() == {"seeds"}:
            found = configs.convert(dict[str, float], node.items()["seeds"])
            seeds, numbers = map(int, found), list(found.values())
            return cls(stats.mean(numbers), stats.sample_std(numbers), tuple(zip(seeds, numbers, strict=True)))
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
        at = {axis: child.text() for axis, child in entries["at"].items().items()}
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
    """In YAML, not given: that of the artifact's default tolerance."""
    published_stds: float | None = None
    relative: float | None = None
    absolute: float | None = None
    printed_digits: bool | None = None

    def __post_init__(self) -> None:
        rules = [self.published_stds, self.relative, self.absolute, self.printed_digits]
        if sum(rule is not None for rule in rules) != 1:
            raise ValueError("a tolerance is one of published_stds, relative, absolute, printed_digits")


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
    """Whether the way to compute it was chosen because it gives the printed number."""


@dataclass(frozen=True)
class DataNeed:
    """Data that the user must bring: a path below $PAPER_REPRO_DATA and how to get it."""

    path: str
    title: str
    command: str
    scales: list[str] = field(default_factory=list)
    """The scales that read them (empty: all)."""


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
    baselines: dict[str, Baseline] = field(default_factory=dict)
    """Trivial baselines on the same data, by name; every artifact that trains has one."""
    smallest: Smallest | None = None
    """The smallest effect that matters to each claim that names none of its own."""
    notes: list[str] = field(default_factory=list)
    deviations: list[str] = field(default_factory=list)
    """What scale paper does otherwise than the paper."""
    needs: dict[str, DataNeed] = field(default_factory=dict)
    best_within: list[str] = field(default_factory=list)
    """The axes within whose values the best result is set in bold (empty: nothing is)."""
    runs: Restriction = field(default_factory=Restriction)
    """Which points every scale is restricted to; a scale may restrict itself further."""
    table: str | None = None
    """The dotted path of the kind of table; not given: the one beside the YAML or a base, or a plain one."""
    figure: str | None = None
    """The dotted path of the kind of figure; not given: the one beside the YAML or a base, or none."""
    bases: tuple[Path, ...] = ()
    """The files that ``path`` lies over, the nearest first."""

    @property
    def quantities(self) -> dict[str, Metric | Column]:
        """Everything a row prints, by name."""
        return {**self.columns, **self.metrics}

    def points(self, scale: Scale) -> list[Key]:
        """Return the points of the axes' product that a scale runs, the last axis running fastest."""
        axes = [[(name, value) for value in axis.values] for name, axis in self.axes.items()]
        return [key for key in itertools.product(*axes) if self.runs.runs(key) and scale.runs(key)]

    def label(self, key: Key) -> str:
        """Return the labels of axis values."""
        return ", ".join(self.axes[axis].values[value].label for axis, value in key)

    def overrides(self, key: Key, scale: Scale) -> list[Override]:
        """Return the overrides of one point at one scale, a later one over an earlier one."""
        word = next(name for name, spec in self.scales.items() if spec is scale)
        found = [item.of(f"scale {word}") for item in scale.overrides]
        values = [(f"axis {axis}={value}", self.axes[axis].values[value]) for axis, value in key]
        found += [item.of(name) for name, value in values for item in value.overrides]
        for name, value in values:
            for axis, other in key:
                further = value.beside.get(axis, {}).get(other, ())
                found += [item.of(f"{name} beside {axis}={other}") for item in further]
        found += [item.of(f"scale {word}, over the axes") for item in scale.over_axes]
        for name, value in values:
            found += [item.of(f"{name} at scale {word}") for item in value.at_scale.get(word, ())]
        found.sort(key=lambda item: item.times)
        return [self._with_number(dict(key), item) if item.axis else item for item in found]

    def _with_number(self, place: Mapping[str, str], item: Override) -> Override:
        """Put the number of an axis value into an override that names its axis."""
        if item.value not in place:
            raise item.error(f"unknown axis {item.value!r}{nearest(str(item.value), place)}")
        value = self.axes[item.value].values[place[item.value]]
        if value.number is None:
            raise item.error(f"the label {value.label!r} of axis '{item.value}' is no number")
        return dataclasses.replace(item, value=value.number, axis=False)

    def printed(self, key: Key, name: str) -> Number | None:
        """Return what the paper prints for a metric or column at a point."""
        place = dict(key)
        for row in self.published.rows if self.published else ():
            if name in row.values and row.at.items() <= place.items():
                return row.values[name]
        return None

    def scale(self, word: str) -> tuple[str, Scale]:
        """Return the scale of that name; for exact artifacts each of the scale words means ``exact``."""
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

    @functools.cached_property
    def modules(self) -> list[ModuleType]:
        """The Python files beside the YAML and its bases, the nearest first."""
        names = [self.id.replace("/", "."), *(f"{path.parent.parent.name}.bases.{path.stem}" for path in self.bases)]
        files = ((name, path.with_suffix(".py")) for name, path in zip(names, (self.path, *self.bases), strict=True))
        return [_module(f"paper_repro.papers.{name}", path) for name, path in files if path.is_file()]

    def function(self, name: str, where: str) -> Callable[..., Any]:
        """Return the function ``estimate_NAME`` of the nearest Python file."""
        found = [function for one in self.modules if (function := getattr(one, f"estimate_{name}", None)) is not None]
        if not found:
            raise UsageError(f"{where}: there is no function estimate_{name}(view) in the Python file beside it")
        return cast(Callable[..., Any], found[0])

    def kind(self, name: str | None, base: type) -> Any:
        """Return the subclass of ``base`` that the YAML names, or that of the nearest Python file; None for none."""
        if name is not None:
            try:
                chosen = configs.locate(name)
            except UsageError as error:
                raise named_first(self.path, error) from error
            if not (isinstance(chosen, type) and issubclass(chosen, base)):
                raise UsageError(f"{self.path}: {name} is not a {base.__name__}")
            return chosen
        for module in self.modules:
            classes = (one for one in vars(module).values() if isinstance(one, type) and issubclass(one, base))
            own = [one for one in classes if one.__module__ == module.__name__ and not vars(one).get("is_appendix")]
            if len(own) > 1:
                several = ", ".join(one.__name__ for one in own)
                raise UsageError(f"{module.__file__}: more than one {base.__name__}: {several}")
            if own:
                return own[0]
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


EXTRA_PAPERS = "PAPER_REPRO_PAPERS"
MORE = LIKE, CHANGE = "like", "overrides"
"""Keys that are no field: the base, and, in the place of axes, overrides that are compared with none."""
FOUND = ("id", "path", "bases")  # fields of an artifact that its file does not give
PRINTED = ("published", "tolerances")  # they describe a printed table, which an ablation of ours does not have
DEFAULT = "default"
"""Under ``tolerances``: the one for every published number that has none of its own."""


def find() -> dict[str, Path]:
    """Return every artifact's id and file; of two files with one id the first."""
    return {name: paths[0] for name, paths in scan().items()}


def folders() -> list[Path]:
    """Return the folders of papers: ours, $PAPER_REPRO_PAPERS and those of the user's packages."""
    extra = os.environ.get(EXTRA_PAPERS)
    if extra and not Path(extra).is_dir():
        raise UsageError(f"${EXTRA_PAPERS} is {extra!r}, which is no folder")
    own = (folder / "papers" for folder in own_packages().values())
    return [PAPERS, *([Path(extra)] if extra else []), *(folder for folder in own if folder.is_dir())]


def scan(pattern: str = "*/*.yaml") -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for folder in folders():
        for path in sorted(folder.glob(pattern)):
            found.setdefault(f"{path.relative_to(folder).parts[0]}/{path.stem}", []).append(path)
    return found


def _only(what: str, name: str, paths: Sequence[Path]) -> Path:
    if len(paths) > 1:
        raise UsageError(f"duplicate {what} id '{name}': {' and '.join(map(str, paths))}")
    return paths[0]


def load(name: str, found: Mapping[str, Sequence[Path]] | None = None) -> Artifact:
    """Return the artifact of that id, of files that ``scan`` has found."""
    if name not in (found := scan() if found is None else found):
        raise UsageError(_unknown_artifact(name, list(found)))
    return load_file(_only("artifact", name, found[name]))


def _unknown_artifact(word: str, known: Sequence[str]) -> str:
    own = [name for name in known if name.startswith(f"{word.partition('/')[0].casefold()}/")]
    return f"unknown artifact {word!r}{nearest(word, own or known)}; --list shows them all"


def load_file(path: Path) -> Artifact:
    """Return the artifact that a file describes, checked whole; an error in a base names the user's file first."""
    try:
        return _load(path)
    except UsageError as error:
        raise named_first(path, error) from error


def named_first(path: Path, error: UsageError) -> UsageError:
    return error if str(error).startswith(f"{path}:") else UsageError(f"{path}: {error}")


def where(artifact: Artifact, section: str, name: str) -> str:
    return _at_key(_read(artifact.path)[0].items()[section].items()[name])


def _at_key(node: Node) -> str:
    return f"{node.path}:{node.key_line}"


def _read(path: Path) -> tuple[Node, list[Node]]:
    """Return a file laid over its bases, and the bases, the nearest first."""
    root = own = configs.read(path, library=_library())
    below, names, known = list[Node](), list[str](), dict[str, list[Path]]()
    while LIKE in (entries := own.items()):
        name, known = str(entries[LIKE].plain()), known or scan("*/bases/*.yaml")
        if name not in known:
            raise entries[LIKE].error(f"unknown base '{name}'{nearest(name, known)}")
        if name in names:
            raise entries[LIKE].error(f"'{name}' is like itself")
        base = _only("base", name, known[name])
        own = _read_once(base, base.stat().st_mtime_ns)
        names.append(name)
        below.append(own)
    return functools.reduce(configs.over, [*reversed(below), root]), below


@functools.lru_cache(maxsize=256)
def _read_once(path: Path, changed: int) -> Node:
    return configs.read(path, library=_library())


@functools.cache
def _library() -> configs.Library:
    """Return the definitions of metrics, columns and data that artifacts share."""
    sections = configs.read(PAPERS / "library.yaml").items()
    return {"needs" if name == "data" else name: node.items() for name, node in sections.items()}


def _load(path: Path) -> Artifact:
    root, below = _read(path)
    entries = {key: child for key, child in root.items().items() if key != LIKE}
    change, published = entries.pop(CHANGE, None), entries.get("published")
    if published and published.path != path and "rows" not in published.items():
        entries = {key: node for key, node in entries.items() if node.path == path or key not in PRINTED}
    allowed = {name: hint for name, hint in Artifact.__annotations__.items() if name not in FOUND}
    for key, child in entries.items():
        if key not in allowed:
            raise UsageError(f"{_at_key(child)}: unknown key '{key}'{nearest(key, [*allowed, *MORE])}")
    values: dict[str, Any] = {
        key: configs.convert(allowed[key], child) for key, child in entries.items() if key != "tolerances"
    }
    if change is not None:
        values["axes"] = _with_change(values.get("axes", {}), change, list(values.get("scales", ())))
    for required in ("title", "source", "experiment", "metrics", "axes", "scales"):
        if required not in values:
            raise root.error(f"missing '{required}'" + (f", or '{CHANGE}'" if required == "axes" else ""))
    if not values["source"].where:  # only an artifact over a base that prints no numbers may leave it out
        if not below or "published" in entries:
            raise entries["source"].error("missing 'where' in 'source'")
        values["source"] = dataclasses.replace(values["source"], where="an ablation of it")
    _fill(values, entries)
    bases = tuple(base.path for base in below)
    artifact = Artifact(id=f"{path.parent.name}/{path.stem}", path=path, bases=bases, **values)
    _check(artifact, entries)
    return artifact


def _fill(values: dict[str, Any], entries: Mapping[str, Node]) -> None:
    """Put in what an artifact leaves to defaults: tolerances, and the smallest effect that matters to a claim."""
    shared = values.get("smallest")
    claims = values.get("claims", [])
    values["claims"] = [dataclasses.replace(claim, smallest=claim.smallest or shared) for claim in claims]
    quantities = {**values.get("columns", {}), **values["metrics"]} if values.get("published") else {}
    values["tolerances"] = tolerances = {}
    nodes = entries["tolerances"].items() if "tolerances" in entries else {}
    default = nodes[DEFAULT].items() if DEFAULT in nodes else {}
    for name, node in nodes.items():
        if name != DEFAULT:
            tolerances[name] = _tolerance(nodes, node)
        elif default.keys() != {"reason"}:
            without = [name for name, spec in quantities.items() if _judged(spec) and name not in nodes]
            tolerances.update(dict.fromkeys(without, _tolerance(nodes, node)))
    for name, item in values.get("summary", {}).items():
        if item.published is not None and item.tolerance is None and default:
            values["summary"][name] = dataclasses.replace(item, tolerance=_tolerance(nodes, nodes[DEFAULT]))


def _tolerance(nodes: Mapping[str, Node], node: Node) -> Tolerance:
    """Return the tolerance of a node, or of the quantity that it names; its reason may be the default's."""
    if not node.is_mapping:
        if (name := node.text()) not in nodes or not nodes[name].is_mapping:
            raise node.error(f"there is no tolerance of '{name}' to take{nearest(name, nodes)}")
        node = nodes[name]
    shared = nodes[DEFAULT].items() if DEFAULT in nodes else {}
    reason = {key: child for key, child in shared.items() if key == "reason"}
    found: Tolerance = configs.convert(Tolerance, dataclasses.replace(node, content=reason | node.items()))
    return found


def _judged(spec: Metric | Column) -> bool:
    return spec.published and (isinstance(spec, Column) or spec.measured)


def _check(artifact: Artifact, entries: Mapping[str, Node]) -> None:
    """Raise UsageError with file and line where an artifact's parts do not fit each other."""
    for word, node in entries["scales"].items().items():
        _refuse(_at_key(node), unknown("scale", [word], (*SCALES, EXACT)))
    for section in ("axes", "baselines", "claims", "metrics", "published", "runs", "scales"):
        if section in entries:
            _check_names(artifact, entries[section])
    if "best_within" in entries:
        _refuse(entries["best_within"].where, unknown("axis", artifact.best_within, artifact.axes))
    if file_of(f"experiment/{artifact.experiment}") is None:
        _refuse(entries["experiment"].where, unknown("experiment", [artifact.experiment], experiments()))
    _check_quantities(artifact, entries)
    for name, baseline in artifact.baselines.items():
        problems = (f"baseline '{name}': {problem}" for problem in _problems_of_baseline(artifact, baseline))
        _refuse(_at_key(entries["baselines"].items()[name]), problems)
    for place, claim in enumerate(artifact.claims):
        if claim.id in (other.id for other in artifact.claims[:place]):
            _refuse(claim.line, [f"duplicate claim id '{claim.id}'"])
        if isinstance(claim.form, Contrast):
            _refuse(claim.line, _problems_of_contrast(artifact, claim.form))
            if NO_EFFECT.get(claim.form.kind) in claim.threshold.limits and claim.smallest is None:
                _refuse(claim.line, [f"claim '{claim.id}' asks for an effect: {NO_SMALLEST}"])


def _refuse(where: str, problems: Iterable[str]) -> None:
    for problem in problems:
        raise UsageError(f"{where}: {problem}")


def _check_quantities(artifact: Artifact, entries: Mapping[str, Node]) -> None:
    tolerances, known = entries.get("tolerances", entries["title"]), artifact.quantities
    for name, node in tolerances.items().items() if "tolerances" in entries else ():
        _refuse(_at_key(node), unknown("metric", [name], (*known, DEFAULT)))
    for name, metric in artifact.metrics.items():
        if any(one not in DERIVED or len(sources) != DERIVED[one][1] for one, sources in metric.derived.items()):
            node, functions = entries["metrics"].items()[name], ", ".join(DERIVED)
            _refuse(_at_key(node), [f"'{name}' is derived by one of {functions}, of its number of metrics"])
    if artifact.published is not None:
        lacking = (name for name, one in known.items() if _judged(one) and name not in artifact.tolerances)
        _refuse(_at_key(tolerances), (f"no tolerance for the published '{name}'" for name in lacking))
        for place, row in enumerate(artifact.published.rows):
            _refuse(row.where, _problems_of_row(artifact, row, artifact.published.rows[:place]))


PLACES = ("at", "only", "beside", "of", "to")
"""Keys whose entries are axes, each with a value, a list of values, or a mapping of them."""
FREE = ("overrides", "over_axes", "task")


def _check_names(artifact: Artifact, node: Node) -> None:
    """Raise UsageError where a file names an axis, a value or a scale that the artifact does not have."""
    if node.is_sequence:
        for element in node.elements():
            _check_names(artifact, element)
    for key, child in node.items().items() if node.is_mapping else ():
        named = child.elements() if child.is_sequence else [child]
        if key in PLACES or key == "any_of":
            for axis, values in ((axis, values) for one in named for axis, values in one.items().items()):
                chosen = values.elements() if values.is_sequence else [values]
                words = [*values.items()] if values.is_mapping else [one.text() for one in chosen]
                for problem in (one for word in words for one in place_problems(artifact.axes, {axis: word})):
                    if axis != "metric":
                        raise UsageError(f"{_at_key(values)}: {problem}")
        elif key == "at_scale" or (key == "scales" and child.is_sequence):
            words = [*child.items()] if child.is_mapping else [one.text() for one in named]
            for problem in unknown("scale", words, artifact.scales):
                raise child.error(problem)
        elif key not in FREE:
            _check_names(artifact, child)


def _problems_of_baseline(artifact: Artifact, baseline: Baseline) -> Iterator[str]:
    for name in dict.fromkeys([*baseline.metrics, *baseline.values]):
        metric = artifact.metrics.get(name)
        if metric is None or not metric.measured:
            yield f"it bounds '{name}', which no cell measures{nearest(name, artifact.metrics)}"
        elif metric.direction != baseline.direction:
            yield f"its direction is {baseline.direction}, but metric '{name}' is {metric.direction}"


def _problems_of_contrast(artifact: Artifact, form: Contrast) -> Iterator[str]:
    measured = [name for name, spec in artifact.metrics.items() if spec.measured]
    what, known = ("column", list(artifact.columns)) if form.kind == COUNT else ("metric", measured)
    yield from unknown("axis", (*form.over, *form.best), artifact.axes)
    yield from (f"'over' lacks axis '{axis}' of 'only'" for axis in form.only if axis not in form.over)
    sides = [side for side in (form.of, form.to) if side is not None]
    yield from unknown(what, [*(side.metric for side in sides), *form.best.values()], known)
    for side, axis in itertools.product(sides, artifact.axes):
        if (axis in side.place) + (axis in form.over) + (axis in form.best) != 1:
            yield f"give the value of axis '{axis}', or put it in 'over' or 'best'"


def _problems_of_row(artifact: Artifact, row: PublishedRow, earlier: Sequence[PublishedRow]) -> Iterator[str]:
    printed = [name for name, spec in artifact.quantities.items() if spec.published]
    yield from unknown("metric or column", row.values, printed)
    for name, number in row.values.items():
        tolerance = artifact.tolerances.get(name)
        if tolerance is not None and tolerance.published_stds is not None and number.std is None:
            yield f"'{name}' is judged by published_stds: give it as [mean, std]"
        for other in earlier:  # rows that have a point in common
            if name in other.values and all(row.at.get(axis, value) == value for axis, value in other.at.items()):
                yield f"'{name}' was already given at {other.where}"


def _module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FOLDERS = ("results", "runs", "papers")  # that a path may have before the paper's


def artifacts(words: Sequence[str]) -> list[str]:
    """Return the ids that words of a command name; ``cem table2 table3`` names two artifacts of one paper."""
    ids, paper, known = list[str](), "", {name.casefold() for name in find()}
    for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
        if f"{word}/{after}".casefold() in known:
            paper = word
            continue
        paper = paper if f"{paper}/{word}".casefold() in known else ""
        ids += matching(f"{paper}/{word}" if paper else word)
    return list(dict.fromkeys(ids))


def matching(word: str) -> list[str]:
    """Return the ids that a word names: an artifact in any case, its file or folder, a paper, a pattern (``cem/*``)."""
    found = find()
    known, path = {name.casefold(): name for name in found}, Path(word)
    if path.suffix == ".yaml" and path.is_file():
        if same := [name for name, own in found.items() if own.samefile(path)]:
            return same
        folder, name = path.resolve().parents[1], f"{path.parent.name}/{path.stem}"
        raise UsageError(f"{path} is no artifact here: set {EXTRA_PAPERS}={folder} and give {name}")
    parts = [part for part in word.casefold().split("/") if part not in ("", ".")]
    parts = parts[max((place for place, part in enumerate(parts, start=1) if part in FOLDERS), default=0) :]
    name = "/".join(parts).removesuffix(".yaml")
    if name in known:
        return [known[name]]
    if chosen := fnmatch.filter(known, f"{name}/*" if len(parts) == 1 else word.casefold()):
        return [known[one] for one in chosen]
    if alike := [one for one in found if one.partition("/")[2].casefold() == name]:
        raise UsageError(f"artifact {word!r} lacks its paper: give {' or '.join(alike)}")
    raise UsageError(_unknown_artifact(word, [*found, *{one.partition("/")[0] for one in found}]))

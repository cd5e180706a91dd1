"""An artifact's axes and scales: which cells there are, and which overrides make each of them.

The overrides of a cell come in this order, a later one over an earlier one: the scale's ``overrides``, those of its
axis values, ``beside`` of its axis values, the scale's ``over_axes``, ``at_scale`` of its axis values; and after all
values the factors (``{times: 2}``), wherever they are written.  Of axis values that set one key the last axis wins.
"""

import contextlib
import itertools
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paper_repro.base import configs
from paper_repro.base.configs import LARGEST, Node, Override
from paper_repro.base.errors import nearest
from paper_repro.cells.planned import Key

SCALES = SMOKE, *_ = ("smoke", "cpu", "gpu", "paper")
ABOUT_SMOKE = "a few steps of tiny models, to see that everything runs."
EXACT = "exact"  # the scale of arithmetic and counting
COMPARABLE = ("paper", EXACT)


@dataclass(frozen=True)
class Overrides:
    """The overrides of one mapping in a YAML file."""

    items: tuple[Override, ...] = ()

    @classmethod
    def from_yaml(cls, node: Node) -> "Overrides":
        return cls(configs.read_overrides(node))


@dataclass(frozen=True)
class AxisValue:
    """One value of an axis."""

    label: str
    overrides: Overrides = Overrides()
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


def with_change(axes: Mapping[str, Axis], change: Node, scales: Sequence[str]) -> dict[str, Axis]:
    """Return the axes and one more, which compares what they give with the same under some overrides."""
    own = Overrides.from_yaml(change)
    if CHANGED in axes or not own.items:
        raise change.error(f"'overrides' make an axis '{CHANGED}': it is empty, or there is one of that name")
    label = ", ".join(f"{item.key}={item.value}" for item in own.items)
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
        own = found.get("overrides", Overrides()).items
        found["overrides"] = Overrides((*own, configs.override_of(sets.text(), value)))
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

    def places(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield every axis value that it names, with the word under which it names it."""
        for word, restrictions in (("only", [self.only]), ("any_of", self.any_of)):
            for axis, values in itertools.chain.from_iterable(item.items() for item in restrictions):
                yield from ((word, {axis: value}) for value in values or [""])


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
    overrides: Overrides = field(default=Overrides(), kw_only=True)
    over_axes: Overrides = field(default=Overrides(), kw_only=True)
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

    def places(self) -> Iterator[tuple[str, dict[str, str]]]:
        yield from super().places()
        for more in self.more_seeds:
            yield from (("more_seeds", {axis: value}) for axis, values in more.at.items() for value in values or [""])


def seed_problems(seeds: Sequence[int]) -> Iterator[str]:
    if not seeds:
        yield "seeds: at least one is needed"
    for seed in seeds:
        if seed < 0:
            yield f"seed {seed} is negative"
        if seed > LARGEST:
            yield f"seed {seed} is above {LARGEST}, the largest that a record can hold"
        if list(seeds).count(seed) > 1:
            yield f"seed {seed} is given twice, and a repeated seed is no further evidence"


def points(axes: Mapping[str, Axis]) -> list[Key]:
    """Return every point of the axes' product, the last axis running fastest."""
    choices = [[(name, value) for value in axis.values] for name, axis in axes.items()]
    return [tuple(key) for key in itertools.product(*choices)]


def layers(axes: Mapping[str, Axis], key: Key, word: str, scale: Scale) -> list[Override]:
    """Return the overrides of one point at one scale, a later one over an earlier one."""
    found = [item.of(f"scale {word}") for item in scale.overrides.items]
    values = [(f"axis {axis}={value}", axes[axis].values[value]) for axis, value in key]
    found += [item.of(name) for name, value in values for item in value.overrides.items]
    for name, value in values:
        for axis, other in key:
            further = value.beside.get(axis, {}).get(other, Overrides())
            found += [item.of(f"{name} beside {axis}={other}") for item in further.items]
    found += [item.of(f"scale {word}, over the axes") for item in scale.over_axes.items]
    for name, value in values:
        found += [item.of(f"{name} at scale {word}") for item in value.at_scale.get(word, Overrides()).items]
    found.sort(key=lambda item: item.times)
    return [_with_number(axes, dict(key), item) for item in found]


def _with_number(axes: Mapping[str, Axis], place: Mapping[str, str], item: Override) -> Override:
    if not item.axis:
        return item
    if item.value not in place:
        raise item.error(f"unknown axis {item.value!r}{nearest(str(item.value), place)}")
    value = axes[item.value].values[place[item.value]]
    if value.number is None:
        raise item.error(f"the label {value.label!r} of axis '{item.value}' is no number")
    return replace(item, value=value.number, axis=False)


def unknown(kind: str, names: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    known = list(known)
    return (f"unknown {kind} '{name}'{nearest(name, known)}" for name in names if name not in known)


def place_problems(axes: Mapping[str, Axis], place: Mapping[str, str]) -> Iterator[str]:
    for axis, value in place.items():
        if axis not in axes:
            yield from unknown("axis", [axis], axes)
        elif value not in axes[axis].values:
            yield f"unknown value '{value}' of axis '{axis}'{nearest(value, axes[axis].values)}"

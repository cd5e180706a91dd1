"""Claims: one estimate with both sides named, a threshold, an interval of 95 % and a word.

An estimate pools over places (sizes, kernels) by the geometric mean of ratios or the mean of differences, paired by
seed; its parts judge nothing.  At scale ``paper`` and for exact counts a claim ``holds`` or ``fails``; at reduced
scales the same is ``seen here`` or ``opposite here``.
"""

import dataclasses
import itertools
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paper_repro.base import configs
from paper_repro.base.configs import Node
from paper_repro.base.errors import UsageError, nearest
from paper_repro.cells.planned import Key
from paper_repro.cells.tasks import FINISHED
from paper_repro.tables import stats
from paper_repro.tables.stats import Bound, Interval, Samples

HOLDS, FAILS, SEEN, OPPOSITE = "holds", "fails", "seen here", "opposite here"
NO_DIFFERENCE, CANNOT_TELL, NOT_BEATEN = "no difference", "cannot tell", "baseline not beaten"
VERDICTS = (HOLDS, FAILS, SEEN, OPPOSITE, NO_DIFFERENCE, CANNOT_TELL, NOT_BEATEN)
RATIO, DIFFERENCE, NUMBER, SHARE, COUNT = "ratio", "difference", "number", "share", "count"
SEEDS_ONLY, SEEDS_AND_ITEMS, EXACT = "seeds only", "seeds and items", "exact"
COMPUTED = "computed"
FORMS = (RATIO, DIFFERENCE, NUMBER, COUNT, COMPUTED)
LIMITS = ("above", "below", "at_least", "at_most", "between", "equals")
NO_EFFECT = {RATIO: 1.0, DIFFERENCE: 0.0}
LARGEST_EXPONENT = 700.0
TEST_ITEMS = "test_losses.json"
"""The file of ``probes.item_losses`` of the test split."""
Place = dict[str, str]
Parts = Mapping[str, tuple[Samples, Samples]]
"""Both sides by seed, by the label of the part."""
Items = Mapping[str, Mapping[int, Sequence[float]]]
"""What single test items add to an estimate: by the label of the part, by seed."""
Records = Any  # a ``view.View``, whose module imports this one
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Smallest:
    """The smallest effect that matters to a claim, with the reason for it."""

    reason: str
    ratio: float | None = None
    """Relative: 0.02 is 2 % of a ratio or, where ``absolute`` is not given, of the second side of a difference."""
    absolute: float | None = None
    """In the unit of a difference or number."""

    def __post_init__(self) -> None:
        sizes = [size for size in (self.ratio, self.absolute) if size is not None]
        if not sizes or min(sizes) <= 0:
            raise ValueError("'smallest' takes ratio (0.02 is 2 %), absolute (in the metric's unit), or both, above 0")


@dataclass(frozen=True)
class Threshold:
    """The range in which a claim wants its estimate."""

    low: float
    high: float
    text: str
    strict: bool = False
    """Whether an exact count on the limit misses it."""

    @classmethod
    def from_yaml(cls, word: str, node: Node) -> "Threshold":
        if word == "between":
            low, high = configs.convert(list[float], node) if len(node.plain()) == 2 else (1.0, 0.0)
            if low >= high:
                raise node.error("'between' takes two numbers, the lower one first")
            return cls(low, high, f"between {low:.4g} and {high:.4g}")
        value = configs.convert(float, node)
        ends = {"equals": (value, value), "above": (value, math.inf), "at_least": (value, math.inf)}
        low, high = ends.get(word, (-math.inf, value))
        return cls(low, high, f"{word.replace('_', ' ')} {value:g}", word in ("above", "below"))

    @property
    def limits(self) -> list[float]:
        return [limit for limit in (self.low, self.high) if math.isfinite(limit)]

    def holds(self, low: float, high: float) -> bool:
        """Return whether exact counts between these two lie in the range."""
        return self.low <= low and high <= self.high and not (self.strict and {low, high} & {self.low, self.high})


@dataclass(frozen=True)
class Side:
    """A metric or column at a place."""

    metric: str
    place: Place

    @classmethod
    def read(cls, node: Node, metric: str | None) -> "Side":
        place = {key: child.text() for key, child in node.items().items()}
        own = place.pop("metric", metric)
        if own is None:
            raise node.error("missing 'metric'")
        return cls(own, place)


@dataclass(frozen=True)
class Contrast:
    """The ratio or difference of two sides, or a number or count of one, over all values of some axes."""

    kind: str
    of: Side
    to: Side | None
    over: list[str] = field(default_factory=list)
    only: dict[str, list[str]] = field(default_factory=dict)
    best: dict[str, str] = field(default_factory=dict)
    """By axis the metric that chooses its value, for each side and place apart: ``{lr: val_loss}``."""
    called: list[str] = field(default_factory=list)
    """The names of the sides; empty: their metrics, and the labels that tell their places apart from others."""
    geometric: bool = False
    """Whether a number is pooled by the geometric mean."""

    @classmethod
    def from_yaml(cls, kind: str, node: Node) -> "Contrast":
        named, sides = "column" if kind == COUNT else "metric", ("of", "to") if kind in NO_EFFECT else ("of",)
        keys = ("over", "only", "best", "called", *(("geometric",) if kind == NUMBER else ()))
        found = configs.entries(node, sides, (named, *keys))
        metric = configs.convert(str, found[named]) if named in found else None
        of, to = (Side.read(found[name], metric) if name in found else None for name in ("of", "to"))
        assert of is not None
        options = {key: configs.convert(cls.__annotations__[key], found[key]) for key in keys if key in found}
        if len(options.get("called", sides)) != len(sides):
            raise node.error(f"'called' takes a name for each of {', '.join(sides)}")
        return cls(kind, of, to, **options)

    def places(self, view: "Records") -> Iterator[tuple[str, Place]]:
        """Yield the values of ``over`` of which the scale runs both sides, each with its label."""
        axes = view.artifact.axes
        chosen = [[(axis, value) for value in self.only.get(axis, axes[axis].values)] for axis in self.over]
        for values in itertools.product(*chosen):
            place = dict(values)
            if all(view.places(**{**place, **side.place}) for side in (self.of, self.to) if side is not None):
                yield view.artifact.label(values), place

    def estimate(self, view: "Records") -> "Estimate":
        places = list(self.places(view))
        if not places:
            return nothing("the scale runs no such cells")
        of, *others = self.called or self._names(view)
        if self.kind == COUNT:
            counted = {name: view.counted(self.of.metric, {**place, **self.of.place}) for name, place in places}
            return count(of, counted)
        if self.to is None:
            own = {label: self._best(view, {**place, **self.of.place}) for label, place in places}
            samples = {label: view.samples(self.of.metric, place) for label, place in own.items()}
            return number(of, samples, geometric=self.geometric)
        left, right = self.of, self.to
        pairs = {
            label: (self._best(view, {**place, **left.place}), self._best(view, {**place, **right.place}))
            for label, place in places
        }
        return at_places(view, self.kind, (of, left.metric), (others[0], right.metric), pairs)

    def _best(self, view: "Records", place: Place) -> Place:
        for axis, metric in self.best.items():
            place = {**place, axis: view.best(place, axis, metric)}
        return place

    def _names(self, view: "Records") -> tuple[str, str]:
        """Return the names of both sides: the metric, and the labels that tell their places apart from others."""
        artifact, axes = view.artifact, view.artifact.axes
        several = {axis for axis in axes if len({dict(key)[axis] for key in view.points}) > 1}

        def name(side: Side, other: Side | None) -> str:
            spec = artifact.columns.get(side.metric) or artifact.metrics.get(side.metric)
            title = spec.title if spec is not None else side.metric
            than = {} if other is None else other.place
            shown = {axis for axis in side.place if axis in several or than.get(axis) != side.place[axis]}
            values = [(axes[axis], axes[axis].values[value]) for axis, value in side.place.items() if axis in shown]
            labels = [f"{axis.title} {one.label}" if one.number is not None else one.label for axis, one in values]
            title = title if title[:2].isupper() else title[0].lower() + title[1:]
            return f"{title} of {', '.join(labels)}" if labels else title

        if self.to is None:
            return name(self.of, None), ""
        ends = [f", each at its best {axes[axis].title.lower()}" for axis in self.best]
        return name(self.of, self.to), name(self.to, self.of) + "".join(ends)


def at_places(
    view: Records, kind: str, of: tuple[str, str], to: tuple[str, str], pairs: Mapping[str, tuple[Place, Place]]
) -> "Estimate":
    """Return the ratio or difference of two metrics, each given with the name of its side, over pairs of places.

    Where records keep the losses of single test batches, its interval carries the error of the test sample.
    """
    parts: dict[str, tuple[Samples, Samples]] = {}
    items: dict[str, dict[int, list[float]]] = {}
    for label, places in pairs.items():
        sides = [(metric, place) for (_, metric), place in zip((of, to), places, strict=True)]
        left, right = (view.samples(*side) for side in sides)
        for side, found in zip(sides, (left, right), strict=True):
            if not found:
                return nothing(view.absence(*side))
        parts[label] = left, right
        items[label] = _items(view, kind, *sides)
    if kind == RATIO:
        return ratio(of[0], to[0], parts, items)
    spec = view.artifact.metrics.get(of[1])
    factor, percent = (spec.factor, spec.unit.startswith("%")) if spec is not None else (1.0, False)
    unit = "points" if percent else "nats" if _item_file(view.artifact, kind, of[1]) else ""
    return dataclasses.replace(difference(of[0], to[0], parts, unit, items), factor=factor)


def _items(view: Records, kind: str, of: tuple[str, Place], to: tuple[str, Place]) -> dict[int, list[float]]:
    """Return by seed what single test batches add to the estimate; nothing where records lack their losses.

    For losses a and b of a batch that is a - b, of which a ratio of perplexities is the exponential; for a ratio of
    losses see ``relative``.
    """
    files = [_item_file(view.artifact, kind, metric) for metric, _ in (of, to)]
    if files[0] is None or files[0] != files[1]:
        return {}
    left, right = (item_losses(view, files[0][0], place) for _, place in (of, to))
    both = {seed: (left[seed], right[seed]) for seed in left.keys() & right}
    if kind == RATIO and not files[0][1]:
        return {seed: relative(*sides) for seed, sides in both.items()}
    return {seed: [a - b for a, b in zip(*sides, strict=True)] for seed, sides in both.items()}


def relative(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Return what single batches with the losses a and b add to the logarithm of a ratio of losses.

    With the means A and B it is log(A / B) + a / A - b / B, to first order.
    """
    one, other = stats.mean(left), stats.mean(right)
    return [math.log(one / other) + a / one - b / other for a, b in zip(left, right, strict=True)]


def item_losses(view: Records, file: str, place: Place) -> dict[int, list[float]]:
    """Return by seed the losses of single batches that ``probes.item_losses`` kept in a file."""
    return {seed: json.loads(content)["losses"] for seed, content in view.attachments(file, place).items()}


def losses_by_seed(view: Records, places: Mapping[Any, Place]) -> dict[int, dict[Any, list[float]]]:
    """Return the losses of single test items at each place, by its name; of the seeds whose records all keep them."""
    each = {name: item_losses(view, TEST_ITEMS, place) for name, place in places.items()}
    seeds = sorted(set.intersection(*(set(found) for found in each.values()))) if each else ()
    return {seed: {name: found[seed] for name, found in each.items()} for seed in seeds}


def _item_file(artifact: Any, kind: str, metric: str) -> tuple[str, bool] | None:
    """Return the attachment with the losses of single batches behind a metric (``probes.item_losses``), and whether the
    metric is their perplexity, which only a ratio may read.
    """
    derived = artifact.metrics[metric].derived if metric in artifact.metrics else {}
    exponential = "exp" in derived and kind == RATIO
    source = derived["exp" if exponential else "first"][0] if exponential or "first" in derived else metric
    source = source.split(" or ")[0].removeprefix("best_")  # items are measured on the weights that are kept
    return (f"{source}es.json", exponential) if source in ("test_loss", "val_loss") else None


@dataclass(frozen=True)
class Estimate:
    """A number with its interval and the names of what it compares."""

    kind: str
    of: str
    to: str = ""
    interval: Interval | None = None
    """None where there is no estimate; of logarithms where ``logs``."""
    logs: bool = False
    unit: str = ""
    parts: tuple[tuple[str, Interval], ...] = ()
    items: str = SEEDS_ONLY
    base: float | None = None
    """The mean of the second side of a difference."""
    factor: float = 1.0
    """Values of the interval are divided by it before they are printed or compared."""
    because: str = ""
    """Why there is no estimate."""

    def shown(self, value: float) -> float:
        return math.exp(value) if self.logs and value < LARGEST_EXPONENT else value / self.factor

    def numbers(self, interval: Interval) -> str:
        mean, low, high = (_number(self.shown(end), self.kind) for end in (interval.mean, interval.low, interval.high))
        unit = f" {self.unit}" if self.unit else ""
        if self.kind == COUNT:
            return (low if low == high else f"{low} to {high}") + unit
        return f"{mean}{unit} [{low}, {high}]" if interval.count > 1 or self.kind == SHARE else f"{mean}{unit}"

    @property
    def named(self) -> str:
        """Its words, for example "loss of A / loss of B, geometric mean of 6"."""
        joined = (" / " if self.kind in (RATIO, COUNT) else " - ").join(filter(None, (self.of, self.to)))
        pooled = ("geometric mean" if self.logs else "mean") + f" of {len(self.parts)}"
        return f"{joined}, {pooled}" if len(self.parts) > 1 and self.kind != COUNT else joined

    @property
    def text(self) -> str:
        if self.interval is None:
            return self.because
        found = f"{self.named} = {self.numbers(self.interval)}"
        if self.kind == COUNT:
            return found
        seeds, pairing = self.interval.count, "" if self.interval.paired else ", unpaired"
        return f"{found}, {seeds} seed{'s' if seeds != 1 else ''}{pairing}"


def _number(value: float, kind: str) -> str:
    if kind == COUNT:
        return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"
    if not math.isfinite(value) or not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def ratio(of: str, to: str, parts: Parts, items: Items | None = None) -> Estimate:
    """Return the geometric mean over parts of the ratio of two sides, ``of`` and ``to`` by name.

    Items add to the logarithm (see ``stats.jackknife``); where all seeds have them the interval carries their error.
    """
    return _contrast(RATIO, of, to, parts, logs=True, items=items)


def difference(of: str, to: str, parts: Parts, unit: str = "", items: Items | None = None) -> Estimate:
    """Return the mean over parts of ``of`` - ``to``; see ``ratio``."""
    return _contrast(DIFFERENCE, of, to, parts, unit, items=items)


def number(
    of: str,
    parts: Mapping[str, Samples],
    *,
    geometric: bool = False,
    unit: str = "",
    bound: Bound = "=",
    items: Items | None = None,
) -> Estimate:
    """Return the mean over seeds of one quantity, averaged over parts; the geometric mean needs values above 0.

    With a ``bound`` the values are only known to be at least (>) or at most (<) so much; see ``ratio`` for ``items``.
    """
    nothing_less = {label: (part, dict.fromkeys(part, float(geometric))) for label, part in parts.items()}
    return _contrast(NUMBER, of, "", nothing_less, unit, geometric, bound, items)


def _contrast(
    kind: str,
    of: str,
    to: str,
    parts: Parts,
    unit: str = "",
    logs: bool = False,
    bound: Bound = "=",
    items: Items | None = None,
) -> Estimate:
    if not parts or not all(left and right for left, right in parts.values()):
        return nothing("not run")
    if logs:
        if any(value <= 0 for part in parts.values() for side in part for value in side.values()):
            return nothing(f"a {'ratio' if to else 'geometric mean'} needs values above 0")
        parts = {label: (_logs(left), _logs(right)) for label, (left, right) in parts.items()}
    if items and all(items.get(label, {}).keys() == left.keys() & right for label, (left, right) in parts.items()):
        return over_items(kind, of, to, items, unit, logs, bound)
    several = parts.items() if len(parts) > 1 else ()
    each = tuple((label, stats.pooled([sides]).opened(bound)) for label, sides in several)
    base = stats.mean([stats.mean(list(right.values())) for _, right in parts.values()])
    return Estimate(kind, of, to, stats.pooled(list(parts.values())).opened(bound), logs, unit, each, base=base)


def share(of: str, counts: Mapping[int, tuple[int, int]]) -> Estimate:
    """Return a share with its binomial interval, from hits and cases by seed."""
    cases = sum(number for _, number in counts.values())
    return Estimate(SHARE, of, "", stats.share(counts)) if cases else nothing("no cases to count")


def over_items(
    kind: str, of: str, to: str, parts: Items, unit: str, logs: bool = False, bound: Bound = "="
) -> Estimate:
    """Return the mean over parts, seeds and test items of differences of losses; of logarithms its exponential."""
    seeds = set.intersection(*(set(part) for part in parts.values()))
    whole = {
        seed: [stats.mean(each) for each in zip(*(part[seed] for part in parts.values()), strict=True)]
        for seed in seeds
    }
    if not whole or not all(whole.values()):
        return nothing("not run")
    several = parts.items() if len(parts) > 1 else ()
    each = tuple((label, stats.over_items(part).opened(bound)) for label, part in several)
    return Estimate(kind, of, to, stats.over_items(whole).opened(bound), logs, unit, each, SEEDS_AND_ITEMS)


def count(of: str, values: Mapping[str, float | None], to: str = "", unit: str = "") -> Estimate:
    """Return exact values, by the label of the part; a claim holds if all of them lie in its range."""
    known = {label: float(value) for label, value in values.items() if value is not None}
    if len(known) < len(values) or not known:
        return nothing("not run")
    low, high = min(known.values()), max(known.values())
    each = tuple((label, Interval(value, value, value, 1)) for label, value in known.items())
    found = Interval((low + high) / 2, low, high, 1)
    return Estimate(COUNT, of, to, found, False, unit, each if len(each) > 1 else (), EXACT)


def nothing(because: str) -> Estimate:
    return Estimate("", "", because=because)


def _logs(values: Samples) -> dict[int, float]:
    return {seed: math.log(value) for seed, value in values.items()}


@dataclass(frozen=True)
class Claim:
    """A claim of the paper or a question of ours."""

    id: str
    says: str
    where: str
    form: Contrast | str
    """The estimate, or the name of the function that computes it; in YAML, not given: the claim's id."""
    threshold: Threshold
    ours: bool = False
    scales: list[str] = field(default_factory=list)
    """The scales at which it is judged (empty: all); at others it is not shown."""
    smallest: Smallest | None = None
    without_baseline: str | None = None
    """Why it is judged whether or not the models beat their baselines."""
    line: str = field(default="", compare=False)

    @classmethod
    def from_yaml(cls, node: Node) -> "Claim":
        required, plain = ("id", "says", "where"), ("ours", "scales", "smallest", "without_baseline")
        found = configs.entries(node, required, (*plain, *FORMS, *LIMITS))
        hints = cls.__annotations__
        values: dict[str, Any] = {
            name: configs.convert(hints[name], found[name]) for name in (*required, *plain) if name in found
        }
        forms, limits = ([name for name in names if name in found] for names in (FORMS, LIMITS))
        name = values["id"]
        if len(forms) > 1:
            raise node.error(f"claim '{name}' has one estimate, of {', '.join(FORMS)}; found {len(forms)}")
        if len(limits) != 1:
            raise node.error(f"claim '{name}' has one threshold, of {', '.join(LIMITS)}; found {len(limits)}")
        (limit,), kind = limits, (forms or [COMPUTED])[0]
        form: Contrast | str = name
        if forms:
            form = configs.convert(str, found[kind]) if kind == COMPUTED else Contrast.from_yaml(kind, found[kind])
        threshold = Threshold.from_yaml(limit, found[limit])
        return cls(**values, form=form, threshold=threshold, line=node.where)


NO_SMALLEST = (
    "give 'smallest', the smallest effect that matters: {ratio: 0.02, reason: ...} or {absolute: 0.1, reason: ...}"
)


@dataclass(frozen=True)
class Judgement:
    """A claim with its estimate and the word for it."""

    claim: Claim
    estimate: Estimate
    verdict: str
    because: str = ""
    """Why the word is ``cannot tell`` or ``baseline not beaten``."""
    size: str = ""
    """The smallest effect that matters, where there is no difference of it."""
    p_value: float | None = None

    @property
    def word(self) -> str:
        return f"{self.verdict} of {self.size}" if self.size else self.verdict

    @property
    def text(self) -> str:
        """The estimate, and why it decides nothing."""
        return "; ".join(dict.fromkeys(filter(None, (self.estimate.text, self.because))))

    @property
    def sentence(self) -> str:
        """The headline: estimate, threshold and word."""
        return f"{self.text}; claim: {self.claim.threshold.text}: {self.word}"


def judge(claim: Claim, view: Records) -> Judgement:
    """Judge a claim from records."""
    form, read = claim.form, dict[tuple[Key, str | None], None]()
    noted = dataclasses.replace(view, read=read)
    function = form.estimate if isinstance(form, Contrast) else view.artifact.function(form, claim.line)
    try:
        estimate: Estimate = function(noted)
    except UsageError as error:
        raise UsageError(f"{claim.line}: claim '{claim.id}': {error}") from error
    if (reason := _unfit(claim, view, read, estimate)) is not None:
        if reason[0] == CANNOT_TELL and reason[1] != estimate.because:
            _log.warning("%s: claim '%s': %s", claim.line, claim.id, reason[1])
        return Judgement(claim, estimate, *reason)
    found, wanted = estimate.interval, claim.threshold
    assert found is not None
    ends = sorted((estimate.shown(found.low), estimate.shown(found.high)))
    exact = estimate.kind == COUNT
    yes, no = (HOLDS, FAILS) if exact or view.plan.scale.comparable else (SEEN, OPPOSITE)
    if exact:
        return Judgement(claim, estimate, yes if wanted.holds(*ends) else no)
    limits = [limit for limit in wanted.limits if limit > 0 or not estimate.logs]
    raw = (math.log(limit) if estimate.logs else limit * estimate.factor for limit in limits)
    p_value = max(map(found.p_value, raw), default=0.0)
    if (size := _no_difference(claim, estimate, ends)) is not None:
        return Judgement(claim, estimate, NO_DIFFERENCE, size=size, p_value=p_value)
    above, below = ends[0] > wanted.low or wanted.low == -math.inf, ends[1] < wanted.high or wanted.high == math.inf
    if above and below:
        return Judgement(claim, estimate, yes, p_value=p_value)
    if ends[1] < wanted.low or ends[0] > wanted.high:
        return Judgement(claim, estimate, no, p_value=p_value)
    return Judgement(claim, estimate, CANNOT_TELL, "the interval holds the limit", p_value=p_value)


def _unfit(
    claim: Claim, view: Records, read: Mapping[tuple[Key, str | None], None], estimate: Estimate
) -> tuple[str, str] | None:
    """Return the word and the reason where an estimate decides nothing."""
    if estimate.kind == COUNT:
        return None
    asked = read if claim.without_baseline is None else ()
    short = [one for key, name in asked if (one := view.shortfall(key, name)) is not None]
    if beaten := next((text for not_beaten, text in short if not_beaten), None):
        return NOT_BEATEN, beaten
    for key, name in read:
        if lost := view.lost(name, dict(key)):
            place = view.artifact.label(key)
            return CANNOT_TELL, f"{len(lost)} of {len(view.results(view.point(dict(key))))} seeds of {place} diverged"
    if short:
        return CANNOT_TELL, short[0][1]
    if estimate.interval is None:
        return CANNOT_TELL, (estimate.because == "not run" and _unmeasured(view, read)) or estimate.because
    if estimate.kind != SHARE and estimate.interval.count < 2:
        return CANNOT_TELL, "one seed"
    if not estimate.interval.has_spread:
        return CANNOT_TELL, "equal values in all seeds"
    return None


def _unmeasured(view: Records, read: Mapping[tuple[Key, str | None], None]) -> str:
    """Return which metric an estimate asks of finished records that do not name it; empty where there is none."""
    for key, name in read:
        found = [one for one in view.results(view.point(dict(key))).values() if one.status == FINISHED]
        known = {metric for record in found for metric in (*record.metrics, *record.unavailable)}
        if name is not None and known and name not in known:
            return f"no record of {view.artifact.label(key)} has a metric '{name}'{nearest(name, known)}"
    return ""


def _no_difference(claim: Claim, estimate: Estimate, ends: Sequence[float]) -> str | None:
    """Return the smallest effect in words where a claim asks for an effect and the interval excludes one of it."""
    no_effect = {**NO_EFFECT, NUMBER: 1.0 if estimate.logs else 0.0}
    if claim.threshold.limits != [no_effect.get(estimate.kind)]:
        return None
    small = claim.smallest
    if small is None:
        raise UsageError(f"{claim.line}: claim '{claim.id}' asks for an effect: {NO_SMALLEST}")
    if estimate.logs:
        if small.ratio is None:
            raise UsageError(f"{claim.line}: claim '{claim.id}' is a ratio: give 'smallest' a 'ratio'")
        low, high, text = 1 / (1 + small.ratio), 1 + small.ratio, f"{100 * small.ratio:g} %"
    elif small.absolute is not None:
        high = small.absolute / estimate.factor
        low, text = -high, f"{high:g} {estimate.unit}".strip()
    elif small.ratio is not None and estimate.base:
        size = small.ratio * abs(estimate.base) / estimate.factor
        low, high, text = -size, size, f"{100 * small.ratio:g} %"
    else:
        raise UsageError(f"{claim.line}: claim '{claim.id}' is a difference: give 'smallest' an 'absolute'")
    return text if low < ends[0] and ends[1] < high else None

"""Intervals and p-values are those of scipy.stats, and intervals hold the truth 95 times in a hundred."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats as reference
from scipy.stats import binom

from paper_repro.tables import claims, stats
from paper_repro.tables.claims import Estimate
from paper_repro.tables.stats import Interval

RANDOM = np.random.default_rng(0)
PAIRED = [tuple(RANDOM.normal(size=(2, count))) for count in (2, 3, 8, 30)]
APART = [(RANDOM.normal(size=left), RANDOM.normal(1.0, 3.0, right)) for left, right in ((2, 2), (3, 8), (30, 5))]


def by_seed(values: Sequence[float], first: int = 0) -> dict[int, float]:
    return {first + seed: float(value) for seed, value in enumerate(values)}


def same(found: Interval, expected: object, limit: float = 0.0) -> None:
    ends = expected.confidence_interval()  # type: ignore[attr-defined]
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high), rel=1e-9)
    assert found.p_value(limit) == pytest.approx(expected.pvalue, rel=1e-9)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("left", "right"), PAIRED)
def test_common_seeds_are_paired(left: np.ndarray, right: np.ndarray) -> None:
    found = stats.pooled([(by_seed(left), by_seed(right))])
    same(found, reference.ttest_rel(left, right))
    assert found.paired and found.mean == pytest.approx(float(np.mean(left - right)))


@pytest.mark.parametrize(("left", "right"), APART)
def test_other_seeds_are_compared_by_welch(left: np.ndarray, right: np.ndarray) -> None:
    found = stats.pooled([(by_seed(left), by_seed(right, first=50))])
    same(found, reference.ttest_ind(left, right, equal_var=False))
    assert not found.paired and found.count == min(len(left), len(right))


@pytest.mark.parametrize("limit", [0.0, 0.4])
def test_one_quantity_is_compared_with_a_limit(limit: float) -> None:
    values = RANDOM.normal(0.5, 1.0, 6)
    same(stats.of(list(values)), reference.ttest_1samp(values, limit), limit)


def test_a_ratio_of_several_parts_is_that_of_the_mean_logarithm() -> None:
    logs = RANDOM.normal(size=(2, 3, 5))
    left, right = np.exp(logs)
    parts = {str(part): (by_seed(left[part]), by_seed(right[part])) for part in range(3)}
    found = claims.ratio("of", "to", parts)
    assert found.interval is not None and found.logs
    same(found.interval, reference.ttest_rel(*logs.mean(1)))


@pytest.mark.parametrize(("hits", "cases"), [(0, 20), (7, 20), (590, 600), (48, 48)])
def test_a_share_is_binomial(hits: int, cases: int) -> None:
    found = stats.share({0: (hits // 2, cases // 2), 1: (hits - hits // 2, cases - cases // 2)})
    expected = reference.binomtest(hits, cases, 0.5)
    ends = expected.proportion_ci(0.95, method="wilson")
    assert (found.low, found.mean, found.high) == pytest.approx((ends.low, hits / cases, ends.high), rel=1e-9)
    assert found.p_value(0.5) == pytest.approx(expected.pvalue, rel=1e-9)


def test_one_seed_has_no_interval_and_equal_values_have_no_p_value() -> None:
    single, equal = stats.pooled([({0: 1.0}, {0: 0.5})]), stats.pooled([({0: 1.0, 1: 1.0}, {0: 0.5, 1: 0.5})])
    assert (single.low, single.high) == (-np.inf, np.inf)
    assert (single.p_value(0.0), equal.p_value(0.0), equal.mean) == (1.0, 1.0, 0.5)


def test_a_jackknife_knows_what_each_item_adds() -> None:
    losses = {"a": [1.0, 2.0, 6.0], "b": [2.0, 2.5, 3.0]}
    assert stats.jackknife(lambda mean: mean["a"] - 2 * mean["b"], losses) == pytest.approx([-3.0, -3.0, 0.0])
    long = {name: np.repeat(own, 70) for name, own in losses.items()}
    grouped = stats.jackknife(lambda mean: mean["a"] - 2 * mean["b"], long)
    assert len(grouped) == stats.GROUPS and np.mean(grouped) == pytest.approx(-2.0)


LEAST, MOST = 0.93, 0.97
SEEDS = (3, 5, 10)
REPETITIONS = 2000
"""A share of 0.95 has a standard error of 0.005 then."""
PARTS, SIZES, CASES, ITEMS = 3, np.log([0.5, 1.0, 2.0, 4.0]), 20, 20
SHARED, OWN = 0.02, 0.01
"""Standard deviations of a seed's noise that all its runs have, and of each run's own."""
Drawn = tuple[Estimate, float]
"""An estimate from made-up seeds, and the truth on the scale of its interval."""


def sides(random: np.random.Generator, seeds: int) -> dict[str, tuple[dict[int, float], dict[int, float]]]:
    """Return samples of both sides by part, whose logarithms are normal around those of 3 and 2."""
    logs = SHARED * random.standard_normal((1, PARTS, seeds)) + OWN * random.standard_normal((2, PARTS, seeds))
    left, right = np.exp(logs + np.log([3.0, 2.0])[:, None, None])
    return {str(part): (by_seed(left[part]), by_seed(right[part])) for part in range(PARTS)}


def difference(random: np.random.Generator, seeds: int) -> Drawn:
    return claims.difference("of", "to", sides(random, seeds)), math.exp((SHARED**2 + OWN**2) / 2)


def ratio(random: np.random.Generator, seeds: int) -> Drawn:
    return claims.ratio("of", "to", sides(random, seeds)), math.log(1.5)


def unpaired(random: np.random.Generator, seeds: int) -> Drawn:
    left, right = by_seed(random.normal(3.0, 0.1, seeds)), by_seed(random.normal(2.0, 0.2, seeds), first=99)
    return claims.difference("of", "to", {"": (left, right)}), 1.0


def exponent(random: np.random.Generator, seeds: int) -> Drawn:
    """The exponent of L = 3 X^-0.1, fitted for each seed."""
    noise = random.normal(0.0, SHARED, (seeds, 1)) + random.normal(0.0, OWN, (seeds, len(SIZES)))
    slopes = np.polyfit(SIZES, (math.log(3.0) - 0.1 * SIZES + noise).T, 1)[0]
    return claims.number("exponent", {"": by_seed(-slopes)}), 0.1


def shared_items(random: np.random.Generator, seeds: int) -> Drawn:
    """The ratio of two mean losses over test items, each of which is hard for both models, and harder for one."""
    hard, harder = random.normal(0.0, 0.3, ITEMS), random.normal(0.0, 0.1, ITEMS)
    losses = np.array([[3.0], [2.0]]) + hard + np.array([harder, -harder])  # (2, ITEMS)
    own = {
        seed: losses + random.normal(0.0, OWN, (2, 1)) + random.normal(0.0, 0.1, (2, ITEMS)) for seed in range(seeds)
    }
    samples = {"": tuple({seed: float(own[seed][side].mean()) for seed in own} for side in (0, 1))}
    items = {"": {seed: stats.jackknife(lambda x: math.log(x[0] / x[1]), {0: a, 1: b}) for seed, (a, b) in own.items()}}
    return claims.ratio("of", "to", samples, items), math.log(1.5)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("draw", [difference, ratio, unpaired, exponent, shared_items])
def test_an_interval_over_seeds(draw: Callable[[np.random.Generator, int], Drawn], seeds: int) -> None:
    random, held = np.random.default_rng(seeds), 0
    for _ in range(REPETITIONS):
        estimate, truth = draw(random, seeds)
        assert estimate.interval is not None
        held += estimate.interval.low <= truth <= estimate.interval.high
    assert LEAST <= held / REPETITIONS <= MOST


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_interval_of_a_share(seeds: int) -> None:
    """Its coverage is a sum over all counts, and jumps from share to share: the mean over shares is what is wanted."""
    counts = np.arange(seeds * CASES + 1)
    each = [[(int(count) // seeds + (seed < count % seeds), CASES) for seed in range(seeds)] for count in counts]
    found = [claims.share("of", dict(enumerate(own))).interval for own in each]
    ends = np.array([(one.low, one.high) for one in found if one is not None])  # (counts, 2)
    truths = np.linspace(0.1, 0.9, 101)[:, None]
    held = (ends[:, 0] <= truths) & (truths <= ends[:, 1])  # (shares, counts)
    coverage = (held * binom.pmf(counts, seeds * CASES, truths)).sum(1)
    assert LEAST <= coverage.mean() <= MOST and coverage.min() > 0.9

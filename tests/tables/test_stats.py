"""Intervals and p-values are those of scipy.stats."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats as reference

from paper_repro.tables import claims, stats
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
    found = stats.compare(by_seed(left), by_seed(right))
    same(found, reference.ttest_rel(left, right))
    assert found.paired and found.mean == pytest.approx(float(np.mean(left - right)))


@pytest.mark.parametrize(("left", "right"), APART)
def test_other_seeds_are_compared_by_welch(left: np.ndarray, right: np.ndarray) -> None:
    found = stats.compare(by_seed(left), by_seed(right, first=50))
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
    single, equal = stats.compare({0: 1.0}, {0: 0.5}), stats.compare({0: 1.0, 1: 1.0}, {0: 0.5, 1: 0.5})
    assert (single.low, single.high) == (-np.inf, np.inf)
    assert (single.p_value(0.0), equal.p_value(0.0), equal.mean) == (1.0, 1.0, 0.5)

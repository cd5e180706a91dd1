import math

import pytest
from scipy.stats import linregress, t

from paper_repro.metrics.lines import fit_line

XS, YS = [1.0, 2.0, 4.0, 7.0], [2.0, 1.0, 5.0, 6.5]


def test_slope_and_interval_are_those_of_the_textbook() -> None:
    line, expected = fit_line(XS, YS), linregress(XS, YS)
    assert (line.slope, line.intercept) == pytest.approx((expected.slope, expected.intercept))
    low, high = line.mean_interval(0.0)  # at 0 the height is the intercept
    half = t.ppf(0.975, 2) * expected.intercept_stderr
    assert (low, high) == pytest.approx((line.intercept - half, line.intercept + half))
    far, near = (line.mean_interval(x) for x in (1000.0, line.center))
    assert far[1] - far[0] > 50 * (near[1] - near[0])


def test_two_points_give_a_line_and_no_interval() -> None:
    line = fit_line(XS[:2], YS[:2])
    assert line.at(3.0) == pytest.approx(0.0) and line.mean_interval(3.0) == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="two or more x"):
        fit_line([1.0, 1.0], [0.0, 2.0])

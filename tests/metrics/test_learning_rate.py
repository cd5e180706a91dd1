import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import Akima1DInterpolator

from paper_repro.metrics.learning_rate import optimal_learning_rate

CEM_RATES = [0.0005, 0.001, 0.002, 0.004, 0.008]


def parabola(rates, optimum, lowest=20.0):
    return [lowest + (math.log2(rate) - math.log2(optimum)) ** 2 for rate in rates]


def test_parabola_about_a_knot_is_found_exactly():
    optimum = optimal_learning_rate(CEM_RATES, parabola(CEM_RATES, 0.002))
    assert optimum.learning_rate == pytest.approx(0.002, rel=1e-12)
    assert optimum.value == 20.0
    assert not optimum.at_edge


def test_parabola_between_knots_is_found_exactly():
    # on evenly spaced points Akima's slopes are those of the parabola, so the cubic pieces are the parabola itself
    best = 0.002 * 2**0.3
    optimum = optimal_learning_rate(CEM_RATES, parabola(CEM_RATES, best))
    # d(log2 rate) = rounding / curvature; log2 of the rates is near 10, so 10 * 2^-53 * a few operations
    assert optimum.learning_rate == pytest.approx(best, rel=1e-12)
    assert optimum.value == pytest.approx(20.0, rel=1e-13)
    assert not optimum.at_edge
    assert str(optimum) == "optimum 20 at learning rate 0.00246"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.floats(2, 30), min_size=5, max_size=9))
def test_bracketed_optimum_is_the_minimum_of_scipys_interpolant_on_a_dense_grid(values):
    rates = [1e-4 * 2**step for step in range(len(values))]
    optimum = optimal_learning_rate(rates, values)
    if min(values[1:-1]) > min(values[0], values[-1]):
        assert optimum.at_edge
        assert optimum.value == min(values)
        return
    dense = np.linspace(math.log2(rates[0]), math.log2(rates[-1]), 20001)
    heights = Akima1DInterpolator(np.log2(rates), values)(dense)
    # at a minimum the grid is at most curvature / 2 * (spacing / 2)^2 above; curvature < 6 * 28 + ..., spacing 4e-4
    assert heights.min() - 1e-4 <= optimum.value <= heights.min() + 1e-12
    assert rates[0] <= optimum.learning_rate <= rates[-1]


@pytest.mark.parametrize(("best", "edge", "rate"), [(1e-5, "lowest", 0.0005), (1.0, "highest", 0.008)])
def test_optimum_outside_the_grid_is_said_and_not_extrapolated(best, edge, rate):
    values = parabola(CEM_RATES, best)
    optimum = optimal_learning_rate(CEM_RATES, values)
    assert (optimum.at_edge, optimum.edge, optimum.learning_rate) == (True, edge, rate)
    assert optimum.value == min(values)
    assert str(optimum).startswith("at the edge of the grid: best is")
    assert f"the {edge} of 5" in str(optimum)


def test_dip_of_the_interpolant_beside_a_best_edge_is_not_trusted():
    rates, values = [1.0, 2.0, 4.0, 8.0, 16.0], [5.0, 5.01, 9.0, 11.0, 12.0]
    dip = Akima1DInterpolator(np.log2(rates), values)(np.linspace(0, 1, 1001)).min()
    assert dip < 4.9
    optimum = optimal_learning_rate(rates, values)
    assert (optimum.edge, optimum.learning_rate, optimum.value) == ("lowest", 1.0, 5.0)


def test_flat_sweep_has_no_bracketed_optimum():
    assert optimal_learning_rate(CEM_RATES, [3.0] * 5).at_edge


def test_order_of_the_sweep_does_not_matter():
    values = parabola(CEM_RATES, 0.003)
    order = [3, 0, 4, 1, 2]
    shuffled = optimal_learning_rate([CEM_RATES[i] for i in order], [values[i] for i in order])
    assert shuffled == optimal_learning_rate(CEM_RATES, values)


@pytest.mark.parametrize("diverged", [math.nan, math.inf])
def test_diverged_rate_is_dropped_and_said(diverged):
    values = parabola(CEM_RATES, 0.0014)
    optimum = optimal_learning_rate([*CEM_RATES, 0.016], [*values, diverged])
    assert optimum.diverged == (0.016,)
    assert optimum.rates == tuple(CEM_RATES)
    assert optimum.learning_rate == optimal_learning_rate(CEM_RATES, values).learning_rate
    assert str(optimum).endswith("; diverged and left out: 0.016")


def test_best_rate_just_below_divergence_is_at_the_edge():
    optimum = optimal_learning_rate(CEM_RATES, [*parabola(CEM_RATES[:4], 0.004), math.nan])
    assert (optimum.edge, optimum.learning_rate) == ("highest", 0.004)


@pytest.mark.parametrize(
    ("rates", "values", "message"),
    [
        ([], [], "sweep is empty"),
        ([1e-3], [3.0], "1 of 1 learning rates converged, .* at least 3"),
        ([1e-3, 2e-3], [3.0, 2.0], "2 of 2 learning rates converged"),
        ([1e-3, 2e-3, 4e-3], [3.0, 2.0, math.nan], "2 of 3 .*lower ones"),
        ([1e-3, 2e-3, 1e-3], [3.0, 2.0, 4.0], "0.001 stands twice"),
        ([1e-3, 2e-3, 0.0], [3.0, 2.0, 4.0], "learning rate 0: expected positive"),
        ([1e-3, 2e-3, -1.0], [3.0, 2.0, 4.0], "learning rate -1: expected positive"),
        ([1e-3, 2e-3, math.nan], [3.0, 2.0, 4.0], "learning rate nan: expected positive"),
        ([1e-3, 2e-3, 4e-3], [3.0, 2.0], "3 learning rates and 2 values"),
    ],
)
def test_unusable_sweeps_are_refused(rates, values, message):
    with pytest.raises(ValueError, match=message):
        optimal_learning_rate(rates, values)

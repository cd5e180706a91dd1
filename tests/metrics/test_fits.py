"""Lines, power laws, optima of learning rates and transitions that are fitted to results."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import Akima1DInterpolator
from scipy.stats import linregress, t

from paper_repro.metrics.fits import exponent_gap, fit_line, fit_power_law, optimal_learning_rate, transition

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


# EBT, Table D.1: losses of three seeds at XXS, XS, Small and of one at Medium and Large
TRANSFORMER_LOSSES = [[4.7786, 4.7638, 4.7619], [4.3728, 4.3594, 4.3546], [3.7333, 3.7354, 3.7395], [3.2950], [3.0443]]
EBT_LOSSES = [[5.1210, 5.1122, 5.0392], [4.5119, 4.5118, 4.4906], [3.8262, 3.8321, 3.8189], [3.3922], [3.1079]]
PARAMETERS = [6.187e6, 12.387e6, 48.775e6, 176.033e6, 395.549e6]
STEPS = [7.5e3, 15e3, 60e3, 210e3, 480e3]
TOKENS_PER_STEP = 64 * 256


def pooled(flops, losses):
    points = [(cost, loss) for cost, seeds in zip(flops, losses, strict=True) for loss in seeds]
    return [cost for cost, _ in points], [loss for _, loss in points]


def test_printed_losses_give_the_printed_gap_of_exponents():
    flops = [6 * n * steps * TOKENS_PER_STEP for n, steps in zip(PARAMETERS, STEPS, strict=True)]
    transformer = fit_power_law(*pooled(flops, TRANSFORMER_LOSSES))
    ebt = fit_power_law(*pooled([20 / 3 * cost for cost in flops], EBT_LOSSES))
    # half a unit in the last digit of the reference values
    assert transformer.exponent == pytest.approx(0.05457, abs=5e-6)
    assert ebt.exponent == pytest.approx(0.05946, abs=5e-6)
    assert transformer.r_squared == pytest.approx(0.9968, abs=5e-5)
    assert ebt.r_squared == pytest.approx(0.9855, abs=5e-5)
    gap = exponent_gap(ebt, transformer)
    assert gap.percent == pytest.approx(8.97, abs=5e-3)
    assert math.log1p(gap.percent / 100) < 2 * gap.error  # far from sure


@pytest.mark.parametrize("irreducible_loss", [0.0, 1.69])
def test_exact_power_law_is_recovered(irreducible_loss):
    compute = [1e15, 3e16, 1e18, 5e19]
    law = fit_power_law(
        compute, [irreducible_loss + 40 * c**-0.055 for c in compute], irreducible_loss=irreducible_loss
    )
    # log C is near 40 and spans 11: rounding of 40 * 2^-53 over 11, and of subtracting E
    assert law.exponent == pytest.approx(0.055, rel=1e-12)
    assert law.intercept == pytest.approx(math.log(40), rel=1e-12)
    assert law.r_squared == pytest.approx(1, abs=1e-12)
    assert law.exponent_standard_error < 1e-13
    assert law.loss(7e17) == pytest.approx(irreducible_loss + 40 * 7e17**-0.055, rel=1e-12)


def noisy_points(seed, exponent=0.05, count=11):
    generator = np.random.default_rng(seed)
    compute = 10 ** generator.uniform(15, 20, count)
    return compute, 30 * compute**-exponent * np.exp(0.01 * generator.standard_normal(count))


def test_gap_follows_the_delta_method():
    candidate, baseline = fit_power_law(*noisy_points(3, exponent=0.06)), fit_power_law(*noisy_points(4))
    gap = exponent_gap(candidate, baseline)
    assert gap.percent == pytest.approx(100 * (candidate.exponent / baseline.exponent - 1), rel=1e-12)
    first, second = (law.exponent_standard_error / law.exponent for law in (candidate, baseline))
    assert gap.freedom == pytest.approx((first**2 + second**2) ** 2 / (first**4 / 9 + second**4 / 9), rel=1e-12)
    assert gap.error == pytest.approx(math.hypot(first, second), rel=1e-12)
    rising = fit_power_law([1.0, 2.0, 4.0], [2.5, 3.0, 4.0])
    with pytest.raises(ValueError, match="the candidate's exponent is -"):
        exponent_gap(rising, baseline)
    with pytest.raises(ValueError, match="the baseline's exponent is -"):
        exponent_gap(candidate, rising)


CEM_RATES = [0.0005, 0.001, 0.002, 0.004, 0.008]


def parabola(rates, optimum, lowest=20.0):
    return [lowest + (math.log2(rate) - math.log2(optimum)) ** 2 for rate in rates]


def test_parabola_between_knots_is_found_exactly():
    # on evenly spaced points Akima's slopes are those of the parabola, so the cubic pieces are the parabola itself
    best = 0.002 * 2**0.3
    optimum = optimal_learning_rate(CEM_RATES, parabola(CEM_RATES, best))
    # d(log2 rate) = rounding / curvature; log2 of the rates is near 10, so 10 * 2^-53 * a few operations
    assert optimum.learning_rate == pytest.approx(best, rel=1e-12)
    assert optimum.value == pytest.approx(20.0, rel=1e-13)
    assert not optimum.at_edge


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


def test_a_diverged_rate_is_dropped_and_the_best_one_below_it_is_at_the_edge():
    values = parabola(CEM_RATES, 0.0014)
    assert optimal_learning_rate([0.016, *CEM_RATES], [math.inf, *values]) == optimal_learning_rate(CEM_RATES, values)
    optimum = optimal_learning_rate(CEM_RATES, [*parabola(CEM_RATES[:4], 0.004), math.nan])
    assert (optimum.at_edge, optimum.learning_rate) == (True, 0.004)


SIZES = [5_413, 7_561, 10_696, 15_925, 23_101, 33_871, 52_309, 78_181]


def curve(slope, middle, sizes=SIZES):
    return [1 / (1 + math.exp(-slope * (math.log10(size) - middle))) for size in sizes]


@pytest.mark.parametrize(("slope", "middle"), [(3.0, 4.2), (8.0, 4.4), (25.0, 4.1)])
def test_points_of_a_logistic_curve_give_it_back(slope, middle):
    fit = transition(SIZES, curve(slope, middle))
    # exact data: least squares stops where its steps fall below 1e-14 relative, or at rounding of the residuals
    assert (fit.slope, fit.middle) == (pytest.approx(slope, rel=1e-6), pytest.approx(middle, rel=1e-7))
    assert fit.size == pytest.approx(10 ** (middle + math.log(4) / slope), rel=1e-6)


def test_fit_is_the_least_squares_one():
    accuracies = [0.1, 0.05, 0.3, 0.35, 0.8, 0.7, 0.97, 1.0]
    best = transition(SIZES, accuracies)

    def cost(slope, middle):
        return sum((a - b) ** 2 for a, b in zip(curve(slope, middle), accuracies, strict=True))

    for slope in (0.98, 1.02):
        assert cost(best.slope * slope, best.middle) > cost(best.slope, best.middle)
    for middle in (-0.01, 0.01):
        assert cost(best.slope, best.middle + middle) > cost(best.slope, best.middle)


@pytest.mark.parametrize(
    ("fit", "xs", "ys", "message"),
    [
        (fit_line, [1.0, 1.0], [0.0, 2.0], "two or more x"),
        (fit_power_law, [1.0, 2.0], [3.0, 2.0], "2 points, .* at least 3"),
        (fit_power_law, [1.0, 2.0, 3.0], [3.0, math.nan, 1.0], "loss nan at compute 2"),
        (optimal_learning_rate, [], [], "0 of 0 learning rates converged"),
        (optimal_learning_rate, [1e-3, 2e-3, 4e-3], [3.0, 2.0, math.nan], "2 of 3 .*lower ones"),
        (transition, [1e3, 1e4, 1e4], [0.1, 0.9, 0.9], r"3 sizes \(2 different\)"),
        (transition, [1e3, 1e4, 1e5], [0.1, 0.2, 0.3], "there is no transition among these sizes; add"),
        (transition, [1e3, 1e4, 1e5], [0.9, 0.5, 0.1], "accuracy does not rise with size here; add sizes"),
    ],
)
def test_unusable_points_are_refused(fit, xs, ys, message):
    with pytest.raises(ValueError, match=message):
        fit(xs, ys)

import math

import pytest

from paper_repro.metrics.transition import TRANSITION, Transition, transition

SIZES = [5_413, 7_561, 10_696, 15_925, 23_101, 33_871, 52_309, 78_181]


def curve(slope, middle, sizes=SIZES):
    return [1 / (1 + math.exp(-slope * (math.log10(size) - middle))) for size in sizes]


@pytest.mark.parametrize(("slope", "middle"), [(3.0, 4.2), (8.0, 4.4), (25.0, 4.1)])
def test_points_of_a_logistic_curve_give_it_back(slope, middle):
    fit = transition(SIZES, curve(slope, middle))
    # exact data: least squares stops where its steps fall below 1e-14 relative, or at rounding of the residuals
    assert (fit.slope, fit.middle) == (pytest.approx(slope, rel=1e-6), pytest.approx(middle, rel=1e-7))
    assert fit.size == pytest.approx(10 ** (middle + math.log(4) / slope), rel=1e-6)
    assert fit.num_points == 8


def test_the_transition_is_where_the_curve_is_at_80_percent():
    fit = Transition(slope=7.0, middle=4.3, num_points=5)
    assert fit.accuracy(fit.size) == pytest.approx(0.8, abs=1e-12)
    assert fit.accuracy(10**4.3) == pytest.approx(0.5, abs=1e-12)


def test_fit_is_the_least_squares_one():
    accuracies = [0.1, 0.05, 0.3, 0.35, 0.8, 0.7, 0.97, 1.0]
    best = transition(SIZES, accuracies)

    def cost(slope, middle):
        return sum((a - b) ** 2 for a, b in zip(curve(slope, middle), accuracies, strict=True))

    for slope in (0.98, 1.02):
        assert cost(best.slope * slope, best.middle) > cost(best.slope, best.middle)
    for middle in (-0.01, 0.01):
        assert cost(best.slope, best.middle + middle) > cost(best.slope, best.middle)


def test_step_between_two_sizes_is_found_between_them():
    fit = transition(SIZES, [0, 0, 0, 0, 1, 1, 1, 1])
    assert 15_925 < fit.size < 23_101


def test_order_and_repeats_of_seeds_do_not_matter():
    accuracies = curve(6.0, 4.3)
    one = transition(SIZES, accuracies)
    two = transition(SIZES[::-1] * 2, accuracies[::-1] * 2)
    assert one.size == pytest.approx(two.size, rel=1e-6)


@pytest.mark.parametrize(
    ("sizes", "accuracies", "message"),
    [
        ([1e3, 1e4], [0.1, 0.9], r"2 sizes \(2 different\)"),
        ([1e3, 1e4, 1e4], [0.1, 0.9, 0.9], r"3 sizes \(2 different\)"),
        ([1e3, 1e4, 1e5], [0.1, 0.9], "2 accuracies, expected as many"),
        ([0, 1e4, 1e5], [0.1, 0.5, 0.9], "sizes must be positive"),
        ([1e3, 1e4, math.inf], [0.1, 0.5, 0.9], "sizes must be positive"),
        ([1e3, 1e4, 1e5], [0.1, 0.5, 90], "accuracies must be between 0 and 1"),
        ([1e3, 1e4, 1e5], [0.1, math.nan, 0.9], "accuracies must be between 0 and 1"),
        ([1e3, 1e4, 1e5], [0.1, 0.2, 0.3], "there is no transition among these sizes; add"),
        ([1e3, 1e4, 1e5], [0.9, 0.95, 1.0], "accuracies go from 0.9 to 1"),
        ([1e3, 1e4, 1e5], [0.9, 0.5, 0.1], "accuracy does not rise with size here; add sizes"),
    ],
)
def test_points_without_a_transition_are_refused(sizes, accuracies, message):
    with pytest.raises(ValueError, match=message):
        transition(sizes, accuracies)


def test_quantity():
    assert TRANSITION.heading == "transition to learning (parameters) ↓"

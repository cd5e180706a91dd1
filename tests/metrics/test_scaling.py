import math

import numpy as np
import pytest
from scipy import stats

from paper_repro.metrics.scaling import exponent_gap, fit_power_law

# EBT, Table D.1: losses of three seeds at XXS, XS, Small and of one at Medium and Large
TRANSFORMER_LOSSES = [[4.7786, 4.7638, 4.7619], [4.3728, 4.3594, 4.3546], [3.7333, 3.7354, 3.7395], [3.2950], [3.0443]]
EBT_LOSSES = [[5.1210, 5.1122, 5.0392], [4.5119, 4.5118, 4.4906], [3.8262, 3.8321, 3.8189], [3.3922], [3.1079]]
PARAMETERS = [6.187e6, 12.387e6, 48.775e6, 176.033e6, 395.549e6]
STEPS = [7.5e3, 15e3, 60e3, 210e3, 480e3]
TOKENS_PER_STEP = 64 * 256
PRINTED_TRANSFORMER_FLOPS = [4.56e15, 1.82e16, 2.87e17, 3.63e18, 1.87e19]
PRINTED_EBT_FLOPS = [3.04e16, 1.22e17, 1.92e18, 2.42e19, 1.24e20]


def pooled(flops, losses):
    points = [(cost, loss) for cost, seeds in zip(flops, losses, strict=True) for loss in seeds]
    return [cost for cost, _ in points], [loss for _, loss in points]


def fits(transformer_flops, ebt_flops, first_size=0):
    return (
        fit_power_law(*pooled(transformer_flops[first_size:], TRANSFORMER_LOSSES[first_size:])),
        fit_power_law(*pooled(ebt_flops[first_size:], EBT_LOSSES[first_size:])),
    )


def rebuilt_flops():
    transformer = [6 * n * steps * TOKENS_PER_STEP for n, steps in zip(PARAMETERS, STEPS, strict=True)]
    return transformer, [20 / 3 * flops for flops in transformer]


def test_printed_losses_give_the_printed_gap_of_exponents():
    transformer, ebt = fits(*rebuilt_flops())
    # half a unit in the last digit of the reference values
    assert transformer.exponent == pytest.approx(0.05457, abs=5e-6)
    assert ebt.exponent == pytest.approx(0.05946, abs=5e-6)
    assert transformer.r_squared == pytest.approx(0.9968, abs=5e-5)
    assert ebt.r_squared == pytest.approx(0.9855, abs=5e-5)
    gap = exponent_gap(ebt, transformer)
    assert gap.percent == pytest.approx(8.97, abs=5e-3)
    assert gap.interval[0] < 0 < gap.percent < gap.interval[1]


def test_gap_is_carried_by_the_smallest_size():
    transformer, ebt = fits(PRINTED_TRANSFORMER_FLOPS, PRINTED_EBT_FLOPS, first_size=1)
    assert exponent_gap(ebt, transformer).percent == pytest.approx(2.75, abs=5e-3)
    transformer, ebt = fits(*rebuilt_flops(), first_size=1)
    assert exponent_gap(ebt, transformer).percent == pytest.approx(2.61, abs=5e-3)


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


def test_agrees_with_scipys_regression():
    compute, loss = noisy_points(0)
    law = fit_power_law(compute, loss, confidence=0.9)
    reference = stats.linregress(np.log(compute), np.log(loss))
    half_width = stats.t.ppf(0.95, len(compute) - 2) * reference.stderr
    # both centre the logarithms; float64 with a residual some 1e-2 of the signal
    assert law.exponent == pytest.approx(-reference.slope, rel=1e-11)
    assert law.intercept == pytest.approx(reference.intercept, rel=1e-11)
    assert law.r_squared == pytest.approx(reference.rvalue**2, rel=1e-11)
    assert law.exponent_standard_error == pytest.approx(reference.stderr, rel=1e-9)
    assert law.exponent_interval == pytest.approx(
        (-reference.slope - half_width, -reference.slope + half_width), rel=1e-9
    )
    line = reference.intercept + reference.slope * np.log(compute)
    assert law.residuals == pytest.approx(np.log(loss) - line, abs=1e-12)


def test_unit_of_compute_changes_neither_exponent_nor_error():
    compute, loss = noisy_points(1)
    flops, petaflops = fit_power_law(compute, loss), fit_power_law(compute / 1e15, loss)
    assert flops.exponent == pytest.approx(petaflops.exponent, rel=1e-11)
    assert flops.exponent_standard_error == pytest.approx(petaflops.exponent_standard_error, rel=1e-9)


def test_intervals_cover_the_truth_as_often_as_they_say():
    trials, covered, gap_covered = 400, 0, 0
    for trial in range(trials):
        first = fit_power_law(*noisy_points(2 * trial, exponent=0.06))
        second = fit_power_law(*noisy_points(2 * trial + 1, exponent=0.05))
        covered += first.exponent_interval[0] < 0.06 < first.exponent_interval[1]
        low, high = exponent_gap(first, second).interval
        gap_covered += low < 20 < high
    # binomial standard deviation sqrt(.95 * .05 / 400) = 1.1 %; four of them; the seeds are fixed
    assert covered / trials == pytest.approx(0.95, abs=0.044)
    assert gap_covered / trials == pytest.approx(0.95, abs=0.044)


def test_gap_follows_the_delta_method():
    candidate, baseline = fit_power_law(*noisy_points(3, exponent=0.06)), fit_power_law(*noisy_points(4))
    gap = exponent_gap(candidate, baseline, confidence=0.9)
    assert gap.percent == pytest.approx(100 * (candidate.exponent / baseline.exponent - 1), rel=1e-12)
    first, second = (law.exponent_standard_error / law.exponent for law in (candidate, baseline))
    freedom = (first**2 + second**2) ** 2 / (first**4 / 9 + second**4 / 9)
    half_width = stats.t.ppf(0.95, freedom) * math.hypot(first, second)
    logarithms = [math.log(1 + end / 100) - math.log(1 + gap.percent / 100) for end in gap.interval]
    assert logarithms == pytest.approx([-half_width, half_width], rel=1e-9)


def test_gap_of_exact_laws_has_no_width():
    compute = [1.0, 2.0, 4.0]
    candidate = fit_power_law(compute, [1.0, 0.25, 0.0625])
    baseline = fit_power_law(compute, [1.0, 0.5, 0.25])
    gap = exponent_gap(candidate, baseline)
    assert gap.percent == pytest.approx(100, rel=1e-12)
    assert gap.interval == pytest.approx((100, 100), rel=1e-12)
    assert str(gap) == "+100.00 % [+100.00, +100.00]"


def test_equal_losses_leave_nothing_to_explain():
    law = fit_power_law([1.0, 2.0, 4.0], [3.0, 3.0, 3.0])
    assert law.exponent == 0
    assert math.isnan(law.r_squared)


@pytest.mark.parametrize(
    ("compute", "loss", "options", "message"),
    [
        ([1.0, 2.0, 3.0], [3.0, 2.0], {}, "3 compute values and 2 losses"),
        ([1.0, 2.0], [3.0, 2.0], {}, "2 points, .* at least 3"),
        ([], [], {}, "0 points"),
        ([1.0, 0.0, 3.0], [3.0, 2.0, 1.0], {}, "compute 0: expected positive"),
        ([1.0, math.nan, 3.0], [3.0, 2.0, 1.0], {}, "compute nan"),
        ([1.0, 2.0, 3.0], [3.0, math.nan, 1.0], {}, "loss nan at compute 2"),
        ([1.0, 2.0, 3.0], [3.0, 2.0, 1.5], {"irreducible_loss": 1.69}, "loss 1.5 .*irreducible loss 1.69"),
        ([2.0, 2.0, 2.0], [3.0, 2.0, 1.0], {}, "all 3 points have compute 2"),
        ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], {"confidence": 95}, "confidence is 95"),
    ],
)
def test_unusable_points_are_refused(compute, loss, options, message):
    with pytest.raises(ValueError, match=message):
        fit_power_law(compute, loss, **options)


def test_gap_needs_falling_losses_and_one_irreducible_loss():
    compute = [1.0, 2.0, 4.0]
    falling = fit_power_law(compute, [4.0, 3.0, 2.5])
    rising = fit_power_law(compute, [2.5, 3.0, 4.0])
    with pytest.raises(ValueError, match="the candidate's exponent is -"):
        exponent_gap(rising, falling)
    with pytest.raises(ValueError, match="the baseline's exponent is -"):
        exponent_gap(falling, rising)
    with pytest.raises(ValueError, match="one common value"):
        exponent_gap(fit_power_law(compute, [4.0, 3.0, 2.5], irreducible_loss=1.0), falling)
    with pytest.raises(ValueError, match="confidence is 0"):
        exponent_gap(falling, falling, confidence=0)

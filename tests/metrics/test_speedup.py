import math

import pytest

from paper_repro.metrics.speedup import FinishedRun, tokens_to_same_loss, tune

TOKENS_PER_STEP_1K = 0.52e6


def curve(points, rate=1e-3, seed=0):
    return [FinishedRun(tokens, loss, rate, seed) for tokens, loss in points]


def read_off(steps_and_losses):
    return curve([(steps * TOKENS_PER_STEP_1K, loss) for steps, loss in steps_and_losses])


def test_losses_read_off_the_authors_plot_give_its_speedups():
    gpt = read_off([(10e3, 2.885), (100e3, 2.69), (200e3, 2.65)])
    ngpt = read_off([(10e3, 2.77), (50e3, 2.605)])
    early, late = tokens_to_same_loss(gpt, ngpt)
    # log-linear between 10k and 100k steps: 10^((2.885 - 2.77) / 0.195) = 3.888
    assert (early.ratio, early.bound) == (pytest.approx(10 ** (0.115 / 0.195), rel=1e-12), "=")
    assert (late.ratio, late.bound) == (pytest.approx(4, rel=1e-12), ">")
    assert str(early) == "3.89x"
    assert str(late) == "> 4x"
    (worse,) = tokens_to_same_loss(curve([(2e9, 2.8), (4e9, 2.7)]), curve([(4e9, 3.5)]))
    assert (worse.ratio, worse.bound, str(worse)) == (0.5, "<", "< 0.5x")


def test_rates_are_compared_by_the_mean_over_seeds_of_which_none_diverged():
    runs = [FinishedRun(1e9, loss, 3e-3, seed) for seed, loss in enumerate([2.5, 3.5])]
    runs += [FinishedRun(1e9, loss, 1e-3, seed) for seed, loss in enumerate([2.8, 2.9])]
    runs += [FinishedRun(1e9, loss, 8e-3, seed) for seed, loss in enumerate([2.0, math.nan])]
    (best,) = tune(runs)
    assert best.learning_rate == 1e-3
    assert best.loss == pytest.approx(2.85, rel=1e-15)


def test_budget_that_a_smaller_one_beats_is_not_interpolated_through():
    with_bump = curve([(1e9, 3.0), (2e9, 3.1), (4e9, 2.8)])
    without = curve([(1e9, 3.0), (4e9, 2.8)])
    candidate = curve([(1e9, 2.9)])
    assert tokens_to_same_loss(with_bump, candidate) == tokens_to_same_loss(without, candidate)
    assert tokens_to_same_loss(with_bump, candidate)[0].ratio == pytest.approx(2, rel=1e-12)


BASELINE_POINTS = [(1e9, 3.2), (4e9, 3.0), (16e9, 2.8)]


def test_interval_is_the_one_computed_by_hand():
    # losses fall by 1 per factor e of tokens and only the candidate has noise: the seeds' log ratios are 3 and 2
    baseline = [FinishedRun(math.e**step, 5.0 - step, 1e-3, seed) for step in range(5) for seed in range(2)]
    candidate = [FinishedRun(1.0, loss, 1e-3, seed) for seed, loss in enumerate([2.0, 3.0])]
    (found,) = tokens_to_same_loss(baseline, candidate)
    assert found.ratio == pytest.approx(math.exp(2.5), rel=1e-12)
    assert {seed: log for seed, (log, _) in found.by_seed.items()} == pytest.approx({0: 3.0, 1: 2.0}, rel=1e-12)
    # Student's t with one degree of freedom is Cauchy's distribution; the standard error of the mean is 1/2.
    half = math.tan(math.pi * 0.95 / 2) / 2
    assert found.interval == pytest.approx((math.exp(2.5 - half), math.exp(2.5 + half)), rel=1e-9)


def test_seeds_are_paired_so_that_what_both_models_share_cancels():
    shared = {0: 0.0, 1: 0.03, 2: -0.03}
    baseline = [FinishedRun(t, loss + shared[seed], 1e-3, seed) for t, loss in BASELINE_POINTS for seed in shared]
    candidate = [FinishedRun(1e9, 2.9 + shared[seed], 1e-3, seed) for seed in shared]
    (speedup,) = tokens_to_same_loss(baseline, candidate)
    assert speedup.interval == pytest.approx((8.0, 8.0), rel=1e-9) and speedup.ratio == pytest.approx(8.0, rel=1e-9)


def test_interval_is_open_where_a_seed_leaves_the_baseline():
    baseline = [FinishedRun(*point, 1e-3, seed) for point in BASELINE_POINTS for seed in range(2)]
    below_the_last = [FinishedRun(1e9, loss, 1e-3, seed) for seed, loss in enumerate([2.79, 2.83])]
    above_the_first = [FinishedRun(1e9, loss, 1e-3, seed) for seed, loss in enumerate([3.19, 3.23])]
    both = [FinishedRun(1e9, loss, 1e-3, seed) for seed, loss in enumerate([2.79, 3.23])]
    (speedup,) = tokens_to_same_loss(baseline, below_the_last)
    assert speedup.bound == ">" and speedup.interval[1] == math.inf
    center, half = math.log(16) - 0.075 * math.log(4), math.tan(math.pi * 0.475) * 0.075 * math.log(4)
    assert speedup.interval[0] == pytest.approx(math.exp(center - half), rel=1e-9)
    assert speedup.by_seed[0] == (pytest.approx(math.log(16), rel=1e-12), ">")
    (speedup,) = tokens_to_same_loss(baseline, above_the_first)
    assert speedup.bound == "<" and speedup.interval[0] == 0.0 and 1 < speedup.interval[1] < math.inf
    (speedup,) = tokens_to_same_loss(baseline, both)
    assert speedup.interval == (0.0, math.inf)


def test_no_interval_where_a_budget_has_one_seed():
    baseline = [FinishedRun(*point, 1e-3, seed) for point in BASELINE_POINTS[:2] for seed in range(3)]
    baseline += curve(BASELINE_POINTS[2:])
    (speedup,) = tokens_to_same_loss(baseline, [FinishedRun(1e9, 2.9, 1e-3, seed) for seed in range(3)])
    assert speedup.interval is None


RUN = FinishedRun(1e9, 3.0, 1e-3, 0)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "no finished runs"),
        ([RUN, FinishedRun(4e9, math.inf, 1e-3, 0)], r"every learning rate diverged at 4e\+09 tokens"),
    ],
)
def test_unusable_runs_are_refused(runs, message):
    with pytest.raises(ValueError, match=message):
        tokens_to_same_loss(runs, [RUN])

"""Verdicts: p-values against intervals, parts of a claim together, differences that do not matter."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from paper_repro.artifacts import catalogue, intervals, views
from paper_repro.artifacts.brackets import FEWEST_SETTINGS, best_is_inside, bracketed
from paper_repro.artifacts.judgements import (
    FAILS,
    HOLDS,
    LEVEL,
    MOST_SEEDS,
    SMALL,
    UNDECIDED,
    Judgement,
    Smallest,
    combine,
    exactly,
    holm,
    more_seeds,
    negate,
    settle,
    supported,
)
from paper_repro.artifacts.judgements import tested as by_interval
from paper_repro.base.errors import UsageError
from paper_repro.tests.support import synthetic

TWO_PERCENT = Smallest("made up", ratio=0.02)
CLAIMS = 1000
"""Simulated claims; the standard error of a rate of 5 % is 0.7 %."""
ALLOWED = 0.05 + 3 * math.sqrt(0.05 * 0.95 / CLAIMS)


def judged(values: list[float], low: float = 0.0, high: float = math.inf, relative: bool = False) -> Judgement:
    return by_interval(intervals.of(values), "", low, high, relative=relative)


def spread(mean: float, deviation: float = 0.1, count: int = 3) -> list[float]:
    """Values with exactly this mean and standard deviation."""
    raw = np.linspace(-1, 1, count)
    return list(mean + deviation * raw / raw.std(ddof=1))


@pytest.mark.parametrize("shift", [-0.3, -0.1, 0.0, 0.05, 0.24, 0.26, 1.0])
def test_a_p_value_is_below_the_level_where_the_interval_leaves_the_threshold_out(shift: float) -> None:
    found = intervals.of(spread(shift))
    assert (found.above(0.0) < LEVEL) == (found.low > 0.0)
    assert (found.below(0.0) < LEVEL) == (found.high < 0.0)
    scipy = stats.ttest_1samp(spread(shift), 0.0, alternative="greater").pvalue
    assert found.above(0.0) == pytest.approx(scipy, rel=1e-9) and found.below(0.0) == pytest.approx(1 - scipy, rel=1e-9)


def test_of_too_few_settings_no_best_is_judged(tmp_path: Path) -> None:
    plan = synthetic.plan(tmp_path)
    synthetic.fill(tmp_path / "runs", plan, lambda _: synthetic.finished(error=1.0, score=1.0))
    view = views.build(plan, tmp_path / "runs", None)
    places = {float(place): dict(key) for place, key in enumerate(list(view.points)[: FEWEST_SETTINGS - 1])}
    found = best_is_inside(view, "error", places)
    assert found == Judgement(UNDECIDED, f"fewer than {FEWEST_SETTINGS} settings finished")
    assert best_is_inside(view, "error", {**places, 9.0: dict(list(view.points)[-1])}).because != found.because


def test_p_values_without_spread_or_of_one_value_or_a_bound() -> None:
    same, one = intervals.of([2.0, 2.0, 2.0]), intervals.of([2.0])
    assert [same.above(1.0), same.above(2.0), same.below(3.0)] == [0.0, 1.0, 0.0]
    assert [one.above(-9.0), one.below(9.0)] == [1.0, 1.0]
    bound = intervals.of(spread(1.0)).opened(">")
    assert bound.high == math.inf and bound.below(9.0) == 1.0 and bound.above(0.0) < LEVEL


def test_an_interval_of_one_observation_is_refused() -> None:
    with pytest.raises(ValueError, match="an interval of 1 observation: its spread is not known, run a second seed"):
        intervals.student(1.0, 0.1, 2.0, 1)
    assert judged([1.0]) == Judgement(UNDECIDED, "one seed: not judged")


def test_holm_is_the_one_computed_by_hand() -> None:
    # 3 x 0.01, then the larger of that and 2 x 0.02, then the larger of that and 0.03.
    assert holm([0.02, 0.01, 0.03], [True] * 3) == pytest.approx([0.04, 0.03, 0.04])
    # What is exact cannot be wrong by chance: one part is left.
    assert holm([0.02, 0.0], [True, False]) == [0.02, 0.0]


def test_a_part_that_fails_alone_does_not_fail_among_many() -> None:
    weak = judged(spread(-0.3))
    assert weak.verdict == FAILS and weak.tested is not None and LEVEL / 6 < weak.tested.outside(0.0) < LEVEL
    among = combine([(str(number), judged(spread(2.0))) for number in range(5)] + [("weak", weak)], FAILS, HOLDS)
    assert (among.verdict, among.because) == (UNDECIDED, "5 holds, 1 undecided")
    assert among.parts[-1][1].remark == "alone it would be 'fails', beside the other parts it is not decided"
    beside_exact = combine([("exact", exactly(True, "")), ("weak", weak)], FAILS, HOLDS)
    assert beside_exact.verdict == FAILS
    # All parts must hold, so each is tested at the whole level.
    barely = [(str(number), judged(spread(0.3))) for number in range(6)]
    assert combine(barely, FAILS, HOLDS).verdict == HOLDS and combine(barely, HOLDS, FAILS).verdict == UNDECIDED


def test_parts_of_parts_are_corrected_for_all_of_them() -> None:
    weak = [("", judged(spread(-0.4))), ("", judged(spread(2.0)))]
    whole = combine([("a", combine(weak, FAILS, HOLDS)), ("b", combine(weak[1:], FAILS, HOLDS))], FAILS, HOLDS)
    assert combine(weak, FAILS, HOLDS).verdict == FAILS
    assert whole.verdict == UNDECIDED and {leaf.verdict for leaf in whole.leaves()} == {HOLDS, UNDECIDED}


@pytest.mark.parametrize("parts", [6, 18])
@pytest.mark.parametrize("seeds", [3, 5])
def test_a_claim_of_true_parts_fails_falsely_in_one_of_twenty_at_most(parts: int, seeds: int) -> None:
    """Each part is true by nothing: its mean lies on the threshold, where a false "fails" is likeliest."""
    draws = np.random.default_rng(0).normal(0.0, 1.0, (CLAIMS, parts, seeds))
    wrong = uncorrected = 0
    for claim in draws:
        found = [("", judged(list(map(float, values)))) for values in claim]
        uncorrected += any(part.verdict == FAILS for _, part in found)
        wrong += combine(found, FAILS, HOLDS).verdict == FAILS
    assert wrong / CLAIMS <= ALLOWED
    assert uncorrected / CLAIMS > 0.1, "the parts are not corrected for nothing"


@pytest.mark.parametrize("parts", [6, 18])
def test_a_claim_with_one_false_part_holds_falsely_in_one_of_twenty_at_most(parts: int) -> None:
    draws = np.random.default_rng(1).normal(0.0, 1.0, (CLAIMS, parts, 3))
    draws[:, 1:] += 50.0  # all others are true beyond doubt
    found = [
        combine([("", judged(list(map(float, values)))) for values in claim], FAILS, HOLDS).verdict for claim in draws
    ]
    assert found.count(HOLDS) / CLAIMS <= ALLOWED
    one_enough = [
        combine([("", judged(list(map(float, values)))) for values in claim], HOLDS, FAILS).verdict
        for claim in draws - np.array([0.0] + [50.0] * (parts - 1))[None, :, None]
    ]
    assert one_enough.count(HOLDS) / CLAIMS <= ALLOWED


def test_a_claim_of_parts_that_differ_is_called_no_difference_in_one_of_twenty_at_most() -> None:
    """One of six parts is off its threshold by just the smallest effect that matters, either way."""
    limit = math.log1p(0.02)
    for sign in (1, -1):
        draws = np.random.default_rng(2).normal(0.0, 0.002, (CLAIMS, 6, 3))
        draws[:, 0] += sign * limit
        draws[:, 1:] += sign * limit if sign > 0 else 50.0
        found = [
            settle(
                combine([("", judged(list(map(float, values)), relative=True)) for values in claim], FAILS, HOLDS),
                TWO_PERCENT,
            ).verdict
            for claim in draws
        ]
        assert found.count(SMALL) / CLAIMS <= ALLOWED


def test_an_interval_within_the_smallest_effect_is_no_difference() -> None:
    near = settle(judged(spread(0.001, 0.002), relative=True), TWO_PERCENT)
    assert (near.verdict, near.word) == (SMALL, "no difference of 2 % or more")
    # Even where the sign is clear: the effect is too small to matter.
    assert settle(judged(spread(0.005, 0.0005), relative=True), TWO_PERCENT).verdict == SMALL
    assert settle(judged(spread(0.05, 0.002), relative=True), TWO_PERCENT).verdict == HOLDS
    assert settle(judged(spread(-0.05, 0.002), relative=True), TWO_PERCENT).verdict == FAILS
    assert settle(judged(spread(0.0, 0.05), relative=True), TWO_PERCENT).verdict == UNDECIDED
    # Around the threshold, not around zero; a limit that the claim sets itself is passed or not, however near.
    at_limit = settle(judged(spread(0.1, 0.002), low=0.1, relative=True), TWO_PERCENT)
    assert at_limit.word == "no difference of 2 % or more from the limit"
    assert settle(judged(spread(0.102, 0.0005), low=0.1, relative=True), TWO_PERCENT).verdict == HOLDS


def test_near_a_limit_a_verdict_stands_that_the_look_gives_and_no_other() -> None:
    """With a p-value between the look's level and the whole one the limit is not passed: there is no difference."""
    near = judged(spread(0.102, 0.0007), low=0.1, relative=True)
    assert near.tested is not None and LEVEL / 2 < near.tested.inside(0.0) < LEVEL
    assert settle(near, TWO_PERCENT).verdict == HOLDS
    assert settle(near, TWO_PERCENT, LEVEL / 2).verdict == SMALL
    assert settle(combine([("", near)], FAILS, HOLDS), TWO_PERCENT, LEVEL / 2).parts[0][1].verdict == SMALL
    # And what would decide at the look's level is counted at that level.
    wide = judged(spread(0.102, 0.011), low=0.1, relative=True)
    more = more_seeds(wide, TWO_PERCENT, LEVEL / 2)
    assert more is not None
    grown = judged(spread(0.102, 0.011, 3 + more), low=0.1, relative=True)
    assert settle(grown, TWO_PERCENT, LEVEL / 2).verdict != UNDECIDED


def test_the_smallest_effect_is_taken_in_the_unit_of_what_is_judged() -> None:
    both = Smallest("made up", ratio=0.02, absolute=0.5)
    relative = by_interval(intervals.of(spread(0.0, 0.001)), "", 0.0, relative=True)
    whole = by_interval(intervals.of(spread(0.0, 0.1)), "", 0.0, base=10.0)
    assert [settle(one, both).word for one in (relative, whole)] == [
        "no difference of 2 % or more",
        "no difference of 0.5 or more",
    ]
    # 2 % of the 10 that it is measured against; without that nothing is known.
    assert settle(by_interval(intervals.of(spread(0.0, 0.01)), "", 0.0, base=-10.0), TWO_PERCENT).verdict == SMALL
    assert settle(by_interval(intervals.of(spread(0.0, 0.01)), "", 0.0), TWO_PERCENT).verdict == UNDECIDED


WORST_FIRST = {FAILS: 0, SMALL: 1, HOLDS: 3}


@pytest.mark.parametrize("words", list(itertools.product((FAILS, SMALL, HOLDS, UNDECIDED), repeat=3)))
def test_four_verdicts_combine_by_kleenes_logic(words: tuple[str, ...]) -> None:
    known = [WORST_FIRST[word] for word in words if word != UNDECIDED]
    names = {value: name for name, value in WORST_FIRST.items()}
    parts = [("", Judgement(word, "given")) for word in words]
    all_hold, one_holds = combine(parts, FAILS, HOLDS).verdict, combine(parts, HOLDS, FAILS).verdict
    if UNDECIDED in words:
        assert all_hold == (FAILS if FAILS in words else UNDECIDED)
        assert one_holds == (HOLDS if HOLDS in words else UNDECIDED)
    else:
        assert (all_hold, one_holds) == (names[min(known)], names[max(known)])


def test_negation_turns_holds_and_fails_alone() -> None:
    for mean, wanted in ((0.05, FAILS), (-0.05, HOLDS), (0.0, SMALL)):
        found = settle(negate(judged(spread(mean, 0.002), relative=True)), TWO_PERCENT)
        assert found.verdict == wanted
    parts = [("", judged(spread(-0.05, 0.002), relative=True)), ("", judged(spread(0.05, 0.002), relative=True))]
    assert settle(negate(combine(parts, FAILS, HOLDS)), TWO_PERCENT).verdict == HOLDS


def test_a_word_that_is_none_of_the_four_stays() -> None:
    below = Judgement("not judged: below the floor", "0.06 against 0.02")
    found = combine([("a", below), ("b", judged(spread(2.0)))], FAILS, HOLDS)
    assert found.verdict == "not judged: below the floor"
    assert combine([("a", below), ("b", judged(spread(-2.0)))], FAILS, HOLDS).verdict == FAILS
    assert supported(found) == found


def test_a_rule_without_an_interval_decides_nothing_unless_it_is_exact() -> None:
    rule, exact = Judgement(HOLDS, "all 3 are good"), exactly(True, "4 = 4")
    assert supported(rule) == Judgement(UNDECIDED, "no interval (all 3 are good)")
    assert supported(exact) == exact and exact.word == "holds (exact)"
    assert settle(supported(combine([("", rule), ("", exact)], FAILS, HOLDS))).verdict == UNDECIDED


@pytest.mark.parametrize("mean", [0.02, 0.05, 0.1])
def test_as_many_seeds_as_are_asked_for_decide(mean: float) -> None:
    values = spread(mean, 0.1, 3)
    more = more_seeds(judged(values))
    assert more is not None and judged(values).verdict == UNDECIDED
    assert judged(spread(mean, 0.1, 3 + more)).verdict == HOLDS
    assert more == 1 or judged(spread(mean, 0.1, 3 + more - 1)).verdict == UNDECIDED


def test_up_to_a_thousand_seeds_are_asked_for_and_no_more() -> None:
    asked = [more_seeds(judged(spread(mean))) for mean in np.linspace(0.0062, 0.00619, 21)]
    assert list(dict.fromkeys(asked)) == [999, 1000, None] and MOST_SEEDS == 1000


@pytest.mark.parametrize("most", [1, 2, 5, 8, 9])
def test_the_most_seeds_that_are_asked_for_are_the_bound_itself(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    seeds = {mean: more_seeds(judged(spread(mean))) for mean in np.linspace(0.02, 0.24, 200)}
    monkeypatch.setattr("paper_repro.artifacts.judgements.MOST_SEEDS", most)
    assert most in seeds.values() and most + 1 in seeds.values()
    for mean, more in seeds.items():
        assert more is not None and more_seeds(judged(spread(mean))) == (more if more <= most else None)


def test_where_seeds_do_not_help_none_are_asked_for() -> None:
    assert more_seeds(judged(spread(0.0, 0.1))) is None
    assert more_seeds(judged(spread(0.0, 0.1), relative=True), TWO_PERCENT) is not None
    fixed = by_interval(intervals.of(spread(0.1)), "", 0.0, seeds=0)
    assert fixed.verdict == UNDECIDED and more_seeds(fixed) is None


def test_the_best_setting_has_to_be_better_than_both_edges() -> None:
    noise = {0: 0.0, 1: 0.001, 2: -0.001}

    def sweep(*means: float) -> dict[float, dict[int, float]]:
        return {rate: {s: mean + e * (rate + 1) for s, e in noise.items()} for rate, mean in enumerate(means, 1)}

    assert bracketed(sweep(3.2, 3.0, 3.3), "best at 2").verdict == HOLDS
    assert bracketed(sweep(2.9, 3.0, 3.3), "best at 1").verdict == FAILS
    assert bracketed(sweep(3.0, 3.0, 3.3), "best at 2").verdict == UNDECIDED
    assert bracketed(sweep(3.2, 3.1, 3.0, 3.3), "best at 3").because.startswith("best at 3; edges: 2 holds")
    one_seed = {rate: {0: found[0]} for rate, found in sweep(3.2, 3.0, 3.3).items()}
    assert bracketed(one_seed, "").verdict == UNDECIDED


def message(tmp_path: Path, old: str, new: str) -> str:
    assert old in synthetic.ARTIFACT
    with pytest.raises(UsageError) as caught:
        synthetic.plan(tmp_path, synthetic.ARTIFACT.replace(old, new))
    return str(caught.value)


SHARED = 'smallest: {ratio: 0.001, absolute: 1.0e-6, reason: "so small that these made-up numbers seldom reach it"}\n'


def test_a_claim_without_a_smallest_effect_is_refused_with_its_line(tmp_path: Path) -> None:
    found = message(tmp_path, SHARED, "")
    line = synthetic.ARTIFACT.replace(SHARED, "").splitlines().index("  - id: old_above_new") + 1
    assert found.startswith(f"{tmp_path / 'made' / 'up.yaml'}:{line}: give it 'smallest'")


def test_a_computed_claim_without_one_is_refused_where_it_uses_an_interval(tmp_path: Path) -> None:
    from paper_repro.artifacts import claims, views

    text = synthetic.ARTIFACT.replace(SHARED, "")
    start, end = text.index("claims:\n"), text.index("scales:\n")
    one = "claims:\n  - id: seen\n    says: a\n    where: b\n    predicate: {computed: seen}\n"
    plan = synthetic.plan(tmp_path, text[:start] + one + text[end:])
    (tmp_path / "made" / "up.py").write_text(
        "from paper_repro.artifacts import intervals\nfrom paper_repro.artifacts.claims import tested\n"
        "def judge_seen(view):\n    return tested(intervals.of([1.0, 1.1]), 'a', 0.0)\n"
    )
    with pytest.raises(UsageError, match=r"up\.yaml:\d+: claim 'seen' is judged by an interval: give it 'smallest'"):
        claims.judge(plan.artifact.claims[0], views.build(plan, tmp_path / "runs", None))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("{ratio: 0.1}", "missing 'reason'"),
        ("{reason: none}", "'smallest' takes 'ratio' (0.02 is 2 %), 'absolute' (in the metric's unit), or both"),
        ("{ratio: 0.0, reason: none}", "the smallest effect that matters is above 0, not 0"),
        ("{ratio: two, reason: none}", "'ratio' must be a number, not 'two'"),
        ("{share: 0.1, reason: none}", "unknown key 'share'"),
        ("{absolute: 0.1, reason: none}", "its predicate compares ratios: 'smallest' needs 'ratio', not only"),
        ("{ratio: 0.05, reason: none}", "the smallest effect that matters, 5 %, is not below 'within', 5 %"),
    ],
)
def test_a_wrong_smallest_effect_is_refused_with_its_reason(tmp_path: Path, given: str, wanted: str) -> None:
    found = message(tmp_path, SHARED, f"smallest: {given}\n")
    assert wanted in found and re_line(found)


def re_line(text: str) -> bool:
    return text.split(": ", maxsplit=1)[0].rpartition(":")[2].isdigit()


def test_a_predicate_that_names_a_metric_nobody_measures_is_refused(tmp_path: Path) -> None:
    assert "unknown metric 'eror' (did you mean 'error'?)" in message(tmp_path, "metric: error,", "metric: eror,")


def test_every_claim_that_may_need_it_names_a_smallest_effect_with_a_reason() -> None:
    claims = [claim for name in catalogue.find() for claim in catalogue.load(name).claims]
    sizes = [claim.smallest for claim in claims if claim.smallest is not None]
    assert len(sizes) > 0.8 * len(claims), "the others count or compare printed numbers"
    assert all(len(size.reason) > 20 for size in sizes)

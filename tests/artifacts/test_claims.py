import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from paper_repro.artifacts import catalogue, claims, intervals, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Claim,
    Close,
    Equal,
    Every,
    Judgement,
    Names,
    Negation,
    Order,
    Side,
    Some,
)
from paper_repro.artifacts.judgements import OTHER_SCALE
from paper_repro.artifacts.views import View
from paper_repro.base.command_line import RESULTS
from paper_repro.base.errors import UsageError
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import DIVERGED, FAILED, FINISHED, Outcome
from paper_repro.tests.support import synthetic

OLD, NEW = {"task": "easy", "model": "old"}, {"task": "easy", "model": "new"}
HARD_OLD, HARD_NEW = {"task": "hard", "model": "old"}, {"task": "hard", "model": "new"}
Samples = dict[int, float]
TINY = 1e-12
"""The relative rounding of float64 sums over three or four seeds against scipy's."""


def place_of(cell: PlannedCell) -> tuple[str, str]:
    place = dict(cell.key)
    return place["task"], place["model"]


def view_of(folder: Path, easy: tuple[Samples, Samples], hard: tuple[Samples, Samples] | None = None) -> View:
    """A view of the made-up artifact with these errors by seed: (old, new) on each task."""
    samples = {("easy", "old"): easy[0], ("easy", "new"): easy[1]}
    if hard is not None:
        samples |= {("hard", "old"): hard[0], ("hard", "new"): hard[1]}
    return view_with(folder, lambda cell: _outcome(samples.get(place_of(cell), {}).get(cell.seed)))


def _outcome(error: float | None) -> Outcome | None:
    return None if error is None else synthetic.finished(error=error)


def view_with(folder: Path, outcome: Any) -> View:
    plan = synthetic.plan(folder)
    synthetic.fill(folder / "runs", plan, outcome)
    return views.build(plan, folder / "runs", None)


def order(compare: str = "difference", margin: float = 0.0) -> Order:
    return Order(Side("error", OLD), Side("error", NEW), compare, margin)


def close(within: float) -> Close:
    return Close(Side("error", OLD), Side("error", NEW), within)


# Differences 0.1, 0.2 and 0.3: mean 0.2, standard deviation 0.1, so the interval is 0.2 +- 4.3027 * 0.1 / sqrt(3).
BY_HAND = ({0: 1.1, 1: 1.7, 2: 1.3}, {0: 1.0, 1: 1.5, 2: 1.0})


def test_a_paired_interval_is_the_one_computed_by_hand_and_by_scipy() -> None:
    found = intervals.compare(*BY_HAND)
    # Student's t with two degrees of freedom has the quantile (2p - 1) sqrt(2 / (4 p (1 - p))).
    half = 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025)) * 0.1 / math.sqrt(3)
    assert found.mean == pytest.approx(0.2, rel=TINY) and found.count == 3 and found.paired
    assert (found.low, found.high) == pytest.approx((0.2 - half, 0.2 + half), rel=1e-10)
    scipy = stats.ttest_rel(*[list(side.values()) for side in BY_HAND]).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((scipy.low, scipy.high), rel=1e-10)


def test_an_unpaired_interval_is_welchs() -> None:
    left, right = [1.1, 1.7, 1.3, 1.6], [1.0, 1.05, 1.01]
    found = intervals.compare(dict(enumerate(left)), {10 + seed: value for seed, value in enumerate(right)})
    scipy = stats.ttest_ind(left, right, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((scipy.low, scipy.high), rel=1e-10)
    assert not found.paired and found.count == 3


def test_only_common_seeds_are_paired() -> None:
    found = intervals.compare({0: 5.0, 1: 2.0, 2: 3.0}, {1: 1.0, 2: 1.0, 3: 99.0})
    assert (found.mean, found.count, found.paired) == (1.5, 2, True)


@pytest.mark.parametrize(("left", "right"), [({0: 1.0}, {0: 0.0}), ({0: 1.0, 1: 2.0}, {0: 0.0}), ({0: 1.0}, {5: 0.0})])
def test_a_single_seed_on_either_side_has_no_interval(left: Samples, right: Samples) -> None:
    found = intervals.compare(left, right)
    assert found.count == 1 and (found.low, found.high) == (-math.inf, math.inf)


def test_an_order_is_undecided_while_its_interval_holds_zero(tmp_path: Path) -> None:
    view = view_of(tmp_path, BY_HAND)  # the interval is [-0.048, 0.448]
    found = order().judge(view, {})
    assert found.verdict == UNDECIDED
    assert found.because == "difference 0.2 [-0.04841, 0.4484], 3 pairs"


def test_an_order_holds_or_fails_when_its_interval_is_on_one_side(tmp_path: Path) -> None:
    clear = ({0: 1.20, 1: 1.31, 2: 1.19}, {0: 1.0, 1: 1.1, 2: 1.0})  # differences 0.2, 0.21 and 0.19
    view = view_of(tmp_path, clear)
    assert order().judge(view, {}).verdict == HOLDS
    assert Order(Side("error", NEW), Side("error", OLD)).judge(view, {}).verdict == FAILS


def test_pairing_decides_what_the_spread_over_seeds_would_hide(tmp_path: Path) -> None:
    old, new = {0: 1.0, 1: 5.0, 2: 9.0}, {0: 0.9, 1: 4.89, 2: 8.91}
    assert order().judge(view_of(tmp_path, (old, new)), {}).verdict == HOLDS
    apart = intervals.welch(list(old.values()), list(new.values()))
    assert apart.low < 0 < apart.high


def test_a_margin_must_be_passed_by_the_whole_interval(tmp_path: Path) -> None:
    view = view_of(tmp_path, ({0: 1.20, 1: 1.31, 2: 1.19}, {0: 1.0, 1: 1.1, 2: 1.0}))
    assert [order(margin=margin).judge(view, {}).verdict for margin in (0.17, 0.2, 0.23)] == [HOLDS, UNDECIDED, FAILS]


def test_a_ratio_is_judged_by_logarithms(tmp_path: Path) -> None:
    old, new = {0: 1.10, 1: 2.22, 2: 4.40}, {0: 1.0, 1: 2.0, 2: 4.0}
    view = view_of(tmp_path, (old, new))
    logs = [math.log(old[seed] / new[seed]) for seed in old]
    scipy = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    found = order("ratio").judge(view, {})
    numbers = [math.exp(value) for value in (math.fsum(logs) / 3, scipy.low, scipy.high)]
    assert found.because == "ratio {:.3f} [{:.3f}, {:.3f}], 3 pairs".format(*numbers)
    assert found.verdict == HOLDS
    limit = math.expm1(scipy.low)
    assert order("ratio", limit - 1e-6).judge(view, {}).verdict == HOLDS
    assert order("ratio", limit + 1e-6).judge(view, {}).verdict == UNDECIDED


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_a_ratio_of_values_that_are_not_positive_is_undecided(tmp_path: Path, bad: float) -> None:
    view = view_of(tmp_path, ({0: 1.0, 1: bad, 2: 1.0}, {0: 1.0, 1: 1.0, 2: 1.0}))
    for predicate in (order("ratio"), close(0.5)):
        assert predicate.judge(view, {}) == Judgement(UNDECIDED, "a ratio needs positive values")


def test_closeness_needs_the_whole_interval_inside(tmp_path: Path) -> None:
    old = {0: 1.02, 1: 1.021, 2: 1.019}
    view = view_of(tmp_path, (old, {0: 1.0, 1: 1.0, 2: 1.0}))
    assert [close(within).judge(view, {}).verdict for within in (0.03, 0.0205, 0.01)] == [HOLDS, UNDECIDED, FAILS]
    assert Close(Side("error", NEW), Side("error", OLD), 0.01).judge(view, {}).verdict == FAILS


@pytest.mark.parametrize("predicate", [order(), order("ratio"), close(0.001)], ids=["order", "ratio", "close"])
@pytest.mark.parametrize("factor", [1.0, 1.2], ids=["equal", "in proportion"])
def test_values_without_a_spread_have_no_interval(tmp_path: Path, predicate: Any, factor: float) -> None:
    same = {0: 1.1, 1: 1.1, 2: 1.1} if factor != 1.0 else {0: 1.0, 1: 2.0, 2: 3.0}
    view = view_of(tmp_path, (same, {seed: factor * value for seed, value in same.items()}))
    found = predicate.judge(view, {})
    assert found.verdict == UNDECIDED and found.because.endswith(" in each of 3: without a spread there is no interval")


@pytest.mark.parametrize("predicate", [order(), order("ratio"), close(0.1)], ids=["order", "ratio", "close"])
def test_one_seed_is_never_judged(tmp_path: Path, predicate: Any) -> None:
    found = predicate.judge(view_of(tmp_path, ({0: 9.0}, {0: 1.0})), {})
    assert (found.verdict, found.because) == (UNDECIDED, "one seed: not judged")


@pytest.mark.parametrize("predicate", [order(), order("ratio"), close(0.1)], ids=["order", "ratio", "close"])
def test_a_side_that_was_not_run_is_not_judged(tmp_path: Path, predicate: Any) -> None:
    assert predicate.judge(view_of(tmp_path, ({0: 9.0, 1: 9.0}, {})), {}) == Judgement(UNDECIDED, "not run")


@pytest.mark.parametrize(
    ("lost", "verdict", "because"),
    [
        (FAILED, HOLDS, "2 pairs"),  # it is run again
        (DIVERGED, UNDECIDED, "1 of 3 seeds of Easy, Old & known diverged (ratio"),
    ],
)
def test_of_a_model_that_lost_a_seed_the_others_decide_nothing(
    tmp_path: Path, lost: str, verdict: str, because: str
) -> None:
    def outcome(cell: PlannedCell) -> Outcome:
        old = place_of(cell)[1] == "old"
        status = lost if (cell.seed, old) == (2, True) else FINISHED
        return Outcome(status, {"error": 1e6 if status != FINISHED else (1.2 + cell.seed / 500 if old else 1.0)})

    view = view_with(tmp_path, outcome)
    assert view.samples("error", OLD).keys() == {0, 1}
    found = order("ratio").judge(view, {})
    assert found.verdict == verdict and because in found.because


def test_a_metric_that_is_no_number_in_a_seed_decides_nothing(tmp_path: Path) -> None:
    def outcome(cell: PlannedCell) -> Outcome:
        error = 1.2 + cell.seed / 500 if place_of(cell)[1] == "old" else 1.0
        return synthetic.finished(error=float("nan") if cell.seed == 1 else error)

    found = order().judge(view_with(tmp_path, outcome), {})
    assert found.verdict == UNDECIDED and found.because.startswith("1 of 3 seeds of ")


def test_a_pair_with_one_diverged_side_does_not_count_as_a_pair(tmp_path: Path) -> None:
    def outcome(cell: PlannedCell) -> Outcome:
        if place_of(cell)[1] == "old" and cell.seed > 0:
            return Outcome(DIVERGED, {"error": 1.0}, note="loss is nan at step 3")
        return synthetic.finished(error=2.0)

    assert order().judge(view_with(tmp_path, outcome), {}).because == "one seed: not judged"


@dataclass(frozen=True)
class Given:
    verdict: str

    def judge(self, view: View, place: Mapping[str, str]) -> Judgement:
        return Judgement(self.verdict, "given")

    def problems(self, names: Names) -> Iterator[str]:
        yield from ()

    @classmethod
    def from_yaml(cls, node: Any) -> "Given":
        raise NotImplementedError


VALUE = {FAILS: 0, UNDECIDED: 1, HOLDS: 2}
"""In Kleene's logic conjunction is the minimum, disjunction the maximum, negation 2 - x."""


@pytest.mark.parametrize("parts", list(itertools.product(VALUE, repeat=2)) + list(itertools.product(VALUE, repeat=3)))
def test_conjunction_and_disjunction_are_kleenes(parts: tuple[str, ...], tmp_path: Path) -> None:
    view: Any = None
    given = tuple(Given(verdict) for verdict in parts)
    assert VALUE[Every(given).judge(view, {}).verdict] == min(VALUE[verdict] for verdict in parts)
    assert VALUE[Some(given).judge(view, {}).verdict] == max(VALUE[verdict] for verdict in parts)


@pytest.mark.parametrize("verdict", VALUE)
def test_negation_is_kleenes(verdict: str) -> None:
    view: Any = None
    assert VALUE[Negation(Given(verdict)).judge(view, {}).verdict] == 2 - VALUE[verdict]


CLEAR = ({0: 1.20, 1: 1.31, 2: 1.19}, {0: 1.0, 1: 1.1, 2: 1.0})
REVERSED = (CLEAR[1], CLEAR[0])


def ordered(**more: Any) -> Claim:
    predicate = Order(Side("error", {"model": "old"}), Side("error", {"model": "new"}))
    return Claim("c", "says", "where", predicate, over=["task"], **more)


def test_a_claim_over_an_axis_holds_where_it_holds_everywhere(tmp_path: Path) -> None:
    view = view_of(tmp_path, CLEAR, CLEAR)
    found = claims.judge(ordered(), view)
    assert (found.verdict, found.because) == (HOLDS, "2 holds")
    assert [label for label, _ in found.parts] == ["Easy", "Hard"]


def test_only_restricts_where_a_claim_is_judged(tmp_path: Path) -> None:
    view = view_of(tmp_path, CLEAR, REVERSED)
    assert claims.judge(ordered(), view).verdict == FAILS
    found = claims.judge(ordered(only={"task": ["easy"]}), view)
    assert found.verdict == HOLDS and [label for label, _ in found.parts] == ["Easy"]
    assert claims.judge(ordered(only={"task": ["hard"]}), view).verdict == FAILS


def test_somewhere_asks_for_one_place(tmp_path: Path) -> None:
    assert claims.judge(ordered(somewhere=True), view_of(tmp_path / "a", CLEAR, REVERSED)).verdict == HOLDS
    assert claims.judge(ordered(somewhere=True), view_of(tmp_path / "b", REVERSED, REVERSED)).verdict == FAILS
    assert claims.judge(ordered(somewhere=True), view_of(tmp_path / "c", REVERSED, BY_HAND)).verdict == UNDECIDED
    assert claims.judge(ordered(somewhere=True), view_of(tmp_path / "d", REVERSED)).verdict == UNDECIDED


def test_what_was_not_run_leaves_a_claim_undecided_unless_it_fails_elsewhere(tmp_path: Path) -> None:
    assert claims.judge(ordered(), view_of(tmp_path / "a", CLEAR)).verdict == UNDECIDED
    assert claims.judge(ordered(), view_of(tmp_path / "b", REVERSED)).verdict == FAILS


def test_a_claim_for_other_scales_is_not_judged(tmp_path: Path) -> None:
    view = view_of(tmp_path, CLEAR, CLEAR)
    found = claims.judge(ordered(scales=["smoke"]), view)
    assert (found.verdict, found.because) == (OTHER_SCALE, "to be judged at scale smoke")
    assert claims.judge(ordered(scales=["smoke", "paper"]), view).verdict == HOLDS


def test_counted_columns_are_compared_exactly(tmp_path: Path) -> None:
    def outcome(cell: PlannedCell) -> Outcome | None:
        if place_of(cell) == ("hard", "new"):
            return None
        return Outcome(FINISHED, parameters=1000 if place_of(cell)[1] == "old" else 1001)

    view = view_with(tmp_path, outcome)
    old, new, absent = Side("size", OLD), Side("size", NEW), Side("size", HARD_NEW)
    assert Equal(old, 1000.0, None).judge(view, {}) == Judgement(HOLDS, "1,000 = 1,000", exact=True)
    assert Equal(new, 1000.0, None).judge(view, {}) == Judgement(FAILS, "1,001 is not 1,000", exact=True)
    assert Equal(old, None, Side("size", HARD_OLD)).judge(view, {}).verdict == HOLDS
    assert Equal(old, None, new).judge(view, {}).verdict == FAILS
    assert Equal(old, None, absent).judge(view, {}) == Judgement(UNDECIDED, "not run")


def test_a_computed_claim_calls_the_file_beside_the_artifact(tmp_path: Path) -> None:
    predicate = "order: {metric: error, greater: {model: old}, lesser: {model: new}}"
    text = synthetic.ARTIFACT.replace(
        f"    over: [task]\n    predicate:\n      {predicate}", "    predicate: {computed: seen}"
    )
    plan = synthetic.plan(tmp_path, text)
    view = views.build(plan, tmp_path / "runs", None)
    with pytest.raises(UsageError, match="there is no function judge_seen"):
        claims.judge(plan.artifact.claims[0], view)
    (tmp_path / "made" / "up.py").write_text(
        "from paper_repro.artifacts.claims import HOLDS, Judgement\n"
        "def judge_seen(view):\n    return Judgement(HOLDS, f'{len(view.points)} points')\n"
    )
    found = claims.judge(plan.artifact.claims[0], view)
    assert (found.verdict, found.because) == (UNDECIDED, "no interval (4 points)")
    text = (tmp_path / "made" / "up.py").read_text().replace("points')", "points', exact=True)")
    (tmp_path / "made" / "up.py").write_text(text)
    assert claims.judge(plan.artifact.claims[0], view) == Judgement(HOLDS, "4 points", exact=True)


def test_a_computed_claim_that_reads_a_metric_of_no_record_is_an_error(tmp_path: Path) -> None:
    predicate = "order: {metric: error, greater: {model: old}, lesser: {model: new}}"
    text = synthetic.ARTIFACT.replace(
        f"    over: [task]\n    predicate:\n      {predicate}", "    predicate: {computed: seen}"
    )
    plan = synthetic.plan(tmp_path, text)
    synthetic.fill(tmp_path / "runs", plan, synthetic.near_the_paper(plan))
    view = views.build(plan, tmp_path / "runs", None)
    for metrics, words in (
        ("eror", r"judge_seen reads metric 'eror', which no record has \(did you mean 'error'\?\)"),
        ("error", ""),
        ("error eror", ""),  # another scale may have it
    ):
        (tmp_path / "made" / "up.py").write_text(
            "from paper_repro.artifacts.claims import HOLDS, UNDECIDED, Judgement\n"
            "def judge_seen(view):\n"
            "    place = {'task': 'hard', 'model': 'old'}\n"
            f"    found = sum(len(view.samples(name, place)) for name in '{metrics}'.split())\n"
            "    return Judgement(HOLDS, f'{found} seeds', exact=True) if found else Judgement(UNDECIDED, 'not run')\n"
        )
        if words:
            with pytest.raises(UsageError, match=words):
                claims.judge(plan.artifact.claims[0], view)
        else:
            assert claims.judge(plan.artifact.claims[0], view).verdict == HOLDS


def test_a_part_that_is_negated_has_a_name_that_says_so() -> None:
    plan = plans.make(catalogue.load("nrgpt/table1"))
    view = views.build(plan, RESULTS, None)
    found = claims.judge(next(claim for claim in plan.artifact.claims if claim.id == "owt_order"), view)
    assert [label for label, part in found.parts if not label and not part.parts] == []
    assert any(label.startswith("not: ") and " above " in label for label, _ in found.parts)


def test_the_printed_means_of_table_3_bear_out_every_claim_about_it(tmp_path: Path) -> None:
    plan = plans.make(catalogue.load("cem/table3"))

    def outcome(cell: PlannedCell) -> Outcome:
        metrics = {}
        for name in plan.artifact.metrics:
            printed = plan.artifact.printed(cell.key, name)
            assert printed is not None
            metrics[name] = printed.mean * (1.0 + 1e-5 * random.Random(f"{cell.id} {name}").random())
        return Outcome(FINISHED, metrics)

    synthetic.fill(tmp_path, plan, outcome)
    view = views.build(plan, tmp_path, None)
    found = {claim.id: claims.judge(claim, view).verdict for claim in plan.artifact.claims}
    # Without counts in the records, the claim about parameters cannot be judged.
    assert found == {claim.id: HOLDS for claim in plan.artifact.claims} | {"fewer_parameters": UNDECIDED}


def test_a_scale_that_runs_part_of_an_axis_is_judged_there(tmp_path: Path) -> None:
    text = synthetic.ARTIFACT.replace("about: as in the paper.", "about: a part.\n    only: {task: [easy]}")
    more = "overrides: {trunk.layers: 1}\n        at_scale: {paper: {trunk.layers: 3}}"
    text = text.replace("overrides: {trunk.layers: 1}", more)
    plan = synthetic.plan(tmp_path, text=text)
    assert {dict(cell.key)["task"] for cell in plan.cells} == {"easy"}
    assert {cell.config["trunk"]["layers"] for cell in plan.cells} == {3}
    synthetic.fill(tmp_path / "runs", plan, synthetic.near_the_paper(plan))
    view = views.build(plan, tmp_path / "runs", None)
    assert [label for label, _ in claims.judge(ordered(), view).parts] == ["Easy"]
    assert claims.judge(ordered(only={"task": ["hard"]}), view).verdict == UNDECIDED
    assert view.samples("error", {"task": "hard", "model": "old"}) == {}

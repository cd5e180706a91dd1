"""Looks that are planned beforehand: what they spend, how often they decide wrongly, and how seeds are added."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paper_repro.artifacts import catalogue, claims, deciding, decisions, intervals, looks, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.judgements import FAILS, HOLDS, LEVEL, UNDECIDED, Judgement, combine, settle
from paper_repro.artifacts.judgements import tested as by_interval
from paper_repro.artifacts.plan import Plan
from paper_repro.artifacts.publish import publish
from paper_repro.artifacts.render import render
from paper_repro.base.errors import UsageError
from paper_repro.cells.measurements import is_done
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.runner import Result
from paper_repro.cells.tasks import FINISHED, Outcome
from paper_repro.tests.support import synthetic

LOOKS = [3, 5, 8, 12]
CLAIMS = 2000


def with_looks(folder: Path, given: Sequence[int] = LOOKS) -> Plan:
    plan = synthetic.plan(folder)
    scale = replace(plan.scale, seeds=[0, 1, 2], looks=list(given))
    artifact = replace(plan.artifact, scales={**plan.artifact.scales, plan.scale_name: scale})
    return plans.make(artifact, plan.scale_name)


def test_the_shares_of_all_looks_make_up_the_level() -> None:
    for planned in ([3], [3, 5], LOOKS, list(range(3, 20))):
        spent = looks.levels(planned)
        assert math.fsum(spent) == pytest.approx(LEVEL) and len(spent) == len(planned)
    assert looks.levels(LOOKS)[0] == LEVEL / 2


@pytest.mark.parametrize("parts", [1, 6])
def test_over_all_looks_a_claim_is_decided_wrongly_in_one_of_twenty_at_most(parts: int) -> None:
    """Each part lies on its threshold, where both verdicts are wrong; the first look that decides is the last."""
    draws, wrong, careless = np.random.default_rng(parts).normal(0.0, 1.0, (CLAIMS, parts, LOOKS[-1])), 0, 0
    for claim in draws:
        for count, level in zip(LOOKS, looks.levels(LOOKS), strict=True):
            found = [("", by_interval(intervals.of(list(map(float, one[:count]))), "", 0.0)) for one in claim]
            verdict = settle(combine(found, FAILS, HOLDS), level=level).verdict
            if verdict != UNDECIDED:
                wrong += 1
                break
        careless += any(
            intervals.of(list(map(float, claim[0][:count]))).low > 0
            or intervals.of(list(map(float, claim[0][:count]))).high < 0
            for count in LOOKS
        )
    allowed = 0.05 + 3 * math.sqrt(0.05 * 0.95 / CLAIMS)
    assert wrong / CLAIMS <= allowed
    assert careless / CLAIMS > 0.08, "looking again and again at the whole level is not harmless"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([2, 5], "the first is at the scale's own 3 seeds"),
        ([3], "others follow"),
        ([3, 5, 5], "each is at more seeds than the one before"),
    ],
)
def test_looks_that_cannot_be_are_refused(given: list[int], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        with_looks(tmp_path, given)


def test_looks_of_one_seed_are_refused_with_file_and_line(tmp_path: Path) -> None:
    text = synthetic.ARTIFACT.replace("about: as in the paper.", "about: as in the paper.\n    looks: [1, 2]", 1)
    assert text != synthetic.ARTIFACT
    with pytest.raises(UsageError, match=r"up\.yaml:\d+: looks \[1, 2\]"):
        synthetic.plan(tmp_path, text)


def error(cell: PlannedCell, gap: float, noise: float = 0.05) -> Outcome:
    """Old is ``gap`` above new on the easy task, and far above it on the hard one."""
    place = dict(cell.key)
    shift = {"easy": gap, "hard": 1.0}[place["task"]] if place["model"] == "old" else 0.0
    wave = noise * (-1) ** cell.seed * (1 + 0.1 * cell.seed) * (place["model"] == "old")
    return replace(synthetic.finished(error=2.0 + shift + wave, score=1.0 + wave), seconds=10.0)


def runner(root: Path, gap: float) -> deciding.Run:
    def run(plan: Plan) -> Result:
        synthetic.fill(root, plan, lambda cell: error(cell, gap))
        return Result({FINISHED: len(plan.cells)})

    return run


def test_a_claim_keeps_the_verdict_of_the_first_look_that_decides_it(tmp_path: Path) -> None:
    plan = with_looks(tmp_path)
    claim = plan.artifact.claims[0]
    more = plans.with_seeds(plan, {looks.place_text(dict(cell.key)): 5 for cell in plan.cells})
    synthetic.fill(tmp_path / "runs", more, lambda cell: error(cell, 1.0))
    found = decisions.decide(claim, views.build(more, tmp_path / "runs", None))
    assert (found.judgement.verdict, found.look, found.following) == (HOLDS, 3, None)
    assert "look 1 of 4, 3 seeds, p below 0.0125" in found.judgement.reason
    # Three seeds are a look, of four nothing is seen before there are five.
    four = plans.with_seeds(plan, {looks.place_text(dict(cell.key)): 4 for cell in plan.cells})
    synthetic.fill(tmp_path / "four", four, lambda cell: error(cell, 0.03))
    found = decisions.decide(claim, views.build(four, tmp_path / "four", None))
    assert (found.judgement.verdict, found.look, found.following) == (UNDECIDED, 3, 5)


def test_after_the_last_look_no_more_seeds_are_asked_for(tmp_path: Path) -> None:
    plan = with_looks(tmp_path)
    for count, following in ((8, 12), (12, None)):
        more = plans.with_seeds(plan, {looks.place_text(dict(cell.key)): count for cell in plan.cells})
        synthetic.fill(tmp_path / str(count), more, lambda cell: error(cell, 0.03))
        found = decisions.decide(plan.artifact.claims[0], views.build(more, tmp_path / str(count), None))
        judgement = found.judgement
        assert (judgement.verdict, found.look, found.following) == (UNDECIDED, count, following)
        unpriced = following is None or decisions.NO_LOOK in judgement.reason
        assert (judgement.more is None) == (judgement.price is None) == unpriced
        assert ("; no further look is planned" in judgement.reason) == (following is None)
        assert ("it would take about" in judgement.reason) == unpriced


def test_seeds_that_are_no_planned_look_decide_nothing(tmp_path: Path) -> None:
    whole = with_looks(tmp_path)
    plan = plans.make(whole.artifact, whole.scale_name, [0, 1, 2, 3])
    synthetic.fill(tmp_path / "runs", plan, lambda cell: error(cell, 1.0))
    view = views.build(plan, tmp_path / "runs", None)
    found = decisions.judge(plan.artifact.claims[0], view)
    assert found == Judgement(
        UNDECIDED, "not judged: looks are planned at 3, 5, 8, 12 seeds from 0 on, 4 seeds (0, 1, 2, 3) are none of them"
    )


def test_seeds_are_added_until_the_claim_is_decided_and_again_from_where_it_stopped(tmp_path: Path) -> None:
    plan, runs = with_looks(tmp_path), tmp_path / "runs"
    synthetic.fill(runs, plan, lambda cell: error(cell, 0.1))
    assert deciding.decide(plan, runs, tmp_path / "none", 1.0, runner(runs, 0.1)) == 0
    kept = json.loads((runs / plan.folder / looks.FILE).read_text())
    assert kept["looks"] == LOOKS and set(kept["seeds"].values()) <= {5, 8, 12} and kept["seeds"]
    again = deciding.decide(plan, runs, tmp_path / "none", 1.0, _never)
    assert again == 0
    table, written = render(plan, runs, None)
    verdicts = {claim.id: judgement for claim, judgement in table.judgements()}
    assert verdicts["old_above_new"].verdict == HOLDS
    assert "up to" in table.markdown() and written
    whole = plans.with_looks(plan, [runs / plan.folder])
    assert all(is_done(runs, cell) for cell in whole.cells) and len(whole.cells) > len(plan.cells)


def _never(plan: Plan) -> Result:
    raise AssertionError(f"{len(plan.cells)} cells were run again")


@pytest.mark.parametrize("where", ["runs", "results"])
def test_a_look_whose_cells_another_artifact_has_run_is_taken_without_running(tmp_path: Path, where: str) -> None:
    plan, runs, results = with_looks(tmp_path), tmp_path / "runs", tmp_path / "results"
    synthetic.fill(runs, plan, lambda cell: error(cell, 0.1))
    whole = plans.make(plan.artifact, plan.scale_name, [*range(12)])
    synthetic.fill(tmp_path / where, whole, lambda cell: error(cell, 0.1))
    assert deciding.decide(plan, runs, results, 1.0, _never) == 0
    table, _ = render(plan, runs, None)
    verdicts = {claim.id: judgement for claim, judgement in table.judgements()}
    assert verdicts["old_above_new"].verdict == HOLDS and "look 1 of" not in verdicts["old_above_new"].reason


def test_the_cheapest_claim_comes_first_and_no_look_beyond_the_hours(tmp_path: Path) -> None:
    plan, runs, order = with_looks(tmp_path), tmp_path / "runs", list[int]()
    synthetic.fill(runs, plan, lambda cell: error(cell, 0.03))

    def run(more: Plan) -> Result:
        order.append(len(more.cells))
        return runner(runs, 0.03)(more)

    deciding.decide(plan, runs, tmp_path / "none", 1e-6, run)
    assert order == []
    deciding.decide(plan, runs, tmp_path / "none", 1.0, run)
    # scores_close reads two points and is cheaper than old_above_new, which reads four.
    assert order and order[0] <= order[-1]


def test_the_end_says_how_many_claims_are_open_and_what_lacks_its_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, runs = with_looks(tmp_path), tmp_path / "runs"
    synthetic.fill(runs, plan, lambda cell: error(cell, 0.03))
    without = tuple(replace(cell, missing="no data") if cell.seed else cell for cell in plan.cells)
    assert deciding.decide(replace(plan, cells=without), tmp_path / "none", tmp_path / "nor", 1e-6, _never) == 0
    said = "no further look can be taken; claims still open: 2; 8 of 12 cells lack their data\n"
    assert capsys.readouterr().err == said
    assert deciding.decide(plan, runs, tmp_path / "none", 1e-6, _never) == 0
    assert "no further look fits into 0 s; open claims that would have one: " in capsys.readouterr().err


def test_an_interrupted_run_stops_and_keeps_its_looks(tmp_path: Path) -> None:
    plan, runs = with_looks(tmp_path), tmp_path / "runs"
    synthetic.fill(runs, plan, lambda cell: error(cell, 0.03))
    assert deciding.decide(plan, runs, tmp_path / "none", 1.0, lambda more: Result(interrupted=True)) == 130
    assert looks.taken(runs / plan.folder, LOOKS) is not None


def stopped(root: Path, gap: float, count: int, at_whole_points: bool) -> deciding.Run:
    """Runs ``count`` of the cells that a look asks for, and is stopped then."""

    def run(plan: Plan) -> Result:
        order = sorted(plan.cells, key=lambda cell: cell.key if at_whole_points else cell.seed)
        synthetic.fill(root, replace(plan, cells=tuple(order[:count])), lambda cell: error(cell, gap))
        return Result(interrupted=True)

    return run


@pytest.mark.parametrize("at_whole_points", [False, True])
def test_of_a_look_that_was_stopped_nothing_is_read_and_the_look_before_it_can_be_published(
    tmp_path: Path, at_whole_points: bool
) -> None:
    plan, runs, results = with_looks(tmp_path), tmp_path / "runs", tmp_path / "results"
    synthetic.fill(runs, plan, lambda cell: error(cell, 0.06))
    before, _ = render(plan, runs, None)
    assert deciding.decide(plan, runs, results, 1.0, stopped(runs, 0.06, 3, at_whole_points)) == 130
    begun = looks.taken(runs / plan.folder, LOOKS)
    assert begun is not None and begun.seeds, "a look was begun"
    assert [path for path in runs.glob("cells/*") if path.name not in {cell.id for cell in plan.cells}]

    publish(plan, runs, results)
    table, _ = render(plan, results, None)
    document = json.loads((results / plan.folder / "table.json").read_text())
    reasons = [[(claim.id, found.reason) for claim, found in one.judgements()] for one in (before, table)]
    assert reasons[0] == reasons[1] and all("look 1 of 4, 3 seeds" in reason for _, reason in reasons[1])
    whole = 1 if at_whole_points else 0  # a point that has all seeds of the look is printed from them
    seeds = [row["own_seeds"] for row in document["rows"] if row["quantity"] == "error"]
    assert sorted(seeds) == [3] * (4 - whole) + [5] * whole
    assert {path.name for path in results.glob("cells/*")} == document["cells"].keys()
    said = [note for note in table.notes() if note.startswith("A look at 5 seeds was begun at")]
    assert len(said) == 1 and "is not finished: its further seeds stand in no number and no verdict." in said[0]
    assert looks.taken(results / plan.folder, LOOKS) == begun

    assert deciding.decide(plan, runs, results, 1.0, runner(runs, 0.06)) == 0, "the same command goes on"
    publish(plan, runs, results)
    table, _ = render(plan, results, None)
    assert not [note for note in table.notes() if "was begun" in note]
    assert max(len(point.own) for point in table.view.points.values()) > 3


def test_a_look_at_which_the_scales_own_seeds_are_lacking_is_not_published(tmp_path: Path) -> None:
    plan, runs = with_looks(tmp_path), tmp_path / "runs"
    synthetic.fill(runs, plan, lambda cell: None if cell.seed == 2 else error(cell, 0.03))
    looks.Taken(LOOKS, {looks.place_text(dict(plan.cells[0].key)): 5}).write(runs / plan.folder)
    with pytest.raises(UsageError, match="4 of 12 cells have no result"):
        publish(plan, runs, tmp_path / "results")


def test_other_looks_than_those_first_taken_are_refused(tmp_path: Path) -> None:
    plan, runs = with_looks(tmp_path), tmp_path / "runs"
    looks.Taken(LOOKS, {}).write(runs / plan.folder)
    changed = with_looks(tmp_path / "b", [3, 4])
    with pytest.raises(UsageError, match="planned at 3, 5, 8, 12 seeds, and now at 3, 4: a look that was not planned"):
        deciding.decide(changed, runs, tmp_path / "none", 1.0, _never)
    (runs / plan.folder / looks.FILE).write_text("[1]")
    with pytest.raises(UsageError, match=r"looks\.json: not understood"):
        deciding.decide(plan, runs, tmp_path / "none", 1.0, _never)


def test_a_scale_without_looks_is_refused_with_what_to_write(tmp_path: Path) -> None:
    plan = synthetic.plan(tmp_path)
    with pytest.raises(UsageError, match=r"plans no looks: write, for example, 'looks: \["):
        deciding.decide(plan, tmp_path, tmp_path, 1.0, _never)


@pytest.mark.parametrize("text", [None, "two", "0", "-1", "inf", "nan", ""])
def test_hours_that_are_no_number_are_refused(text: str | None) -> None:
    said = "--decide needs --hours: for example" if text is None else "--hours is a number of hours above 0, not '"
    with pytest.raises(UsageError, match=said):
        deciding.hours(text)
    assert deciding.hours("1.5") == 1.5


def test_undecided_says_how_many_seeds_would_decide_and_what_they_cost(tmp_path: Path) -> None:
    plan = synthetic.plan(tmp_path)
    noise = {0: 0.0, 1: 0.1, 2: -0.1}

    def outcome(cell: PlannedCell) -> Outcome:
        place = dict(cell.key)
        value = 2.0 + (0.05 + noise.get(cell.seed, 0.0)) * (place["model"] == "old")
        return replace(synthetic.finished(error=value, score=1.0), seconds=30.0)

    synthetic.fill(tmp_path / "runs", plan, outcome)
    view = views.build(plan, tmp_path / "runs", None)
    found = decisions.judge(plan.artifact.claims[0], view)
    assert found.verdict == UNDECIDED and found.more is not None
    assert found.price == pytest.approx(found.more * 4 * 30.0)  # four points
    assert f"about {found.more} more seeds would decide, " in found.reason
    assert claims.judge(plan.artifact.claims[0], view).more is None


def test_the_price_of_an_undecided_claim_is_that_of_the_first_look_that_would_decide_it(tmp_path: Path) -> None:
    plan = with_looks(tmp_path)
    claim, asked = plan.artifact.claims[0], set()
    for place, gap in enumerate((0.1, 0.06, 0.045, 0.02)):
        synthetic.fill(tmp_path / str(place), plan, lambda cell, gap=gap: error(cell, gap))
        found = decisions.decide(claim, views.build(plan, tmp_path / str(place), None))
        assert (found.judgement.verdict, found.look, found.following) == (UNDECIDED, 3, 5)
        asked.add(found.judgement.more)
        assert (found.judgement.price is None) == (found.judgement.more is None)
        assert (decisions.NO_LOOK in found.judgement.reason) == (found.judgement.more is None)
    assert asked == {5, 9, None}, "looks are at 3, 5, 8 and 12 seeds"


def test_printed_numbers_are_judged_once_and_not_at_looks(tmp_path: Path) -> None:
    """No seed changes them: the claim spends no level, names no look and asks for no seeds."""
    plan = plans.make(catalogue.load("nrgpt/table6"))
    claim = next(claim for claim in plan.artifact.claims if claim.id == "printed_beyond_the_questions")
    found = decisions.decide(claim, views.build(plan, tmp_path, None))
    assert found.look is None and found.following is None and found.judgement.more is None
    assert "look" not in found.judgement.remark and any(part.verdict == HOLDS for _, part in found.judgement.parts)

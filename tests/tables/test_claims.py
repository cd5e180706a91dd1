"""Claims on made-up records: estimates with known answers, words, and what is refused."""

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from paper_repro.base.errors import UsageError
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import DIVERGED, Outcome
from paper_repro.tables import claims, spec, view
from paper_repro.tables.claims import (
    CANNOT_TELL,
    FAILS,
    HOLDS,
    NO_DIFFERENCE,
    NOT_BEATEN,
    OPPOSITE,
    SEEN,
    Claim,
    Judgement,
)
from paper_repro.tests.support import synthetic
from paper_repro.tests.support.made_up import value as shown

TEXT = synthetic.ARTIFACT.partition("claims:\n")[0].replace(
    "smallest: {ratio: 0.001, absolute: 1.0e-6,", "smallest: {ratio: 0.02, absolute: 0.05,"
)
SCALES = "scales:" + synthetic.ARTIFACT.partition("scales:")[2]
PAPERS = yaml.safe_load((Path(__file__).parents[1] / "papers" / "claims.yaml").read_text())
NOISE = {0: -0.01, 1: 0.0, 2: 0.01}
Values = Mapping[tuple[str, str], float]
FIRST: Values = {("easy", "old"): 0.5, ("easy", "new"): 0.4, ("hard", "old"): 0.9, ("hard", "new"): 0.6}


def outcomes(values: Values, noise: Mapping[int, float] = NOISE) -> Callable[[PlannedCell], Outcome]:
    """Errors as given, times 1 + the seed's noise for one model and 1 + twice that for the other."""

    def outcome(cell: PlannedCell) -> Outcome:
        place = dict(cell.key)
        twice = 2 if place["model"] == "new" else 1
        return synthetic.finished(
            error=values[place["task"], place["model"]] * (1 + twice * noise[cell.seed]), score=1.0
        )

    return outcome


def judged(
    folder: Path,
    claim: str,
    values: Values = FIRST,
    scale: str = "smoke",
    more: str = "",
    outcome: Callable[[PlannedCell], Outcome | None] | None = None,
    baselines: Mapping[str, float] | None = None,
) -> Judgement:
    """Judge one claim, whose YAML is given without id and texts."""
    text = f"{TEXT}{more}claims:\n  - {{id: one, says: It is so, where: Table 1, {claim}}}\n{SCALES}"
    made = synthetic.plan(folder / "papers", text, scale)
    synthetic.fill(folder, made, outcome or outcomes(values), baselines)
    found = view.build(made, folder, None)
    (only,) = found.artifact.claims
    return claims.judge(only, found)


RATIO = "ratio: {metric: error, of: {model: old}, to: {model: new}, over: [task]}"
DIFFERENCE = "difference: {metric: error, of: {model: old}, to: {model: new}, over: [task]}"
TURNED = "difference: {metric: error, of: {model: new}, to: {model: old}, over: [task]}"
BEST = "ratio: {metric: error, of: {model: old}, to: {model: new}, best: {task: score}}"


def test_each_side_is_read_at_the_value_that_another_metric_chooses(tmp_path: Path) -> None:
    scores = {("easy", "old"): 0.1, ("easy", "new"): 0.9, ("hard", "old"): 0.8, ("hard", "new"): 0.3}

    def outcome(cell: PlannedCell) -> Outcome:
        key = (dict(cell.key)["task"], dict(cell.key)["model"])
        return synthetic.finished(error=FIRST[key], score=scores[key])

    found = judged(tmp_path, f"{BEST}, above: 1", outcome=outcome)
    assert shown(found.estimate) == pytest.approx(0.9 / 0.4)  # score: the higher, the better
    assert found.estimate.named.endswith("each at its best task")


def test_a_ratio_is_the_geometric_mean_over_places_paired_by_seed(tmp_path: Path) -> None:
    found = judged(tmp_path, f"{RATIO}, above: 1")
    noises = [math.log((1 + one) / (1 + 2 * one)) for one in NOISE.values()]
    mean = sum(noises) / 3 + (math.log(0.5 / 0.4) + math.log(0.9 / 0.6)) / 2
    spread = math.sqrt(sum((one - sum(noises) / 3) ** 2 for one in noises) / 2)
    interval = found.estimate.interval
    assert interval is not None and interval.paired and interval.count == 3
    assert shown(found.estimate) == pytest.approx(math.exp(mean))
    assert interval.high - interval.mean == pytest.approx(4.30265 * spread / math.sqrt(3), rel=1e-5)
    assert [label for label, _ in found.estimate.parts] == ["Easy", "Hard"] and found.verdict == SEEN


def test_a_number_is_pooled_over_places_under_its_own_name(tmp_path: Path) -> None:
    asked = "number: {metric: error, of: {model: old}, over: [task], called: [the old error]"
    plain = judged(tmp_path / "a", f"{asked}}}, above: 0.1").estimate
    assert plain.named == "the old error, mean of 2" and shown(plain) == pytest.approx(0.7)
    geometric = judged(tmp_path / "b", f"{asked}, geometric: true}}, above: 0.1").estimate
    assert shown(geometric) == pytest.approx(math.sqrt(0.5 * 0.9), rel=1e-3)
    assert [label for label, _ in geometric.parts] == ["Easy", "Hard"]
    named = judged(tmp_path / "c", f"{RATIO.replace('over', 'called: [old, new], over')}, above: 1").estimate
    assert named.named == "old / new, geometric mean of 2"


def test_a_ratio_of_losses_carries_the_error_of_the_test_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "TEXT", TEXT.replace("error", "val_loss"))
    items = {"old": [1.0, 3.0], "new": [1.5, 1.5]}
    monkeypatch.setattr(
        claims, "item_losses", lambda _view, file, place: dict.fromkeys(range(3), items[place["model"]])
    )

    def outcome(cell: PlannedCell) -> Outcome:
        own = items[dict(cell.key)["model"]]
        return synthetic.finished(val_loss=sum(own) / len(own), score=1.0)

    found = judged(tmp_path, RATIO.replace("error", "val_loss") + ", above: 1", outcome=outcome).estimate
    assert found.interval is not None and found.items == claims.SEEDS_AND_ITEMS
    assert shown(found) == pytest.approx(2.0 / 1.5)
    assert found.interval.error == pytest.approx(0.5)  # of log(A / B) + a / A - b / B, over two items


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (f"{RATIO}, above: 1", SEEN),
        (f"{RATIO}, below: 1", OPPOSITE),
        (f"{RATIO}, at_most: 1.5", SEEN),
        (f"{RATIO}, at_most: 1.3", OPPOSITE),
        (f"{RATIO}, at_most: 1.37", CANNOT_TELL),
        (f"{RATIO}, between: [1.2, 1.5]", SEEN),
        (f"{RATIO}, between: [1, 1.1]", OPPOSITE),
        (f"{DIFFERENCE}, between: [0.19, 0.21]", SEEN),
        (f"{TURNED}, between: [-0.21, -0.19]", SEEN),
        (f"{TURNED}, above: 0", OPPOSITE),
    ],
)
def test_a_threshold_is_met_missed_or_inside_of_the_interval(tmp_path: Path, claim: str, verdict: str) -> None:
    assert judged(tmp_path, claim).verdict == verdict
    at_the_papers_scale = {SEEN: HOLDS, OPPOSITE: FAILS, CANNOT_TELL: CANNOT_TELL}[verdict]
    assert judged(tmp_path / "paper", claim, scale="paper").verdict == at_the_papers_scale


def computed(folder: Path, code: str) -> None:
    """Write the Python file beside the claims' YAML, with the function ``estimate_one``."""
    path = folder / "papers" / "made" / "up.py"
    path.parent.mkdir(parents=True)
    path.write_text(f"from paper_repro.tables import claims\n\n\ndef estimate_one(view):\n    return {code}\n")


@pytest.mark.parametrize(("bound", "low"), [("=", SEEN), (">", SEEN), ("<", CANNOT_TELL)])
def test_a_number_that_is_known_on_one_side_meets_what_is_open_there(tmp_path: Path, bound: str, low: str) -> None:
    computed(tmp_path, f"claims.number('n', {{'': {{0: 2.0, 1: 2.1, 2: 2.2}}}}, bound={bound!r})")
    assert judged(tmp_path, "above: 1").verdict == low
    assert judged(tmp_path, "below: 1").verdict == (CANNOT_TELL if bound == "<" else OPPOSITE)
    assert judged(tmp_path, "at_most: 4").verdict == {"=": SEEN, ">": CANNOT_TELL, "<": SEEN}[bound]


def test_a_function_that_reads_an_unknown_place_is_refused_with_file_and_line(tmp_path: Path) -> None:
    computed(tmp_path, "claims.number('n', {'': view.samples('error', {'task': 'easy', 'model': 'odl'})})")
    with pytest.raises(UsageError, match=r"\.yaml:\d+: claim 'one': unknown value 'odl' of axis 'model'.*'old'"):
        judged(tmp_path, "above: 1")


def test_a_function_that_reads_a_metric_of_no_record_says_which(tmp_path, caplog):
    computed(tmp_path, "claims.number('n', {'': view.samples('eror', {'task': 'easy', 'model': 'old'})})")
    found = judged(tmp_path, "above: 1")
    assert found.verdict == CANNOT_TELL and "'eror' (did you mean 'error'?)" in found.because
    (line,) = caplog.messages
    assert "up.yaml:" in line and found.because in line


def test_an_effect_smaller_than_the_smallest_that_matters_is_no_difference(tmp_path: Path) -> None:
    alike = dict.fromkeys(FIRST, 0.5)
    found = judged(tmp_path / "a", f"{RATIO}, above: 1", alike, outcome=outcomes(alike, {0: -1e-4, 1: 0.0, 2: 1e-4}))
    assert found.verdict == NO_DIFFERENCE and found.word == "no difference of 2 %"
    found = judged(tmp_path / "b", f"{DIFFERENCE}, above: 0", alike)
    assert found.word == "no difference of 0.05"
    # A limit of its own is no effect: an interval beside it says where the estimate lies.
    found = judged(
        tmp_path / "c", f"{RATIO}, at_most: 1.03", alike, outcome=outcomes(alike, {0: -1e-4, 1: 0.0, 2: 1e-4})
    )
    assert found.verdict == SEEN


def test_one_seed_equal_values_and_a_lost_seed_tell_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def one(cell: PlannedCell) -> Outcome | None:
        return outcomes(FIRST)(cell) if cell.seed == 0 else None

    def diverges(cell: PlannedCell) -> Outcome:
        return Outcome(DIVERGED) if (cell.seed, dict(cell.key)["model"]) == (1, "new") else outcomes(FIRST)(cell)

    found = judged(tmp_path / "a", f"{RATIO}, above: 1", outcome=one)
    assert (found.verdict, found.because) == (CANNOT_TELL, "one seed")
    found = judged(tmp_path / "b", f"{RATIO}, above: 1", outcome=outcomes(FIRST, dict.fromkeys(range(3), 0.0)))
    assert (found.verdict, found.because) == (CANNOT_TELL, "equal values in all seeds")
    found = judged(tmp_path / "c", f"{RATIO}, above: 1", outcome=diverges)
    assert found.verdict == CANNOT_TELL and found.because.startswith("1 of 3 seeds of Easy, New_{50%} diverged")
    assert ["up.yaml:" in line and "claim 'one'" in line for line in caplog.messages] == [True] * 3
    found = judged(tmp_path / "d", f"{RATIO}, above: 1", outcome=lambda cell: None)
    assert (found.verdict, found.because, len(caplog.messages)) == (CANNOT_TELL, "not run", 3)


def test_counts_are_exact_and_hold_at_every_place(tmp_path: Path) -> None:
    layers = "count: {column: layers, of: {task: hard, model: new}}"
    found = judged(tmp_path / "a", f"{layers}, equals: 2")
    assert (found.verdict, shown(found.estimate), found.p_value) == (HOLDS, 2.0, None)
    assert judged(tmp_path / "b", f"{layers}, equals: 3").verdict == FAILS
    over = "count: {column: layers, of: {model: new}, over: [task]}"
    assert judged(tmp_path / "c", f"{over}, between: [1, 2]").verdict == HOLDS
    assert judged(tmp_path / "d", f"{over}, at_most: 1").verdict == FAILS


TRAINED = TEXT.replace("ebt/training_cost", "cem/gaussian_process").replace("trunk.layers", "training.steps")
TRAINED = TRAINED.replace("trunk.width", "model.width")
BASELINE = 'baselines:\n  chance: {label: Chance, direction: lower, about: "by rule", values: {error: 0.55}}\n'


def test_a_claim_on_a_model_that_beats_no_baseline_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.TEXT", TRAINED)
    easy = "ratio: {metric: error, of: {task: easy, model: old}, to: {task: easy, model: new}}, above: 1"
    hard = easy.replace("easy", "hard")
    assert judged(tmp_path / "a", easy, more=BASELINE).verdict == SEEN
    found = judged(tmp_path / "b", hard, more=BASELINE)
    assert found.verdict == NOT_BEATEN and "Chance" in found.because
    assert judged(tmp_path / "c", f"{hard}, without_baseline: it is counted", more=BASELINE).verdict == SEEN


def test_estimates_of_functions_have_known_answers() -> None:
    number = claims.number("slope", {"": {0: 1.0, 1: 2.0, 2: 3.0}}, unit="points")
    assert shown(number) == 2.0 and number.text == "slope = 2.000 points [-0.484, 4.484], 3 seeds"
    geometric = claims.number("speedup", {"a": {0: 1.0, 1: 2.0}, "b": {0: 4.0, 1: 8.0}}, geometric=True)
    assert shown(geometric) == pytest.approx(math.sqrt(8.0))
    same = {seed: [1.0, 2.0, 3.0] for seed in range(3)}
    items = claims.over_items(claims.DIFFERENCE, "a", "b", {"": same}, "")
    seeds = claims.number("a", {"": dict.fromkeys(range(3), 2.0)})
    assert items.interval is not None and seeds.interval is not None and shown(items) == 2.0
    assert items.interval.has_spread and not seeds.interval.has_spread
    assert claims.ratio("a", "b", {"": ({0: -1.0}, {0: 1.0})}).interval is None
    assert claims.number("a", {}).because == "not run"


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (RATIO, "one threshold"),
        (f"{RATIO}, {DIFFERENCE}, above: 1", "one estimate"),
        (f"{RATIO.replace('model: new', 'modell: new')}, above: 1", "modell"),
        (f"{RATIO.replace('metric: error', 'metric: eror')}, above: 1", "eror"),
        (f"{RATIO.replace(', over: [task]', '')}, above: 1", "axis 'task'"),
        (f"{BEST.replace('{task:', '{tusk:')}, above: 1", "tusk"),
        (f"{RATIO.replace('over', 'called: [old], over')}, above: 1", "'called' takes a name for each of of, to"),
        (f"{RATIO}, above: 1, predicate: 3", "predicate"),
    ],
)
def test_wrong_claims_are_refused_with_file_and_line(tmp_path: Path, claim: str, said: str) -> None:
    text = f"{TEXT}claims:\n  - {{id: one, says: So, where: T, {claim}}}\n{SCALES}"
    with pytest.raises(UsageError) as raised:
        synthetic.load(tmp_path, text)
    assert "\n" not in str(raised.value) and said in str(raised.value)
    assert str(raised.value).startswith(f"{tmp_path / 'made' / 'up.yaml'}:")


def test_a_claim_of_an_effect_needs_the_smallest_that_matters(tmp_path: Path) -> None:
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith("smallest")) + "\n"
    asked = f"{text}claims:\n  - {{id: one, says: So, where: T, {RATIO}, above: 1}}\n{SCALES}"
    with pytest.raises(UsageError, match=r"up\.yaml:\d+: .*smallest"):
        synthetic.load(tmp_path, asked)
    synthetic.load(tmp_path, asked.replace("above: 1", "above: 1.1"))


def test_every_claim_of_the_papers_is_tested_and_few_questions_are_ours() -> None:
    found = {paper: list[Claim]() for paper in PAPERS}
    for name in spec.find():
        found[name.partition("/")[0]] += spec.load(name).claims
    for paper, said in PAPERS.items():
        assert {claim.id for claim in found[paper]} >= said.keys()
    every = [claim for own in found.values() for claim in own]
    assert sum(claim.ours for claim in every) <= 40 and len(every) <= 108

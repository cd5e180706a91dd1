"""The lines of a claim in a table: every estimate that it rests on, by a name of its own."""

from paper_repro.artifacts import judgements
from paper_repro.artifacts.claim_rows import CLAIM_PARTS, claims_grid
from paper_repro.artifacts.claims import FAILS, HOLDS, Claim, Computed, Judgement, combine
from paper_repro.artifacts.intervals import student
from paper_repro.artifacts.judgements import negate


def estimate(mean: float) -> Judgement:
    return judgements.tested(student(mean, 0.1, 4.0, 5), f"difference {mean:g}", 0.0)


def lines(judgement: Judgement) -> list[tuple[str, str, str]]:
    claim = Claim("order", "A is above B", "Table 1", Computed("order", "x.yaml, line 1"))
    return [(label, verdict, why) for _, _, label, verdict, why in claims_grid([(claim, judgement)]).rows[1:]]


def every(*parts: tuple[str, Judgement]) -> Judgement:
    return combine(parts, FAILS, HOLDS)


def test_estimates_below_parts_are_lines_with_the_labels_on_the_way() -> None:
    inner = every(("GPT above nGPT", estimate(1.0)), ("", estimate(-1.0)))
    assert lines(every(("width 8", inner), ("width 16", negate(every(("", estimate(2.0))))))) == [
        ("width 8: GPT above nGPT", HOLDS, "difference 1"),
        ("width 8", FAILS, "difference -1"),
        ("width 16: the opposite", HOLDS, "difference 2"),
    ]
    assert lines(estimate(1.0)) == []


def test_of_many_parts_those_that_hold_are_told_by_the_nearest_to_fail() -> None:
    parts = [(f"kernel {index}", estimate(1.0 + index)) for index in range(CLAIM_PARTS)]
    assert len(lines(every(*parts))) == CLAIM_PARTS
    assert lines(every(*parts, ("last", estimate(-3.0)))) == [
        ("last", FAILS, "difference -3"),
        (f"kernel 0 (the nearest to fail of {CLAIM_PARTS} that hold)", HOLDS, "difference 1"),
    ]

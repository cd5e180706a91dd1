import pytest

from paper_repro.metrics.grammar import (
    FAMILIES,
    FIXED_FAMILIES,
    FixedRules,
    PaperRules,
    grammar_quality,
)


def readable(_text: str) -> float:
    return 10.0


def found(text: str) -> list[str]:
    return [finding.found for finding in FixedRules().inspect(text).findings]


@pytest.mark.parametrize(
    "text",
    [
        "If he were here, one of you is late.",
        "There is always one, and there is nothing else.",
        "There are many. There are books here. There are big dogs in the yard.",
        "There are a few left, there are people who know, and there are only three ways.",
        "There is news, and there is a bus. There is the question.",
        "A unit and an hour make an uninteresting unicorn. Vitamin A is good.",
        "An FBI agent took a 7 and an 8 on the 22nd.",
        "It kept its meaning, and he did need it. We have nothing.",
        "So may I go in March, on Monday? In May, I march.",
        "Wait for it... and so on, etc. and so, e.g. this.... It was 5 p.m. then.",
        "You would of course come. He had had it, and I know that that is so.",
        "King Lear came. Accept it for now, and then make the comparison.",
        "Write to someone at www.example.com or open notes.txt now.",
        "I’m sure I don't know. The king's men didn’t see it.",
    ],
)
def test_correct_text_is_without_error_where_the_papers_rules_find_some(text: str) -> None:
    assert found(text) == []
    assert grammar_quality(text, FixedRules(), readable).by_category == {}
    assert PaperRules().inspect(text).findings != []


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("She are here. You was late.", ["She are", "You was"]),
        ("There is books.", ["There is"]),
        ("There is many dogs.", ["There is"]),
        ("There are a dog.", ["There are"]),
        ("There is a man and there are dog in it.", ["there are"]),
        ("Take a egg. A uninteresting one. Take an bear.", ["a eg", "A un", "an b"]),
        ("He took a 8 and an 7.", ["a 8", "an 7"]),
        ("Its going well with him and I.", ["Its going", "him and I"]),
        ("I know whos there and what thier names are.", ["whos", "thier"]),
        ("He did walked. They have going. He will went.", ["did walked", "have going", "will went"]),
        ("One. Two. three, on monday in july i go.", [". t", "monday", "july", "i "]),
        ("You would of gone. It is different than this.", ["would of", "different than"]),
        ("He can loose weight, more then that, accept for one.", ["loose weight", "more then", "accept for"]),
        ("One.two , three,,,four??!! Wait..", ["One.two", " ,", ",,,", "??", "!!", ".."]),
        ("The the THE end.", ["The the THE"]),
        ("Going home. It is because of walking.", ["Going ", "because of walking"]),
    ],
)
def test_mistakes_are_found_once_each(text: str, errors: list[str]) -> None:
    assert found(text) == errors


def test_of_findings_that_overlap_the_most_severe_stays() -> None:
    quality = grammar_quality("This is between you and i for now.", FixedRules(), readable)
    assert [(finding.category, finding.found) for finding in quality.inspection.findings] == [
        ("Pronouns", "between you and i")
    ]
    assert quality.score == pytest.approx(0.5 * (1 - 0.7 / 8) + 0.5, abs=1e-15)
    assert PaperRules().inspect("This is between you and i for now.").findings[1:] != []


def test_families_and_weights_are_the_papers() -> None:
    names = [(family.category, family.severity) for family in FAMILIES]
    assert [(family.category, family.severity) for family in FIXED_FAMILIES] == names
    assert FixedRules().quantity.heading == "GQS (fixed) ↑" != PaperRules().quantity.heading


def test_contractions_are_spelt_right() -> None:
    inspection = FixedRules().inspect("We've thier king's crown, didn’t we? It isn't blorfing.")
    assert inspection.misspelt == {"thier", "blorfing"}
    assert {"ve", "didn", "isn"} <= PaperRules().inspect("We've thier king's crown, didn't we? It isn't so.").misspelt


@pytest.mark.parametrize(
    ("text", "score"),
    [("", 0.0), (" \n", 0.0), ("!!", 0.5 * 0.7 + 0.3 + 0.14), ("Hi", 0.5 + 0.3 + 0.14), ("123 456", 0.94)],
)
def test_every_text_has_a_score(text: str, score: float) -> None:
    assert grammar_quality(text, FixedRules()).score == pytest.approx(score, abs=1e-15)

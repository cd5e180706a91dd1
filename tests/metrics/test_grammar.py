import types
from collections import Counter
from contextlib import closing

import language_tool_python
import pytest

from paper_repro.metrics.grammar import (
    FixedRules,
    LanguageTool,
    PaperRules,
    UnavailableError,
    flesch_kincaid_grade,
    grammar_quality,
    score,
)
from paper_repro.tests.support import golden


def by_category(found):
    return dict(Counter(finding.category for finding in found.findings))


@pytest.mark.parametrize("path", golden.files("nrgpt", "metrics.json"))
def test_golden_nrgpt_grammar(path):
    cases = golden.document(path)["cases"]
    assert cases
    for case in cases:
        words, found = len(case["text"].split()), PaperRules().inspect(case["text"])
        assert words == case["word_count"], case["name"]
        assert by_category(found) == case["errors_by_category"], case["name"]
        assert sorted(found.misspelt) == case["unknown_words"], case["name"]
        # a sum of up to some hundred severities in another order, over tens of words
        assert score(words, found, 10.0) == pytest.approx(case["gqs_fk10"], abs=1e-13), case["name"]
        assert score(words, found, 5.0) == pytest.approx(case["gqs_fk5"], abs=1e-13), case["name"]


@pytest.mark.parametrize(("grade", "part"), [(7.99, 0.14), (8, 0.2), (12, 0.2), (12.01, 0.14), (-3, 0.14)])
def test_readability_is_one_step(grade, part):
    found = PaperRules().inspect("The end is near")
    assert score(4, found, grade) == pytest.approx(0.5 * (1 - 0.4 / 4) + 0.3 + part, abs=1e-15)


def test_grade_by_hand():
    assert flesch_kincaid_grade("The cat sat. The dog ran!") == pytest.approx(0.39 * 3 + 11.8 - 15.59, abs=1e-12)
    # syllables 1 2 1 4 = 8
    grade = flesch_kincaid_grade("These people like information")
    assert grade == pytest.approx(0.39 * 4 + 11.8 * 8 / 4 - 15.59, abs=1e-12)
    assert flesch_kincaid_grade("It's late, isn't it...") == pytest.approx(0.39 * 4 + 11.8 - 15.59, abs=1e-12)
    assert flesch_kincaid_grade("It's late, isn't it...") == flesch_kincaid_grade("It’s late, isn’t it.")
    syllables = {"time": 1, "walked": 1, "wanted": 2, "table": 2, "agree": 2, "the": 1, "rhythm": 1, "energy": 3}
    for word, count in syllables.items():
        assert flesch_kincaid_grade(word) == pytest.approx(0.39 + 11.8 * count - 15.59, abs=1e-12), word


def client(monkeypatch, check):
    """Put a client in the place of language_tool_python's, whose ``check`` is given."""
    made = types.SimpleNamespace(check=check, close=lambda: None)
    monkeypatch.setattr(language_tool_python, "LanguageTool", lambda language, remote_server: made)


def test_languagetool_sorts_spelling_from_grammar(monkeypatch):
    text, kinds = "They ate a apple with thier friends", {"a apple": "grammar", "thier": "misspelling"}
    matches = [
        types.SimpleNamespace(offset=text.index(word), error_length=len(word), rule_issue_type=kind, category=kind)
        for word, kind in kinds.items()
    ]
    client(monkeypatch, lambda asked: matches if asked == text else [])
    with closing(LanguageTool("http://here")) as engine:
        found = engine.inspect(text)
    assert by_category(found) == {"grammar": 1} and found.findings[0].found == "a apple"
    assert found.misspelt == {"thier"}
    assert score(7, found, 10.0) == pytest.approx(0.5 * (1 - 1 / 7) + 0.3 * (1 - 1 / 7) + 0.2, abs=1e-15)


def test_a_languagetool_that_is_missing_or_stops_answering_is_named(monkeypatch, tmp_path):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with monkeypatch.context() as patch, pytest.raises(UnavailableError, match=r"does not answer \(SystemError.*url="):
        patch.setenv("PATH", str(tmp_path))
        LanguageTool()

    def check(_text):
        raise ConnectionError("gone")

    client(monkeypatch, check)
    with pytest.raises(UnavailableError, match=r"http://here does not answer \(ConnectionError: gone"):
        LanguageTool("http://here").inspect("Some text")


def test_what_cannot_be_scored_is_refused():
    assert grammar_quality(" \n", FixedRules()) == 0.0
    for text, message in ((" \n\t", "0 words and 0 characters"), ("Hi", "2 characters"), ("123 456", "no letters")):
        with pytest.raises(ValueError, match=message):
            grammar_quality(text, PaperRules())


def found(text: str) -> list[str]:
    return [finding.found for finding in FixedRules().inspect(text).findings]


@pytest.mark.parametrize(
    "text",
    [
        "If he were here, one of you is late.",
        "A unit and an hour make an uninteresting unicorn. Vitamin A is good.",
        "An FBI agent came.",
        "It kept its meaning, and he did need it. We have nothing.",
        "So may I go in March, on Monday? In May, I march.",
        "Wait for it... and so on, etc. and so, e.g. this.... It was 5 p.m. then.",
        "You would of course come. He had had it, and I know that that is so.",
        "Write to someone at www.example.com or open notes.txt now.",
        "I’m sure I don't know. The king's men didn’t see it.",
    ],
)
def test_correct_text_is_without_error_where_the_papers_rules_find_some(text: str) -> None:
    assert found(text) == []
    assert PaperRules().inspect(text).findings != []


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("She are here. You was late.", ["She are", "You was"]),
        ("Take a egg. A uninteresting one. Take an bear.", ["a eg", "A un", "an b"]),
        ("It goes well with him and I.", ["him and I"]),
        ("I know whos there and what thier names are.", ["whos", "thier"]),
        ("He will went.", ["will went"]),
        ("One. Two. three, on monday in july i go.", [". t", "monday", "july", "i "]),
        ("You would of gone. It is different than this.", ["would of", "different than"]),
        ("One.two , three,,,four??!! Wait..", ["One.two", " ,", ",,,", "??", "!!", ".."]),
        ("The the THE end.", ["The the THE"]),
        ("The reason is because I go.", ["The reason is because"]),
    ],
)
def test_mistakes_are_found_once_each(text: str, errors: list[str]) -> None:
    assert found(text) == errors


def test_of_findings_that_overlap_the_most_severe_stays() -> None:
    inspection = FixedRules().inspect("This is between you and i for now.")
    assert [(finding.category, finding.found) for finding in inspection.findings] == [("Pronouns", "between you and i")]
    assert score(8, inspection, 10.0) == pytest.approx(0.5 * (1 - 0.7 / 8) + 0.5, abs=1e-15)
    assert PaperRules().inspect("This is between you and i for now.").findings[1:] != []


def test_contractions_are_spelt_right() -> None:
    inspection = FixedRules().inspect("We've thier king's crown, didn’t we? It isn't blorfing.")
    assert inspection.misspelt == {"thier", "blorfing"}
    assert {"ve", "didn", "isn"} <= PaperRules().inspect("We've thier king's crown, didn't we? It isn't so.").misspelt

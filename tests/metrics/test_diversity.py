import math
import random

import pytest

from paper_repro.metrics.diversity import DISTINCT_1, DISTINCT_2, distinct_n
from paper_repro.tests.support import golden


@pytest.mark.parametrize("path", golden.files("nrgpt", "metrics.json"))
def test_golden_nrgpt_distinct_n(path):
    cases = golden.document(path)["cases"]
    assert cases
    for case in cases:
        # one division of the same two integers
        assert distinct_n(case["text"], 1) == case["distinct1"], case["name"]
        assert distinct_n(case["text"], 2) == case["distinct2"], case["name"]


def test_counted_by_hand():
    text = "to be or\tnot  to\nbe"
    assert distinct_n(text, 1) == 4 / 6
    assert distinct_n(text, 2) == 4 / 5
    assert distinct_n(text, 6) == 1


def test_case_and_punctuation_make_another_word():
    assert distinct_n("Rose rose rose, rose", 1) == 3 / 4


def test_repetition_scores_near_zero_and_shuffling_keeps_distinct_1():
    words = [f"w{index % 40}" for index in range(400)]
    assert distinct_n(" ".join(words), 1) == 0.1
    assert distinct_n("a " * 1000, 2) == 1 / 999
    random.Random(0).shuffle(words)
    assert distinct_n(" ".join(words), 1) == 0.1
    assert distinct_n(" ".join(words), 2) > 0.4


@pytest.mark.parametrize(
    ("text", "n", "words"), [("", 1, 0), (" \n", 1, 0), ("hi", 2, 1), ("word", 2, 1), ("a b", 3, 2)]
)
def test_texts_that_are_too_short_are_refused_by_name(text, n, words):
    with pytest.raises(ValueError, match=f"distinct-{n} of a text of {words} words, expected at least {n}"):
        distinct_n(text, n)


def test_two_characters_are_one_word():
    assert distinct_n("hi", 1) == 1


@pytest.mark.parametrize("wrong", [None, b"bytes", ["a", "list"], 3, math.nan])
def test_what_is_no_text_is_refused(wrong):
    with pytest.raises(TypeError, match=f"found {type(wrong).__name__}, expected a text"):
        distinct_n(wrong, 1)


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_n_is_a_whole_number_from_one(n):
    with pytest.raises(ValueError, match="n must be a whole number of at least 1"):
        distinct_n("a b c", n)


def test_quantities():
    assert [quantity.heading for quantity in (DISTINCT_1, DISTINCT_2)] == ["distinct-1 ↑", "distinct-2 ↑"]

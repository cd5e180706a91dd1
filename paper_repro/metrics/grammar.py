"""Grammar quality score, GQS: grammar, spelling and readability of a text in one number (NRGPT, appendix F.2).

Three engines look for errors: ``PaperRules`` here, the only one to be compared with published values, and
``LanguageTool`` and ``Harper`` in ``grammar_checkers``.  Each names a quantity of its own, so that two engines never
share a column.  Needs no torch.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from paper_repro.metrics.diversity import words_of
from paper_repro.metrics.quantities import Quantity

GRAMMAR, SPELLING, READABILITY = 0.5, 0.3, 0.2
"""The shares of the three parts (NRGPT, appendix F.2)."""
READABLE, UNREADABLE = 1.0, 0.7
READABLE_GRADES = (8.0, 12.0)
"""School grades, both ends included, in which a text counts as readable."""
SHORTEST = 3
"""Characters; the authors' rules give nothing that can be scored below."""

Grade = Callable[[str], float]
"""A text to its Flesch-Kincaid grade."""


@dataclass(frozen=True)
class Finding:
    """One error of grammar."""

    category: str
    found: str
    severity: float


@dataclass(frozen=True)
class Inspection:
    """What an engine found in a text."""

    findings: list[Finding]
    misspelt: frozenset[str]
    """Different words, in lower case."""


class Engine(Protocol):
    """Looks for errors in a text of at least one word and three characters."""

    @property
    def quantity(self) -> Quantity: ...

    def inspect(self, text: str) -> Inspection: ...


@dataclass(frozen=True)
class GrammarQuality:
    """The score of a text, and what it is made of."""

    quantity: Quantity
    num_words: int
    inspection: Inspection
    grade: float

    @property
    def score(self) -> float:
        """``0.5 max(0, 1 - severities / words) + 0.3 max(0, 1 - misspelt / words) + 0.2 readability``.

        Between 0.14 and 1, no unit, higher is better; readability is 1 from grade 8 to 12 and 0.7 elsewhere, so 0.06 of
        the score hangs on that step alone.
        """
        severity = sum(finding.severity for finding in self.inspection.findings)
        grammar = max(0.0, 1 - severity / self.num_words)
        spelling = max(0.0, 1 - len(self.inspection.misspelt) / self.num_words)
        easiest, hardest = READABLE_GRADES
        readability = READABLE if easiest <= self.grade <= hardest else UNREADABLE
        return GRAMMAR * grammar + SPELLING * spelling + READABILITY * readability

    @property
    def by_category(self) -> Counter[str]:
        """How many errors of each category."""
        return Counter(finding.category for finding in self.inspection.findings)


def flesch_kincaid_grade(text: str) -> float:
    """School grade of a text: ``0.39 words / sentences + 11.8 syllables / words - 15.59`` (Flesch-Kincaid).

    Words are runs of letters, apostrophes inside, sentences end with ".", "!" or "?".
    Deviation: the authors take textstat, whose syllables come from a dictionary to be downloaded; here they are counted
    as groups of vowels less a silent final "e".  ``textstat.flesch_kincaid_grade`` can be given in its place.

    Raises:
        TypeError: ``text`` is not a str.
        ValueError: a text without letters.
    """
    words_of(text)
    words = re.findall(r"[^\W\d_]+(?:['’][^\W\d_]+)*", text)
    if not words:
        raise ValueError(f"{text[:40]!r} has no letters, expected words: a grade needs syllables")
    sentences = sum(1 for piece in re.split(r"[.!?]+", text) if re.search(r"[^\W\d_]", piece))
    return 0.39 * len(words) / sentences + 11.8 * sum(map(_syllables, words)) / len(words) - 15.59


def _syllables(word: str) -> int:
    plain = re.sub(r"[^a-z]", "", word.lower())
    if not re.search(r"[^aeiouy]les?$", plain):
        plain = re.sub(r"(?<![aeiouy])es?$|(?<=[^aeioudty])ed$", "", plain)
    return max(1, len(re.findall(r"[aeiouy]+", plain)))


def grammar_quality(text: str, engine: Engine, grade: Grade = flesch_kincaid_grade) -> GrammarQuality:
    """Inspect a text with one engine and score it (NRGPT, appendix F.2); words are what white space separates.

    Raises:
        TypeError: ``text`` is not a str.
        ValueError: no word, or fewer than three characters, where the authors' code fails as well.
    """
    num_words = len(words_of(text))
    if num_words == 0 or len(text.strip()) < SHORTEST:
        raise ValueError(
            f"{engine.quantity.name} of a text of {num_words} words and {len(text.strip())} characters, expected at "
            f"least one word and {SHORTEST} characters: leave the text out"
        )
    return GrammarQuality(engine.quantity, num_words, engine.inspect(text), grade(text))


@dataclass(frozen=True)
class Family:
    """Rules of one category; every match of every pattern is one error of this severity."""

    category: str
    severity: float
    patterns: tuple[str, ...]


def _spaced(*phrases: str) -> tuple[str, ...]:
    """Patterns of whole words."""
    return tuple(rf"\b{phrase}\b" for phrase in phrases)


_DAYS = "|".join(f"{day}day" for day in ("mon", "tues", "wednes", "thurs", "fri", "satur", "sun"))
_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"

FAMILIES = (
    Family(
        "Subject-Verb Agreement",
        0.9,
        # The last one also matches a blank after a plural, so it fires on "there are" and any two words.
        _spaced("(?:s?he|it) (?:are|were)", "(?:they|we|you) (?:is|was)", r"there is \w*s", r"there are \w*[^s]"),
    ),
    Family(
        "Articles",
        0.6,
        (r"\ba [aeiou]", r"\ban [b-df-hj-np-tv-z]", r"\ban? \d+", r"\bthe \d+(?:st|nd|rd|th)"),
    ),
    Family(
        "Pronouns",
        0.7,
        (
            r"\bmyself and \w+",
            *_spaced("(?:him|her) and i", "between you and i", "your (?:go|com|do|be)ing", "thier"),
            r"\bits \w+ing\b(?! its)",
            r"\bwhos\b(?! )",
        ),
    ),
    Family("Tense", 0.8, _spaced("will went", r"did \w+ed", r"have \w+ing")),
    Family("Capitalization", 0.4, (r"(?:^|\. )[a-z]", r"\bi ", *_spaced(f"(?:{_DAYS})", f"(?:{_MONTHS})"))),
    Family("Prepositions", 0.6, _spaced("different than", "off of", "(?:c|sh|w)ould of")),
    Family(
        "Word Choice",
        0.7,
        (
            r"\baffect\b(?=.*\bas a noun)",
            r"\bthen\b(?=.*comparison)",
            r"\bloose\b(?=.*\bweight\b)",
            r"\baccept\b(?=.*\bfor\b)",
        ),
    ),
    Family("Punctuation", 0.3, (r"[a-z]\.[a-z]", r" ,", r",{2,}", r"\.{2,}", r"\?{2,}", r"!{2,}")),
    Family("Double Words", 0.8, (r"\b(\w+) \1\b",)),
    Family("Sentence Structure", 0.9, (r"^[a-z]+ing ", *_spaced(r"because of \w+ing", "the reason is because"))),
)
"""The ten families of the authors' code, for text whose white space is single blanks, read without regard to case."""


class PaperRules:
    """The authors' rules and weights (NRGPT, appendix F.2), quirks included: the engine of the published values.

    Every match counts, in text whose white space is collapsed.  Case is ignored also where it is the point, so every
    sentence start, every "I" and every named day or month is an error of capitalization, and an ellipsis one of
    punctuation.  Misspelt is what pyspellchecker's English words lack, each word once.
    """

    quantity = Quantity("GQS (paper)", "", higher_is_better=True)

    def inspect(self, text: str) -> Inspection:
        collapsed = " ".join(words_of(text))
        findings = [
            Finding(family.category, match.group(), family.severity)
            for family in FAMILIES
            for pattern in family.patterns
            for match in re.finditer(pattern, collapsed, re.IGNORECASE)
        ]
        return Inspection(findings, frozenset(_unknown(re.findall(r"\b[a-z]+\b", text.lower()))))


def _unknown(words: list[str]) -> set[str]:
    return set(_dictionary()(words))


@functools.cache
def _dictionary() -> Callable[[list[str]], set[str]]:
    from spellchecker import SpellChecker

    unknown: Callable[[list[str]], set[str]] = SpellChecker().unknown
    return unknown

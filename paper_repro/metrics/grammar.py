"""Grammar quality score, GQS: grammar, spelling and readability of a text in one number (NRGPT, appendix F.2).

Three engines look for errors: ``PaperRules``, the only one to be compared with published values, ``FixedRules``, its
repair, and ``LanguageTool``.  Needs no torch.
"""

import functools
import importlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

GRAMMAR, SPELLING, READABILITY = 0.5, 0.3, 0.2
"""The shares of the three parts (NRGPT, appendix F.2)."""
READABLE, UNREADABLE = 1.0, 0.7
READABLE_GRADES = (8.0, 12.0)
"""School grades, both ends included, in which a text counts as readable."""
SHORTEST = 3
"""Characters; the authors' rules give nothing that can be scored below."""


class UnavailableError(RuntimeError):
    """What a score needs is not on this machine, or does not answer; the message says what, and what brings it."""


def needed(package: str) -> Any:
    """Return a package of the extra ``text``; UnavailableError where it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UnavailableError(f"{error}: pip install 'paper-repro[text]'") from error


def words_of(text: str) -> list[str]:
    """Return the pieces of ``text`` between white space, case and punctuation kept; TypeError: it is not a str."""
    if not isinstance(text, str):
        raise TypeError(f"found {type(text).__name__}, expected a text (str): decode tokens and bytes first")
    return text.split()


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
    misspelt: frozenset[str]  # different words, in lower case


class Engine(Protocol):
    """Looks for errors in a text of at least one word and three characters."""

    def inspect(self, text: str) -> Inspection: ...


def score(num_words: int, found: Inspection, grade: float) -> float:
    """Return ``0.5 max(0, 1 - severities / words) + 0.3 max(0, 1 - misspelt / words) + 0.2 readability``.

    Between 0.14 and 1, no unit, higher is better; readability is 1 from grade 8 to 12 and 0.7 elsewhere, so 0.06 of
    the score hangs on that step alone.
    """
    severity = sum(finding.severity for finding in found.findings)
    grammar = max(0.0, 1 - severity / num_words)
    spelling = max(0.0, 1 - len(found.misspelt) / num_words)
    easiest, hardest = READABLE_GRADES
    readability = READABLE if easiest <= grade <= hardest else UNREADABLE
    return GRAMMAR * grammar + SPELLING * spelling + READABILITY * readability


def flesch_kincaid_grade(text: str) -> float:
    """Return school grade of a text: ``0.39 words / sentences + 11.8 syllables / words - 15.59`` (Flesch-Kincaid).

    Words are runs of letters, apostrophes inside, sentences end with ".", "!" or "?".
    Deviation: the authors take textstat, whose syllables come from a dictionary to be downloaded; here they are counted
    as groups of vowels less a silent final "e".

    Raises:
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


def grammar_quality(text: str, engine: Engine) -> float:
    """Inspect a text with one engine and score it (NRGPT, appendix F.2); words are what white space separates.

    Raises:
        ValueError: no letters, or fewer than three characters, where the authors' code fails as well.
    """
    num_words = len(words_of(text))
    if num_words == 0 and isinstance(engine, FixedRules):
        return 0.0
    if num_words == 0 or len(text.strip()) < SHORTEST:
        raise ValueError(
            f"grammar of a text of {num_words} words and {len(text.strip())} characters, expected at "
            f"least one word and {SHORTEST} characters: leave the text out"
        )
    return score(num_words, engine.inspect(text), flesch_kincaid_grade(text))


@dataclass(frozen=True)
class Family:
    """Rules of one category; every match of every pattern is one error of this severity."""

    category: str
    severity: float
    patterns: tuple[str, ...]

    def findings(self, text: str) -> Iterator[tuple[tuple[int, int], Finding]]:
        """Yield the place of each match of each pattern, and what it is."""
        for pattern in self.patterns:
            for match in re.finditer(pattern, text, re.IGNORECASE):
                yield match.span(), Finding(self.category, match.group(), self.severity)


def _spaced(*phrases: str) -> tuple[str, ...]:
    """Compile patterns of whole words."""
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

    def inspect(self, text: str) -> Inspection:
        collapsed = " ".join(words_of(text))
        findings = [finding for family in FAMILIES for _, finding in family.findings(collapsed)]
        return Inspection(findings, frozenset(_dictionary().unknown(re.findall(r"\b[a-z]+\b", text.lower()))))


_REPAIRED: dict[str, tuple[str, ...]] = {
    "Subject-Verb Agreement": (
        r"(?<!if )(?<!though )(?<!wish )\b(?:s?he|it) (?:are|were)\b",
        r"(?<!of )\b(?:they|we|you) (?:is|was)\b",
    ),
    "Articles": (
        r"(?-i:\ba|(?<!\w )\bA) (?!uni(?![dmn])|us[aeu]|eu|one\b|once\b|ut[io]|ubi|ur[aio])[aeiou]\w",
        r"\ban (?!hour|heir|hono|hones|(?-i:[A-Z]{2,}|[A-Z]\b))[b-df-hj-np-tv-z]",
    ),
    "Pronouns": (
        r"\bmyself and \w+",
        *_spaced("(?:him|her) and i", "between you and i", "your (?:go|com|do|be)ing", "thier", "whos"),
    ),
    "Tense": _spaced("will went"),
    "Capitalization": (
        r"(?-i:^[a-z])",
        r"(?-i:(?<![ .]\w)(?<!etc)(?<!vs)(?<!cf)(?<!\.)\. [a-z])",
        r"(?-i:(?<![.\w])i )",
        *(rf"(?-i:{named})" for named in _spaced(f"(?:{_DAYS})", f"(?:{re.sub('march.|may.|august.', '', _MONTHS)})")),
    ),
    "Prepositions": _spaced("different than", "off of", "(?:c|sh|w)ould of(?! course)"),
    "Punctuation": (
        r"\b(?!www\.)[a-z]{2,}\.(?!(?:com|org|net|edu|gov|html|txt|pdf|py)\b)[a-z]{2,}",
        r" ,",
        r",{2,}",
        r"(?<!\.)(?:\.{2}|\.{5,})(?!\.)",
        r"\?{2,}",
        r"!{2,}",
    ),
    "Double Words": (r"\b(?!(?:had|that)\b)([a-z]+)(?: \1\b(?!['’]))+",),
    "Sentence Structure": _spaced("the reason is because"),
}
FIXED_FAMILIES = tuple(
    replace(family, patterns=_REPAIRED[family.category]) for family in FAMILIES if family.category in _REPAIRED
)
"""The paper's families and weights without the patterns that correct text matches, for text as in ``FAMILIES``."""


class FixedRules:
    """The paper's families and weights with their quirks repaired: an engine of its own, not for published values.

    Against ``PaperRules``, case counts, so that correct text is without error; articles go by sound as far as spelling
    tells; ellipses, abbreviations, "if he were", "had had" and the like are right; "there is" and "there are", verbs
    and nouns in "ing" and words that are often confused are not judged, because that takes a parser.  One stretch of
    text is one error: of findings that overlap the most severe stays.  Spelling takes contractions and possessives
    whole.  A text without words scores 0.
    """

    def inspect(self, text: str) -> Inspection:
        collapsed = " ".join(words_of(text))
        found = [placed for family in FIXED_FAMILIES for placed in family.findings(collapsed)]
        words = re.findall(r"[a-z]+(?:'[a-z]+)*", text.lower().replace("’", "'"))
        misspelt = _dictionary().unknown([word.removesuffix("'s") for word in words])
        return Inspection(_apart(found), frozenset(misspelt))


def _apart(found: Sequence[tuple[tuple[int, int], Finding]]) -> list[Finding]:
    """Sort findings by place and drop each that overlaps a more severe one, or an equal one that begins earlier."""
    kept: list[tuple[tuple[int, int], Finding]] = []
    for (start, end), finding in sorted(found, key=lambda item: (-item[1].severity, item[0])):
        if all(end <= other[0] or other[1] <= start for other, _ in kept):
            kept.append(((start, end), finding))
    return [finding for _, finding in sorted(kept, key=lambda item: item[0])]


@functools.cache
def _dictionary() -> Any:
    return needed("spellchecker").SpellChecker()


SEVERITY = 1.0
"""Weight of every finding of LanguageTool but spelling; the paper's weights belong to its own ten families."""
LANGUAGETOOL_JAR = "languagetool-server.jar"
NEEDS_LOCAL = (
    "LanguageTool needs Java 17 or newer on the PATH, and downloads itself (about 250 MB) on first use; without a "
    f"network give url= of a server (`java -cp {LANGUAGETOOL_JAR} org.languagetool.server.HTTPServer --port 8081`)"
)


class LanguageTool:
    """LanguageTool through language_tool_python: started here, or a running server.  Close it, or use
    ``contextlib.closing``.

    Args:
        url: of a server, for example "http://localhost:8081"; None starts one on this machine.

    Raises:
        UnavailableError: no server could be started, or it does not answer; also from ``inspect``.
    """

    def __init__(self, url: str | None = None) -> None:
        client, self.url = needed("language_tool_python"), url
        self._tool = self._answer(client.LanguageTool, "en-US", remote_server=url)

    def inspect(self, text: str) -> Inspection:
        findings, misspelt = list[Finding](), set[str]()
        for match in self._answer(self._tool.check, text):
            found = text[match.offset : match.offset + match.error_length]
            if match.rule_issue_type == "misspelling":
                misspelt.add(found.lower())
            else:
                findings.append(Finding(match.category, found, SEVERITY))
        return Inspection(findings, frozenset(misspelt))

    def close(self) -> None:
        self._tool.close()

    def _answer(self, asked: Callable[..., Any], *given: Any, **named: Any) -> Any:
        try:
            return asked(*given, **named)
        except (Exception, SystemExit) as error:  # of the client, its many ways to say so share no base
            detail = f"{type(error).__name__}: {error}"[:300]
            place = self.url or f"LanguageTool in {languagetool_folder()}"
            raise UnavailableError(f"{place} does not answer ({detail}): {NEEDS_LOCAL}") from error


def languagetool_folder() -> Path:
    """Return where the client keeps what it has downloaded."""
    return Path(os.environ.get("LTP_PATH") or Path.home() / ".cache" / "language_tool_python")


def languagetool_is_here() -> bool:
    """Return whether a download of LanguageTool is on this machine."""
    return any(languagetool_folder().glob(f"LanguageTool*/{LANGUAGETOOL_JAR}"))

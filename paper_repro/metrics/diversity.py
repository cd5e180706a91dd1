"""Lexical diversity of a generated text: distinct-n (NRGPT, appendix F.2).  Needs no torch."""

from collections.abc import Sequence

from paper_repro.base.errors import at_least
from paper_repro.metrics.quantities import Quantity

DISTINCT_1 = Quantity("distinct-1", "", higher_is_better=True)
DISTINCT_2 = Quantity("distinct-2", "", higher_is_better=True)


def words_of(text: str) -> list[str]:
    """Return the pieces of ``text`` between white space, case and punctuation kept.

    Raises:
        TypeError: ``text`` is not a str.
    """
    if not isinstance(text, str):
        raise TypeError(f"found {type(text).__name__}, expected a text (str): decode tokens and bytes first")
    return text.split()


def distinct_n(text: str, n: int) -> float:
    """Divide the number of different n-grams of words by the number of all n-grams of words in one text (NRGPT,
    appendix F.2).

    Between 0 and 1, no unit, higher is better.  Words are what white space separates, as in the authors' code.

    Raises:
        TypeError: ``text`` is not a str.
        ValueError: ``n`` below 1, or fewer words than ``n``, where the share has no meaning.
    """
    at_least("n", n, 1)
    words = words_of(text)
    grams: Sequence[tuple[str, ...]] = list(zip(*(words[start:] for start in range(n)), strict=False))
    if not grams:
        raise ValueError(f"distinct-{n} of a text of {len(words)} words, expected at least {n}: leave the text out")
    return len(set(grams)) / len(grams)

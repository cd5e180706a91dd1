"""All text-quality metrics of NRGPT's tables in one call (NRGPT, appendix F.2), as far as they are at hand."""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from paper_repro.metrics.grammar import (
    NEEDS_LOCAL,
    Engine,
    FixedRules,
    LanguageTool,
    PaperRules,
    UnavailableError,
    grammar_quality,
    languagetool_is_here,
    words_of,
)
from paper_repro.metrics.perplexity import GPT2, TextPerplexity
from paper_repro.metrics.similarity import SPLITS, PairwiseSimilarity

OWN_ENGINES: dict[str, Callable[[], Engine]] = {"paper": PaperRules, "fixed": FixedRules}
ENGINES = ("paper", "fixed", "languagetool")  # "paper" gives the published values
NEEDS = {"languagetool": "LanguageTool", **{f"apcs_{by}": "all-MiniLM-L6-v2" for by in SPLITS}}
LANGUAGETOOL_VARIABLE = "PAPER_REPRO_LANGUAGETOOL"
"""The address of a running LanguageTool server."""


@dataclass(frozen=True)
class TextScores:
    """The scores of one text."""

    values: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # why a metric has no value for this text


def distinct_n(text: str, n: int) -> float:
    """Divide the number of different n-grams of words by the number of all n-grams of words in one text (NRGPT,
    appendix F.2).

    Between 0 and 1, higher is better.  Words are what white space separates, as in the authors' code.

    Raises:
        ValueError: fewer words than ``n``.
    """
    words = words_of(text)
    grams = list(zip(*(words[start:] for start in range(n)), strict=False))
    if not grams:
        raise ValueError(f"distinct-{n} of a text of {len(words)} words, expected at least {n}: leave the text out")
    return len(set(grams)) / len(grams)


class TextScorer:
    """Calling it with a text gives its scores, by the names of ``metric_names``.

    Close it, or use ``contextlib.closing``: LanguageTool may have started a server.

    Args:
        perplexity_model: see TextPerplexity.
        device: where the models run.

    Raises:
        UsageError: a model of perplexity that is there, but damaged.
    """

    def __init__(self, perplexity_model: str = GPT2, device: str | torch.device = "cpu") -> None:
        self.names = metric_names(perplexity_model)
        self.perplexity_model, self.device = perplexity_model, device
        self.unavailable: dict[str, str] = {}
        """Metric to what it lacks on this machine and the command that mends it."""
        self.metrics: dict[str, Callable[[str], float]] = {}
        self._languagetool: LanguageTool | None = None
        for name in self.names:
            try:
                self.metrics[name] = self._metric(name)
            except UnavailableError as error:
                self._drop(name, error)

    def __call__(self, text: str) -> TextScores:
        """Score a text; a checker that stops answering moves to ``unavailable``."""
        scores = TextScores()
        for name in [name for name in self.names if name in self.metrics]:
            try:
                value = self.metrics[name](text)
                if not math.isfinite(value):
                    raise ValueError(f"{name} is {value}, expected a finite number")
                scores.values[name] = value
            except UnavailableError as error:
                self._drop(name, error)
            except ValueError as error:
                scores.refused[name] = str(error)
        return scores

    def close(self) -> None:
        if self._languagetool is not None:
            self._languagetool.close()

    def _metric(self, name: str) -> Callable[[str], float]:
        family, _, kind = name.partition("_")
        if family == "perplexity":
            return TextPerplexity(self.perplexity_model, self.device)
        if family == "distinct":
            return partial(distinct_n, n=int(kind))
        if family == "apcs":
            return PairwiseSimilarity(by=kind, device=str(self.device))
        engine: Engine
        if kind == "languagetool":
            url = os.environ.get(LANGUAGETOOL_VARIABLE)
            if url is None and not languagetool_is_here():
                raise UnavailableError(
                    f"no download of it is on this machine: {NEEDS_LOCAL}, or set it in ${LANGUAGETOOL_VARIABLE}"
                )
            engine = self._languagetool = LanguageTool(url)
        else:
            engine = OWN_ENGINES[kind]()
        return partial(grammar_quality, engine=engine)

    def _drop(self, name: str, error: Exception) -> None:
        self.metrics.pop(name, None)
        lacking = NEEDS.get(name.removeprefix("gqs_"))
        self.unavailable[name] = f"needs {lacking}: {error}" if lacking else str(error)


def metric_names(perplexity_model: str = GPT2) -> list[str]:
    """Return the names ``perplexity``, ``distinct_1``, ``distinct_2``, ``apcs_lines`` (the authors'),
    ``apcs_sentences``, ``gqs_...``.

    Perplexity under another model than GPT-2 has a name of its own, ``perplexity_<model>``.
    """
    suffix = "" if perplexity_model == GPT2 else "_" + re.sub(r"\W+", "_", Path(perplexity_model).name)
    similarities = [f"apcs_{by}" for by in SPLITS]
    return [f"perplexity{suffix}", "distinct_1", "distinct_2", *similarities, *(f"gqs_{name}" for name in ENGINES)]

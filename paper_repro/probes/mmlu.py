"""Five-shot MMLU of a trained language model, in both scorings of ``evaluation.mmlu`` (NRGPT, Table 6)."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import places
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.evaluation import mmlu
from paper_repro.evaluation.causal import Evaluator
from paper_repro.evaluation.mmlu import Tally
from paper_repro.training.module import PaperModule

FOLDER = "mmlu"
LACK = f"needs mmlu: put it below the data folder, then use --fill; run: {mmlu.DOWNLOAD} $PAPER_REPRO_DATA/{FOLDER}"
LIKELIHOOD, GENERATED, ALWAYS_A = "mmlu", "mmlu_generated", "mmlu_always_a"


class MMLU:
    """Measures ``mmlu_<column>`` and ``mmlu_average`` by log-likelihood, and ``mmlu_generated_...`` as the authors do.

    ``mmlu_always_a_...`` is what the second gives to a model that says nothing.  All are percentages.  A column is the
    mean of its subjects, the average the mean of the columns.  Beside them: ``mmlu_cropped`` (prompts that the context
    cannot hold), ``mmlu_generated_fallbacks`` and ``mmlu_generated_articles`` (texts scored as A for want of a letter,
    or for an English article).  The attachment ``mmlu.json`` holds what became of each subject, and the hash of the
    questions.

    The data module needs a ``tokenizer``; the questions lie in ``mmlu/`` below the data folder (layouts:
    ``evaluation.mmlu.read``), else every metric is unavailable.

    Args:
        columns: each column's subjects with their number of test questions.
        num_tokens: of a generated text.
        instruction: what ends the prompt of a generated text.

    Raises:
        ValueError: no column, a column without a subject, or a number below one.
        UsageError: the questions are there, but damaged.
    """

    def __init__(
        self, columns: Mapping[str, Mapping[str, int]], num_tokens: int = 50, instruction: str = mmlu.INSTRUCTION
    ) -> None:
        empty = [name for name, subjects in columns.items() if not subjects]
        if not columns or empty:
            raise ValueError(f"columns must name at least one subject each, got {empty or 'no column'}")
        self.columns = columns
        self.sizes = {
            subject: at_least(f"columns.{name}.{subject}", size)
            for name, subjects in columns.items()
            for subject, size in subjects.items()
        }
        self.num_tokens, self.instruction = at_least("num_tokens", num_tokens), instruction
        if (folder := _folder()) is not None:  # before hours are spent on the training
            mmlu.read(folder, self.sizes)

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        folder = _folder(getattr(data, "data_root", None))
        if folder is None:
            return Findings(unavailable=dict.fromkeys(self._names(), LACK))
        subjects = mmlu.read(folder, self.sizes)
        evaluator = _evaluator(module, data)
        by_likelihood = mmlu.by_log_likelihood(evaluator, subjects)
        metrics = self._scores(LIKELIHOOD, by_likelihood)
        metrics["mmlu_cropped"] = 100 * evaluator.num_cropped / evaluator.num_requests
        generated = mmlu.by_generation(evaluator, subjects, self.num_tokens, self.instruction)
        metrics |= self._scores(GENERATED, generated) | self._scores(ALWAYS_A, mmlu.by_fallback(subjects))
        total = sum(tally.questions for tally in generated.values())
        metrics["mmlu_generated_fallbacks"] = 100 * sum(tally.fallbacks for tally in generated.values()) / total
        metrics["mmlu_generated_articles"] = 100 * sum(tally.articles for tally in generated.values()) / total
        return Findings(metrics, {"mmlu.json": _document(mmlu.digest(subjects), by_likelihood, generated)})

    def _names(self) -> list[str]:
        scores = [
            f"{prefix}_{name}" for prefix in (LIKELIHOOD, GENERATED, ALWAYS_A) for name in [*self.columns, "average"]
        ]
        return [*scores, "mmlu_cropped", "mmlu_generated_fallbacks", "mmlu_generated_articles"]

    def _scores(self, prefix: str, tallies: Mapping[str, Tally]) -> dict[str, float]:
        columns = {name: list(subjects) for name, subjects in self.columns.items()}
        found = {name: 100 * value for name, value in mmlu.column_accuracies(tallies, columns).items()}
        found["average"] = math.fsum(found.values()) / len(found)
        return {f"{prefix}_{name}": value for name, value in found.items()}


def _folder(root: str | Path | None = None) -> Path | None:
    paths = (folder / FOLDER for _, folder in places(root) if folder is not None)
    return next((path for path in paths if path.is_dir()), None)


def _evaluator(module: PaperModule, data: CounterBasedDataModule) -> Evaluator:
    tokenizer = getattr(data, "tokenizer", None)
    if tokenizer is None:
        raise UsageError(f"MMLU needs text: {type(data).__name__} has no tokenizer; leave probes.mmlu out")
    return Evaluator(module.model, tokenizer)


def _document(digest: str, by_likelihood: Mapping[str, Tally], generated: Mapping[str, Tally]) -> bytes:
    subjects: dict[str, dict[str, dict[str, int]]] = {
        name: {"log_likelihood": asdict(by_likelihood[name]), "generated": asdict(generated[name])}
        for name in generated
    }
    content: dict[str, object] = {"questions_sha256": digest, "subjects": subjects}
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"

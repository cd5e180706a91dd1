"""Five-shot MMLU (Hendrycks et al., 2020) of a trained language model, in two scorings (NRGPT, Table 6).

``by_log_likelihood`` is the standard one.  ``by_generation`` is how the authors of NRGPT made their Table 6: a greedy
text in which the first letter that looks like an answer counts.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.base.files import find_data
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.probes.causal_evaluator import Evaluator
from paper_repro.training.module import PaperModule

FOLDER = "mmlu"
LETTERS = "ABCD"
SHOTS = 5
HUB_FILES = {"dev": "all/dev-00000-of-00001.parquet", "test": "all/test-00000-of-00001.parquet"}
"""All subjects of a split in one file, as in the data set cais/mmlu of the Hugging Face hub: subject, question, choices
and answer, from 0 to 3."""
DOWNLOAD = "hf download cais/mmlu --repo-type dataset --include 'all/dev-*' 'all/test-*' --local-dir"
LACK = f"needs mmlu: put it below the data folder, then use --fill; run: {DOWNLOAD} $PAPER_REPRO_DATA/{FOLDER}"
INSTRUCTION = "\n\nOutput 'A', 'B', 'C', or 'D'. Full answer not needed."
"""What deepeval appends for models that cannot be held to a schema."""
ANSWER_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\banswer\s+is\s*:?\s*\(?([a-d])\b",
        r"\banswer\s*:\s*\(?([a-d])\b",
        r"\b(?:option|choice)\s*:?\s*\(?([a-d])\b",
        r"\(([a-d])\)",
        r"^\s*([a-d])\s*[.):]",
        r"\b([a-d])\s*[.):]",
        r"^\s*([a-d])\b",
        r"\b([a-d])\b",
    )
)
"""From "answer is X" down to a lone letter; the first pattern that is found decides.  To ignore the case is what the
authors get by turning the text into upper case."""
FALLBACK = "A"
NUM_TOKENS = 50
"""Tokens of a generated text."""
WAYS = ("mmlu", "mmlu_generated")
Reader = Callable[..., "list[Reading]"]


@dataclass(frozen=True)
class MMLU:
    """Measures ``mmlu_<column>`` and ``mmlu_average`` by log-likelihood, and ``mmlu_generated_...`` as the authors do.

    All are percentages.  A column is the mean of its subjects, the average the mean of the columns.  Beside them:
    ``mmlu_cropped`` (prompts that the context cannot hold), ``mmlu_generated_fallbacks`` and
    ``mmlu_generated_articles`` (texts scored as A for want of a letter, or for an English article).

    The data module needs a ``tokenizer``; the questions lie in ``mmlu/`` below the data folder,
    else every metric is unavailable.

    Args:
        columns: each column's subjects with their number of test questions.
        instruction: what ends the prompt of a generated text.

    Raises:
        UsageError: the questions are there, but damaged.
    """

    columns: Mapping[str, Mapping[str, int]]
    instruction: str = INSTRUCTION

    def __post_init__(self) -> None:
        if (folder := find_data(FOLDER)) is not None:  # before hours are spent on the training
            read(folder, self.sizes)

    @property
    def sizes(self) -> dict[str, int]:
        return {subject: size for subjects in self.columns.values() for subject, size in subjects.items()}

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        folder = find_data(FOLDER, getattr(data, "data_root", None))
        if folder is None:
            names = [f"{way}_{name}" for way in WAYS for name in [*self.columns, "average"]]
            names += ["mmlu_cropped", "mmlu_generated_fallbacks", "mmlu_generated_articles"]
            return Findings(unavailable=dict.fromkeys(names, LACK))
        tokenizer = getattr(data, "tokenizer", None)
        if tokenizer is None:
            raise UsageError(f"MMLU needs text: {type(data).__name__} has no tokenizer; leave probes.mmlu out")
        subjects, evaluator = read(folder, self.sizes), Evaluator(module.model, tokenizer)
        metrics: dict[str, float] = {}
        readers: tuple[Reader, ...] = (by_log_likelihood, partial(by_generation, end=self.instruction))
        for way, answers in zip(WAYS, readers, strict=True):
            given = {name: answers(evaluator, subject.prompts(name)) for name, subject in subjects.items()}
            metrics.setdefault("mmlu_cropped", 100 * evaluator.num_cropped / evaluator.num_requests)
            shares = {name: accuracy(subjects[name], readings) for name, readings in given.items()}
            scores = {
                name: 100 * (math.fsum(shares[subject] for subject in own) / len(own))
                for name, own in self.columns.items()
            }
            scores["average"] = math.fsum(scores.values()) / len(scores)
            metrics |= {f"{way}_{name}": score for name, score in scores.items()}
        readings = [reading for own in given.values() for reading in own]  # of the generated texts
        metrics["mmlu_generated_fallbacks"] = 100 * sum(reading.fallback for reading in readings) / len(readings)
        metrics["mmlu_generated_articles"] = 100 * sum(reading.article for reading in readings) / len(readings)
        return Findings(metrics)


# Questions.


@dataclass(frozen=True)
class Question:
    text: str
    choices: tuple[str, ...]  # each question has four answers
    answer: int  # the index of the right one


@dataclass(frozen=True)
class Subject:
    examples: list[Question]  # in the prompt
    questions: list[Question]  # that are scored

    def prompts(self, name: str) -> list[str]:
        return [prompt(name, self.examples, question) for question in self.questions]


def read(folder: Path, sizes: Mapping[str, int]) -> dict[str, Subject]:
    """Return the subjects that ``sizes`` names; UsageError: damaged files, or another number of test questions."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_table

    mend, splits = f"run: {DOWNLOAD} {folder}", {}
    columns = ["subject", "question", "choices", "answer"]
    for split, name in HUB_FILES.items():
        path = folder / name
        try:
            rows: list[dict[str, Any]] = read_table(path, columns=columns, partitioning=None).to_pylist()
        except (ArrowException, OSError) as error:  # also where there is no file
            raise UsageError(f"{path}: no parquet file of MMLU: {error}; {mend}") from error
        found: dict[str, list[Question]] = {subject: [] for subject in sizes}
        for row in rows:
            if row["subject"] in found:
                found[row["subject"]].append(Question(row["question"], tuple(row["choices"]), row["answer"]))
        for subject, size in sizes.items():
            expected, count = SHOTS if split == "dev" else size, len(found[subject])
            if count != expected:
                raise UsageError(f"{folder}: {count} {split} questions on {subject}, expected {expected}; {mend}")
        splits[split] = found
    return {subject: Subject(splits["dev"][subject], splits["test"][subject]) for subject in sizes}


# Answers.


@dataclass(frozen=True)
class Reading:
    """The answer that is read from a text, and why."""

    letter: str
    fallback: bool = False  # no letter in the text looks like an answer: it is scored as "A"
    article: bool = False  # the English article "a" is taken for the answer A


def prompt(subject: str, examples: Sequence[Question], question: Question) -> str:
    """Return the original paper's prompt: a heading, the answered examples, the question, "Answer:"."""
    shots = [f"{_posed(example)} {LETTERS[example.answer]}\n\n" for example in examples]
    heading = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"
    return heading + "".join(shots) + _posed(question)


def by_log_likelihood(evaluator: Evaluator, prompts: Sequence[str]) -> list[Reading]:
    """Read the answers as the likeliest of " A", " B", " C", " D" after each prompt (of equals the first)."""
    pairs = [evaluator.pair(text, f" {letter}") for text in prompts for letter in LETTERS]
    found = [log_likelihood for log_likelihood, _ in evaluator.log_likelihoods(pairs)]
    rows = [found[start : start + len(LETTERS)] for start in range(0, len(found), len(LETTERS))]
    return [Reading(LETTERS[row.index(max(row))]) for row in rows]


def by_generation(evaluator: Evaluator, prompts: Sequence[str], end: str) -> list[Reading]:
    """Read the answers from greedy texts after each prompt and ``end`` (NRGPT, Table 6, as the authors score it).

    A text without any letter counts as A, and so does an English article.  The exact patterns and the version of
    deepeval are not published; the patterns here follow their description.
    """
    return [read_answer(text) for text in evaluator.continuations([text + end for text in prompts], NUM_TOKENS)]


def accuracy(subject: Subject, readings: Sequence[Reading]) -> float:
    """Return the share of a subject's questions that are answered right."""
    pairs = zip(subject.questions, readings, strict=True)
    return sum(LETTERS[question.answer] == reading.letter for question, reading in pairs) / len(readings)


def read_answer(text: str) -> Reading:
    """Return the letter of the first of ``ANSWER_PATTERNS`` that is found in ``text``; "A" if none is."""
    for pattern in ANSWER_PATTERNS:
        if match := pattern.search(text):
            letter, rest = match[1], text[match.end(1) :]
            article = letter == "a" or (letter == "A" and re.match(r" [a-z]", rest) is not None)
            return Reading(letter.upper(), article=article)
    return Reading(FALLBACK, fallback=True)


def _posed(question: Question) -> str:
    choices = [f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, question.choices, strict=True)]
    return f"{question.text.strip()}\n{''.join(choices)}Answer:"

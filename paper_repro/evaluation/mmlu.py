"""MMLU, five-shot (Hendrycks et al., 2020): multiple-choice questions of four answers, in two scorings.

``by_log_likelihood`` is the standard one.  ``by_generation`` is how the authors of NRGPT made their Table 6: a greedy
text in which the first letter that looks like an answer counts.
"""

import csv
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.evaluation.causal import Evaluator

LETTERS = "ABCD"
SHOTS = 5
HUB_FILES = {"dev": "all/dev-00000-of-00001.parquet", "test": "all/test-00000-of-00001.parquet"}
"""All subjects of a split in one file, as in the data set cais/mmlu of the Hugging Face hub."""
DOWNLOAD = "hf download cais/mmlu --repo-type dataset --include 'all/dev-*' 'all/test-*' --local-dir"
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


@dataclass(frozen=True)
class Question:
    text: str
    choices: tuple[str, ...]
    """Each question has four answers."""
    answer: int
    """The index of the right one."""


@dataclass(frozen=True)
class Subject:
    """One subject: the examples that stand in the prompt, and the questions that are scored."""

    examples: list[Question]
    questions: list[Question]


@dataclass(frozen=True)
class Tally:
    """Counts of one subject's questions by outcome."""

    questions: int
    correct: int
    fallbacks: int = 0
    """Texts without a letter that looks like an answer, scored as "A"."""
    articles: int = 0
    """Texts in which the English article "a" was taken for the answer A."""

    @property
    def accuracy(self) -> float:
        return self.correct / self.questions


@dataclass(frozen=True)
class Reading:
    """The answer that is read from a text, and why."""

    letter: str
    fallback: bool = False
    article: bool = False


def read(folder: Path, sizes: Mapping[str, int]) -> dict[str, Subject]:
    """Return the subjects that ``sizes`` names, each with as many test questions as it says.

    Two layouts: the hub's, ``all/dev-00000-of-00001.parquet`` and ``all/test-00000-of-00001.parquet`` with the columns
    subject, question, choices, answer; or the original, ``dev/<subject>_dev.csv`` and ``test/<subject>_test.csv`` whose
    rows are question, four choices and a letter, without a header.

    Raises:
        UsageError: a file is absent or damaged, or a subject has another number of questions.
    """
    splits = {split: _read_split(folder, split, sizes) for split in ("dev", "test")}
    for subject, size in sizes.items():
        for split, found, expected in (
            ("dev", len(splits["dev"][subject]), SHOTS),
            ("test", len(splits["test"][subject]), size),
        ):
            if found != expected:
                raise UsageError(
                    f"{folder}: {found} {split} questions on {subject}, expected {expected}; {_mend(folder)}"
                )
    return {subject: Subject(splits["dev"][subject], splits["test"][subject]) for subject in sizes}


def digest(subjects: Mapping[str, Subject]) -> str:
    """Return SHA-256 of all questions and answers: equal for the two layouts."""
    content = {name: asdict(subject) for name, subject in subjects.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def prompt(subject: str, examples: Sequence[Question], question: Question) -> str:
    """Return the original paper's prompt: a heading, the answered examples, the question, "Answer:"."""
    shots = [f"{_posed(example)} {LETTERS[example.answer]}\n\n" for example in examples]
    heading = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"
    return heading + "".join(shots) + _posed(question)


def by_log_likelihood(evaluator: Evaluator, subjects: Mapping[str, Subject]) -> dict[str, Tally]:
    """Read the answer as the likeliest of " A", " B", " C", " D" after the prompt (of equals the first)."""

    def answers(prompts: Sequence[str]) -> list[Reading]:
        pairs = [evaluator.pair(text, f" {letter}") for text in prompts for letter in LETTERS]
        found = [score.log_likelihood for score in evaluator.log_likelihoods(pairs)]
        rows = [found[start : start + len(LETTERS)] for start in range(0, len(found), len(LETTERS))]
        return [Reading(LETTERS[row.index(max(row))]) for row in rows]

    return _tallies(subjects, answers)


def by_generation(
    evaluator: Evaluator, subjects: Mapping[str, Subject], num_tokens: int = 50, instruction: str = INSTRUCTION
) -> dict[str, Tally]:
    """Read the answer from a greedy text of ``num_tokens`` tokens (NRGPT, Table 6, as the authors score it).

    Biased towards A, and kept so: a text without any letter counts as A, and so does an English article.  The context
    keeps the last P tokens, so that five long examples lose their beginning.  The exact patterns and the version of
    deepeval are not published; the patterns here follow their description.
    """

    def answers(prompts: Sequence[str]) -> list[Reading]:
        texts = evaluator.continuations([text + instruction for text in prompts], num_tokens, stop_at_end=False)
        return [read_answer(text) for text in texts]

    return _tallies(subjects, answers)


def by_fallback(subjects: Mapping[str, Subject]) -> dict[str, Tally]:
    """Return what a model scores that always says "A": the share of questions with that answer, 25 % give or
    take some.
    """
    return _tallies(subjects, lambda prompts: [Reading(FALLBACK)] * len(prompts))


def read_answer(text: str) -> Reading:
    """Return the letter of the first of ``ANSWER_PATTERNS`` that is found in ``text``; "A" if none is."""
    for pattern in ANSWER_PATTERNS:
        if match := pattern.search(text):
            letter, rest = match[1], text[match.end(1) :]
            article = letter == "a" or (letter == "A" and re.match(r" [a-z]", rest) is not None)
            return Reading(letter.upper(), article=article)
    return Reading(FALLBACK, fallback=True)


def column_accuracies(tallies: Mapping[str, Tally], columns: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the mean over each column's subjects of their accuracies, every subject with equal weight."""
    return {
        column: math.fsum(tallies[subject].accuracy for subject in subjects) / len(subjects)
        for column, subjects in columns.items()
    }


def _tallies(subjects: Mapping[str, Subject], answers: Callable[[Sequence[str]], list[Reading]]) -> dict[str, Tally]:
    tallies = {}
    for name, subject in subjects.items():
        found = answers([prompt(name, subject.examples, question) for question in subject.questions])
        right = [LETTERS[question.answer] for question in subject.questions]
        tallies[name] = Tally(
            len(right),
            sum(reading.letter == letter for reading, letter in zip(found, right, strict=True)),
            sum(reading.fallback for reading in found),
            sum(reading.article for reading in found),
        )
    return tallies


def _posed(question: Question) -> str:
    choices = [f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, question.choices, strict=True)]
    return f"{question.text.strip()}\n{''.join(choices)}Answer:"


def _read_split(folder: Path, split: str, names: Mapping[str, int]) -> dict[str, list[Question]]:
    path = folder / HUB_FILES[split]
    if path.is_file():
        return _read_parquet(path, names)
    found = {}
    for name in names:
        table = folder / split / f"{name}_{split}.csv"
        if not table.is_file():
            raise UsageError(f"needs mmlu: there is neither {path} nor {table}; {_mend(folder)}")
        try:
            with table.open(newline="", encoding="utf-8") as stream:
                found[name] = [_from_row(row, f"{table}: row {row_}") for row_, row in enumerate(csv.reader(stream), 1)]
        except (UnicodeDecodeError, csv.Error) as error:
            raise UsageError(f"{table}: no CSV in UTF-8: {error}; {_mend(folder)}") from error
    return found


def _from_row(row: Sequence[str], where: str) -> Question:
    if len(row) != 6 or row[5].strip() not in tuple(LETTERS):
        raise UsageError(
            f"{where}: found {len(row)} fields {row!r:.80}, expected question, four choices and a letter A-D"
        )
    return Question(row[0], tuple(row[1:5]), LETTERS.index(row[5].strip()))


def _read_parquet(path: Path, names: Mapping[str, int]) -> dict[str, list[Question]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import read_table

    found: dict[str, list[Question]] = {name: [] for name in names}
    try:
        rows: list[dict[str, Any]] = read_table(
            path, columns=["subject", "question", "choices", "answer"], partitioning=None
        ).to_pylist()
    except (ArrowException, OSError) as error:
        raise UsageError(f"{path}: no parquet file of MMLU: {error}; {_mend(path.parent.parent)}") from error
    for number, row in enumerate(rows):
        if row["subject"] in found:
            where = f"{path}: row {number}"
            letter = LETTERS[row["answer"]] if row["answer"] in range(len(LETTERS)) else ""
            found[row["subject"]].append(_from_row([row["question"], *row["choices"], letter], where))
    return found


def _mend(folder: Path) -> str:
    return f"run: {DOWNLOAD} {folder}"

"""Five-shot MMLU (Hendrycks et al., 2020) of a trained language model, in two scorings (NRGPT, Table 6).

``by_log_likelihood`` is the standard one.  ``by_generation`` is how the authors of NRGPT made their Table 6: a greedy
text in which the first letter that looks like an answer counts.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.base.files import find_data, sha256_of_bytes
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
WAYS = ("mmlu", "mmlu_generated")


class MMLU:
    """Measures ``mmlu_<column>`` and ``mmlu_average`` by log-likelihood, and ``mmlu_generated_...`` as the authors do.

    All are percentages.  A column is the mean of its subjects, the average the mean of the columns.  Beside them:
    ``mmlu_cropped`` (prompts that the context cannot hold), ``mmlu_generated_fallbacks`` and
    ``mmlu_generated_articles`` (texts scored as A for want of a letter, or for an English article).  The attachment
    ``mmlu.json`` holds the counts of each subject, and the hash of the questions.

    The data module needs a ``tokenizer``; the questions lie in ``mmlu/`` below the data folder,
    else every metric is unavailable.

    Args:
        columns: each column's subjects with their number of test questions.
        num_tokens: of a generated text.
        instruction: what ends the prompt of a generated text.

    Raises:
        UsageError: the questions are there, but damaged.
    """

    def __init__(
        self, columns: Mapping[str, Mapping[str, int]], num_tokens: int = 50, instruction: str = INSTRUCTION
    ) -> None:
        empty = [name for name, subjects in columns.items() if not subjects]
        if not columns or empty:
            raise ValueError(f"columns must name at least one subject each, got {empty or 'no column'}")
        self.columns = columns
        self.sizes = {subject: size for subjects in columns.values() for subject, size in subjects.items()}
        self.num_tokens, self.instruction = num_tokens, instruction
        if (folder := find_data(FOLDER)) is not None:  # before hours are spent on the training
            read(folder, self.sizes)

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
        by_likelihood = by_log_likelihood(evaluator, subjects)
        metrics = {"mmlu_cropped": 100 * evaluator.num_cropped / evaluator.num_requests}
        generated = by_generation(evaluator, subjects, self.num_tokens, self.instruction)
        for way, tallies in zip(WAYS, (by_likelihood, generated), strict=True):
            scores = {
                name: 100 * (math.fsum(tallies[subject].accuracy for subject in own) / len(own))
                for name, own in self.columns.items()
            }
            scores["average"] = math.fsum(scores.values()) / len(scores)
            metrics |= {f"{way}_{name}": score for name, score in scores.items()}
        total = sum(tally.questions for tally in generated.values())
        metrics["mmlu_generated_fallbacks"] = 100 * sum(tally.fallbacks for tally in generated.values()) / total
        metrics["mmlu_generated_articles"] = 100 * sum(tally.articles for tally in generated.values()) / total
        outcomes = {
            name: {"log_likelihood": asdict(by_likelihood[name]), "generated": asdict(generated[name])}
            for name in generated
        }
        questions = json.dumps({name: asdict(subject) for name, subject in subjects.items()}, sort_keys=True)
        content = {"questions_sha256": sha256_of_bytes(questions.encode()), "subjects": outcomes}
        return Findings(metrics, {"mmlu.json": json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"})


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
        for number, row in enumerate(rows):
            if row["subject"] in found:
                if len(row["choices"]) != len(LETTERS) or row["answer"] not in range(len(LETTERS)):
                    raise UsageError(f"{path}: row {number}: expected four choices and a number from 0 to 3; {mend}")
                found[row["subject"]].append(Question(row["question"], tuple(row["choices"]), row["answer"]))
        for subject, size in sizes.items():
            expected, count = SHOTS if split == "dev" else size, len(found[subject])
            if count != expected:
                raise UsageError(f"{folder}: {count} {split} questions on {subject}, expected {expected}; {mend}")
        splits[split] = found
    return {subject: Subject(splits["dev"][subject], splits["test"][subject]) for subject in sizes}


# Answers.


@dataclass(frozen=True)
class Tally:
    """Counts of one subject's questions by outcome."""

    questions: int
    correct: int
    fallbacks: int = 0  # texts without a letter that looks like an answer, scored as "A"
    articles: int = 0  # texts in which the English article "a" was taken for the answer A

    @property
    def accuracy(self) -> float:
        return self.correct / self.questions


@dataclass(frozen=True)
class Reading:
    """The answer that is read from a text, and why."""

    letter: str
    fallback: bool = False
    article: bool = False


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
    evaluator: Evaluator, subjects: Mapping[str, Subject], num_tokens: int, instruction: str
) -> dict[str, Tally]:
    """Read the answer from a greedy text of ``num_tokens`` tokens (NRGPT, Table 6, as the authors score it).

    A text without any letter counts as A, and so does an English article.  The exact patterns and the version of
    deepeval are not published; the patterns here follow their description.
    """

    def answers(prompts: Sequence[str]) -> list[Reading]:
        texts = evaluator.continuations([text + instruction for text in prompts], num_tokens)
        return [read_answer(text) for text in texts]

    return _tallies(subjects, answers)


def read_answer(text: str) -> Reading:
    """Return the letter of the first of ``ANSWER_PATTERNS`` that is found in ``text``; "A" if none is."""
    for pattern in ANSWER_PATTERNS:
        if match := pattern.search(text):
            letter, rest = match[1], text[match.end(1) :]
            article = letter == "a" or (letter == "A" and re.match(r" [a-z]", rest) is not None)
            return Reading(letter.upper(), article=article)
    return Reading(FALLBACK, fallback=True)


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

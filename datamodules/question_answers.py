"""Questions with answers, as texts "Question: ...\\nAnswer: ..." (EBT, section 4.1 and the authors' data modules).

Every token of a text counts, those of the question included: the perplexity is that of the whole text.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import absent, find_data

Row = Mapping[str, Any]
Pair = tuple[str, str]
"""A question and its answer."""
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"))
DYCK_PROMPT = "Complete the rest of the sequence, making sure that the parentheses are closed properly. Input: "
NEST, JOIN = 0.5, 0.25
"""How likely a Dyck word is a bracketed word, and two words one after the other; else it is empty."""
LEAST_BRACKETS, MOST_BRACKETS = 4, 60


class AbsentTextsError(UsageError):
    """The files of a set of texts are not there; the message says what gets them.

    Args:
        name: of the files, or of their folder.
        root: the first folder in which they were looked for.
        command: what gets them.
    """

    def __init__(self, name: str, root: str | Path | None, command: str) -> None:
        super().__init__(absent(name, root, command))
        self.command = command


def as_text(question: str, answer: str) -> str:
    """Return the text that is scored."""
    return f"Question: {question}\nAnswer: {answer}"


@dataclass(frozen=True)
class Source:
    """One of the paper's sets, as files in a folder of the data.

    Its rows stand in every .jsonl or .parquet file below the folder whose path holds all of ``words`` and none of
    ``without``.
    """

    folder: str
    words: tuple[str, ...]
    hub: str
    include: str
    columns: tuple[str, ...]
    pair: Callable[[Row], Pair | None]
    """A row's question and answer; None: the row is left out."""
    without: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What gets the files."""
        return f"hf download {self.hub} --repo-type dataset --include '{self.include}' --local-dir data/{self.folder}"

    def texts(self, root: str | Path | None = None) -> list[str]:
        """Return the texts in the order of the files.

        Raises:
            AbsentTextsError: there are no such files.
            UsageError: one cannot be read, or a row has other columns.
        """
        folder = find_data(self.folder, root)
        files = self._files(folder) if folder is not None else []
        if not files:
            name = f"{self.folder}/ with a .jsonl or .parquet file called *{'*'.join(self.words)}*"
            raise AbsentTextsError(name, root, self.command)
        return [as_text(*pair) for file in files for row in _rows(file) if (pair := self._pair(row, file)) is not None]

    def _files(self, folder: Path) -> list[Path]:
        def is_named(file: Path) -> bool:
            path = file.relative_to(folder).as_posix()
            return all(word in path for word in self.words) and not any(word in path for word in self.without)

        return [file for file in sorted(folder.rglob("*")) if file.suffix in (".jsonl", ".parquet") and is_named(file)]

    def _pair(self, row: Row, file: Path) -> Pair | None:
        try:
            return self.pair(row)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            found = ", ".join(row) if isinstance(row, Mapping) else type(row).__name__
            raise UsageError(
                f"{file}: a row with {found}, expected {', '.join(self.columns)} ({error!r}): get the file again, by: "
                f"{self.command}"
            ) from error


def _gsm8k(row: Row) -> Pair:
    return row["question"].strip(), row["answer"].strip()


def _squad(row: Row) -> Pair | None:
    answers = row["answers"]["text"]
    return (f"{row['context']}\n{row['question']}", answers[0]) if len(answers) else None


def _bigbench(row: Row) -> Pair:
    return row["inputs"].replace(" Answer:", "").removesuffix("Answer:").strip(), row["targets"][0]


def _bigbench_task(task: str) -> Source:
    columns = ("inputs", "targets")
    return Source("bigbench", (task, "validation"), "tasksource/bigbench", f"*{task}*validation*", columns, _bigbench)


SOURCES: Mapping[str, Source] = {
    "gsm8k": Source("gsm8k", ("test",), "openai/gsm8k", "main/test*", ("question", "answer"), _gsm8k, ("socratic",)),
    "squad": Source(
        "squad_v2",
        ("validation",),
        "rajpurkar/squad_v2",
        "*validation*",
        ("context", "question", "answers.text"),
        _squad,
    ),
    "bigbench-math": _bigbench_task("elementary_math_qa"),
    "bigbench-dyck": _bigbench_task("dyck_languages"),
}
"""The paper's sets, by our names.  The paper cites SQuAD 1.1; its code reads the answerable questions of 2.0."""


def _rows(file: Path) -> Iterator[Row]:
    try:
        if file.suffix == ".parquet":
            from datasets import Dataset

            yield from Dataset.from_parquet(str(file))
            return
        for line in file.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)
    except Exception as error:  # the library's own and pyarrow's errors, or no JSON
        raise UsageError(f"{file}: cannot be read: {error}; get the file again") from error


def dyck_texts(count: int, seed: int) -> list[str]:
    """Generate questions of BIG-bench's kind: a Dyck word of four brackets without the brackets that close it.

    A word is ``( word )`` with probability 1/2, each of the four brackets equally likely, ``word word`` with
    probability 1/4, else empty, the grammar of Suzgun et al. (2019).  Words of 4 to 60 brackets are kept,
    each once.  The answer is the run of closing brackets at a word's end.  These are not BIG-bench's own words.

    Raises:
        ValueError: ``count`` below 1.
    """
    words = itertools.islice(_dyck_words(random.Random(seed)), at_least("count", count))
    pairs = (dyck_pair(word) for word in words)
    return [as_text(DYCK_PROMPT + " ".join(start), " ".join(rest)) for start, rest in pairs]


def dyck_pair(word: str) -> tuple[str, str]:
    """Return a Dyck word up to its last opening bracket, and the closing brackets behind it."""
    closing = "".join(end for _, end in BRACKETS)
    start = word.rstrip(closing)
    return start, word[len(start) :]


def _dyck_words(draw: random.Random) -> Iterator[str]:
    seen = set()
    while True:
        word = _dyck_word(draw)
        if LEAST_BRACKETS <= len(word) <= MOST_BRACKETS and word not in seen:
            seen.add(word)
            yield word


def _dyck_word(draw: random.Random) -> str:
    """Write a word of the grammar from left to right; what is still to be written lies on a stack."""
    written: list[str] = []
    waiting = [""]
    """Words to draw, as "", and closing brackets to write."""
    while waiting and len(written) <= MOST_BRACKETS:
        top = waiting.pop()
        if top:
            written.append(top)
            continue
        chance = draw.random()
        if chance < NEST:
            opening, closing = draw.choice(BRACKETS)
            written.append(opening)
            waiting += [closing, ""]
        elif chance < NEST + JOIN:
            waiting += ["", ""]
    return "".join(written)

"""Texts of other distributions than the training data, by name: the paper's sets, and stand-ins under their own names.

Questions with answers are texts "Question: ...\\nAnswer: ..." (EBT, section 4.1 and the authors' data modules).  Every
token of a text counts, those of the question included: the perplexity is that of the whole text.

Letters: B texts of a batch, T tokens of a window.
"""

import ast
import itertools
import json
import random
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from paper_repro.base.errors import UsageError, at_least, one_of
from paper_repro.base.files import absent, find_data
from paper_repro.base.identity import mix
from paper_repro.datamodules.array_shards import kept, stamp_of
from paper_repro.datamodules.counter_based import permutation
from paper_repro.datamodules.documents import padded
from paper_repro.datamodules.downloads import given
from paper_repro.datamodules.listops import EQUALS, ListOps
from paper_repro.datamodules.text import read_text
from paper_repro.datamodules.tokenizers import Tokenizer

SHAKESPEARE = "tinyshakespeare/input.txt"
SEED = 0
PASSAGE_CHARACTERS = 400
FUNCTION_LINES = 6
LISTOPS_MODULUS = 10
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"))
DYCK_PROMPT = "Complete the rest of the sequence, making sure that the parentheses are closed properly. Input: "
NEST, JOIN = 0.5, 0.25
"""How likely a Dyck word is a bracketed word, and two words one after the other; else it is empty."""
LEAST_BRACKETS, MOST_BRACKETS = 4, 60
Row = Mapping[str, Any]
Root = str | Path | None


class AbsentTextsError(UsageError):
    """The files of a set of texts are in none of the places; ``command`` gets them."""

    def __init__(self, name: str, root: Root, command: str) -> None:
        super().__init__(absent(name, root, command))
        self.command = command


@dataclass(frozen=True)
class TextSet:
    """Texts that a language model is scored on, each by itself, cut at T + 1 tokens.

    The paper's sets are read from files below the data folder: gsm8k, squad, bigbench-math, bigbench-dyck.  Ours need
    no download but for Shakespeare's: dyck-generated (BIG-bench's kind of question), listops (expressions worked out),
    python (functions of the installed Python without docstrings) and shakespeare (passages of tiny Shakespeare).

    Args:
        name: of the set.
        limit: texts at most, the same ones each time.
        cache: folder that keeps the functions of ``python``; None: they are looked for once a process.
    """

    name: str
    limit: int = 500
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        one_of("name", self.name, TEXT_SETS)
        at_least("limit", self.limit)

    def texts(self, root: Root = None) -> list[str]:
        """Return the chosen texts; AbsentTextsError: there are no files; UsageError: damaged files."""
        found = TEXT_SETS[self.name](self, root)
        order = permutation(len(found), mix(SEED, "texts", self.name))[: self.limit]
        return [found[place] for place in order.tolist()]

    def batches(
        self, tokenizer: Tokenizer, window: int, batch_size: int, root: Root = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the texts as batches (ids (B, T), next ids (B, T)), padded as ``DocumentData``'s; the last may be
        smaller.  UsageError: as ``texts``, or a text that the tokenizer cannot encode.
        """
        rows = [self._encoded(text, tokenizer) for text in self.texts(root)]
        pad = tokenizer.end_of_text or 0
        for first in range(0, len(rows), at_least("batch_size", batch_size)):
            yield padded(rows[first : first + batch_size], window, pad)

    def _encoded(self, text: str, tokenizer: Tokenizer) -> list[int]:
        try:
            return tokenizer.encode(text)
        except UsageError as error:
            raise UsageError(f"text set {self.name!r}: {error}, or leave out the set") from error


def as_text(question: str, answer: str) -> str:
    return f"Question: {question}\nAnswer: {answer}"


# The paper's sets.


@dataclass(frozen=True)
class Source:
    """One of the paper's sets: the rows of every .jsonl or .parquet file below ``folder`` whose path holds all of
    ``words`` and none of ``without``.
    """

    folder: str
    words: tuple[str, ...]
    hub: str
    include: str
    columns: tuple[str, ...]
    text: Callable[[Row], str | None]
    """A row's text; None: the row is left out."""
    without: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What gets the files."""
        return f"hf download {self.hub} --repo-type dataset --include '{self.include}' --local-dir data/{self.folder}"

    def __call__(self, chosen: TextSet, root: Root = None) -> list[str]:
        """Return the texts in the order of the files."""
        folder = find_data(self.folder, root)
        files: list[Path] = []
        if folder is not None:
            files = [file for file in sorted(folder.rglob("*")) if self._is_named(file.relative_to(folder).as_posix())]
        if not files:
            name = f"{self.folder}/ with a .jsonl or .parquet file called *{'*'.join(self.words)}*"
            raise AbsentTextsError(name, root, self.command)
        found: list[str] = []
        for file in files:
            with given(file, f"expected {', '.join(self.columns)} in each row: get the file again, by: {self.command}"):
                found += [text for row in _rows(file) if (text := self.text(row)) is not None]
        return found

    def _is_named(self, path: str) -> bool:
        named = all(word in path for word in self.words) and not any(word in path for word in self.without)
        return named and path.endswith((".jsonl", ".parquet"))


def _rows(file: Path) -> list[Row]:
    if file.suffix == ".parquet":
        from datasets import Dataset

        return [*Dataset.from_parquet(str(file))]
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _gsm8k(row: Row) -> str:
    return as_text(row["question"].strip(), row["answer"].strip())


def _squad(row: Row) -> str | None:
    answers = row["answers"]["text"]
    return as_text(f"{row['context']}\n{row['question']}", answers[0]) if len(answers) else None


def _bigbench(row: Row) -> str:
    return as_text(row["inputs"].replace(" Answer:", "").removesuffix("Answer:").strip(), row["targets"][0])


def _bigbench_task(task: str) -> Source:
    columns = ("inputs", "targets")
    return Source("bigbench", (task, "validation"), "tasksource/bigbench", f"*{task}*validation*", columns, _bigbench)


SQUAD = ("context", "question", "answers.text")
SOURCES: Mapping[str, Source] = {
    "gsm8k": Source("gsm8k", ("test",), "openai/gsm8k", "main/test*", ("question", "answer"), _gsm8k, ("socratic",)),
    "squad": Source("squad_v2", ("validation",), "rajpurkar/squad_v2", "*validation*", SQUAD, _squad),
    "bigbench-math": _bigbench_task("elementary_math_qa"),
    "bigbench-dyck": _bigbench_task("dyck_languages"),
}
"""The paper's sets, by our names.  The paper cites SQuAD 1.1; its code reads the answerable questions of 2.0."""

# Their stand-ins.


def dyck_texts(count: int, seed: int) -> list[str]:
    """Generate questions of BIG-bench's kind: a Dyck word of four brackets without the brackets that close it.

    A word is ``( word )`` with probability 1/2, each of the four brackets equally likely, ``word word`` with
    probability 1/4, else empty, the grammar of Suzgun et al. (2019).  Words of 4 to 60 brackets are kept,
    each once.  The answer is the run of closing brackets at a word's end.  These are not BIG-bench's own words.
    """
    draw, words = random.Random(seed), dict[str, None]()
    while len(words) < count:
        word = _dyck_word(draw)
        if LEAST_BRACKETS <= len(word) <= MOST_BRACKETS:
            words[word] = None
    pairs = (dyck_pair(word) for word in words)
    return [as_text(DYCK_PROMPT + " ".join(start), " ".join(rest)) for start, rest in pairs]


def dyck_pair(word: str) -> tuple[str, str]:
    """Return a Dyck word up to its last opening bracket, and the closing brackets behind it."""
    closing = "".join(end for _, end in BRACKETS)
    start = word.rstrip(closing)
    return start, word[len(start) :]


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


def _listops(chosen: TextSet, root: Root) -> list[str]:
    """Expressions as questions, what they are worked out to step by step as answers."""
    task = ListOps(LISTOPS_MODULUS, num_train=chosen.limit, num_test=1, seed=mix(SEED, "listops"))
    found = []
    for item in task.generate().train:
        place = item.tokens.index(EQUALS)
        found.append(as_text(task.decode(item.tokens[:place]), task.decode(item.tokens[place + 1 : -1])))
    return found


@lru_cache(maxsize=1)
def _standard_functions(cache: str | Path | None) -> list[str]:
    """Functions of the standard library's top modules, without those with docstrings, which are prose."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))

    def joined() -> dict[str, npt.NDArray[np.uint8]]:
        sources = (file.read_text(encoding="utf-8", errors="replace") for file in files)
        texts = "\0".join(itertools.chain.from_iterable(map(functions, sources)))  # a source has no NUL
        return {"texts": np.frombuffer(texts.encode(), np.uint8)}

    found = kept(cache, "text_sets/python", __name__, [stamp_of(file) for file in files], joined)
    return found["texts"].tobytes().decode().split("\0")


def functions(source: str) -> Iterator[str]:
    """Yield the functions of a source file that have no docstring and at least six lines, dedented."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is None:
            own = lines[node.lineno - 1 : node.end_lineno]
            if len(own) >= FUNCTION_LINES:
                yield textwrap.dedent("\n".join(own))


def _shakespeare(chosen: TextSet, root: Root) -> list[str]:
    path = find_data(SHAKESPEARE, root)
    if path is None:
        raise AbsentTextsError(SHAKESPEARE, root, "python scripts/prepare_data.py shakespeare --download")
    return list(passages(read_text(path)))


def passages(play: str) -> Iterator[str]:
    """Yield speeches, which blank lines divide, joined until they have 400 characters or more."""
    passage = ""
    for speech in play.split("\n\n"):
        passage = f"{passage}\n\n{speech}".strip("\n")
        if len(passage) >= PASSAGE_CHARACTERS:
            yield passage
            passage = ""


TEXT_SETS: Mapping[str, Callable[[TextSet, Root], list[str]]] = {
    **SOURCES,
    "dyck-generated": lambda chosen, root: dyck_texts(chosen.limit, mix(SEED, "dyck")),
    "listops": _listops,
    "python": lambda chosen, root: _standard_functions(chosen.cache),
    "shakespeare": _shakespeare,
}

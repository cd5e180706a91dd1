"""Texts of other distributions than the training data, by name: the paper's sets, and stand-ins under their own names.

Letters: B texts of a batch, T tokens of a window.
"""

import ast
import json
import sysconfig
import textwrap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from torch import Tensor

from paper_repro.base.errors import UsageError, at_least, one_of
from paper_repro.base.files import cached, find_data, sha256_of_bytes
from paper_repro.base.identity import mix, stamp
from paper_repro.datamodules.array_shards import stamp_of
from paper_repro.datamodules.counter_based import permutation
from paper_repro.datamodules.documents import LEAST_TOKENS, padded
from paper_repro.datamodules.listops import EQUALS, ListOps
from paper_repro.datamodules.question_answers import SOURCES, AbsentTextsError, as_text, dyck_texts
from paper_repro.datamodules.text import read_text
from paper_repro.datamodules.tokenizers import Tokenizer

SHAKESPEARE = "tinyshakespeare/input.txt"
PASSAGE_CHARACTERS = 400
FUNCTION_LINES = 6
LISTOPS_MODULUS = 10
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
"""Nodes that are statements or hold some."""


@dataclass(frozen=True)
class TextSet:
    """Texts that a language model is scored on, each by itself, cut at T + 1 tokens.

    The paper's sets are read from files below the data folder: gsm8k, squad, bigbench-math, bigbench-dyck.  Ours need
    no download but for Shakespeare's: dyck-generated (BIG-bench's kind of question), listops (expressions worked out),
    python (functions of the installed Python without docstrings) and shakespeare (passages of tiny Shakespeare).

    Args:
        name: of the set.
        limit: texts at most; which ones follows from ``seed``.
        seed: of the choice, and of texts that are generated.
        cache: folder that keeps the functions of ``python``; None: they are looked for once a process.

    Raises:
        ValueError: an unknown name, or a number out of range.
    """

    name: str
    limit: int = 500
    seed: int = 0
    cache: Path | None = None

    def __post_init__(self) -> None:
        one_of("name", self.name, TEXT_SETS)
        at_least("limit", self.limit)
        at_least("seed", self.seed, 0)

    def texts(self, root: str | Path | None = None) -> list[str]:
        """Return the chosen texts.

        Args:
            root: the first folder in which the data are looked for.

        Raises:
            AbsentTextsError: there are no files; the message says what gets them.
            UsageError: files that are damaged.
        """
        found = TEXT_SETS[self.name](self, root)
        order = permutation(len(found), mix(self.seed, "texts", self.name))[: self.limit]
        return [found[place] for place in order.tolist()]

    def batches(
        self, tokenizer: Tokenizer, window: int, batch_size: int, root: str | Path | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the texts as batches (ids (B, T), next ids (B, T)), padded as ``DocumentData``'s; the last may be
        smaller.

        Raises:
            UsageError: as ``texts``; a text that has a character the tokenizer lacks, or fewer than two tokens.
        """
        rows = [self._encoded(text, tokenizer) for text in self.texts(root)]
        pad = tokenizer.end_of_text or 0
        for first in range(0, len(rows), at_least("batch_size", batch_size)):
            yield padded(rows[first : first + batch_size], window, pad)

    def digest(self, root: str | Path | None = None) -> str:
        """Return SHA-256 of the chosen texts; those of ``python`` depend on the installed version."""
        return sha256_of_bytes("\0".join(self.texts(root)).encode())

    def _encoded(self, text: str, tokenizer: Tokenizer) -> list[int]:
        try:
            ids = tokenizer.encode(text)
        except UsageError as error:
            raise UsageError(f"text set {self.name!r}: {error}, or leave out the set") from error
        if len(ids) < LEAST_TOKENS:
            raise UsageError(
                f"text set {self.name!r}: {text!r} has {len(ids)} tokens, expected at least {LEAST_TOKENS}, one to "
                "predict: remove it from the files"
            )
        return ids


def _dyck(chosen: TextSet, root: str | Path | None) -> list[str]:
    return dyck_texts(chosen.limit, mix(chosen.seed, "dyck"))


def _listops(chosen: TextSet, root: str | Path | None) -> list[str]:
    """Expressions as questions, what they are worked out to step by step as answers."""
    task = ListOps(LISTOPS_MODULUS, num_train=chosen.limit, num_test=1, seed=mix(chosen.seed, "listops"))
    pairs = (_split_at_first_equals(item.tokens) for item in task.generate().train)
    return [as_text(task.decode(expression), task.decode(steps)) for expression, steps in pairs]


def _split_at_first_equals(tokens: list[int]) -> tuple[list[int], list[int]]:
    """Return the expression, and what follows its "=" up to the end of sequence."""
    place = tokens.index(EQUALS)
    return tokens[:place], tokens[place + 1 : -1]


def _python(chosen: TextSet, root: str | Path | None) -> list[str]:
    """Functions of the modules that lie directly in the standard library's folder.

    Those with docstrings are left out: docstrings are what our own corpus is made of.
    """
    return _standard_functions(chosen.cache)


@lru_cache(maxsize=1)
def _standard_functions(cache: Path | None) -> list[str]:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    if cache is None:
        return _functions_of(files)
    stamps = "/".join([stamp(__name__), *map(stamp_of, files)])
    path = cache / "text_sets" / f"python-{sha256_of_bytes(stamps.encode())[:20]}.json"
    found: list[str] = json.loads(cached(path, lambda: json.dumps(_functions_of(files)).encode()))
    return found


def _functions_of(files: Iterable[Path]) -> list[str]:
    return [text for file in files for text in functions(file.read_text(encoding="utf-8", errors="replace"))]


def functions(source: str) -> Iterator[str]:
    """Yield the functions of a source file that have no docstring and at least six lines, dedented."""
    lines = source.splitlines()
    for node in _statements(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is None:
            own = lines[node.lineno - 1 : node.end_lineno]
            if len(own) >= FUNCTION_LINES:
                yield textwrap.dedent("\n".join(own))


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield what ``ast.walk`` does, in its order, but for expressions: most nodes are, and none holds a function."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        lists = (held for held in vars(node).values() if isinstance(held, list))
        waiting.extend(held for some in lists for held in some if isinstance(held, STATEMENTS))


def _shakespeare(chosen: TextSet, root: str | Path | None) -> list[str]:
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


def _of_files(name: str, chosen: TextSet, root: str | Path | None) -> list[str]:
    return SOURCES[name].texts(root)


TEXT_SETS: Mapping[str, Callable[[TextSet, str | Path | None], list[str]]] = {
    **{name: partial(_of_files, name) for name in SOURCES},
    "dyck-generated": _dyck,
    "listops": _listops,
    "python": _python,
    "shakespeare": _shakespeare,
}
"""The texts of each set before some are chosen."""

"""Tests that docstrings are sentences that a stranger can read, and that code with tensors names their shapes."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from paper_repro.base.command_line import ROOT

FOLDERS = ("paper_repro", "kernels", "lightning_modules", "datamodules", "scripts")
RIDDLES = {
    r"^Of ": "a fragment: name the thing first ('Gradients of ...', 'Return the gradients of ...')",
    r"^That ": "a fragment: say who says or checks it ('Say that ...', 'Check that ...')",
    r"\bwhich is said\b": "who says it, and where? 'is logged', 'is printed', 'raises'",
    r"\bis said\b": "who says it, and where? 'is logged', 'is printed', 'stands in the record'",
    r"\bwhat (?:its|the) \w+ does not say\b": "name the thing: 'values that the file leaves out'",
    r"\b(?:whereof|thereof|aught|naught)\b": "a word that few readers know; say it plainly",
}
"""Patterns that no docstring may have, each with what to write instead."""
FRAGMENTS = frozenset(
    [
        "a",
        "after",
        "all",
        "an",
        "as",
        "at",
        "both",
        "by",
        "each",
        "every",
        "for",
        "from",
        "how",
        "in",
        "of",
        "on",
        "one",
        "over",
        "some",
        "that",
        "the",
        "to",
        "until",
        "what",
        "where",
        "whether",
        "which",
        "who",
        "why",
    ]
)
"""Words that begin a noun phrase or a clause; the docstring of a function begins with its verb."""
SHAPE = re.compile(r"#.*\((?:[^()]*,[^()]*|[A-Z](?: [A-Z])*)\)")
CODE_LINES_PER_SHAPE = 40


@dataclass(frozen=True)
class Docstring:
    """A docstring, also one of a constant or a field, and the place where it stands."""

    where: str
    text: str
    function: bool
    """Whether it belongs to a function that is no property."""


def docstrings() -> Iterator[Docstring]:
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            body = getattr(node, "body", None)
            for index, line in enumerate(body if isinstance(body, list) else []):
                if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
                    if not isinstance(line.value.value, str):
                        continue
                    where = f"{path.relative_to(ROOT)}:{line.lineno}"
                    function = index == 0 and isinstance(node, ast.FunctionDef) and not is_property(node)
                    yield Docstring(where, " ".join(line.value.value.split()), function)


def is_property(node: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def complaints(docstring: Docstring) -> Iterator[str]:
    for pattern, advice in RIDDLES.items():
        if re.search(pattern, docstring.text):
            yield f"{docstring.where}: {docstring.text[:80]!r}: {advice}"
    first = docstring.text.split()[0] if docstring.text.strip() else ""
    if docstring.function and first.lower() in FRAGMENTS:
        yield f"{docstring.where}: {docstring.text[:80]!r} begins with no verb: 'Return ...', 'Write ...', 'Judge ...'"


def test_docstrings_are_sentences() -> None:
    found = list(docstrings())
    assert len(found) > 1000
    wrong = [text for docstring in found for text in complaints(docstring)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "Of an artifact, what its file does not say.",
        "The record; None where there is none, or a damaged one, which is said.",
        "That the file is whole.",
        "The plan of an artifact.",
        "Whether the file is whole.",
    ],
)
def test_the_check_rejects(text: str) -> None:
    assert list(complaints(Docstring("here", text, function=True)))


@pytest.mark.parametrize("text", ["Return the plan of an artifact.", "Draw ``rows``.", "unit(h + a f), (B, D)."])
def test_the_check_accepts(text: str) -> None:
    assert not list(complaints(Docstring("here", text, function=True)))


def tensor_files() -> list[Path]:
    """Return the files of models and kernels that import torch and are long enough to need a shape comment."""
    folders = [ROOT / "paper_repro" / "models", *(path for path in (ROOT / "kernels").iterdir() if path.is_dir())]
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return [path for path in files if code_lines(path) >= CODE_LINES_PER_SHAPE and "torch" in path.read_text()]


def code_lines(path: Path) -> int:
    """Count the lines that are neither blank, comments nor docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    quoted: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            quoted.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    return sum(
        1 for number, line in lines if number not in quoted and line.strip() and not line.lstrip().startswith("#")
    )


@pytest.mark.parametrize("path", tensor_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_code_with_tensors_names_their_shapes(path: Path) -> None:
    wanted = code_lines(path) // CODE_LINES_PER_SHAPE
    found = sum(1 for line in path.read_text(encoding="utf-8").splitlines() if SHAPE.search(line))
    assert found >= wanted, (
        f"{path.relative_to(ROOT)}: {found} shape comments '# (B, T, D)', at least {wanted} expected"
    )

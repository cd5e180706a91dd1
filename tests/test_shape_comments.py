"""Tests that code with tensors names their shapes in comments."""

import ast
import re
from pathlib import Path

import pytest

from paper_repro.base.errors import ROOT

SHAPE = re.compile(r"#.*\((?:[^()]*,[^()]*|[A-Z](?: [A-Z])*)\)")
CODE_LINES_PER_SHAPE = 40


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

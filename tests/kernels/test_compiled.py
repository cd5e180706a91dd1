"""Every Triton kernel compiles for a GPU: the interpreter lets pass what the compiler refuses."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paper_repro.base.errors import ROOT

MOST_SHARED = 227 << 10
"""Bytes of shared memory that a block can have on an H100."""
SPILLING = {"tied_attention.over_heads"}
"""A kernel that spills with the fastest tiles that were measured."""


@pytest.mark.slow
def test_every_kernel_compiles_for_an_h100_and_spills_nothing() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("compiled.py"))]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    groups = json.loads(child.stdout)
    found = [row for rows in groups.values() for row in rows]
    assert {row["kernel"] for row in found} == {*entries()}, "give compiled.py a case that launches it"
    assert {row["kernel"] for row in groups["papers"] if row["spilled"]} <= SPILLING
    assert max(row["shared"] for row in found) <= MOST_SHARED


def entries() -> Iterator[str]:
    """Yield the names of all kernels that no other kernel calls."""
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "kernels").rglob("*.py"))}
    jitted = {
        (path, node.name): node
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and "triton.jit" in {ast.unparse(one) for one in node.decorator_list}
    }
    calls = (one for node in jitted.values() for one in ast.walk(node) if isinstance(one, ast.Call))
    called = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    for path, name in jitted:
        if name not in called:
            yield f"{'.'.join(path.relative_to(ROOT / 'kernels').parent.parts)}.{name}"

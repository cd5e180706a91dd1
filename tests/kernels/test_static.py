"""What is known of the Triton kernels without a GPU, and that the committed table still says it.

The kernels compile at their smallest shapes and at odd ones: the interpreter lets pass what the compiler refuses.
"""

import ast
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.command_line import ROOT
from paper_repro.kernels.processors import Device, assume, processors
from paper_repro.kernels.static.gpus import A100, GPUS, H100
from paper_repro.kernels.static.operations import count
from paper_repro.kernels.static.shapes import Launch, meta, moved, tf32

TABLE = ROOT / "results" / "bench" / "kernels_static.json"
AGAIN = (
    "run python scripts/bench.py kernels_static --json results/bench/kernels_static.json, "
    "then python scripts/results_index.py"
)
SPILLING = {("tied_attention.over_heads", "CEM 86M", "H100")}
"""Launches that spill with the fastest tiles that were measured; delete one that no longer does."""
LOOP = """
#loc = loc("kernel.py":1:1)
module {
  tt.func public @_kernel(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("x"(#loc)), %n: i32 loc("n"(#loc))) {
    %one = arith.constant 1 : i32 loc(#loc)
    %size = arith.constant 8 : i32 loc(#loc)
    %first = tt.get_program_id x : i32 loc(#loc)
    %all = tt.get_num_programs x : i32 loc(#loc)
    %next = arith.addi %first, %one : i32 loc(#loc)
    %end = arith.muli %next, %size : i32 loc(#loc)
    %last = arith.minsi %end, %n : i32 loc(#loc)
    %zeros = arith.constant dense<0.000000e+00> : tensor<8x4xf32> loc(#loc)
    %found = scf.for %at = %first to %last step %all iter_args(%sum = %zeros) -> (tensor<8x4xf32>)  : i32 {
      %inner = scf.for %k = %one to %size step %one iter_args(%rest = %sum) -> (tensor<8x4xf32>)  : i32 {
        %more = math.fma %rest, %rest, %rest : tensor<8x4xf32> loc(#loc)
        scf.yield %more : tensor<8x4xf32> loc(#loc)
      } loc(#loc)
      %norm = "tt.reduce"(%inner) <{axis = 1 : i32}> ({
      ^bb0(%a: f32 loc(unknown), %b: f32 loc(unknown)):
        %both = arith.addf %a, %b : f32 loc(#loc)
        tt.reduce.return %both : f32 loc(#loc)
      }) : (tensor<8x4xf32>) -> tensor<8xf32> loc(#loc)
      %less = arith.cmpf olt, %inner, %zeros : tensor<8x4xf32> loc(#loc)
      %product = tt.dot %p, %q, %inner, inputPrecision = tf32 : tensor<8x16xf32> * tensor<16x4xf32> -> tensor<8x4xf32>
      %half = tt.dot %r, %s, %inner : tensor<2x8x16xbf16> * tensor<2x16x4xbf16> -> tensor<2x8x4xf32>
      scf.yield %inner : tensor<8x4xf32> loc(#loc)
    } loc(#loc)
    %root = math.sqrt %found : tensor<8x4xf32> loc(#loc)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
"""


def test_blocks_are_those_of_nvidias_examples() -> None:
    """The CUDA C++ Best Practices Guide has 37 registers and 64 warps: 128 threads 75 %, 320 threads 63 %."""
    assert [gpu.blocks(37, 0, 4) * 4 / 64 for gpu in GPUS] == [0.75, 0.75]
    assert [gpu.blocks(37, 0, 10) * 10 / 64 for gpu in GPUS] == [0.625, 0.625]


def test_blocks_are_bounded_by_each_limit() -> None:
    assert A100.blocks(16, 0, 1) == 32 and A100.blocks(32, 0, 8) == 8  # blocks, then warps
    assert A100.blocks(255, 0, 8) == 1 and A100.blocks(168, 0, 4) == 3  # registers, in units of 8 for each thread
    assert A100.blocks(169, 0, 4) == 2
    assert [gpu.blocks(32, 40 << 10, 4) for gpu in GPUS] == [4, 5]  # 41 KiB each of 164 and 228
    assert [gpu.blocks(32, 163 << 10, 4) for gpu in GPUS] == [1, 1]
    assert [gpu.blocks(32, (163 << 10) + 1, 4) for gpu in GPUS] == [0, 1]
    assert H100.blocks(32, 227 << 10, 4) == 1 and H100.blocks(32, (227 << 10) + 1, 4) == 0
    assert H100.blocks(64, 0, 32) == 1 and H100.blocks(65, 0, 32) == 0  # a block has 65,536 registers at most


def test_operations_and_products_are_counted_as_often_as_loops_go() -> None:
    """Programs 0 to 3 go from their number in steps of 4 to 8, 16, 20 and 20: 2, 4, 5 and 5 times."""
    found = count(LOOP, [None, 20], (4, 1, 1))
    trips, entries = 2 + 4 + 5 + 5, 32
    assert found.operations == trips * (7 * 2 * entries + entries) + 4 * entries
    assert found.products == {"tf32": trips * 2 * 8 * 16 * 4, "bf16": trips * 2 * 2 * 8 * 16 * 4}
    exact = count(LOOP.replace("inputPrecision = tf32 ", ""), [None, 20], (4, 2, 1))
    assert exact.products["fp32"] == 2 * found.products["tf32"] and exact.operations == 2 * found.operations


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("arith.minsi %end, %n : i32", "tt.load %x : !tt.ptr<i32>", "how often this loop goes does not follow"),
        ("step %one iter_args(%rest", "step %at iter_args(%rest", "how often this loop goes does not follow"),
        (
            "%inner = scf.for %k = %one to %size step %one iter_args",
            "%inner = scf.while (%k = %one)",
            "neither its trips",
        ),
        ("math.sqrt %found", "tt.call @other(%found)", "nor what it calls can be counted: %root = tt.call"),
    ],
)
def test_what_cannot_be_counted_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    assert LOOP.count(old) == 1
    with pytest.raises(ValueError, match=message):
        count(LOOP.replace(old, new), [None, 20], (4, 1, 1))


def test_a_branch_counts_where_the_arguments_take_it() -> None:
    """The first two of programs 0 to 3 end early; where a condition is loaded, both branches count."""
    early = """
      %less = arith.cmpi slt, %first, %two : i32
      cf.cond_br %less, ^bb1, ^bb2
    ^bb1:  // pred: ^bb0
      tt.return
    ^bb2:  // pred: ^bb0
    """
    text = LOOP.replace("%first = tt.get", "%two = arith.constant 2 : i32\n%first = tt.get")
    found = count(text.replace("%next =", f"{early}\n%next ="), [None, 20], (4, 1, 1))
    assert found.products == {"tf32": (5 + 5) * 2 * 8 * 16 * 4, "bf16": (5 + 5) * 2 * 2 * 8 * 16 * 4}
    assert count(LOOP, [None, 20], (4, 1, 1)).operations - found.operations == (2 + 4) * 15 * 32 + 2 * 32
    either = """
      %few = arith.cmpi CONDITION
      %chosen = scf.if %few -> (tensor<8x4xf32>) {
        %some = math.exp %found : tensor<8x4xf32>
        scf.yield %some : tensor<8x4xf32>
      } else {
        %one = math.exp %found : tensor<8x4xf32>
        %other = math.exp %one : tensor<8x4xf32>
        scf.yield %other : tensor<8x4xf32>
      }
    """
    for condition, expected in (("slt, %first, %two : i32", 2 + 2 * 2), ("slt, %first, %loaded : i32", 4 + 4 * 2)):
        branch = either.replace("CONDITION", condition)
        found = count(text.replace("%root = ", f"{branch}\n%root = "), [None, 20], (4, 1, 1))
        assert found.operations == count(LOOP, [None, 20], (4, 1, 1)).operations + expected * 32


def test_bytes_are_counted_once_for_each_way() -> None:
    x, y, z = meta(4, 8), meta(8), meta(4)
    launch = Launch("op._kernel", {"x": x, "again": x, "y": y, "out": z, "n": 4}, (1, 1, 1), {}, lambda: None)
    assert moved(launch, ("out",)) == 4 * (32 + 8 + 4)
    assert moved(launch, ("out",), ("y",)) == 4 * (32 + 8 + 8 + 4)
    assert moved(launch, ("out", "again")) == 4 * (32 + 32 + 8 + 4)  # written over what is read
    assert moved(launch, ("out",), unused=("x", "again")) == 4 * (8 + 4)


def test_what_is_assumed_and_allowed_ends_with_its_scope() -> None:
    import torch

    before, device = torch.get_float32_matmul_precision(), torch.device("meta")
    with assume(Device(108, 80)), tf32():
        assert processors(device) == 108 and torch.get_float32_matmul_precision() == "high"
    assert processors(device) == 1 and torch.get_float32_matmul_precision() == before


def test_an_interpreter_compiles_nothing() -> None:
    launches = pytest.importorskip("paper_repro.kernels.static.launches")
    with pytest.raises(RuntimeError, match=r"TRITON_INTERPRET=1: .* unset it, or set it to 0"), launches.on(A100):
        pass


def test_every_kernel_compiles_and_the_committed_table_has_every_launch() -> None:
    """One process compiles for all that follows: each takes the compilers half a minute."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("compiled.py"))]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    found, table = json.loads(child.stdout), json.loads(TABLE.read_text())
    smallest = {row["kernel"]: row for row in found["smallest"]}
    assert set(smallest) == set(entries()), "declare in kernels/<op>/shapes.py where models launch it"
    assert {name for name, row in smallest.items() if row["blocks"] < 1 + row["elementwise"]} == set()
    for row, line in zip(smallest.values(), found["lines"], strict=True):
        assert line.startswith(f"{row['kernel']}, ") and f"{row['registers']} registers, {row['spilled']} bytes" in line
    assert len(found["odd"]) == 18 and max(program["shared"] for program in found["odd"]) <= A100.most_shared

    known = {_place(row): row for row in table["programs"]}
    launches = {_place(launch): launch for launch in found["launches"]}
    assert known.keys() == launches.keys() and len(known) == len(table["programs"]), AGAIN
    for place, launch in launches.items():
        assert {name: known[place][name] for name in launch} == launch, f"{place}: {AGAIN}"
    if found["triton"] == table["triton"]:  # another compiler takes other registers
        assert [row for row in smallest.values() if row != known[_place(row)]] == [], AGAIN


def test_no_program_of_the_committed_table_spills_and_two_blocks_fit_where_memory_bounds() -> None:
    rows = json.loads(TABLE.read_text())["programs"]
    assert {(row["kernel"], row["model"], row["gpu"]) for row in rows if row["spilled"]} == SPILLING
    assert [_place(row) for row in rows if row["blocks"] < 1 + row["elementwise"]] == []
    assert {row["kernel"] for row in rows if row["elementwise"] and row["bound"] != "memory"} == set()


def _place(row: dict[str, Any]) -> tuple[str, ...]:
    return row["kernel"], row["model"], row["size"], row["gpu"]


def entries() -> Iterator[str]:
    """Names of all kernels that no other kernel calls, as ``Launch.kernel`` has them."""
    for path in sorted((ROOT / "kernels").rglob("*.py")):
        op = ".".join(path.relative_to(ROOT / "kernels").parent.parts)
        nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        kernels = [node for node in nodes if "triton.jit" in {ast.unparse(one) for one in node.decorator_list}]
        yield from (f"{op}.{kernel.name}" for kernel in kernels if kernel.name not in _called())


@functools.cache
def _called() -> frozenset[str]:
    """Names of functions that a kernel calls."""
    found = set()
    for path in sorted((ROOT / "kernels").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                found |= {
                    call.func.id
                    for call in ast.walk(node)
                    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                }
    return frozenset(found)

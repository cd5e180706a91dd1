"""The kernels compile for a GPU, which this needs none for: the interpreter lets pass what the compiler refuses.

Triton decides when it is imported whether it interprets, so this file starts itself as a child process that does not.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paper_repro.kernels.tied_attention.tiles import LEAST, ROW_BYTES, tiles

HOPPER, WARP = 90, 32
LEAST_SHARED_MEMORY = 163 << 10
"""Bytes that a program may have on an A100; Hopper has 227 kB."""
FLOAT32 = ("shared", "slopes", "bias_self", "bias_cross", "lse", "delta", "partial", "dkeys")
WIDTH = 40
"""No two sides of a program's tiles are then equal: a variable of two shapes is found."""


def test_kernels_compile_in_bfloat16_and_fit() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve())]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    used = json.loads(found.stdout)
    assert len(used) == 4 and max(used.values()) <= LEAST_SHARED_MEMORY


def test_heads_take_two_powers_of_two_where_these_are_less_than_one() -> None:
    assert {width: tiles(width, 2)[:2] for width in (1, 16, 40, 56, 64, 72, 84, 128, 200)} == {
        1: (16, 0),
        16: (16, 0),
        40: (32, 16),
        56: (64, 0),
        64: (64, 0),
        72: (64, 16),
        84: (64, 32),
        128: (128, 0),
        200: (256, 0),
    }
    for width, size, own_keys in itertools.product((1, 33, 72, 129, 256), (2, 4, 8), (False, True)):
        plan = tiles(width, size, own_keys)
        assert width <= plan.block + plan.tail and min(plan.own, plan.other, plan.block) >= LEAST
        assert plan.own * (plan.block + plan.tail) * size <= ROW_BYTES or plan.own == LEAST
        assert all(number & (number - 1) == 0 for number in plan[:5])


def shared_memory() -> dict[str, int]:
    """Bytes that each kernel takes, compiled for a Hopper GPU, with the score that heads share."""
    from paper_repro.kernels.tied_attention import programs

    kernels = programs.forward, programs.to_queries, programs.to_keys, programs.over_heads
    return {kernel.fn.__name__: _compiled(kernel, kernel is programs.to_keys) for kernel in kernels}


def _compiled(kernel: Any, own_keys: bool) -> int:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    plan = tiles(WIDTH, 2, own_keys)._replace(other=128)
    assert len({plan.own, plan.other, plan.block, plan.tail}) == 4
    rows, columns = (plan.other, plan.own) if own_keys else (plan.own, plan.other)
    constants = {
        "INVERSE_TAU": 0.125,
        "WIDE": tl.float32,
        "DOT": tl.bfloat16,
        "PRECISION": "ieee",
        "SHARED": True,
        "Y": WIDTH,
        "BLOCK": plan.block,
        "TAIL": plan.tail,
        "ROWS": rows,
        "COLUMNS": columns,
    }
    types = {name: "*fp32" if name in FLOAT32 else "*bf16" for name in kernel.arg_names}
    types |= {"tokens": "i32", "heads": "i32"} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, types, constants)
    target, options = GPUTarget("cuda", HOPPER, WARP), {"num_warps": plan.warps, "num_stages": plan.stages}
    return int(triton.compile(source, target=target, options=options).metadata.shared)


if __name__ == "__main__":
    print(json.dumps(shared_memory()))

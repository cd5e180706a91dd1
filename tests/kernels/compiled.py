"""Records every launch that the ops declare, and compiles some for a GPU; prints both as JSON.

Triton decides when it is imported whether it interprets: tests, which do, start this file as a process of its own.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
import triton

from paper_repro.base.command_line import ROOT
from paper_repro.kernels.energy_attention.fused import energy_attention
from paper_repro.kernels.self_slot_attention import fused
from paper_repro.kernels.self_slot_attention.curvature import fused as curvature
from paper_repro.kernels.self_slot_attention.second_order import Cotangents, Observed, OwnRows
from paper_repro.kernels.static.gpus import GPU, GPUS, H100
from paper_repro.kernels.static.launches import compiled, record
from paper_repro.kernels.static.shapes import Launch, Op, Shape, declared, meta, tf32
from paper_repro.kernels.tied_attention import fused as tied_fused
from paper_repro.kernels.tied_attention.reference import Positions
from paper_repro.kernels.tied_attention.tiles import tiles

sys.path.insert(0, str(ROOT / "scripts" / "benches"))

import kernels_static


def _curved(key_width: int, value_width: int, dtype: torch.dtype, lead: int) -> None:
    """Launch all passes of EBT's attention with every option."""
    tokens = 50
    rows, columns = (1, 2, tokens), (1, 2, tokens + lead)
    query, out = meta(*rows, key_width, dtype=dtype), meta(*rows, value_width, dtype=dtype)  # (B, H, T, Y or Z)
    given = Observed(query, meta(*columns, key_width, dtype=dtype), meta(*columns, value_width, dtype=dtype), lead, 0.1)
    along = Cotangents(query, given.keys, given.values)
    number = meta(*rows, 1)
    with tf32():
        fused.forward(given)
        fused.gradient(given, out, number, number, (True, True, True))
        curvature.curvature(given, out, number, number, along, OwnRows(*[number] * 4), (True,) * 4)


def _beyond_128_tokens(rounded: bool) -> None:
    with tf32(rounded):
        energy_attention(meta(1, 2, 150, 100), meta(1, 2, 150, 100), 0.25, None)


def _shared_by_heads() -> None:
    """Launch CEM's attention with tiles of which no two sides are equal."""
    query, state = meta(2, 50, 6, 40, dtype=torch.bfloat16), meta(2, 50, 240, dtype=torch.bfloat16)  # (B, T, H, Y)
    lse, number = meta(2, 50, 6), meta()
    with mock.patch.object(tied_fused, "tiles", lambda *given: tiles(*given)._replace(other=128)):
        attention = tied_fused.Attention(query, state, Positions(meta(6), number, number), 8.0)
        attention.backward(query, query, state, lse)


ODD = (
    Shape("all options", "Y=20, Z=40, bfloat16", partial(_curved, 20, 40, torch.bfloat16, 1)),
    Shape("all options", "Y=Z=128, TF32", partial(_curved, 128, 128, torch.float32, 0)),
    Shape("with a tail", "Y=40, bfloat16", _shared_by_heads),
    Shape("beyond 128 tokens", "Y=100, TF32", partial(_beyond_128_tokens, True)),
    Shape("beyond 128 tokens", "Y=100, float32", partial(_beyond_128_tokens, False)),
)
"""What no paper has: no two sides of a tile are equal, so that a variable of two shapes is found; the widest heads."""


def _launches() -> Iterator[tuple[Op, Shape, GPU, Launch]]:
    for op in declared().values():
        for shape in op.shapes:
            for gpu in GPUS:
                yield from ((op, shape, gpu, launch) for launch in record(shape, gpu))


def _chosen(shape: Shape, gpu: GPU, launch: Launch) -> dict[str, Any]:
    """What the launching code has chosen, by the names of the bench's rows."""
    named = {"kernel": launch.kernel, "model": shape.model, "size": shape.size, "gpu": gpu.name}
    options = {name.removeprefix("num_"): value for name, value in launch.options.items()}
    return {**named, "tile": launch.tile, "programs": launch.programs, **options}


def main() -> None:
    launches = list(_launches())
    smallest: dict[str, tuple[Op, Shape, GPU, Launch]] = {}
    for op, shape, gpu, launch in launches:
        known = smallest.get(launch.kernel)
        less = known is None or op.work(launch).elements < op.work(known[-1]).elements
        if gpu is H100 and less:
            smallest[launch.kernel] = op, shape, gpu, launch
    rows = [kernels_static.row(op, shape, launch, gpu) for op, shape, gpu, launch in smallest.values()]
    odd = [compiled(launch, H100) for shape in ODD for launch in record(shape, H100)]
    result = {
        "triton": triton.__version__,
        "launches": [_chosen(*launch) for _, *launch in launches],
        "smallest": [row.record() for row in rows],
        "lines": [row.line() for row in rows],
        "odd": [dataclasses.asdict(program) for program in odd],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

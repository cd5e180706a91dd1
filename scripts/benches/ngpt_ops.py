"""nGPT's three element-wise operations, forward and backward, against their definitions, eager and compiled."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from side_by_side import Comparison, largest_error, timed, with_gradients
from torch import Tensor

from paper_repro.kernels.qk_rotary import rotate_queries_and_keys
from paper_repro.kernels.scaled_swiglu import scaled_swiglu, scaled_swiglu_of_product
from paper_repro.kernels.sphere_step import sphere_step
from paper_repro.models.common import textbook_tables

REPETITIONS = 10
Op = Callable[..., Tensor | tuple[Tensor, Tensor]]


class Case(NamedTuple):
    """An operation of tensors, all of which get gradients; it is called with them and ``implementation``."""

    name: str
    op: Op
    tensors: list[Tensor]


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare 4,096 tokens in float32 on a CPU; on a GPU tokens of the 0.5B model in bf16, its state in float32:
    16,384, where the launch of an operation takes longer than the operation, and 131,072, where it does not.
    """
    cpu = device.type == "cpu"
    on_cpu = [(4096, 256, 64, torch.float32), (4096, 512, 64, torch.float32)]
    on_gpu = [(16384, 1024, 64, torch.bfloat16), (131072, 1024, 64, torch.bfloat16)]
    for tokens, width, head, dtype in on_cpu if cpu else on_gpu:
        for case in _cases(tokens, width, head, dtype, device):
            yield _against(case, "eager definition", _by(case, "reference"), None if cpu else 4.0, device)
            if not cpu:
                yield _against(case, "compiled definition", torch.compile(_by(case, "reference")), 1.2, device)


def _cases(tokens: int, width: int, head: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    def ones(*shape: int) -> Tensor:
        return 1 + 0.1 * drawn(*shape)

    shape, hidden, window = f"{tokens} tokens, D={width}", 4 * width, tokens // 4
    states = [drawn(tokens, width), drawn(tokens, width, dtype=dtype)]
    yield Case(f"residual step, {shape}", sphere_step, [*states, drawn(width)])
    tables = textbook_tables(window, head)
    tables = type(tables)(*(table.to(device) for table in tables))

    def turned(query: Tensor, key: Tensor, scale: Tensor, implementation: str) -> tuple[Tensor, Tensor]:
        return rotate_queries_and_keys(query, key, tables, scale, True, implementation)

    pair = [drawn(4, window, width // head, head, dtype=dtype) for _ in range(2)]
    yield Case(f"queries and keys, {shape}", turned, [*pair, ones(width // head, head)])
    scales = [ones(hidden), ones(hidden) * width**0.5]
    if device.type != "cpu":
        yield Case(f"scaled SwiGLU, {shape}", scaled_swiglu, [drawn(tokens, 2 * hidden, dtype=dtype), *scales])
        return
    given = [drawn(tokens, width, dtype=dtype), drawn(2 * hidden, width, dtype=dtype) / width**0.5, *scales]
    yield Case(f"product and scaled SwiGLU, {shape}", scaled_swiglu_of_product, given)  # the scales are folded into it


def _by(case: Case, implementation: str) -> Callable[..., tuple[Tensor, ...]]:
    def op(*tensors: Tensor) -> tuple[Tensor, ...]:
        found = case.op(*tensors, implementation=implementation)
        return (found,) if isinstance(found, Tensor) else found

    return op


def _against(
    case: Case, label: str, other: Callable[..., tuple[Tensor, ...]], goal: float | None, device: torch.device
) -> Comparison:
    leaves = [tensor.requires_grad_() for tensor in case.tensors]
    auto = _by(case, "auto")
    ours, theirs = with_gradients(lambda: auto(*leaves), leaves), with_gradients(lambda: other(*leaves), leaves)
    error = largest_error(ours(), theirs())
    sides = "ms forward and backward", ours, theirs, label
    return timed(case.name, *sides, device, calls=REPETITIONS, error=error, goal=goal)

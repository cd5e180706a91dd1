"""nGPT's three element-wise operations, forward and backward, against their definitions, eager and compiled.

GB/s counts what has to be moved once: inputs, outputs and their gradients, and the inputs again for the way back; what
an implementation moves besides makes it slower, not faster.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from side_by_side import Comparison, largest_error, timed, with_gradients
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.qk_rotary import rotate_queries_and_keys
from paper_repro.kernels.scaled_swiglu import scaled_swiglu, scaled_swiglu_of_product
from paper_repro.kernels.scaled_swiglu.op import folded
from paper_repro.kernels.sphere_step import sphere_step
from paper_repro.models.common import textbook_tables

REPETITIONS = 10
Op = Callable[..., Tensor | tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Case:
    """An operation of large tensors and small ones (rates, scales), all of which get gradients."""

    name: str
    op: Op
    """Called with all tensors and ``implementation``."""
    large: list[Tensor]
    small: list[Tensor]

    def moved(self, outputs: Sequence[Tensor]) -> int:
        """Count bytes: inputs in, outputs out; then their gradients and the inputs in, the inputs' gradients out."""
        inputs, written = (sum(x.numel() * x.element_size() for x in side) for side in (self.large, outputs))
        return 3 * inputs + 2 * written


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
        case = _with_matrix(tokens, width, dtype, device)
        label, other = (
            ("eager definition", _by(case, "reference")) if cpu else ("scales folded into the matrix", _folded)
        )
        yield _against(case, label, other, None, device)


def _cases(tokens: int, width: int, head: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    def ones(*shape: int) -> Tensor:
        return 1 + 0.1 * drawn(*shape)

    shape, hidden, window = f"{tokens} tokens, D={width}", 4 * width, tokens // 4
    states = [drawn(tokens, width), drawn(tokens, width, dtype=dtype)]
    yield Case(f"residual step, {shape}", sphere_step, states, [drawn(width)])
    tables = textbook_tables(window, head)
    tables = type(tables)(*(table.to(device) for table in tables))

    def turned(query: Tensor, key: Tensor, scale: Tensor, implementation: str) -> tuple[Tensor, Tensor]:
        return rotate_queries_and_keys(query, key, tables, scale, True, implementation)

    pair = [drawn(4, window, width // head, head, dtype=dtype) for _ in range(2)]
    yield Case(f"queries and keys, {shape}", turned, pair, [ones(width // head, head)])
    if device.type != "cpu":  # a CPU folds the scales, see _with_matrix
        scales = [ones(hidden), ones(hidden) * width**0.5]
        yield Case(f"scaled SwiGLU, {shape}", scaled_swiglu, [drawn(tokens, 2 * hidden, dtype=dtype)], scales)


def _with_matrix(tokens: int, width: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Compute scaled SwiGLU behind the product that its scales could be folded into."""
    generator = torch.Generator(device).manual_seed(0)
    hidden = 4 * width
    shapes = [(tokens, width), (2 * hidden, width)]
    x, weight = (torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes)
    scales = [torch.full((hidden,), value, device=device, dtype=dtype) for value in (1.1, 0.9)]

    name = f"product and scaled SwiGLU, {tokens} tokens, D={width}"
    return Case(name, scaled_swiglu_of_product, [x, weight / width**0.5], scales)


def _folded(x: Tensor, weight: Tensor, scale_u: Tensor, scale_nu: Tensor) -> tuple[Tensor, ...]:
    return (scaled_swiglu(functional.linear(x, folded(weight, scale_u, scale_nu)), implementation="reference"),)


def _by(case: Case, implementation: str) -> Callable[..., tuple[Tensor, ...]]:
    def op(*tensors: Tensor) -> tuple[Tensor, ...]:
        found = case.op(*tensors, implementation=implementation)
        return (found,) if isinstance(found, Tensor) else found

    return op


def _against(
    case: Case, label: str, other: Callable[..., tuple[Tensor, ...]], goal: float | None, device: torch.device
) -> Comparison:
    leaves = [tensor.requires_grad_() for tensor in (*case.large, *case.small)]
    auto = _by(case, "auto")
    ours, theirs = with_gradients(lambda: auto(*leaves), leaves), with_gradients(lambda: other(*leaves), leaves)
    found = list(ours())
    error, moved = largest_error(found, theirs()), case.moved(found[: -len(leaves)])
    sides = "ms forward and backward", ours, theirs, label
    return timed(case.name, *sides, device, calls=REPETITIONS, error=error, goal=goal, moved=moved)

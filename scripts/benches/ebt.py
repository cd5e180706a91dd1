"""EBT: a training step of it against one of its baseline, and a Hessian-vector product through attention."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from paper_repro.base.configs import compose
from paper_repro.kernels.causal_attention import causal_attention
from paper_repro.kernels.dispatch import differentiable
from paper_repro.kernels.preferences import prefer
from paper_repro.kernels.self_slot_attention import self_slot_attention
from paper_repro.scripts.side_by_side import MIB, Comparison, Work, check_on_gpu, normal, relative_error, timed
from paper_repro.training import step_time
from paper_repro.training.counting import count_flops, peak_bytes
from paper_repro.training.step_time import Stepper, StepSettings, build_stepper, each_model


class Pair:
    """EBT and Transformer++ of one config, with their optimisers: rows of the time, memory and products of a step.

    The products say how much longer a step has to take at the least.  The two models have no result in common: the
    error is that of EBT's gradients.
    """

    def __init__(self, config: Mapping[str, Any], device: torch.device) -> None:
        self.config, self.device = config, device
        self.ours, self.theirs = self.built(device)

    def built(self, device: torch.device) -> list[Stepper]:
        step, models = StepSettings(**self.config["step"]), each_model(self.config)
        return [build_stepper(models[name], step, device) for name in ("own", "baseline")]

    def times(self, case: str, error: float = 0.0, goal: float | None = None) -> Comparison:
        with prefer(implementation="auto"):
            return timed(case, "ms per step", self.ours.step, self.theirs.step, OTHER, error=error, goal=goal)

    def rows(
        self, case: str, error: float = 0.0, goal: float | None = None, memory_goal: float | None = None
    ) -> Iterator[Comparison]:
        """Yield the time of a step, the memory that it adds, and its matrix products."""
        yield self.times(case, error, goal)
        with prefer(implementation="auto"):
            ours, theirs = ([step_time.added_memory(own, self.device) / MIB] for own in (self.ours, self.theirs))
        yield Comparison(case, "MiB that a step adds", ours, theirs, OTHER, goal=memory_goal)
        with prefer(implementation="reference"):
            ours, theirs = ([count_flops(own.gradients) / 1e9] for own in self.built(torch.device("meta")))
        yield Comparison(case, "GFLOPs of matrix products per step", ours, theirs, OTHER)

    def gradients(self) -> list[Tensor]:
        """Return EBT's gradients of a first batch, and forget them."""
        fresh, _ = self.built(self.device)
        with prefer(implementation="auto"):
            fresh.gradients()
        return [parameter.grad for parameter in fresh.parameters if parameter.grad is not None]


OTHER = "Transformer++"
TEXT = "model.width model.num_heads model.num_layers model.vocabulary_size data.window step.batch_size model.step_size"
ON_CPU, ON_GPU = (384, 6, 6, 2048, 128, 4, 5.0), (384, 6, 6, 50277, 256, 32, 500.0)
"""What is trained: D, H, L, V, T, B, and the first step size, which goes with V."""
CASES: tuple[tuple[str, int, float, float | None], ...] = (
    ("default", 1, 3.2, 4.3),
    ("default", 2, 5.5, 6.7),
    ("time_embed", 1, 3.5, None),
    ("time_embed", 2, 6.5, None),
)
"""A variant of EBT, its inner steps, and how much more time and memory than Transformer++'s its step may take."""


def ebt_step(device: torch.device) -> Iterator[Comparison]:
    """Compare a step of EBT at XXS, in both forms of its streams and compiled, with one of Transformer++.

    The steps are those of the artifact ebt/tableD5.  The relative error is that of EBT's gradients by the streams of
    the row, against those by concatenated streams, the published form.
    """
    sizes = ON_CPU if device.type == "cpu" else ON_GPU
    width, _, layers, vocabulary, window, batch, _ = sizes
    size = f"D={width}, {layers} layers, V={vocabulary}, {batch} sequences of {window}"
    for variant, count, most_time, most_memory in CASES:
        case = f"EBT {variant}, {count} step{'s' if count > 1 else ''}"
        pair = partial(_pair, sizes, variant, count, device)
        split, both = pair(), pair("+model.streams=concatenated")
        error, memory_goal = relative_error(split.gradients(), both.gradients()), most_memory and 1 / most_memory
        yield from split.rows(f"{case}, split streams, {size}", error, 1 / most_time, memory_goal)
        yield from both.rows(f"{case}, concatenated streams, {size}")
        del both
        if variant == "default":
            compiled = pair("step.compile=true")
            error = relative_error(compiled.gradients(), split.gradients())
            yield compiled.times(f"{case}, split streams, both compiled, {size}", error)


def _pair(sizes: Sequence[float], variant: str, count: int, device: torch.device, *ways: str) -> Pair:
    words = [f"{key}={value}" for key, value in zip(TEXT.split(), sizes, strict=True)]
    words += [f"model.variant={variant}", f"module.thinking.num_steps={count}"]
    words.append(f"model.num_landscapes={1 if variant == 'default' else count}")
    return Pair(compose("ebt/stepcost", ["model=ebt/s1", *words, *ways], seed=0), device)


def attn_hvp(device: torch.device) -> Iterator[Comparison]:
    """Compare bytes by tokens and times of a Hessian-vector product through attention: a forward pass, its gradient by
    what belongs to the rows, and the gradient of that by everything.

    The observed keys and values are captured, as in EBT.  Our side, a Triton kernel, never holds T x T scores, so its
    bytes per token stay the same from 512 to 2,048 tokens.  The other side is autograd: of the definition with a column
    of one's own, and of torch's "math" backend of scaled_dot_product_attention, the only one that can be differentiated
    twice, without.
    """
    check_on_gpu(device)
    own, definition = (partial(self_slot_attention, implementation=one) for one in ("fused", "reference"))
    pairs: list[tuple[Callable[..., Tensor], Callable[..., Tensor], int, int, str]] = [
        (own, definition, 3, 5, "definition, with an own column"),
        (_causal, _math, 1, 3, "math backend, causal"),
    ]
    training = (4, 6, 128, 64)  # B sequences, H heads, T tokens, Y channels of EBT's training step at D = 384
    long = [(1, 4, tokens, 64) for tokens in (512, 1024, 2048)]
    for kind, size in [*(("bytes", size) for size in long), *(("times", size) for size in (training, *long))]:
        sequences, heads, tokens, width = size
        case = f"{sequences} x {tokens} tokens, H={heads}, Y={width}"
        for ours, theirs, rows, inputs, other in pairs:
            one, two = (_product(size, device, attend, rows, inputs) for attend in (ours, theirs))
            error = relative_error(one(), two())
            if kind == "times":
                yield timed(case, "ms", one, two, other, error=error)
            else:
                found, expected = ([peak_bytes(product) / 2**10 / tokens] for product in (one, two))
                yield Comparison(case, "KiB per token at the peak", found, expected, other, error)


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with differentiable(order=2):
        return causal_attention(query, key, value, implementation="fused")


def _math(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, is_causal=True)


def _product(
    size: Sequence[int], device: torch.device, attend: Callable[..., Tensor], num_rows: int, num_inputs: int
) -> Work:
    """Return what computes the product, as gradients by all inputs (B, H, T, Y), of which the first belong to the
    rows.
    """
    draw = normal(device)
    leaves, along = ([draw(size) for _ in range(num_inputs)] for _ in range(2))
    for leaf in leaves:
        leaf.requires_grad_()

    def work() -> list[Tensor]:
        rows, captured = tuple(leaves[:num_rows]), leaves[num_rows:]
        first = torch.func.grad(lambda given: attend(*given, *captured).square().sum())(rows)
        return list(torch.autograd.grad(first, leaves, along[:num_rows]))

    return work

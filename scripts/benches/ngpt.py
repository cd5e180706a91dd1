"""nGPT: its three element-wise operations, the cross entropy of its scaled logits, its optimiser and its whole step."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer

from paper_repro.base.configs import compose
from paper_repro.kernels.linear_ce import linear_cross_entropy
from paper_repro.kernels.preferences import prefer
from paper_repro.kernels.qk_rotary import rotate
from paper_repro.kernels.scaled_swiglu import scaled_swiglu
from paper_repro.kernels.sphere_step import sphere_step
from paper_repro.models.common import textbook_tables
from paper_repro.scripts.side_by_side import (
    Comparison,
    Work,
    added_memory,
    in_child,
    normal,
    relative_error,
    timed,
    with_gradients,
)
from paper_repro.training.counting import count_flops
from paper_repro.training.optim import UnitAdamW, keep_unit_rows
from paper_repro.training.step_time import Stepper, StepSettings, build_stepper

Op = Callable[..., Tensor | tuple[Tensor, Tensor]]


def ngpt_ops(device: torch.device) -> Iterator[Comparison]:
    """Compare each operation, forward and backward, with its definition, eager and compiled: 4,096 tokens in float32 on
    a CPU; on a GPU tokens of the 0.5B model in bf16, its state in float32: 16,384, where the launch of an operation
    takes longer than the operation, and 131,072, where it does not.
    """
    cpu = device.type == "cpu"
    for tokens, width in [(4096, 256), (4096, 512)] if cpu else [(16384, 1024), (131072, 1024)]:
        for name, op, tensors in _operations(tokens, width, torch.float32 if cpu else torch.bfloat16, device):
            leaves = [tensor.requires_grad_() for tensor in tensors]
            plain = partial(op, implementation="reference")
            others: list[tuple[str, Op, float | None]] = [("eager definition", plain, None if cpu else 4.0)]
            if not cpu:
                others.append(("compiled definition", torch.compile(plain), 1.2))
            for other, definition, goal in others:
                ours, theirs = (with_gradients(partial(one, *leaves), leaves) for one in (op, definition))
                case = f"{name}, {tokens} tokens, D={width}"
                yield timed(case, "ms forward and backward", ours, theirs, other, calls=10, goal=goal)


def _operations(
    tokens: int, width: int, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[str, Op, list[Tensor]]]:
    """Yield a name, an operation that takes ``implementation``, too, and its tensors, all of which get gradients."""
    draw, hidden, window, head = normal(device), 4 * width, tokens // 4, 64
    yield "residual step", sphere_step, [draw(tokens, width), draw(tokens, width).to(dtype), draw(width)]
    tables = textbook_tables(window, head)
    tables = type(tables)(*(table.to(device) for table in tables))

    def turned(query: Tensor, key: Tensor, scale: Tensor, implementation: str = "auto") -> tuple[Tensor, Tensor]:
        return rotate(query, tables, scale, True, implementation), rotate(key, tables, scale, True, implementation)

    pair = [draw(4, window, width // head, head).to(dtype) for _ in range(2)]
    yield "queries and keys", turned, [*pair, 1 + 0.1 * draw(width // head, head)]
    scales = [1 + 0.1 * draw(hidden), (1 + 0.1 * draw(hidden)) * width**0.5]
    yield "scaled SwiGLU", scaled_swiglu, [draw(tokens, 2 * hidden).to(dtype), *scales]


def linear_ce(device: torch.device) -> Iterator[Comparison]:
    """Compare the cross entropy of scaled logits, forward and backward, a piece at a time with all logits at once:
    memory, then time, for each vocabulary, because a child's peak begins at that of the process that starts it.

    The memory is what one forward and backward pass adds, on a CPU to a process of its own.
    """
    cpu = device.type == "cpu"
    size = (4096, 256, torch.float32) if cpu else (16384, 1024, torch.bfloat16)
    tokens, width, dtype = size
    other = "cross_entropy(linear(h, weight) * scale)"
    cases = {
        vocabulary: f"{tokens} tokens, D={width}, V={vocabulary}, {str(dtype).removeprefix('torch.')}"
        for vocabulary in (32000, 50304)
    }
    for vocabulary, case in cases.items():
        ours, theirs = (
            [in_child(_added, loss, *size, vocabulary, device) if cpu else _added(loss, *size, vocabulary, device)]
            for loss in (linear_cross_entropy, _whole)
        )
        yield Comparison(f"{case}: memory beside the inputs", "MiB at the peak", ours, theirs, other, goal=4.0)
    for vocabulary, case in cases.items():
        inputs = _inputs(*size, vocabulary, device)
        one, two = (_pass(loss, inputs) for loss in (linear_cross_entropy, _whole))
        calls, goal = (1, 1 / 1.1) if cpu else (5, 1 / 1.05)
        yield timed(case, "ms", one, two, other, calls=calls, goal=goal, flops=count_flops(two))


def _inputs(tokens: int, width: int, dtype: torch.dtype, vocabulary: int, device: torch.device) -> list[Tensor]:
    """Draw h and weight with unit rows, scale near 60 as after training (nGPT, table 4), 1 % of the targets ignored."""
    draw = normal(device)
    rows = [draw(count, width) for count in (tokens, vocabulary)]
    for value in rows:
        value.div_(torch.linalg.vector_norm(value, dim=-1, keepdim=True))  # in place: no copy raises the peak
    scale = 60 + draw(vocabulary)
    targets = torch.randint(vocabulary, (tokens,), device=device)
    targets[::100] = -100
    return [*(value.to(dtype).requires_grad_() for value in rows), targets, scale.requires_grad_()]


def _whole(h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(h, weight) * scale, targets)


def _pass(loss: Callable[..., Tensor], inputs: list[Tensor]) -> Work:
    return with_gradients(lambda: loss(*inputs), [value for value in inputs if value.requires_grad])


def _added(loss: Callable[..., Tensor], *given: Any) -> float:
    """Measure the MiB that a pass, its results included, adds to what holds the inputs."""
    return added_memory(_pass(loss, _inputs(*given)), given[-1])


NUMBERS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}


def ngpt_optim(device: torch.device) -> Iterator[Comparison]:
    """Compare a step of Adam that keeps rows at unit norm with torch's fused AdamW alone: nGPT's 0.5B on a GPU, two
    small ones on a CPU.

    The goal is a ratio to what does less: 1.05 times its time on a GPU, 1.2 times on a CPU.  The relative error is that
    of the parameters after a step, against AdamW that is not fused and a projection.
    """
    cpu = device.type == "cpu"
    goal, steps = (1 / 1.2, 5) if cpu else (1 / 1.05, 20)
    for width, layers, vocabulary in [(256, 4, 4096), (512, 6, 4096)] if cpu else [(1024, 24, 32000)]:
        ours, alone, loop = (_parameters(width, layers, vocabulary, device) for _ in range(3))
        step, plain = UnitAdamW(ours, **NUMBERS), AdamW(alone, fused=True, **NUMBERS)
        slow = AdamW(loop, fused=False, **NUMBERS)
        for optimizer in (step, slow):
            keep_unit_rows(optimizer)
            optimizer.step()
        error = relative_error(_tensors(step), _tensors(slow))
        case = f"{sum(tensor.numel() for tensor in _tensors(step)) / 1e6:.1f}M parameters, D={width}, {layers} layers"
        sides = step.step, plain.step, "fused AdamW alone"
        yield timed(case, "ms per step", *sides, calls=steps, error=error, goal=goal)


def _parameters(width: int, layers: int, vocabulary: int, device: torch.device) -> list[dict[str, object]]:
    """Build the groups of an nGPT: per layer seven matrices and five scale vectors; two tables, and the scale of
    logits.
    """
    draw, hidden = normal(device), 4 * width
    rows = layers * ([width] * 4 + [hidden] * 3) + [vocabulary] * 2
    matrices = [nn.Parameter(draw(count, width) * width**-0.5) for count in rows]
    vectors = [nn.Parameter(draw(count)) for count in layers * ([width] * 3 + [hidden] * 2) + [vocabulary]]
    for parameter in (*matrices, *vectors):
        parameter.grad = draw(parameter.shape) * 1e-3
    return [{"params": matrices, "unit_rows": True}, {"params": vectors}]


def _tensors(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


PLAIN = ("machine.implementation=reference", "optimizer._target_=torch.optim.AdamW")
WAYS = {
    "fused": ("machine.implementation=auto",),
    "not fused": PLAIN,
    "torch.compile": (*PLAIN, "step.compile=true"),
}


Sizes = dict[str, Any]
ON_CPU: Sizes = {"size.num_layers": 4, "size.vocabulary_size": 2048, "step.window": 1024, "step.batch_size": 2}
ON_GPU: Sizes = {"size.num_layers": 24, "size.vocabulary_size": 32000, "step.window": 4096, "step.batch_size": 4}
ON_GPU["step.precision"] = "bf16-mixed"


def ngpt_step(device: torch.device) -> Iterator[Comparison]:
    """Compare a training step of nGPT with one of GPT, and what fused operations and torch.compile make of it: two
    small models on a CPU; the paper's 0.5B at 4k context on a GPU.

    The steps are those of the artifact ngpt/steptime.  Where two models are compared they have no result in common: the
    relative error is that of nGPT's gradients by the operations of the row, against those by the definitions.
    """
    cpu = device.type == "cpu"
    pairs = [("fused", "gpt", "fused"), ("not fused", "gpt", "not fused"), ("fused", "ngpt", "not fused")]
    if not cpu:
        pairs += [("torch.compile", "gpt", "torch.compile"), ("fused", "ngpt", "torch.compile")]
    own = ON_CPU if cpu else ON_GPU
    for width, heads in ((256, 4), (512, 8)) if cpu else ((1024, 16),):
        size = {**own, "size.width": width, "size.num_heads": heads}
        exact = _gradients(size, "not fused", device)
        for way, other, other_way in pairs:
            error = relative_error(_gradients(size, way, device), exact)
            fused = way == other_way == "fused"
            batch = own["step.batch_size"] // (1 if cpu or fused else 2)  # half for two models that keep more
            run = {**size, "step.batch_size": batch}
            ours, theirs = _work(run, "ngpt", way, device), _work(run, other, other_way, device)
            case = f"nGPT {way}, D={width}, {own['size.num_layers']} layers, {batch} windows of {own['step.window']}"
            label = f"{'GPT' if other == 'gpt' else 'nGPT'} {other_way}"
            goal = 1 / (1.15 if cpu else 1.05) if fused else None
            yield timed(case, "ms per step", ours, theirs, label, error=error, goal=goal)
            del ours, theirs


def _built(size: Sizes, model: str, way: str, device: torch.device) -> tuple[Stepper, str]:
    """Return the stepper of a model, and the implementation of the operations that its config asks for."""
    words = ["step.accumulate=1", *(f"{key}={value}" for key, value in size.items()), *WAYS[way]]
    config: dict[str, Any] = compose("ngpt/steptime", words, seed=0)
    torch.manual_seed(0)
    stepper = build_stepper({**config, "model": config["models"][model]}, StepSettings(**config["step"]), device)
    return stepper, config["machine"]["implementation"]


def _work(size: Sizes, model: str, way: str, device: torch.device) -> Work:
    stepper, implementation = _built(size, model, way, device)

    def work() -> Tensor:
        with prefer(implementation=implementation):
            return stepper.step()

    return work


def _gradients(size: Sizes, way: str, device: torch.device) -> list[Tensor]:
    """Return the gradients of one batch at nGPT's first weights."""
    stepper, implementation = _built(size, "ngpt", way, device)
    with prefer(implementation=implementation):
        stepper.gradients()
    return [parameter.grad.float() for parameter in stepper.module.parameters() if parameter.grad is not None]

"""CET at the paper's size: a step of its relaxation, and the memory of a gradient."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.preferences import prefer
from paper_repro.models import cet
from paper_repro.models.cet import CET, CETClamped, CETState, PreparedSteps
from paper_repro.models.common import from_blocks, project
from paper_repro.scripts.side_by_side import Comparison, added_memory, in_child, relative_error, timed

GOALS = {"float32": 1.7, "bfloat16": 3.0}
MATMUL_GOAL = 0.5
"""Share of the speed of the same products of matrices with nothing beside them."""
CAPTURED_STEPS = 150


@torch.no_grad()
def cet_relax(device: torch.device) -> Iterator[Comparison]:
    """Compare a step in every precision that the device has: prepared steps with autograd of the energy with
    convolutions; on a GPU also with the products of matrices alone, and a whole relaxation as one CUDA graph.
    """
    cpu, unit = device.type == "cpu", "ms per step"
    for precision in ("float32", "bfloat16") if cpu else ("float32", "tf32", "bfloat16"):
        torch.manual_seed(0)
        model = CET(precision=precision).to(device)
        clamped = model.clamp(_images(4 if cpu else 64, device))
        first = model.first(clamped)
        state = model.relax(first, clamped, 3).state
        steps = PreparedSteps(model, state, clamped, 1.0)
        step, other = partial(_step, steps), AutogradSteps(model, state, clamped)
        step()
        other.step()
        error = relative_error([steps.state.z, model.patches.images(steps.state.y)], [other.z, other.image])
        rate: dict[str, Any] = {"calls": 2 if cpu else 50, "flops": _operations(model, state), "error": error}
        case, goal = f"the paper's size, batch {len(state.z)}, {precision}", GOALS.get(precision) if cpu else None
        yield timed(case, unit, step, other.step, "autograd of the energy, conv2d", goal=goal, **rate)
        if not cpu:
            products = _products(model, steps.weights, state.z)
            yield timed(case, unit, step, products, "its matrix products", goal=MATMUL_GOAL, **{**rate, "error": 0.0})
            ours, eager = (partial(_relaxed, model, first, clamped, graph) for graph in (True, False))
            case, error = f"{case}, {CAPTURED_STEPS} steps as one graph", relative_error(ours(), eager())
            yield timed(case, unit, ours, eager, "without a graph", units=CAPTURED_STEPS, error=error)


def _images(count: int, device: torch.device) -> Tensor:
    return torch.rand(count, 3, 120, 120, device=device) * 2 - 1


def _step(steps: PreparedSteps) -> None:
    steps(steps.state, 0)


def _operations(model: CET, state: CETState) -> float:
    """Count the operations of a step: two for each of the 1,113 million multiply-adds of an image."""
    images, tokens, width = state.z.shape
    rows = 2 * len(model.attention.query) + len(model.memory.weight) + model.patches.numbers
    return 2.0 * images * tokens * (2 * rows * width + 3 * tokens * len(model.attention.query))


def _products(model: CET, weights: Tensor, z: Tensor) -> Callable[[], None]:
    """Return what computes products of matrices of the same sizes and nothing else."""
    z = z.flatten(0, 1).to(weights.dtype)
    rows = z.new_empty(len(z), len(weights))

    def work() -> None:
        with cet.products(model.precision, z.device):
            torch.mm(z, weights.mT, out=rows)
            torch.mm(rows, weights)

    return work


def _relaxed(model: CET, first: CETState, clamped: CETClamped, cuda_graph: bool) -> CETState:
    with prefer(cuda_graph=cuda_graph):
        return model.relax(first, clamped, CAPTURED_STEPS).state


class AutogradSteps:
    """Steps of size 1 down the gradient that autograd finds, with the image as pixels."""

    def __init__(self, model: CET, state: CETState, clamped: CETClamped) -> None:
        self.model, self.clamped = model, clamped
        blocks = model.decoder.weight.detach().unflatten(1, (model.patches.reach, model.patches.reach, -1))
        self.kernel = from_blocks(blocks, model.patches.stride)  # (D, C, p, p)
        self.z, self.image = state.z.clone(), model.patches.images(state.y)

    def step(self) -> None:
        leaves = self.z.requires_grad_(), self.image.requires_grad_()
        with torch.enable_grad():
            by_z, by_image = torch.autograd.grad(self._energy(*leaves), leaves)
        self.z, self.image = project(self.z.detach() - by_z), self.image.detach() - by_image

    def _energy(self, z: Tensor, image: Tensor) -> Tensor:
        """Return the energy of all images together; only z and y are differentiated."""
        model, attention = self.model, self.model.attention
        seen = functional.conv2d(image, self.kernel, stride=model.patches.stride).flatten(2).mT
        hidden = torch.relu(z @ model.memory.weight.detach().mT)
        heads = (
            (z @ weight.detach().mT).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
            for weight in (attention.query, attention.key)
        )
        scores = attention.gamma * next(heads) @ next(heads).mT
        linear = z * (z / 2 - self.clamped.drive - model.position.bias.detach() - seen)
        own = image.square().sum() / 2 - (model.decoder.bias.detach().view(-1, 1, 1) * image).sum()
        return linear.sum() + own - hidden.square().sum() - torch.logsumexp(scores, -1).sum() / attention.gamma


LEAST_RATIO = 1 / 0.4
SAME = 0.98
"""Where nothing should change: an allocator's pages."""
HEAP = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""A buffer that is given back goes back to the system at once: the peak counts no holes in the heap."""


def cet_memory(device: torch.device) -> Iterator[Comparison]:
    """Compare the peak memory of a gradient, on a CPU in a process of its own: Equilibrium Propagation with
    backpropagation (TBPTE), then EP of more steps with EP of few, on which it should not depend.
    """
    unit, size = "MiB at the peak", f"EP, the paper's size, batch {8 if device.type == 'cpu' else 64}"
    few, other = (_memory(method, device, 30, 5) for method in ("equilibrium_propagation", "truncated_backpropagation"))
    yield Comparison(f"{size}, T1=30, T2=5", unit, few, other, "TBPTE(5)", goal=LEAST_RATIO)
    for free, nudged in ((150, 5), (30, 20), (150, 20)):
        more = _memory("equilibrium_propagation", device, free, nudged)
        yield Comparison(f"{size}, T1={free}, T2={nudged}", unit, more, few, "EP with T1=30, T2=5", goal=SAME)


def _memory(method: str, device: torch.device, free_steps: int, nudged_steps: int) -> list[float]:
    given = method, device, free_steps, nudged_steps
    return [in_child(_added, *given, **HEAP) if device.type == "cpu" else _added(*given)]


def _added(method: str, device: torch.device, free_steps: int, nudged_steps: int) -> float:
    """Measure the added MiB, the gradients included."""
    torch.manual_seed(0)
    model = CET().to(device)
    learn = partial(_learn, model, _images(8 if device.type == "cpu" else 64, device), method)
    return added_memory(partial(learn, free_steps, nudged_steps), device, warm_up=partial(learn, 2, 2))


def _learn(model: CET, images: Tensor, method: str, free_steps: int, nudged_steps: int) -> None:
    masked = images.clone()
    masked[..., :60] = 0
    getattr(cet, method)(model, masked, images, cet.Phases(free_steps, nudged_steps))
    for parameter in model.parameters():
        parameter.grad = None

"""A relaxation step of CET at the paper's size: prepared steps against autograd of the energy with convolutions.

On a GPU also against the products of matrices alone, and a whole relaxation as one CUDA graph.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from side_by_side import Comparison, relative_error, timed
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.preferences import prefer
from paper_repro.models.cet import CET, CETClamped, CETState, PreparedSteps, RelaxationSettings, products
from paper_repro.models.common import from_blocks, project

BATCHES, CALLS = {"cpu": 4, "cuda": 64}, {"cpu": 2, "cuda": 50}
GOALS = {"float32": 1.7, "bfloat16": 3.0}
MATMUL_GOAL = 0.5
"""Share of the speed of the same products of matrices with nothing beside them."""
CAPTURED_STEPS = 150
AUTOGRAD = "autograd of the energy, conv2d"


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


@torch.no_grad()
def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare every precision that the device has."""
    cpu = device.type == "cpu"
    precisions = ("float32", "bfloat16") if cpu else ("float32", "tf32", "bfloat16")
    for precision in precisions:
        model, state, clamped = _start(precision, device)
        yield _against_autograd(model, state, clamped)
        if not cpu:
            yield _against_products(model, state, clamped)
            yield _graph(model, clamped)


def _start(precision: str, device: torch.device) -> tuple[CET, CETState, CETClamped]:
    """Draw random weights and a state that has relaxed for some steps."""
    torch.manual_seed(0)
    model = CET(precision=precision).to(device)
    images = torch.rand(BATCHES[device.type], 3, 120, 120, device=device) * 2 - 1
    clamped = model.clamp(images)
    return model, model.relax(model.first(clamped), clamped, 3).state, clamped


def _against_autograd(model: CET, state: CETState, clamped: CETClamped) -> Comparison:
    ours, step = _prepared(model, state, clamped)
    other = AutogradSteps(model, state, clamped)
    step()
    other.step()
    error = relative_error([ours.tokens, model.patches.images(ours.image)], [other.z, other.image])
    device = state.z.device
    goal = GOALS.get(model.precision) if device.type == "cpu" else None
    rate: dict[str, Any] = {"calls": CALLS[device.type], "flops": _operations(model, state), "error": error}
    return timed(_case(model, state), "ms per step", step, other.step, AUTOGRAD, device, goal=goal, **rate)


def _prepared(model: CET, state: CETState, clamped: CETClamped) -> tuple[PreparedSteps, Callable[[], Any]]:
    """Return our rule, and what takes a step with it from its last state."""
    rule = PreparedSteps(model, state, clamped, RelaxationSettings(1.0, None))
    return rule, lambda: rule(rule.state, 0, None)


def _against_products(model: CET, state: CETState, clamped: CETClamped) -> Comparison:
    """Compare with products of matrices of the same sizes and nothing else."""
    steps, step = _prepared(model, state, clamped)
    weights = steps.weights
    z = state.z.flatten(0, 1).to(weights.dtype)
    rows = z.new_empty(len(z), len(weights))

    def multiply() -> None:
        with products(model.precision, z.device):
            torch.mm(z, weights.mT, out=rows)
            torch.mm(rows, weights)

    rate: dict[str, Any] = {"calls": CALLS[z.device.type], "flops": _operations(model, state), "goal": MATMUL_GOAL}
    return timed(_case(model, state), "ms per step", step, multiply, "its matrix products", z.device, **rate)


def _graph(model: CET, clamped: CETClamped) -> Comparison:
    first = model.first(clamped)

    def relaxed(cuda_graph: bool) -> Callable[[], CETState]:
        def work() -> CETState:
            with prefer(cuda_graph=cuda_graph):
                return model.relax(first, clamped, CAPTURED_STEPS).state

        return work

    ours, other = relaxed(True), relaxed(False)
    error = relative_error(ours(), other())
    case, steps = f"{_case(model, first)}, {CAPTURED_STEPS} steps as one graph", CAPTURED_STEPS
    return timed(case, "ms per step", ours, other, "without a graph", first.z.device, units=steps, error=error)


def _operations(model: CET, state: CETState) -> float:
    """Count the operations of a step: two for each of the 1,113 million multiply-adds of an image."""
    images, tokens, width = state.z.shape
    rows = 2 * len(model.attention.query) + len(model.memory.weight) + model.patches.numbers
    return 2.0 * images * tokens * (2 * rows * width + 3 * tokens * len(model.attention.query))


def _case(model: CET, state: CETState) -> str:
    return f"the paper's size, batch {len(state.z)}, {model.precision}"

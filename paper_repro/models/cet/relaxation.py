"""How CET's state moves: step by step as the terms define it, or without gradients from weights laid out once.

Letters as in ``models.cet.energy``.  With W = [W_Q; W_K; sqrt(2) W_mem; W_dec^T], of 2 K R + M + P rows, a step down
the nudged energy is two products,

    H = z W^T,   t_z = drive + b_pos + G W,   G = [P K; P^T Q; relu(H_mem); patches of y],

and two passes over rows: z <- Proj(z + eps (t_z - z)), and y <- y + eps (t_y - y) with t_y folded out of H_dec.
"""

import contextlib
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from paper_repro.kernels.energy_attention import energy_attention
from paper_repro.kernels.projected_step import image_step, projected_step
from paper_repro.models.cet.energy import (
    CETAttention,
    CETClamped,
    CETDecoder,
    CETEncoder,
    CETMemory,
    CETPosition,
    CETState,
    CETTerm,
    at_once,
)

if TYPE_CHECKING:
    from paper_repro.models.cet.model import CET, CETNudge

PRECISIONS = ("float32", "tf32", "bfloat16")
GRAPHS = 8
"""Captured relaxations that are kept for a model; the one that was not used for longest goes."""
_TERMS = {
    "encoder": CETEncoder,
    "position": CETPosition,
    "memory": CETMemory,
    "attention": CETAttention,
    "decoder": CETDecoder,
}


class RelaxationSettings(NamedTuple):
    """What a relaxation does beside where it starts."""

    step_size: float
    nudge: "CETNudge | None"


class Steps(Protocol):
    """A state that moves."""

    @property
    def state(self) -> CETState:
        """Valid until the next step."""

    def step(self) -> None:
        """One step down."""

    def residual(self) -> Tensor:
        """max |state - state before| / eps of the last step, (B,): z and y together."""


class PlainSteps:
    """As the terms define them, differentiable."""

    def __init__(self, model: "CET", state: CETState, clamped: CETClamped, plan: RelaxationSettings) -> None:
        self.model, self.state, self.clamped, self.plan = model, state, clamped, plan
        self.before = state

    def step(self) -> None:
        self.before = self.state
        self.state = self.model.step(self.state, self.clamped, *self.plan)

    def residual(self) -> Tensor:
        changes = [(one - two).abs().flatten(1).amax(1) for one, two in zip(self.before, self.state, strict=True)]
        return torch.maximum(*changes) / self.plan.step_size


class PreparedSteps:
    """The same without gradients, from copies of weights and state; every step writes into the same buffers.

    On a CPU the images go through a step some at a time, so that H, far wider than the tokens, does not grow with the
    batch.  With bfloat16 products on CUDA the factors are rounded to it; sums, drive and state stay
    float32.
    """

    def __init__(self, model: "CET", state: CETState, clamped: CETClamped, plan: RelaxationSettings) -> None:
        attention, decoder = model.attention, model.decoder
        self.model, self.plan = model, plan
        self.wide = state.z.dtype
        parts = (attention.query, attention.key, math.sqrt(2) * model.memory.weight, decoder.weight.mT)
        self.weights = torch.cat(parts).to(factors(model.precision, state.z))
        self.biases = decoder.biases()
        self.tokens, self.image, self.last = map(_copy, (state.z, state.y, state.y))
        self.drive, self.nudge = clamped.drive, plan.nudge
        images, count, _ = state.z.shape
        together = at_once(state.z)
        self.hidden = self.weights.new_empty(together, count, len(self.weights))
        self.target = torch.empty_like(self.tokens[:together])
        self.pieces = [slice(first, min(first + together, images)) for first in range(0, images, together)]
        self.changes: list[tuple[Tensor, ...]] = [(self.tokens.new_full((images, 1), math.inf),) * 2]

    @property
    def state(self) -> CETState:
        return CETState(self.tokens, self.image)

    def step(self) -> None:
        with products(self.model.precision, self.tokens.device):
            self.changes = [self._step(piece) for piece in self.pieces]
        self.image, self.last = self.last, self.image

    def residual(self) -> Tensor:
        both = [torch.cat(parts).flatten(1).amax(1) for parts in zip(*self.changes, strict=True)]
        return torch.maximum(*both) / self.plan.step_size

    def _step(self, piece: slice) -> tuple[Tensor, Tensor]:
        """Of some images; their changes of z and y."""
        model, size = self.model, self.plan.step_size
        tokens, target = self.tokens[piece], self.target[: piece.stop - piece.start]
        rows = self.hidden[: len(tokens)]
        sizes = (2 * len(model.attention.query), len(model.memory.weight), model.patches.numbers)
        both, hidden, drawn = rows.split(sizes, -1)
        seen = self._project(tokens, rows, drawn)
        # (B, N, 2 K R) -> queries and keys, (B, K, N, R)
        query, key = both.unflatten(-1, (2, model.attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
        energy_attention(query, key, model.attention.gamma, out=(query, key))
        hidden.relu_()
        nudge = () if self.nudge is None else (part[piece] for part in self.nudge)
        image = self.image[piece]
        _, in_image = image_step(image, seen, self.biases, size, *nudge, out=self.last[piece])
        self._read_patches(image, drawn)
        self._collect(self.drive[piece], rows, target)
        _, in_tokens = projected_step(tokens, target, size, out=tokens)
        return in_tokens, in_image

    def _project(self, tokens: Tensor, rows: Tensor, drawn: Tensor) -> Tensor:
        """H into the rows; what the decoder draws with its own precision, (B, N, P)."""
        z, out = tokens.flatten(0, 1).to(self.weights.dtype), rows.flatten(0, 1)
        if z.dtype == self.wide:
            torch.mm(z, self.weights.mT, out=out)
            return drawn
        numbers = drawn.shape[-1]
        torch.mm(z, self.weights[:-numbers].mT, out=out[:, :-numbers])
        return torch.mm(z, self.weights[-numbers:].mT, out_dtype=self.wide).view(drawn.shape)

    def _read_patches(self, image: Tensor, into: Tensor) -> None:
        """The patches of the image into G."""
        reach = self.model.patches.reach
        seen = image.unfold(1, reach, 1).unfold(2, reach, 1).permute(0, 1, 2, 4, 5, 3)
        into.view(seen.shape).copy_(seen)

    def _collect(self, drive: Tensor, rows: Tensor, target: Tensor) -> None:
        """t_z = drive + b_pos + G W."""
        torch.add(drive, self.model.position.bias, out=target)
        target, rows = target.flatten(0, 1), rows.flatten(0, 1)
        if rows.dtype == self.wide:
            target.addmm_(rows, self.weights)
        else:
            target.add_(torch.mm(rows, self.weights, out_dtype=self.wide))


class Ended(NamedTuple):
    """What a captured relaxation gives, in the order of ``Relaxation``."""

    state: CETState
    steps: int
    residual: Tensor


class CapturedSteps:
    """A whole relaxation as one CUDA graph; each call copies its start and what is clamped in, and the end out.

    The weights are read where they lie, so that an optimiser's step counts.
    """

    def __init__(
        self, model: "CET", state: CETState, clamped: CETClamped, plan: RelaxationSettings, num_steps: int
    ) -> None:
        self.given = [_copy(part) for part in _given(state, clamped, plan)]
        start, drive, nudge = CETState(*self.given[:2]), self.given[2], plan.nudge
        plan = RelaxationSettings(plan.step_size, None if nudge is None else type(nudge)(*self.given[3:]))

        def work() -> Ended:
            # The patches are the encoder's alone, whose drive stands: any tensor will do.
            steps = PreparedSteps(model, start, CETClamped(drive, drive), plan)
            for _ in range(num_steps):
                steps.step()
            return Ended(steps.state, num_steps, steps.residual())

        self.replay, self.ended = capture(work)

    def __call__(self, state: CETState, clamped: CETClamped, plan: RelaxationSettings) -> Ended:
        for own, part in zip(self.given, _given(state, clamped, plan), strict=True):
            own.copy_(part)
        self.replay()
        state, steps, residual = self.ended
        return Ended(CETState(*(part.clone() for part in state)), steps, residual.clone())


def capture(work: Callable[[], Ended]) -> tuple[Callable[[], None], Ended]:
    """What does the work again, on the current GPU, and where it leaves its results."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        work()  # kernels are compiled and libraries loaded outside the capture
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ended = work()
    return graph.replay, ended


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _given(state: CETState, clamped: CETClamped, plan: RelaxationSettings) -> list[Tensor]:
    return [*state, clamped.drive, *(plan.nudge or ())]


_captured: "weakref.WeakKeyDictionary[CET, OrderedDict[tuple[object, ...], CapturedSteps]]"
_captured = weakref.WeakKeyDictionary()


def captured(model: "CET", state: CETState, clamped: CETClamped, plan: RelaxationSettings, num_steps: int) -> Ended:
    """By the graph that was captured for such a relaxation; the first of its kind captures it.

    Raises:
        ValueError: off CUDA.
    """
    if not state.z.is_cuda:
        raise ValueError(
            f"cuda_graph=True needs a CUDA GPU, but the state lies on {state.z.device}: set cuda_graph=False, or move "
            "model and images to a GPU"
        )
    graphs = _captured.setdefault(model, OrderedDict())
    places = tuple(parameter.data_ptr() for parameter in model.parameters())
    shape, kind = tuple(state.z.shape), (model.precision, torch.get_float32_matmul_precision(), state.z.dtype)
    key = (shape, kind, num_steps, plan.step_size, plan.nudge is None, places)
    if key not in graphs:
        # Buffers made in inference mode could be written nowhere else.
        with torch.cuda.device(state.z.device), torch.inference_mode(False), torch.no_grad():
            graphs[key] = CapturedSteps(model, state, clamped, plan, num_steps)
    graphs.move_to_end(key)
    while len(graphs) > GRAPHS:
        graphs.popitem(last=False)
    return graphs[key](state, clamped, plan)


def preparable(terms: dict[str, CETTerm], state: CETState) -> bool:
    """Whether ``PreparedSteps`` know these terms, and nobody asks for a gradient."""
    transformed = peek_interpreter_stack() is not None or torch.compiler.is_compiling()
    known = {name: type(term) for name, term in terms.items()} == _TERMS
    return known and not torch.is_grad_enabled() and not transformed and state.z.numel() > 0


def factors(precision: str, like: Tensor) -> torch.dtype:
    """What the factors of products lie in: CUDA rounds none to bfloat16 on its way, as a CPU does."""
    return torch.bfloat16 if precision == "bfloat16" and like.is_cuda else like.dtype


@contextlib.contextmanager
def products(precision: str, device: torch.device) -> Iterator[None]:
    """How exactly float32 factors are multiplied: "float32" as torch is set, "tf32", or "bfloat16".

    Raises:
        ValueError: "tf32" off CUDA.
    """
    wanted = {"tf32": "high", "bfloat16": "medium"}.get(precision)
    if precision == "tf32" and device.type != "cuda":
        raise ValueError(
            f"precision='tf32' needs a CUDA GPU, got a model on {device}: use precision='float32' or 'bfloat16'"
        )
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(wanted or before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Divergence(NamedTuple):
    """Where a relaxation was first no longer finite."""

    step: int
    """From 1 on; 0 where the state that it started from was not."""
    term: str
    """Whose gradient it was; "state" where every gradient was finite and the state was not."""

    def __str__(self) -> str:
        what = "the state" if self.term == "state" else f"the gradient of {self.term}"
        return f"diverged: {what} was not finite at step {self.step}"


@torch.no_grad()
def divergence(
    model: "CET", state: CETState, clamped: CETClamped, num_steps: int, plan: RelaxationSettings
) -> Divergence | None:
    """Replay a relaxation term by term; None if it stays finite."""
    if not _finite(*state):
        return Divergence(0, "state")
    for number in range(1, num_steps + 1):
        for name, term in model.terms().items():
            if not _finite(*term.gradient(state, clamped)):
                return Divergence(number, name)
        state = model.step(state, clamped, *plan)
        if not _finite(*state):
            return Divergence(number, "state")
    return None


def _finite(*tensors: Tensor | None) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors if tensor is not None)

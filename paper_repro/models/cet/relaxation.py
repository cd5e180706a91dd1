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
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from paper_repro.kernels.energy_attention import energy_attention_gradients
from paper_repro.kernels.projected_step import image_step, projected_step
from paper_repro.models.cet.energy import (
    CETAttention,
    CETClamped,
    CETDecoder,
    CETEncoder,
    CETMemory,
    CETNudge,
    CETPatches,
    CETPosition,
    CETState,
    CETTerm,
    at_once,
)
from paper_repro.models.descent import Trajectory, descend

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
    """The settings of a relaxation: all but where it starts and for how long."""

    step_size: float
    nudge: CETNudge | None


class Relaxing(Protocol):
    """The part of ``models.cet.model.CET`` that a relaxation reads."""

    precision: str
    patches: CETPatches
    position: CETPosition
    memory: CETMemory
    attention: CETAttention
    decoder: CETDecoder

    def terms(self) -> dict[str, CETTerm]: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def step(
        self, state: CETState, clamped: CETClamped, step_size: float = 1.0, nudge: CETNudge | None = None
    ) -> CETState: ...


class PlainSteps:
    """The step rule that the terms define; it can be differentiated."""

    def __init__(self, model: Relaxing, clamped: CETClamped, settings: RelaxationSettings) -> None:
        self.model, self.clamped, self.settings = model, clamped, settings

    def __call__(self, state: CETState, index: int, draws: None) -> CETState:
        return self.model.step(state, self.clamped, *self.settings)

    def residual(self, before: CETState, after: CETState) -> Tensor:
        """Compute max |state - state before| / eps, (B,): z and y together."""
        changes = [(one - two).abs().flatten(1).amax(1) for one, two in zip(before, after, strict=True)]  # (B,) each
        return torch.maximum(*changes) / self.settings.step_size


class PreparedSteps:
    """The same step rule without gradients reads copies of the weights and writes every state into the same buffers.

    A state that it is called with is valid until the next call; one that is not its own is copied in.

    On a CPU the images go through a step some at a time, so that H, far wider than the tokens, does not grow with the
    batch.  With bfloat16 products the factors are rounded to it; sums, drive and state stay float32.

    Args:
        model: whose weights are copied.
        state: where the relaxation starts.
        clamped: what stays fixed.
        settings: step size and nudge.
        measured: the steps, from 1 on, whose residual will be asked for; None: any.
    """

    def __init__(
        self,
        model: Relaxing,
        state: CETState,
        clamped: CETClamped,
        settings: RelaxationSettings,
        measured: Collection[int] | None = None,
    ) -> None:
        attention, decoder = model.attention, model.decoder
        self.model, self.settings = model, settings
        self.wide = state.z.dtype
        parts = (attention.query, attention.key, math.sqrt(2) * model.memory.weight, decoder.weight.mT)
        self.weights = torch.cat(parts).to(factors(model.precision, state.z))  # W, (2 K R + M + P, D)
        self.summed = self.weights if state.z.is_cuda else self.weights.to(self.wide)  # for ``wide_product``, once
        self.biases = decoder.biases()
        self.tokens, self.image, self.last = map(_copy, (state.z, state.y, state.y))
        self.drive, self.nudge, self.measured = clamped.drive, settings.nudge, measured
        images, count, _ = state.z.shape
        together = at_once(state.z)
        self.hidden = self.weights.new_empty(together, count, len(self.weights))  # H of some images, then G
        self.target = torch.empty_like(self.tokens[:together])
        self.pieces = [slice(first, min(first + together, images)) for first in range(0, images, together)]
        self.parts = {length: self._parts(length) for length in {piece.stop - piece.start for piece in self.pieces}}
        self.changes: list[tuple[Tensor, ...]] = [(self.tokens.new_full((images, 1), math.inf),) * 2]

    @property
    def state(self) -> CETState:
        return CETState(self.tokens, self.image)

    def __call__(self, state: CETState, index: int, draws: None) -> CETState:
        if state.z is not self.tokens or state.y is not self.image:
            self.tokens.copy_(state.z)
            self.image.copy_(state.y)
        with products(self.model.precision, self.tokens.device):
            measure = self.measured is None or index + 1 in self.measured
            self.changes = [self._step(piece, measure) for piece in self.pieces]
        self.image, self.last = self.last, self.image
        return self.state

    def residual(self, before: CETState, after: CETState) -> Tensor:
        """Return max |state - state before| / eps of the last step, (B,), which was measured while it was taken."""
        both = [torch.cat(parts).flatten(1).amax(1) for parts in zip(*self.changes, strict=True)]  # (B,) each
        return torch.maximum(*both) / self.settings.step_size

    def _step(self, piece: slice, measure: bool) -> tuple[Tensor, Tensor]:
        """Take a step of some images; returns their changes of z and y, if these are to be measured."""
        tokens, size = self.tokens[piece], self.settings.step_size
        parts, target = self.parts[len(tokens)], self.target[: len(tokens)]
        seen = self._project(tokens, parts)
        self._attend(parts.query, parts.key)
        parts.hidden.relu_()
        nudge = () if self.nudge is None else (part[piece] for part in self.nudge)
        image = self.image[piece]
        _, in_image = image_step(image, seen, self.biases, size, *nudge, out=self.last[piece], changes=measure)
        self._read_patches(image, parts.patches)
        self._collect(self.drive[piece], parts.rows, target)
        _, in_tokens = projected_step(tokens, target, size, out=tokens, changes=measure)
        return in_tokens, in_image

    def _parts(self, length: int) -> "_Parts":
        """Return the views of H of so many images."""
        model, rows = self.model, self.hidden[:length]
        sizes = (2 * len(model.attention.query), len(model.memory.weight), model.patches.numbers)
        both, hidden, drawn = rows.split(sizes, -1)  # (B, N, 2 K R), (B, N, M), (B, N, P)
        # (B, N, 2 K R) -> queries and keys, (B, K, N, R)
        query, key = both.unflatten(-1, (2, model.attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
        reach = model.patches.reach
        side = math.isqrt(rows.shape[1])
        return _Parts(rows.flatten(0, 1), query, key, hidden, drawn, drawn.view(length, side, side, reach, reach, -1))

    def _project(self, tokens: Tensor, parts: "_Parts") -> Tensor:
        """Write H into the rows; returns what the decoder draws with its own precision, (B, N, P)."""
        z = tokens.flatten(0, 1).to(self.weights.dtype)  # (B N, D)
        if z.dtype == self.wide:
            torch.mm(z, self.weights.mT, out=parts.rows)
            return parts.drawn
        numbers = parts.drawn.shape[-1]
        torch.mm(z, self.weights[:-numbers].mT, out=parts.rows[:, :-numbers])
        return wide_product(z, self.summed[-numbers:].mT, self.wide).view(parts.drawn.shape)

    def _attend(self, query: Tensor, key: Tensor) -> None:
        """Write P K over the queries and P^T Q over the keys; scores are as wide as the state."""
        gamma = self.model.attention.gamma
        if query.dtype == self.wide or query.is_cuda:
            energy_attention_gradients(query, key, gamma, out=(query, key))
            return
        found = energy_attention_gradients(query.to(self.wide), key.to(self.wide), gamma)
        query.copy_(found[0])
        key.copy_(found[1])

    def _read_patches(self, image: Tensor, into: Tensor) -> None:
        """Write the patches of the image into G."""
        reach = self.model.patches.reach
        # blocks (B, H/s, H/s, C s^2) -> (B, N_side, N_side, C s^2, k, k) -> (B, N_side, N_side, k, k, C s^2)
        into.copy_(image.unfold(1, reach, 1).unfold(2, reach, 1).permute(0, 1, 2, 4, 5, 3))

    def _collect(self, drive: Tensor, rows: Tensor, target: Tensor) -> None:
        """Write t_z = drive + b_pos + G W, (B, N, D), into the target."""
        torch.add(drive, self.model.position.bias, out=target)
        target = target.flatten(0, 1)
        if rows.dtype == self.wide:
            target.addmm_(rows, self.weights)
        else:
            target.add_(wide_product(rows, self.summed, self.wide))


class _Parts(NamedTuple):
    """The parts of H, and then of G, of B images; all lie in one buffer."""

    rows: Tensor
    """(B N, 2 K R + M + P)."""
    query: Tensor
    """(B, K, N, R)."""
    key: Tensor
    """(B, K, N, R)."""
    hidden: Tensor
    """(B, N, M)."""
    drawn: Tensor
    """(B, N, P)."""
    patches: Tensor
    """The same, (B, N_side, N_side, k, k, C s^2)."""


class CapturedSteps:
    """Replays a whole relaxation as one CUDA graph; a call copies its start and what is clamped in, and the end out.

    The weights are read where they lie, so that an optimiser's step counts.
    """

    def __init__(
        self, model: Relaxing, state: CETState, clamped: CETClamped, settings: RelaxationSettings, num_steps: int
    ) -> None:
        self.given = [_copy(part) for part in _given(state, clamped, settings)]
        start, drive, nudge = CETState(*self.given[:2]), self.given[2], settings.nudge
        own = RelaxationSettings(settings.step_size, None if nudge is None else CETNudge(*self.given[3:]))

        def work() -> Trajectory[CETState]:
            # The patches are the encoder's alone, whose drive stands: any tensor will do.
            steps = PreparedSteps(model, start, CETClamped(drive, drive), own, measured={num_steps})
            return descend(steps, steps.state, num_steps, change=steps.residual)

        self.replay, self.ended = capture(work)

    def __call__(self, state: CETState, clamped: CETClamped, settings: RelaxationSettings) -> Trajectory[CETState]:
        for own, part in zip(self.given, _given(state, clamped, settings), strict=True):
            own.copy_(part)
        self.replay()
        ended = self.ended
        change = None if ended.change is None else ended.change.clone()
        return Trajectory(CETState(*(part.clone() for part in ended.state)), ended.num_steps, change=change)


def capture(work: Callable[[], Trajectory[CETState]]) -> tuple[Callable[[], None], Trajectory[CETState]]:
    """Capture work on the current GPU; returns what does it again, and where it leaves its results."""
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


def _given(state: CETState, clamped: CETClamped, settings: RelaxationSettings) -> list[Tensor]:
    return [*state, clamped.drive, *(settings.nudge or ())]


_captured: "weakref.WeakKeyDictionary[Relaxing, OrderedDict[tuple[object, ...], CapturedSteps]]"
_captured = weakref.WeakKeyDictionary()


def captured(
    model: Relaxing, state: CETState, clamped: CETClamped, settings: RelaxationSettings, num_steps: int
) -> Trajectory[CETState]:
    """Relax by the graph that was captured for such a relaxation; the first of its kind captures it.

    Raises:
        ValueError: off CUDA.
    """
    if not state.z.is_cuda:
        raise ValueError(
            f"a CUDA graph needs a CUDA GPU, but the state lies on {state.z.device}: set machine.cuda_graph=false, or "
            "move model and images to a GPU"
        )
    graphs = _captured.setdefault(model, OrderedDict())
    places = tuple(parameter.data_ptr() for parameter in model.parameters())
    shape, kind = tuple(state.z.shape), (model.precision, torch.get_float32_matmul_precision(), state.z.dtype)
    key = (shape, kind, num_steps, settings.step_size, settings.nudge is None, places)
    if key not in graphs:
        # Buffers made in inference mode could be written nowhere else.
        with torch.cuda.device(state.z.device), torch.inference_mode(False), torch.no_grad():
            graphs[key] = CapturedSteps(model, state, clamped, settings, num_steps)
    graphs.move_to_end(key)
    while len(graphs) > GRAPHS:
        graphs.popitem(last=False)
    return graphs[key](state, clamped, settings)


def preparable(terms: dict[str, CETTerm], state: CETState) -> bool:
    """Return whether ``PreparedSteps`` know these terms and nobody asks for a gradient."""
    transformed = peek_interpreter_stack() is not None or torch.compiler.is_compiling()
    known = {name: type(term) for name, term in terms.items()} == _TERMS
    return known and not torch.is_grad_enabled() and not transformed and state.z.numel() > 0


def factors(precision: str, like: Tensor) -> torch.dtype:
    """Return the dtype in which the factors of products lie: they are rounded here, since not every processor does."""
    return torch.bfloat16 if precision == "bfloat16" and like.dtype == torch.float32 else like.dtype


def wide_product(one: Tensor, two: Tensor, dtype: torch.dtype) -> Tensor:
    """Multiply narrow factors, (M, K) and (K, N), into sums of a wider type; a CPU has no such product, and widens
    the factors first.
    """
    return torch.mm(one, two, out_dtype=dtype) if one.is_cuda else torch.mm(one.to(dtype), two.to(dtype))


@contextlib.contextmanager
def products(precision: str, device: torch.device) -> Iterator[None]:
    """Set how exactly float32 factors are multiplied: as torch is set, or in TF32; see ``factors`` for bfloat16.

    Raises:
        ValueError: "tf32" off CUDA.
    """
    wanted = {"tf32": "high"}.get(precision)
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
    """The step at which a relaxation was first not finite, and in which term."""

    step: int
    """From 1 on; 0 where the state that it started from was not."""
    term: str
    """Whose gradient it was; "state" where every gradient was finite and the state was not."""

    def __str__(self) -> str:
        what = "the state" if self.term == "state" else f"the gradient of {self.term}"
        return f"diverged: {what} was not finite at step {self.step}"


@torch.no_grad()
def divergence(
    model: Relaxing, state: CETState, clamped: CETClamped, num_steps: int, settings: RelaxationSettings
) -> Divergence | None:
    """Replay a relaxation term by term; None if it stays finite."""

    def step(state: CETState, index: int, draws: None) -> CETState:
        for name, term in model.terms().items():
            if not _finite(*term.gradient(state, clamped)):
                raise _NotFiniteError(index + 1, name)
        state = model.step(state, clamped, *settings)
        if not _finite(*state):
            raise _NotFiniteError(index + 1, "state")
        return state

    if not _finite(*state):
        return Divergence(0, "state")
    try:
        descend(step, state, num_steps)
    except _NotFiniteError as found:
        return Divergence(*found.args)
    return None


class _NotFiniteError(ArithmeticError):
    """Ends a replay; its arguments are the step and the term."""


def _finite(*tensors: Tensor | None) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors if tensor is not None)

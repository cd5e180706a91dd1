"""CET, "Training a Convergent Energy Transformer with Equilibrium Propagation": its energy, relaxation and learning.

Letters: B images, C channels, H image side, p patch side, s stride, k = p/s, N tokens, D token width, P = C p^2 numbers
of a patch, K heads of width R, M memories, S steps, eps step size, beta strength of the nudge.
"""

import contextlib
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack

from paper_repro.base.errors import at_least, one_of, positive
from paper_repro.models.common import capture, fold, from_blocks, project, to_blocks
from paper_repro.models.descent import Energy, StepRule, Trajectory, descend

try:
    from paper_repro.kernels.energy_attention import energy_attention
    from paper_repro.kernels.preferences import speed
    from paper_repro.kernels.projected_step import image_step, projected_step
except ImportError:  # the same, slower
    from paper_repro.models.common import (  # type: ignore[assignment]
        energy_attention,
        image_step,
        projected_step,
        speed,
    )

# The terms of the energy (section 2 and appendix B). Each has its energy (B,), its closed-form gradients by the tokens
# z and the output image y, and those by its own parameters, which use its own inputs alone (local learning rules).

ROWS = {"cpu": 1024}
"""Tokens whose hidden numbers, far more than their own, lie in memory at once: enough for a CPU's products, while a GPU
takes them all."""


class CETState(NamedTuple):
    """The variables that a relaxation moves."""

    z: Tensor  # Tokens, (B, N, D)
    y: Tensor  # The output image in blocks, (B, H/s, H/s, C s^2), see ``CETPatches``


class CETClamped(NamedTuple):
    """The tensors that stay fixed during a relaxation."""

    patches: Tensor  # The patches of the masked image, (B, N, P)
    drive: Tensor  # F(masked image, W_enc) + b_enc, (B, N, D)


class CETGradient(NamedTuple):
    """The gradient of an energy; None for a variable on which it does not depend."""

    z: Tensor | None
    y: Tensor | None


class CETNudge(NamedTuple):
    """A nudge adds beta C(y, x) to the energy, where C is the sum of squares over an image."""

    target: Tensor  # x in blocks, (B, H/s, H/s, C s^2)
    beta: Tensor  # One number for each image, (B,): of both signs where both nudged phases run as one batch


class CETPatches:
    """Cuts square images into overlapping patches, so that convolutions are products of matrices.

    Blocks are the image as (B, H/s, H/s, C s^2), one row a block of s x s pixels.  A patch is k x k neighbouring
    blocks, its P numbers in the order (k, k, C, s, s): ``to_blocks(kernel, s).flatten(1)`` brings a convolution's
    kernel (D, C, p, p) into it.  Patch n = N_side r + q lies at row r, column q.
    """

    def __init__(self, channels: int, size: int, patch: int, stride: int) -> None:
        self.channels, self.size = at_least("channels", channels), at_least("size", size)
        self.patch, self.stride = at_least("patch", patch), at_least("stride", stride)
        if patch % stride or size % stride or patch > size:
            raise ValueError(
                f"patches of {patch} at stride {stride} do not tile images of {size}: the stride must divide both, and "
                "the patch must fit"
            )
        self.reach = patch // stride
        self.side = (size - patch) // stride + 1
        self.count, self.numbers = self.side**2, channels * patch**2

    def blocks(self, images: Tensor) -> Tensor:
        """Cut images (B, C, H, H) into blocks (B, H/s, H/s, C s^2)."""
        if images.ndim != 4 or images.shape[1:] != (self.channels, self.size, self.size):
            raise ValueError(
                f"images must have shape (B, {self.channels}, {self.size}, {self.size}), got {tuple(images.shape)}"
            )
        return to_blocks(images, self.stride)

    def images(self, blocks: Tensor) -> Tensor:
        """Undo ``blocks``."""
        return from_blocks(blocks, self.stride)

    def gather(self, blocks: Tensor) -> Tensor:
        """Collect the patches of blocks: (B, H/s, H/s, C s^2) -> (B, N, P)."""
        end = self.side
        parts = [blocks[:, i : i + end, j : j + end] for i in range(self.reach) for j in range(self.reach)]
        return torch.cat(parts, -1).flatten(1, 2)  # (B, N_side, N_side, k^2 C s^2) -> (B, N, P)


class CETTerm(nn.Module):
    """A term of the energy: a subclass defines the energy of each image, (B,), its gradients by z and y, and the
    gradient of sum_b weights_b energy_b, weights (B,), by the names of the parameters.
    """

    energy: Callable[[CETState, CETClamped], Tensor]
    gradient: Callable[[CETState, CETClamped], CETGradient]
    parameter_gradients: Callable[[CETState, CETClamped, Tensor], dict[str, Tensor]]


class CETEncoder(CETTerm):
    """The encoder's energy is 1/2 |z|^2 - <F(xbar, W), z> - sum_nd z_nd b_d (equation 8)."""

    def __init__(self, patches: CETPatches, width: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, patches.numbers) * positive("std", std))
        self.bias = nn.Parameter(torch.zeros(width))

    def drive(self, patches: Tensor) -> Tensor:
        """Compute F(xbar, W) + b, (B, N, D)."""
        return torch.matmul(patches, self.weight.mT) + self.bias  # (B, N, P) (P, D)

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        return (state.z * (state.z / 2 - clamped.drive)).sum((1, 2))  # (B, N, D) -> (B,)

    def gradient(self, state: CETState, clamped: CETClamped) -> CETGradient:
        return CETGradient(state.z - clamped.drive, None)

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        weighted = weights.view(-1, 1, 1) * state.z
        return {"weight": -_outer(weighted, clamped.patches), "bias": -weighted.sum((0, 1))}  # (D, P), (D,)


class CETPosition(CETTerm):
    """The positions' energy is -<b, z>, with one vector for each place (equation 9)."""

    def __init__(self, num_tokens: int, width: int, std: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(num_tokens, width) * positive("std", std))

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        return -(state.z * self.bias).sum((1, 2))  # (B, N, D) (N, D) -> (B,)

    def gradient(self, state: CETState, clamped: CETClamped) -> CETGradient:
        return CETGradient(-self.bias.expand_as(state.z), None)

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        return {"bias": -torch.einsum("b,bnd->nd", weights, state.z)}  # (N, D)


class CETMemory(CETTerm):
    """The memories' energy is -sum_nm relu(z_n . w_m)^2 with M memories w, without a factor 1/2 (equation 10)."""

    def __init__(self, num_memories: int, width: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(at_least("num_memories", num_memories), width) * positive("std", std))

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        return -self._hidden(state.z).square().sum((1, 2))  # (B, N, M) -> (B,)

    def gradient(self, state: CETState, clamped: CETClamped) -> CETGradient:
        return CETGradient(-2 * torch.matmul(self._hidden(state.z), self.weight), None)  # (B, N, M) (M, D)

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        summed = torch.zeros_like(self.weight)
        parts = (part.split(at_once(state.z)) for part in (state.z, weights.view(-1, 1, 1) * state.z))
        for z, weighted in zip(*parts, strict=True):
            summed = summed.addmm_(self._hidden(z).flatten(0, 1).mT, weighted.flatten(0, 1), alpha=-2)
        return {"weight": summed}

    def _hidden(self, z: Tensor) -> Tensor:
        return torch.matmul(z, self.weight.mT).relu_()  # (B, N, D) -> (B, N, M)


class CETAttention(CETTerm):
    """The attention's energy is -1/gamma sum_kn log sum_m exp(gamma Q_kn . K_km), Q = W_Q z, K = W_K z (equations 11 to
    14).  In equation 13 as printed heads attend to heads within a token; its sum says tokens attend to tokens.
    """

    def __init__(self, width: int, num_heads: int, head_width: int, gamma: float, std: float) -> None:
        super().__init__()
        self.num_heads, self.gamma = at_least("num_heads", num_heads), positive("gamma", gamma)
        rows = num_heads * at_least("head_width", head_width)
        self.query = nn.Parameter(torch.randn(rows, width) * positive("std", std))
        self.key = nn.Parameter(torch.randn(rows, width) * std)

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        _, _, lse = energy_attention(*self._project(state.z), self.gamma)  # (B, K, N)
        return -lse.sum((1, 2)) / self.gamma

    def gradient(self, state: CETState, clamped: CETClamped) -> CETGradient:
        by_query, by_key = self._read(state.z)  # (B, N, K R) each
        return CETGradient(-torch.matmul(by_query, self.query) - torch.matmul(by_key, self.key), None)

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        by_query, by_key = self._read(state.z)
        weighted = weights.view(-1, 1, 1) * state.z
        return {"query": -_outer(by_query, weighted), "key": -_outer(by_key, weighted)}

    def _project(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Compute queries and keys, (B, K, N, R) each."""
        both = torch.matmul(z, torch.cat([self.query, self.key]).mT)  # (B, N, D) -> (B, N, 2 K R)
        query, key = both.unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return query, key

    def _read(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Compute P K and P^T Q of all heads, (B, N, K R) each, P = softmax(gamma Q K^T) over keys."""
        by_query, by_key, _ = energy_attention(*self._project(z), self.gamma, normaliser=False)
        return by_query.transpose(1, 2).flatten(2), by_key.transpose(1, 2).flatten(2)


class CETDecoder(CETTerm):
    """The decoder's energy is 1/2 |y|^2 - <F(y, W), z> - sum_c b_c sum_pixels y_c (equation 15)."""

    def __init__(self, patches: CETPatches, width: int, std: float) -> None:
        super().__init__()
        self.patches = patches
        self.weight = nn.Parameter(torch.randn(width, patches.numbers) * positive("std", std))
        self.bias = nn.Parameter(torch.zeros(patches.channels))

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        own = (state.y * (state.y / 2 - self.biases())).sum((1, 2, 3))  # (B, H/s, H/s, C s^2) -> (B,)
        return own - (self._seen(state.y) * state.z).sum((1, 2))  # (B, N, D) -> (B,)

    def gradient(self, state: CETState, clamped: CETClamped) -> CETGradient:
        drawn = fold(torch.matmul(state.z, self.weight), state.y)  # (B, N, D) -> (B, N, P) -> blocks
        return CETGradient(-self._seen(state.y), state.y - drawn - self.biases())

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        weighted = weights.view(-1, 1, 1) * state.z
        summed = torch.einsum("b,bijc->c", weights, state.y).unflatten(0, (self.patches.channels, -1)).sum(1)
        return {"weight": -_outer(weighted, self.patches.gather(state.y)), "bias": -summed}

    def biases(self) -> Tensor:
        """Return the bias of every number of a block, (C s^2,)."""
        return self.bias.repeat_interleave(self.patches.stride**2)

    def _seen(self, y: Tensor) -> Tensor:
        """Compute F(y, W), (B, N, D)."""
        return torch.matmul(self.patches.gather(y), self.weight.mT)  # (B, N, P) (P, D)


def at_once(z: Tensor) -> int:
    """Count how many images of tokens (B, N, D) go through a product with hidden numbers together, see ``ROWS``."""
    images, count, _ = z.shape
    return max(1, min(images, ROWS.get(z.device.type, images * count) // count))


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Compute sum_bn left_bn right_bn^T, (X, Y), from (B, N, X) and (B, N, Y)."""
    return left.flatten(0, 1).mT @ right.flatten(0, 1)


# How the state moves: step by step as the terms define it, or without gradients from weights laid out once.
# With W = [W_Q; W_K; sqrt(2) W_mem; W_dec^T], of 2 K R + M + P rows, a step down the nudged energy is two products,
#     H = z W^T,   t_z = drive + b_pos + G W,   G = [P K; P^T Q; relu(H_mem); patches of y],
# and two passes over rows: z <- Proj(z + eps (t_z - z)), and y <- y + eps (t_y - y) with t_y folded out of H_dec.

PRECISIONS = ("float32", "tf32", "bfloat16")
GRAPHS = 8
"""Captured relaxations that are kept for a model; the one that was not used for longest goes."""
_TERMS = (CETEncoder, CETPosition, CETMemory, CETAttention, CETDecoder)


class PreparedSteps:
    """The step rule of ``CET.step`` without gradients reads copies of the weights and writes into the same buffers.

    A state that it returns is valid until the next call but one; one that is not its own is copied in.  On a CPU the
    images go through a step some at a time, so that H does not grow with the batch.  With bfloat16 products the
    factors are rounded to it; sums, drive and state stay float32.
    """

    def __init__(
        self,
        model: "CET",
        state: CETState,
        clamped: CETClamped,
        step_size: float,
        nudge: CETNudge | None = None,
    ) -> None:
        attention, decoder = model.attention, model.decoder
        self.model, self.step_size = model, step_size
        self.wide = state.z.dtype
        parts = (attention.query, attention.key, math.sqrt(2) * model.memory.weight, decoder.weight.mT)
        # The factors are rounded here, since not every processor does.
        narrow = model.precision == "bfloat16" and self.wide == torch.float32
        self.weights = torch.cat(parts).to(torch.bfloat16 if narrow else self.wide)  # W, (2 K R + M + P, D)
        self.summed = self.weights if state.z.is_cuda else self.weights.to(self.wide)  # for ``wide_product``, once
        self.biases = decoder.biases()
        self.state, self.following = CETState(*map(_copy, state)), CETState(*map(_copy, state))
        self.drive, self.nudge = clamped.drive, nudge
        images, count, _ = state.z.shape
        together = at_once(state.z)
        self.hidden = self.weights.new_empty(together, count, len(self.weights))  # H of some images, then G
        self.target = torch.empty_like(self.state.z[:together])
        self.pieces = [slice(first, min(first + together, images)) for first in range(0, images, together)]
        self.parts = {length: self._parts(length) for length in {piece.stop - piece.start for piece in self.pieces}}

    def __call__(self, state: CETState, index: int) -> CETState:
        for own, part in zip(self.state, state, strict=True):
            if part is not own:
                own.copy_(part)
        with products(self.model.precision, self.drive.device):
            for piece in self.pieces:
                self._step(piece)
        self.state, self.following = self.following, self.state
        return self.state

    def _step(self, piece: slice) -> None:
        """Take a step of some images."""
        tokens, image, size = self.state.z[piece], self.state.y[piece], self.step_size
        parts, target = self.parts[len(tokens)], self.target[: len(tokens)]
        seen = self._project(tokens, parts)
        self._attend(parts.query, parts.key)
        parts.hidden.relu_()
        nudge = () if self.nudge is None else (part[piece] for part in self.nudge)
        image_step(image, seen, self.biases, size, *nudge, out=self.following.y[piece])
        reach = self.model.patches.reach
        # blocks (B, H/s, H/s, C s^2) -> (B, N_side, N_side, C s^2, k, k) -> (B, N_side, N_side, k, k, C s^2)
        parts.patches.copy_(image.unfold(1, reach, 1).unfold(2, reach, 1).permute(0, 1, 2, 4, 5, 3))
        torch.add(self.drive[piece], self.model.position.bias, out=target)  # t_z - G W, (B, N, D)
        if parts.rows.dtype == self.wide:
            target.flatten(0, 1).addmm_(parts.rows, self.weights)
        else:
            target.flatten(0, 1).add_(wide_product(parts.rows, self.summed, self.wide))
        projected_step(tokens, target, size, out=self.following.z[piece])

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
            energy_attention(query, key, gamma, out=(query, key), normaliser=False)
            return
        found = energy_attention(query.to(self.wide), key.to(self.wide), gamma, normaliser=False)
        query.copy_(found[0])
        key.copy_(found[1])


class _Parts(NamedTuple):
    """The parts of H, and then of G, of B images; all lie in one buffer."""

    rows: Tensor  # (B N, 2 K R + M + P)
    query: Tensor  # (B, K, N, R)
    key: Tensor  # (B, K, N, R)
    hidden: Tensor  # (B, N, M)
    drawn: Tensor  # (B, N, P)
    patches: Tensor  # the same, (B, N_side, N_side, k, k, C s^2)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


class _Graph(NamedTuple):
    """A captured relaxation."""

    given: list[Tensor]  # Copies of the state, the drive and the nudge, from which it starts
    replay: Callable[[], None]
    ended: Trajectory[CETState]  # Where it leaves its results


_captured: "weakref.WeakKeyDictionary[CET, OrderedDict[tuple[object, ...], _Graph]]" = weakref.WeakKeyDictionary()


def captured(
    model: "CET", state: CETState, clamped: CETClamped, step_size: float, nudge: CETNudge | None, num_steps: int
) -> Trajectory[CETState]:
    """Replay a whole relaxation as one CUDA graph; the first of its kind captures it.  The weights are read where they
    lie.
    """
    graphs = _captured.setdefault(model, OrderedDict())
    places = tuple(parameter.data_ptr() for parameter in model.parameters())
    shape, kind = tuple(state.z.shape), (model.precision, torch.get_float32_matmul_precision(), state.z.dtype)
    key = (shape, kind, num_steps, step_size, nudge is None, places)
    given = [*state, clamped.drive, *(nudge or ())]
    if key not in graphs:
        # Buffers made in inference mode could be written nowhere else.
        with torch.cuda.device_of(state.z), torch.inference_mode(False), torch.no_grad():
            own = [_copy(part) for part in given]
            start, drive, own_nudge = CETState(*own[:2]), own[2], None if nudge is None else CETNudge(*own[3:])

            def work() -> Trajectory[CETState]:
                # The patches are the encoder's alone, whose drive stands: any tensor will do.
                steps = PreparedSteps(model, start, CETClamped(drive, drive), step_size, own_nudge)
                return descend(steps, steps.state, num_steps, change=partial(_residual, step_size=step_size))

            graphs[key] = _Graph(own, *capture(work))
    graphs.move_to_end(key)
    while len(graphs) > GRAPHS:
        graphs.popitem(last=False)
    graph = graphs[key]
    for buffer, part in zip(graph.given, given, strict=True):
        buffer.copy_(part)
    graph.replay()
    change = None if graph.ended.change is None else graph.ended.change.clone()
    return Trajectory(CETState(*(part.clone() for part in graph.ended.state)), change=change)


def wide_product(one: Tensor, two: Tensor, dtype: torch.dtype) -> Tensor:
    """Multiply narrow factors, (M, K) and (K, N), into sums of a wider type; a CPU has no such product, and widens
    the factors first.
    """
    return torch.mm(one, two, out_dtype=dtype) if one.is_cuda else torch.mm(one.to(dtype), two.to(dtype))


@contextlib.contextmanager
def products(precision: str, device: torch.device) -> Iterator[None]:
    """Set how exactly float32 factors are multiplied: as torch is set, or in TF32."""
    if precision == "tf32" and device.type != "cuda":
        raise ValueError(f"precision='tf32' needs a CUDA GPU, got a model on {device}: take float32 or bfloat16")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _residual(before: CETState, after: CETState, step_size: float) -> Tensor:
    """Compute max |state - state before| / eps, (B,): z and y together."""
    changes = [(one - two).abs().flatten(1).amax(1) for one, two in zip(before, after, strict=True)]  # (B,) each
    return torch.maximum(*changes) / step_size


# The model: an energy of tokens and an output image, and its relaxation.

STARTS = ("drive", "zeros")


class CET(nn.Module):
    """CET relaxes E(xbar, z, y) = enc + pos + mem + att + dec by projected gradient descent (equations 1 to 3).

        z <- Proj(z - eps dE/dz),  y <- y - eps dE/dy,  both gradients at the old state

    The paper gives eps = 1 in its text and 0.1 in its Table 4: here it is an argument, 1 by default.  It gives neither
    the first state nor the first weights: tokens start at Proj(F(xbar) + b_enc + b_pos), the image at 0; weights
    N(0, std), biases 0.

    Args:
        channels, size, patch, stride: of the images, C, H, p, s.
        width, num_memories: D, M.
        num_heads, head_width, gamma: K, R, and the inverse temperature of the attention.
        init_std, attention_std: of the weights at the start; W_Q and W_K have their own.
        start: "drive", or "zeros", which makes the first step at eps = 1 end there.
        precision: of the factors of a relaxation's products where no gradient is asked for: "float32" (as torch is
            set), "tf32" (a GPU's) or "bfloat16"; sums and state stay float32.

    With ``machine.cuda_graph`` relaxations without gradients and records are replayed as one graph each.

    Shape: masked images (B, C, H, H) -> completed images (B, C, H, H).
    """

    def __init__(
        self,
        channels: int = 3,
        size: int = 120,
        patch: int = 20,
        stride: int = 10,
        width: int = 768,
        num_heads: int = 12,
        head_width: int = 64,
        num_memories: int = 3072,
        gamma: float = 0.25,
        init_std: float = 0.02,
        attention_std: float = 0.02,
        start: str = "drive",
        precision: str = "float32",
    ) -> None:
        super().__init__()
        self.patches = CETPatches(channels, size, patch, stride)
        self.width, self.start = at_least("width", width), one_of("start", start, STARTS)
        self.precision = one_of("precision", precision, PRECISIONS)
        self.encoder = CETEncoder(self.patches, width, init_std)
        self.position = CETPosition(self.patches.count, width, init_std)
        self.memory = CETMemory(num_memories, width, init_std)
        self.attention = CETAttention(width, num_heads, head_width, gamma, attention_std)
        self.decoder = CETDecoder(self.patches, width, init_std)

    def terms(self) -> dict[str, CETTerm]:
        """Return the five terms by name."""
        return {name: part for name, part in self.named_children() if isinstance(part, CETTerm)}

    def clamp(self, masked: Tensor) -> CETClamped:
        """Compute what stays fixed for masked images (B, C, H, H), once for each relaxation."""
        patches = self.patches.gather(self.patches.blocks(masked))  # (B, C, H, H) -> (B, H/s, H/s, C s^2) -> (B, N, P)
        return CETClamped(patches, self.encoder.drive(patches))

    def first(self, clamped: CETClamped) -> CETState:
        """Return the state from which the free phase relaxes."""
        blocks = self.patches.size // self.patches.stride
        y = clamped.drive.new_zeros(len(clamped.drive), blocks, blocks, self.patches.channels * self.patches.stride**2)
        if self.start == "zeros":
            return CETState(torch.zeros_like(clamped.drive), y)
        return CETState(project(clamped.drive + self.position.bias), y)

    def energies(self, state: CETState, clamped: CETClamped) -> dict[str, Tensor]:
        """Compute each term's energy, (B,)."""
        return {name: term.energy(state, clamped) for name, term in self.terms().items()}

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        """Compute the energy E, (B,)."""
        return torch.stack(list(self.energies(state, clamped).values())).sum(0)  # (terms, B) -> (B,)

    def gradient(self, state: CETState, clamped: CETClamped, nudge: CETNudge | None = None) -> CETState:
        """Compute dE/dz, (B, N, D), and dE/dy, (B, H/s, H/s, C s^2); of E + beta C with a nudge."""
        found = [term.gradient(state, clamped) for term in self.terms().values()]
        z, y = (torch.stack([part for part in parts if part is not None]).sum(0) for parts in zip(*found, strict=True))
        if nudge is not None:
            y = y + 2 * nudge.beta.view(-1, 1, 1, 1) * (state.y - nudge.target)  # (B, H/s, H/s, C s^2)
        return CETState(z, y)

    def step(
        self, state: CETState, clamped: CETClamped, step_size: float = 1.0, nudge: CETNudge | None = None
    ) -> CETState:
        """Take one step of size eps: the two lines of the class."""
        gradient = self.gradient(state, clamped, nudge)
        return CETState(project(state.z - step_size * gradient.z), state.y - step_size * gradient.y)

    def relax(
        self,
        state: CETState,
        clamped: CETClamped,
        num_steps: int,
        step_size: float = 1.0,
        nudge: CETNudge | None = None,
        *,
        energy: Energy[CETState] | None = None,
        energies_at: Collection[int] = (),
        states_at: Collection[int] = (),
    ) -> Trajectory[CETState]:
        """Descend from ``state``; see ``models.descent.descend``.

        The change is the residual of the last step, max |state - state before| / eps, (B,): z and y together.  Without
        gradients (torch.no_grad) the steps are those of ``PreparedSteps``, else ``step``.  ``energy`` is what is
        recorded of a state; ``self.energy`` without the nudge if None.

        Raises:
            ValueError: a number out of range, precision="tf32" or a preferred CUDA graph off CUDA.
        """
        at_least("num_steps", num_steps)
        positive("step_size", step_size)

        def as_defined(reached: CETState, index: int) -> CETState:
            return self.step(reached, clamped, step_size, nudge)

        rule: StepRule[CETState] = as_defined
        if self._prepares(state):
            if speed().cuda_graph and not energies_at and not states_at:
                if not state.z.is_cuda:
                    raise ValueError(
                        f"a CUDA graph needs a CUDA GPU, but the state lies on {state.z.device}: set "
                        "machine.cuda_graph=false, or move model and images to a GPU"
                    )
                return captured(self, state, clamped, step_size, nudge, num_steps)
            rule = prepared = PreparedSteps(self, state, clamped, step_size, nudge)
            state = prepared.state
        return descend(
            rule,
            state,
            num_steps,
            energy=energy or (lambda reached: self.energy(reached, clamped)),
            energies_at=energies_at,
            states_at=states_at,
            change=partial(_residual, step_size=step_size),
        )

    def forward(self, masked: Tensor, num_steps: int = 150, step_size: float = 1.0) -> Tensor:
        clamped = self.clamp(masked)
        return self.patches.images(self.relax(self.first(clamped), clamped, num_steps, step_size).state.y)

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of sum_b weights_b E_b, weights (B,), by the names of ``named_parameters``."""
        return {
            f"{name}.{own}": value
            for name, term in self.terms().items()
            for own, value in term.parameter_gradients(state, clamped, weights).items()
        }

    def _prepares(self, state: CETState) -> bool:
        """Return whether ``PreparedSteps`` may stand for ``step``: without gradients, steps and terms of a subclass."""
        own = type(self).step is CET.step and type(self).gradient is CET.gradient
        known = tuple(map(type, self.terms().values())) == _TERMS
        transformed = peek_interpreter_stack() is not None or torch.compiler.is_compiling()
        return own and known and not torch.is_grad_enabled() and not transformed and state.z.numel() > 0


# Two ways to a gradient: Equilibrium Propagation, and backpropagation through steps.
# The cost is C = sum of (y - x)^2 over an image's numbers, the mean over the batch is differentiated. The paper reports
# C / (number of numbers) and does not say which of the two nudges; divided, the force would drown in float32's
# rounding.


@dataclass(frozen=True)
class Phases:
    """These settings say how long and how strongly a batch relaxes (section 3; appendix C)."""

    free_steps: int = 150
    nudged_steps: int = 5
    beta: float = 0.01
    step_size: float = 1.0

    def __post_init__(self) -> None:
        at_least("free_steps", self.free_steps)
        positive("step_size", self.step_size)
        if at_least("nudged_steps", self.nudged_steps) < 2:
            raise ValueError("nudged_steps=1 moves the image alone, and only the decoder would learn: give 2 or more")
        if not 0 < self.beta < 0.5:
            reason = "with -beta the energy has no minimum from 2 beta = 1 on"
            raise ValueError(f"beta must lie between 0 and 1/2, got {self.beta}: {reason}")


class Learned(NamedTuple):
    """The result of one batch, whose gradients lie in ``.grad``."""

    cost: Tensor  # C of the free state, of the last state for backpropagation, (B,)
    free: Trajectory[CETState]  # The free phase


@torch.no_grad()
def equilibrium_propagation(model: CET, masked: Tensor, images: Tensor, phases: Phases) -> Learned:
    """Add 1/B sum_b (dE/dtheta(s+_b) - dE/dtheta(s-_b)) / (2 beta) to ``.grad`` (equation 6); no graph is recorded.

    The free phase ends in s0; from there the phases with +beta and -beta relax as one batch of 2 B.

    Args:
        masked, images: xbar and x, (B, C, H, H).
    """
    clamped = model.clamp(masked)
    free = model.relax(model.first(clamped), clamped, phases.free_steps, phases.step_size)
    target = model.patches.blocks(images)
    both = type(clamped)(*(torch.cat([part, part]) for part in clamped))  # (2 B, N, P) and (2 B, N, D)
    signs = torch.cat([masked.new_ones(len(masked)), -masked.new_ones(len(masked))])  # (2 B,)
    start = CETState(*(torch.cat([part, part]) for part in free.state))
    nudge = CETNudge(torch.cat([target, target]), phases.beta * signs)
    nudged = model.relax(start, both, phases.nudged_steps, phases.step_size, nudge).state
    gradients = model.parameter_gradients(nudged, both, signs / (2 * phases.beta * len(masked)))
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name] if parameter.grad is None else parameter.grad.add_(gradients[name])
    return Learned(cost(free.state, target), free)


def truncated_backpropagation(model: CET, masked: Tensor, images: Tensor, phases: Phases) -> Learned:
    """Add the gradient of the mean cost after T1 + T2 steps, through the last T2 of them, to ``.grad`` (TBPTE)."""
    with torch.no_grad():
        clamped = model.clamp(masked)
        free = model.relax(model.first(clamped), clamped, phases.free_steps, phases.step_size)
    return Learned(full_backpropagation(model, masked, images, phases.nudged_steps, phases.step_size, free.state), free)


def full_backpropagation(
    model: CET,
    masked: Tensor,
    images: Tensor,
    num_steps: int,
    step_size: float = 1.0,
    state: CETState | None = None,
) -> Tensor:
    """Add the gradient of the mean cost after ``num_steps`` steps, from ``state`` or the first one, to ``.grad``;
    returns the costs, (B,).
    """
    with torch.enable_grad():
        clamped = model.clamp(masked)
        reached = model.relax(state or model.first(clamped), clamped, num_steps, step_size).state
        costs = cost(reached, model.patches.blocks(images))
        costs.mean().backward()
    return costs.detach()


def cost(state: CETState, target: Tensor) -> Tensor:
    """Compute C, (B,), for a target in blocks, (B, H/s, H/s, C s^2)."""
    return (state.y - target).square().flatten(1).sum(1)

"""CEM's attention ("Recasting Transformer layers as energy models"): its values are its keys, its context stays.

With p = exp(s - lse), G the gradient of o, dp = G k^T and ds = p (dp - sum_j p dp), sums over queries i,

    o = p k,   dq = ds k / tau,   dk = p^T G + ds^T q / tau,   du = dS (h d) / tau,   d(h d) = dS^T u / tau

where dS is ds summed over heads.  Large scores need that sum_j p, 1 but for rounding, divides the sum in ds.  The rows
of ds sum to 0: the gradient of bias_cross is minus that of bias_self, the sum of the diagonals.

S inner steps are one op, whose backward pass computes again all but x_t and lse_t.  With G the gradient of x_{t+1},
eta the step size, W the matrix that reads and O the one that writes, one step backwards is

    do = eta G O^T,   (o, dq, dS-part of du) by the attention,   dO += eta o^T G,   dW += dq^T u,
    du += dq W,   G <- G + (du through the norm)

Legend: B sequences, T tokens, D width, H heads, Y head width, S inner steps; N sequences and q rows of a piece, which
see n keys.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.dispatch import Shapes, Way, choose, closed_form_way, device_type, triton_way, under_autocast
from paper_repro.kernels.first_order import FirstOrder, WithGradient
from paper_repro.models import common
from paper_repro.models.common import Positions, wide

PIECE = 1 << 17
"""Scores of a piece per thread: 512 kB in float32, and twice that on the way back."""
ROWS = 64
"""Queries of a piece: fewer see fewer keys in vain, more repay the calls."""


class Piece(NamedTuple):
    """Sequences ``first`` ... ``last``, queries ``start`` ... ``stop``; these see keys up to ``stop``."""

    first: int
    last: int
    start: int
    stop: int

    def rows(self, by_token: Tensor) -> Tensor:
        """Return the rows of (B, T, ...)."""
        return by_token[self.first : self.last, self.start : self.stop]

    def seen(self, by_token: Tensor) -> Tensor:
        """Return what the rows see of (B, T, ...)."""
        return by_token[self.first : self.last, : self.stop]


class ClosedForm:
    """For keys (B, T, H, Y) and h d (B, T, D) that stay; gradients of both are added up over ``backward`` calls."""

    def __init__(self, keys: Tensor, context: Tensor | None, positions: Positions, tau: float) -> None:
        self.shape, self.tau = keys.shape, tau
        self.keys = keys.transpose(1, 2).contiguous()  # (B, H, T, Y)
        self.context = None if context is None else context / tau  # (B, T, D)
        self.table = self._bias(positions)
        threads = torch.get_num_threads() if device_type(keys) == "cpu" else 1
        longest = min(self.shape[1], ROWS) * self.shape[1] * self.shape[2]
        self.sequences = min(self.shape[0], max(1, PIECE * threads // longest))
        self.buffer = keys.new_empty(2 * self.sequences * longest)
        self.dkeys: Tensor | None = None
        self.dcontext: Tensor | None = None
        self.diagonal = keys.new_zeros(())

    def forward(self, query: Tensor, state: Tensor | None, lse: Tensor) -> Tensor:
        """Compute o (B, T, H, Y) of q (B, T, H, Y) and u (B, T, D); fills ``lse``, (B, T, H)."""
        out = torch.empty_like(query)
        for piece in self._pieces():
            keys = self._keys(piece)
            scores = self._space(1, piece)  # (N H, q, n)
            torch.bmm(self._by_head(piece.rows(query), 1 / self.tau), keys.mT, out=scores)
            self._add_shared(scores, state, piece)
            largest = scores.amax(-1, keepdim=True)
            total = scores.sub_(largest).exp_().sum(-1, keepdim=True)
            piece.rows(out).copy_(self._by_token(torch.bmm(scores, keys).div_(total), piece))
            piece.rows(lse).copy_(self._by_token(total.log_().add_(largest), piece).squeeze(-1))
        return out

    def backward(
        self, direction: Tensor, query: Tensor, state: Tensor | None, lse: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute o again, dq and du, given G (B, T, H, Y)."""
        if self.dkeys is None:
            self.dkeys = torch.zeros_like(self.keys)
            self.dcontext = None if self.context is None else torch.zeros_like(self.context)
        out, dquery = torch.empty_like(query), torch.empty_like(query)
        dstate = None if state is None else torch.empty_like(state)
        for piece in self._pieces():
            q, G = self._by_head(piece.rows(query), 1 / self.tau), self._by_head(piece.rows(direction), 1)
            rows = q.shape[1]
            keys, both = self._keys(piece), self._space(2, piece)
            around = torch.cat((q, G, q), 1)  # (N H, 3 q, Y)
            torch.bmm(around[:, : 2 * rows], keys.mT, out=both)
            p, ds = both[:, :rows], both[:, rows:]
            self._add_shared(p, state, piece)
            p.sub_(self._by_head(piece.rows(lse).unsqueeze(-1), 1)).exp_()
            ds.mul_(p)
            ds.addcmul_(p, ds.sum(-1, keepdim=True).div_(p.sum(-1, keepdim=True)), value=-1)
            found = torch.bmm(both, keys)  # (N H, 2 q, Y)
            piece.rows(out).copy_(self._by_token(found[:, :rows], piece))
            torch.mul(self._by_token(found[:, rows:], piece), 1 / self.tau, out=piece.rows(dquery))
            self._keys(piece, self.dkeys).baddbmm_(both.mT, around[:, rows:])
            self.diagonal += ds[..., piece.start :].diagonal(dim1=1, dim2=2).sum()
            self._back_to_shared(ds, state, dstate, piece)
        return out, dquery, dstate

    def gradients(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Return the gradients of the keys, h d, bias_self and bias_cross."""
        assert self.dkeys is not None
        dcontext = None if self.dcontext is None else self.dcontext.div_(self.tau)
        return self.dkeys.transpose(1, 2), dcontext, self.diagonal, -self.diagonal

    def _bias(self, positions: Positions) -> Tensor:
        """Return (H, q, columns), whose last columns are those of the keys that a piece's queries see."""
        tokens = self.shape[1]
        rows = min(tokens, ROWS)
        before = (tokens - 1) // rows * rows
        place = torch.arange(before + rows, device=self.keys.device)
        distance = place[before:].unsqueeze(1) - place
        bias = torch.where(distance == 0, positions.bias_self, positions.bias_cross)
        table = bias - positions.slopes.view(-1, 1, 1) * distance
        return table.to(self.keys.dtype).masked_fill_(distance < 0, -torch.inf)

    def _pieces(self) -> Iterator[Piece]:
        sequences, tokens = self.shape[:2]
        for first in range(0, sequences, self.sequences):
            for start in range(0, tokens, ROWS):
                yield Piece(first, min(first + self.sequences, sequences), start, min(start + ROWS, tokens))

    def _space(self, count: int, piece: Piece) -> Tensor:
        """Return (N H, count q, n) of the buffer."""
        shape = (piece.last - piece.first) * self.shape[2], count * (piece.stop - piece.start), piece.stop
        return self.buffer[: shape[0] * shape[1] * shape[2]].view(shape)

    def _keys(self, piece: Piece, by_head: Tensor | None = None) -> Tensor:
        """Return the keys (N H, n, Y) of (B, H, T, Y)."""
        found = self.keys if by_head is None else by_head
        return found[piece.first : piece.last].flatten(0, 1)[:, : piece.stop]

    def _by_head(self, rows: Tensor, factor: float) -> Tensor:
        """Return (N, q, H, ...) times ``factor`` as contiguous (N H, q, ...)."""
        rows = rows.transpose(1, 2)
        return (rows.contiguous() if factor == 1 else (rows * factor).contiguous()).flatten(0, 1)

    def _by_token(self, by_head: Tensor, piece: Piece) -> Tensor:
        """Return (N H, q, ...) as a view (N, q, H, ...)."""
        return by_head.unflatten(0, (piece.last - piece.first, -1)).transpose(1, 2)

    def _add_shared(self, scores: Tensor, state: Tensor | None, piece: Piece) -> None:
        """Add to (N H, q, n) what places add and what all heads share."""
        by_sequence = scores.unflatten(0, (-1, self.shape[2]))
        columns = self.table.shape[2] - self.table.shape[1] - piece.start
        by_sequence += self.table[:, : scores.shape[1], columns : columns + scores.shape[2]]
        if state is not None and self.context is not None:
            by_sequence += torch.bmm(piece.rows(state), piece.seen(self.context).mT).unsqueeze(1)

    def _back_to_shared(self, ds: Tensor, state: Tensor | None, dstate: Tensor | None, piece: Piece) -> None:
        if state is None or dstate is None or self.context is None or self.dcontext is None:
            return
        summed = ds.unflatten(0, (-1, self.shape[2])).sum(1)  # (N, q, n)
        piece.rows(dstate).copy_(torch.bmm(summed, piece.seen(self.context)))
        piece.seen(self.dcontext).baddbmm_(summed.mT, piece.rows(state))


class TiedAttentionGradient(FirstOrder):
    """The gradients of all tensors, given that of o, the tensors, o and lse."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        gradient, query, keys, state, context, slopes, bias_self, bias_cross, out, lse, tau, way = given
        attention = way(keys, context, Positions(slopes, bias_self, bias_cross), tau)
        _, dquery, dstate = attention.backward(gradient, query, state, lse, out)
        dkeys, dcontext, *dbiases = attention.gradients()
        dshared = _like(dstate, state), _like(dcontext, context)
        return _like(dquery, query), _like(dkeys, keys), *dshared, None, *_each(dbiases, bias_self, bias_cross)


class TiedAttention(WithGradient):
    """o (B, T, H, Y); and lse (B, T, H)."""

    gradient = TiedAttentionGradient
    keeps_results = True

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor]:
        query, keys, state, context, slopes, bias_self, bias_cross, tau, way = given
        lse = query.new_empty(query.shape[:-1], dtype=wide(query))  # (B, T, H)
        attention = way(keys, context, Positions(slopes, bias_self, bias_cross), tau)
        return attention.forward(query, state, lse), lse


class DescentGradient(FirstOrder):
    """The gradients of all tensors, given that of x_S, the tensors, x_1 ... x_{S-1} and lse_0 ... lse_{S-1}."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        gradient, x, keys, reading, writing, context, norm_weight, *others = given
        slopes, bias_self, bias_cross, states, lse, num_steps, step_size, tau, norm_eps, way = others
        dtype = keys.dtype
        attention = way(keys, context, Positions(slopes, bias_self, bias_cross), tau)
        dreading, dwriting = (value.new_zeros(value.shape, dtype=wide(value)) for value in (reading, writing))
        dnorm = None if norm_weight is None else torch.zeros_like(norm_weight)
        for step in reversed(range(num_steps)):
            with torch.enable_grad():
                before = states[step - 1] if step else x
                leaves = [value.detach().requires_grad_() for value in (before, norm_weight) if value is not None]
                u = _normed(*leaves, eps=norm_eps)
            at = u.detach().to(dtype)
            G = (gradient * step_size).to(dtype)
            query = functional.linear(at, reading).view(keys.shape)  # (B, T, H, Y)
            direction = functional.linear(G, writing).view(keys.shape)  # (B, T, H, Y)
            out, dquery, dstate = attention.backward(direction, query, None if context is None else at, lse[step])
            dwriting += _summed(out.flatten(2), G)  # (H Y, D)
            dreading += _summed(dquery.flatten(2), at)  # (H Y, D)
            du = dquery.flatten(2) @ reading  # (B, T, D)
            if dstate is not None:
                du += dstate
            if norm_weight is None or dnorm is None:
                gradient = gradient + du
            else:
                dx, dweight = torch.autograd.grad(u, leaves, du.to(u.dtype))
                gradient = gradient + dx
                dnorm += dweight
        dkeys, dcontext, *dbiases = attention.gradients()
        dmatrices = dreading.to(reading.dtype), dwriting.to(writing.dtype)
        dbiases = _each(dbiases, bias_self, bias_cross)
        return _like(gradient, x), _like(dkeys, keys), *dmatrices, _like(dcontext, context), dnorm, None, *dbiases


class Descent(WithGradient):
    """x_S (B, T, D); x_1 ... x_{S-1}, (S-1, B, T, D); lse_0 ... lse_{S-1}, (S, B, T, H).

    x has a dtype of its own, keys, matrices and context share one.
    """

    gradient = DescentGradient

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, keys, reading, writing, context, norm_weight, *others = given
        slopes, bias_self, bias_cross, num_steps, step_size, tau, norm_eps, way = others
        attention = way(keys, context, Positions(slopes, bias_self, bias_cross), tau)
        out, states = torch.empty_like(x), x.new_empty(num_steps - 1, *x.shape)
        lse = keys.new_empty(num_steps, *keys.shape[:-1], dtype=wide(keys))  # (S, B, T, H)
        for into, normaliser in zip((*states, out), lse, strict=True):
            u = (x if norm_weight is None else _normed(x, norm_weight, eps=norm_eps)).to(keys.dtype)
            query = functional.linear(u, reading).view(keys.shape)  # (B, T, H, Y)
            read = attention.forward(query, None if context is None else u, normaliser)
            torch.add(x, read.flatten(2) @ writing, alpha=step_size, out=into)
            x = into
        return out, states, lse


def _normed(x: Tensor, weight: Tensor | None = None, *, eps: float) -> Tensor:
    """Return RMSNorm(x) * weight, or x itself without one."""
    return x if weight is None else functional.rms_norm(x, x.shape[-1:], weight, eps)


def _summed(one: Tensor, two: Tensor) -> Tensor:
    """Return the outer products of (B, T, M) and (B, T, N), over all tokens: (M, N)."""
    return one.flatten(0, 1).mT @ two.flatten(0, 1)


def _like(gradient: Tensor | None, tensor: Tensor | None) -> Tensor | None:
    return None if gradient is None or tensor is None else gradient.to(tensor.dtype)


def _each(gradients: list[Tensor], *tensors: Tensor) -> list[Tensor]:
    return [gradient.to(tensor.dtype) for gradient, tensor in zip(gradients, tensors, strict=True)]


LEAST_SCORES = 1 << 19
"""B H T^2 S, from which on "auto" takes the closed form on a CPU."""
SHAPES = Shapes(query="B T H Y", keys="B T H Y", state="B T D", context="B T D")
POSITION_SHAPES = Shapes(slopes="H", bias_self="", bias_cross="")
DESCENT_SHAPES = Shapes(x="B T D", keys="B T H Y", reading="N D", writing="N D", context="B T D", norm_weight="D")
WIDEST = 256
"""The fused kernel holds whole rows of heads in registers."""


def tied_attention(
    query: Tensor,
    keys: Tensor,
    state: Tensor | None = None,
    context: Tensor | None = None,
    *,
    tau: float,
    slopes: Tensor | None = None,
    bias_self: Tensor | None = None,
    bias_cross: Tensor | None = None,
    implementation: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute o_ik = sum_j a_ijk k_jk and lse_ik = log sum_j exp(s_ijk), over j <= i, with a = softmax_j(s) and

        s_ijk = (k_jk . q_ik + (h_j d) . u_i) / tau - slope_k (i - j) + (bias_self where i = j, else bias_cross)

    (CEM, equations 1 and 12, appendix B and Algorithm 1; the diagonal d is in the scores alone).  The energy of a token
    is -tau sum_k lse_ik.  Deviation: the paper adds + m_k |i - j|; a penalty is meant.

    "fused" (Triton) and "closed_form" (some rows of scores at a time) have first derivatives of o in reverse mode only,
    and none of lse.

    Args:
        query, keys: q and k, (B, T, H, Y).
        state, context: u and h d, (B, T, D); both or neither.
        tau: the temperature, above 0.
        slopes: (H,), constants; 0 if None.
        bias_self, bias_cross: (), 0 if None.

    Returns:
        o (B, T, H, Y) in the keys' dtype and lse (B, T, H) in float32 (float64 where an input is).
    """
    SHAPES.check(query, keys, state, context)
    if (state is None) != (context is None):
        raise ValueError("state and context go together")
    positions = _positions(keys, tau, slopes, bias_self, bias_cross)
    given = [value for value in (query, keys, state, context) if value is not None]
    attention = _attention("tied_attention", implementation, keys, 1, (*given, *positions))
    if attention is None:
        return common.tied_attention(query, keys, state, context, positions, tau)
    found: tuple[Tensor, Tensor] = TiedAttention.apply(query, keys, state, context, *positions, float(tau), attention)
    return found


def descend(
    x: Tensor,
    keys: Tensor,
    reading: Tensor,
    writing: Tensor,
    context: Tensor | None = None,
    norm_weight: Tensor | None = None,
    *,
    num_steps: int,
    step_size: float = 1.0,
    tau: float,
    norm_eps: float = 1e-6,
    slopes: Tensor | None = None,
    bias_self: Tensor | None = None,
    bias_cross: Tensor | None = None,
    implementation: str = "auto",
) -> Tensor:
    """Repeat ``num_steps`` times x <- x + step_size * o writing (CEM, equations 14 and 16, Algorithm 1), where

        u = RMSNorm(x) * norm_weight (x itself without one),   q = u reading^T,   o of ``tied_attention`` at u

    and keys and context stay.  ``writing`` holds W^Q_k P_k of all heads, ``reading`` W^Q_k: the same tensor where
    P is the identity.  Gradients reach everything but ``slopes``.

    "fused" and "closed_form" keep x_t and lse_t of each inner step and compute the rest again on the way back, see
    ``tied_attention``.  Under CUDA's autocast the fused op attends in autocast's dtype; x keeps its own.

    Args:
        x: x_0, (B, T, D).
        keys: (B, T, H, Y).
        reading, writing: (H Y, D).
        context: h d, (B, T, D).
        norm_weight: (D,).

    Returns:
        x_S, (B, T, D).
    """
    DESCENT_SHAPES.check(x, keys, reading, writing, context, norm_weight)
    if not isinstance(num_steps, int) or num_steps < 1:
        raise ValueError(f"num_steps must be a whole number of at least 1, got {num_steps!r}")
    if reading.shape[0] != keys.shape[2] * keys.shape[3]:
        raise ValueError(f"reading and writing must be (H Y, D), got {tuple(reading.shape)}")
    positions = _positions(keys, tau, slopes, bias_self, bias_cross)
    tensors = x, keys, reading, writing, context, norm_weight
    given = [value for value in tensors if value is not None]
    numbers: Any = {"num_steps": num_steps, "step_size": float(step_size), "tau": float(tau), "norm_eps": norm_eps}
    attention = _attention("tied_attention.descend", implementation, keys, num_steps, (*given, *positions))
    if attention is None:
        numbers |= positions._asdict()
        return common.descend_attention(x, keys, reading, writing, context, norm_weight, **numbers)
    dtype = torch.get_autocast_dtype(x.device.type) if under_autocast(x) else keys.dtype
    keys, reading, writing = (value.to(dtype) for value in (keys, reading, writing))
    context = None if context is None else context.to(dtype)  # (B, T, D)
    tensors = x, keys, reading, writing, context, norm_weight
    out: Tensor = Descent.apply(*tensors, *positions, *numbers.values(), attention)[0]
    return out


def _attention(
    op: str, implementation: str, keys: Tensor, num_steps: int, given: tuple[Tensor, ...]
) -> type[Any] | None:
    """Return the class that attends; None for the definition."""
    sequences, tokens, heads, width = keys.shape  # (B, T, H, Y)
    large = sequences * heads * tokens**2 * num_steps >= LEAST_SCORES
    return choose(op, WAYS, implementation, given, width=width, large=large)()


def _fused() -> type[Any]:
    from paper_repro.kernels.tied_attention import triton

    return triton.Attention


WAYS: tuple[Way[Callable[[], type[Any] | None]], ...] = (
    triton_way(_fused, widest=WIDEST),
    closed_form_way(lambda: ClosedForm, order=1, transforms=False, auto_on=("cpu",), auto_order=1, auto_large=True),
    Way("reference", lambda: None),
)


def _positions(
    keys: Tensor, tau: float, slopes: Tensor | None, bias_self: Tensor | None, bias_cross: Tensor | None
) -> Positions:
    if not (math.isfinite(tau) and tau > 0):
        raise ValueError(f"tau must be finite and above 0, got {tau!r}")
    dtype = wide(keys)
    zero = torch.zeros((), dtype=dtype, device=keys.device)
    heads = keys.shape[2]
    slopes = zero.expand(heads) if slopes is None else slopes  # (H,)
    bias_self = zero if bias_self is None else bias_self
    bias_cross = zero if bias_cross is None else bias_cross
    POSITION_SHAPES.check(slopes, bias_self, bias_cross)
    if slopes.requires_grad:
        raise ValueError("slopes are constants, but these ask for a gradient: give slopes.detach()")
    return Positions(slopes, bias_self, bias_cross)

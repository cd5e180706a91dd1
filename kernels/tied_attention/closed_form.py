"""Attention whose values are its keys, and its gradients, in plain PyTorch: some rows of queries at a time.

With p = exp(s - lse), G the gradient of o, dp = G k^T and ds = p (dp - sum_j p dp), sums over queries i,

    o = p k,   dq = ds k / tau,   dk = p^T G + ds^T q / tau,   du = dS (h d) / tau,   d(h d) = dS^T u / tau

where dS is ds summed over heads.  Large scores need that sum_j p, 1 but for rounding, divides the sum in ds.  Since
values are keys, q and G meet the keys in one product, p and ds in another.  The rows of ds sum to 0, so what bias_cross
gets is minus what bias_self gets: the sum of the diagonals.

Legend: B sequences, T tokens, D width, H heads, Y head width; N sequences and q rows of a piece, which see n keys.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from paper_repro.kernels.tied_attention.reference import Positions

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


class Attention:
    """For keys (B, T, H, Y) and h d (B, T, D) that stay; gradients of both are added up over ``backward`` calls.

    All tensors of one dtype, float32 or float64.
    """

    def __init__(self, keys: Tensor, context: Tensor | None, positions: Positions, tau: float) -> None:
        self.shape, self.tau = keys.shape, tau
        self.keys = keys.transpose(1, 2).contiguous()  # (B, H, T, Y)
        self.context = None if context is None else context / tau  # (B, T, D)
        self.table = self._bias(positions)
        threads = torch.get_num_threads() if keys.device.type == "cpu" else 1
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
        """Compute o again, dq and du, given G (B, T, H, Y); ``out`` is not needed."""
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
        """Return (H, q, columns): the last of them for the keys that a piece's queries see, whichever piece it is."""
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

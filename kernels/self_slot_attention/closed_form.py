"""The observed columns in plain PyTorch, some rows of some heads at a time; formulas: see ``second_order``.

Scores are computed anew in each pass, and nothing of the size T x T is ever held.

Legend: B sequences, H heads, N samples, T tokens, Y channels of a head, Z channels of its values; of a piece: h heads,
m rows, and the n columns that they see.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from paper_repro.kernels.self_slot_attention.second_order import Cotangents, Curvature, Observed, OwnRows, Passes

PIECE = 1 << 16
"""Scores of a piece per thread: 256 kB in float32."""
ROWS = 64
"""Tokens of a piece: fewer see fewer columns in vain, more repay the calls."""
LOG2_E = math.log2(math.e)
"""Torch computes powers of two many times faster than those of e where these are tiny."""


def forward(given: Observed) -> tuple[Tensor, Tensor]:
    """Compute o (B, H, N T, Z) and lse (B, H, N T, 1)."""
    pieces = _Pieces(given)
    out, lse = pieces.empty(given.values.shape[3]), pieces.empty(1)  # (B H, N, T, Z or 1)
    for piece in pieces:
        (scores,) = piece.space(1)
        piece.scores(scores)
        piece.hide_future(scores)
        largest = scores.amax(-1, keepdim=True)
        total = scores.sub_(largest).exp2_().sum(-1, keepdim=True)
        piece.write(out, torch.bmm(scores, piece.seen(pieces.values)).div_(total))
        piece.write(lse, total.log2_().add_(largest).div_(LOG2_E))
    return pieces.as_given(out), pieces.as_given(lse)


def gradient(given: Observed, G: Tensor, lse: Tensor, D: Tensor, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """Compute dq, dk and dv, those that are needed."""
    pieces = _Pieces(given)
    G, D, lse2 = pieces.by_row(G), pieces.by_row(D), pieces.by_row(lse * LOG2_E)  # (B H, N, T, Z or 1)
    dquery = pieces.empty(given.query.shape[3]) if needs[0] else None  # (B H, N, T, Y)
    dkeys = torch.empty_like(pieces.keys) if needs[1] else None  # (B H, T + lead, Y)
    dvalues = torch.empty_like(pieces.values) if needs[2] else None  # (B H, T + lead, Z)
    for piece in pieces:
        p, ds = piece.space(2)
        G_rows = piece.rows(G)  # (h, m, Z)
        piece.probabilities(lse2, p)
        torch.bmm(G_rows, piece.seen(pieces.values).mT, out=ds)
        ds.sub_(piece.rows(D)).mul_(p)
        if dquery is not None:
            piece.multiply(ds, piece.seen(pieces.keys), given.scale, dquery)
        if dkeys is not None:
            piece.add(dkeys, ds, piece.rows(pieces.query), given.scale)
        if dvalues is not None:
            piece.add(dvalues, p, G_rows)
    dquery = None if dquery is None else pieces.as_given(dquery)  # (B, H, N T, Y)
    return dquery, *(None if found is None else found.unflatten(0, given.keys.shape[:2]) for found in (dkeys, dvalues))


def curvature(
    given: Observed,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    along: Cotangents,
    own: OwnRows | None,
    needs: tuple[bool, ...],
) -> Curvature:
    """Compute the derivatives by G, q, k and v, those that are needed, and T and R."""
    return _Curvature(given, G, lse, D, along, own, needs).computed()


PASSES = Passes(forward, gradient, curvature)


class _Piece:
    """Some heads, and some tokens of each sample, which see the first ``seeing`` columns."""

    def __init__(self, pieces: "_Pieces", heads: slice, tokens: slice) -> None:
        self.pieces, self.heads, self.tokens = pieces, heads, tokens
        self.seeing = tokens.stop + pieces.lead
        self.whole = tokens.stop - tokens.start == pieces.tokens

    def rows(self, by_row: Tensor) -> Tensor:
        """Return the rows (h, m, ...) of (B H, N, T, ...); a view where N is 1."""
        found = by_row[self.heads]
        return (found if self.whole else found[:, :, self.tokens]).flatten(1, 2)

    def seen(self, by_column: Tensor) -> Tensor:
        """Return the columns (h, n, ...) that the rows see of (B H, T + lead, ...)."""
        return by_column[self.heads] if self.whole else by_column[self.heads, : self.seeing]

    def write(self, by_row: Tensor, rows: Tensor) -> None:
        """Write the rows (h, m, ...) into (B H, N, T, ...)."""
        by_row[self.heads, :, self.tokens] = rows.unflatten(1, (by_row.shape[1], -1))

    def multiply(self, weights: Tensor, columns: Tensor, factor: float, by_row: Tensor) -> None:
        """Write factor * weights (h, m, n) @ columns (h, n, ...) into (B H, N, T, ...)."""
        out = self.rows(by_row) if self.whole else by_row.new_empty(*weights.shape[:2], columns.shape[2])
        torch.baddbmm(out, weights, columns, beta=0, alpha=factor, out=out)
        if not self.whole:
            self.write(by_row, out)

    def add(self, by_column: Tensor, weights: Tensor, rows: Tensor, factor: float = 1.0) -> None:
        """Add factor * weights^T (n, m) @ rows (h, m, ...) to (B H, T + lead, ...); the last tokens' write."""
        out = by_column[self.heads]
        if self.tokens.stop == self.pieces.tokens:
            torch.baddbmm(out, weights.mT, rows, beta=0, alpha=factor, out=out)
        else:
            out[:, : self.seeing].add_(torch.bmm(weights.mT, rows), alpha=factor)

    def space(self, count: int) -> list[Tensor]:
        """Return so many buffers (h, m, n)."""
        rows = self.pieces.samples * (self.tokens.stop - self.tokens.start)
        shape = self.heads.stop - self.heads.start, rows, self.seeing
        return [part[: shape[0] * shape[1] * shape[2]].view(shape) for part in self.pieces.buffers(count)]

    def scores(self, out: Tensor) -> None:
        """Write log2(e) s (h, m, n), those of columns after a row too."""
        q, k = self.rows(self.pieces.query), self.seen(self.pieces.keys)  # (h, m, Y), (h, n, Y)
        torch.baddbmm(out, q, k.mT, beta=0, alpha=self.pieces.scale * LOG2_E, out=out)

    def hide_future(self, scores: Tensor) -> None:
        """Make the scores (h, m, n) of columns after a row minus infinity."""
        width = self.tokens.stop - self.tokens.start
        last = scores.unflatten(1, (self.pieces.samples, width))[..., self.seeing - width :]
        last += self.pieces.future[:width, :width]

    def probabilities(self, lse2: Tensor, out: Tensor) -> None:
        """Write p (h, m, n), given log2(e) lse."""
        self.scores(out)
        out.sub_(self.rows(lse2)).exp2_()
        by_sample = out.unflatten(1, (self.pieces.samples, -1)) if self.pieces.samples > 1 else out
        by_sample.tril_(self.tokens.start + self.pieces.lead)


class _Pieces:
    """All pieces.  The last tokens come first: they see all columns, so what they write there needs no zeros before."""

    def __init__(self, given: Observed) -> None:
        self.given, self.scale, self.lead = given, given.scale, given.lead
        self.keys, self.values = given.keys.flatten(0, 1), given.values.flatten(0, 1)  # (B H, T + lead, Y or Z)
        self.heads, columns = self.keys.shape[:2]
        self.tokens = columns - given.lead
        self.samples = given.query.shape[2] // self.tokens
        self.query = self.by_row(given.query)  # (B H, N, T, Y)
        self.rows = min(self.tokens, ROWS)
        threads = torch.get_num_threads() if given.query.device.type == "cpu" else 1
        longest = self.samples * self.rows * columns
        self.group = min(self.heads, max(1, PIECE * threads // longest))
        self._longest, self._buffers = self.group * longest, list[Tensor]()
        self.future = given.query.new_full((self.rows, self.rows), -torch.inf).triu_(1)

    def __iter__(self) -> Iterator[_Piece]:
        for first in range(0, self.heads, self.group):
            heads = slice(first, min(first + self.group, self.heads))
            for start in reversed(range(0, self.tokens, self.rows)):
                yield _Piece(self, heads, slice(start, min(start + self.rows, self.tokens)))

    def by_row(self, rows: Tensor) -> Tensor:
        """Return (B, H, N T, ...) as (B H, N, T, ...)."""
        return rows.flatten(0, 1).unflatten(1, (self.samples, self.tokens))

    def as_given(self, by_row: Tensor) -> Tensor:
        """Return (B H, N, T, ...) as (B, H, N T, ...)."""
        return by_row.view(*self.given.query.shape[:3], -1)

    def empty(self, width: int) -> Tensor:
        return self.query.new_empty((self.heads, self.samples, self.tokens, width))

    def buffers(self, count: int) -> list[Tensor]:
        """Return so many buffers for the scores of the largest piece; they are made once."""
        while len(self._buffers) < count:
            self._buffers.append(self.query.new_empty(self._longest))
        return self._buffers[:count]


class _Curvature:
    def __init__(
        self,
        given: Observed,
        G: Tensor,
        lse: Tensor,
        D: Tensor,
        along: Cotangents,
        own: OwnRows | None,
        needs: tuple[bool, ...],
    ) -> None:
        self.pieces = pieces = _Pieces(given)
        self.scale = given.scale
        self.G, self.D, self.lse2 = pieces.by_row(G), pieces.by_row(D), pieces.by_row(lse * LOG2_E)
        self.a = pieces.by_row(along.query)  # (B H, N, T, Y)
        self.b, self.d = (None if tensor is None else tensor.flatten(0, 1) for tensor in (along.keys, along.values))
        self.own = None if own is None else OwnRows(*(pieces.by_row(rows) for rows in own))
        self.by_G, self.by_query = pieces.empty(given.values.shape[3]), pieces.empty(given.query.shape[3])
        self.by_keys = torch.empty_like(pieces.keys) if needs[2] else None
        self.by_values = torch.empty_like(pieces.values) if needs[3] else None
        self.T, self.R = pieces.empty(1), pieces.empty(1)  # (B H, N, T, 1)

    def computed(self) -> Curvature:
        for piece in self.pieces:
            self._add(piece)
        rows = (self.pieces.as_given(found) for found in (self.by_G, self.by_query, self.T, self.R))
        by_G, by_query, T, R = rows  # (B, H, N T, Z, Y, 1 or 1)
        heads = self.pieces.given.keys.shape[:2]
        by_keys, by_values = (
            None if found is None else found.unflatten(0, heads) for found in (self.by_keys, self.by_values)
        )
        return Curvature(by_G, by_query, by_keys, by_values, T, R)

    def _add(self, piece: _Piece) -> None:
        """Compute what belongs to the rows of a piece, and add what belongs to the columns that they see."""
        q, k, v = piece.rows(self.pieces.query), piece.seen(self.pieces.keys), piece.seen(self.pieces.values)
        G, a = piece.rows(self.G), piece.rows(self.a)  # (h, m, Z), (h, m, Y)
        p, ds, u, product = piece.space(4)
        piece.probabilities(self.lse2, p)
        torch.bmm(G, v.mT, out=ds)
        ds.sub_(piece.rows(self.D)).mul_(p)
        torch.baddbmm(u, a, k.mT, beta=0, alpha=self.scale, out=u)
        if self.b is not None:
            u.baddbmm_(q, piece.seen(self.b).mT, alpha=self.scale)
        T = torch.mul(p, u, out=product).sum(-1, keepdim=True)  # (h, m, 1)
        if self.own is not None:
            T += piece.rows(self.own.pt)
        piece.write(self.T, T)
        pu = torch.mul(p, u.sub_(T), out=product)
        piece.multiply(pu, v, 1.0, self.by_G)
        if self.by_values is not None:
            piece.add(self.by_values, pu, G)
        r = u.mul_(ds)
        if self.d is not None:
            d = piece.seen(self.d)  # (h, n, Z)
            piece.write(self.by_G, torch.baddbmm(piece.rows(self.by_G), p, d))
            r.addcmul_(p, torch.bmm(G, d.mT, out=product))
        R = r.sum(-1, keepdim=True)  # (h, m, 1)
        if self.own is not None:
            R += piece.rows(self.own.ds) * (piece.rows(self.own.t) - T) + piece.rows(self.own.pw)
        piece.write(self.R, R)
        r.addcmul_(p, R, value=-1)
        piece.multiply(r, k, self.scale, self.by_query)
        if self.b is not None:
            piece.write(
                self.by_query, torch.baddbmm(piece.rows(self.by_query), ds, piece.seen(self.b), alpha=self.scale)
            )
        if self.by_keys is not None:
            piece.add(self.by_keys, r, q, self.scale)
            piece.seen(self.by_keys).baddbmm_(ds.mT, a, alpha=self.scale)

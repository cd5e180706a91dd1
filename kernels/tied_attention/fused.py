"""Attention whose values are its keys, by the Triton kernels of ``programs``.

What the diagonal adds to a score is the same for all heads: one product of matrices makes it, C = u (h d)^T,
(B, T, T) in float32, and the programs of the heads read its tiles.  It takes 128 MiB at B = 8 and T = 2,048 and is gone
after the inner step.  To compute it in each program took 17 to 25 times as long as flash attention on an H100: with
the numbers of twelve heads beside it no product filled the tensor cores.  The softmax is taken on the way; every sum
has a fixed order, nothing is added atomically.

The backward pass (formulas: see ``closed_form``) goes over keys for dq, over queries for both terms of dk, and, if
there is a diagonal, over heads for dS, ds summed over them, (B, T, T) in the keys' dtype; du and d(h d) are products of
it.

Legend: B sequences, T tokens, D width, H heads, Y head width.
"""

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.processors import properties
from paper_repro.kernels.tied_attention import programs
from paper_repro.kernels.tied_attention.reference import Positions, wide
from paper_repro.kernels.tied_attention.tiles import Tiles, tiles

_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class Attention:
    """As ``closed_form.Attention``; computed in float32 (float64 where an input is).

    Query, keys, state and context may have different dtypes; products of matrices are computed in the keys' dtype, in
    float32 with TF32 only where torch.set_float32_matmul_precision allows it.
    """

    def __init__(self, keys: Tensor, context: Tensor | None, positions: Positions, tau: float) -> None:
        self.keys, self.tau = keys.contiguous(), tau
        self.context = None if context is None else context.to(keys.dtype).contiguous()
        self.positions = Positions(*(value.contiguous() for value in positions))
        self.wide = wide(keys)
        self.dkeys: Tensor | None = None
        self.dcontext: Tensor | None = None
        self.diagonal = torch.zeros((), dtype=self.wide, device=keys.device)

    def forward(self, query: Tensor, state: Tensor | None, lse: Tensor) -> Tensor:
        """Compute o (B, T, H, Y) of q (B, T, H, Y) and u (B, T, D); fills ``lse``, (B, T, H)."""
        query = self._read(query)
        self._forward(query, self._shared(query, state), lse, out := torch.empty_like(self.keys))
        return out

    def backward(
        self, direction: Tensor, query: Tensor, state: Tensor | None, lse: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return o, computed again unless it is given as ``out``, and dq and du, given G (B, T, H, Y)."""
        direction, query = self._read(direction), self._read(query)
        shared = self._shared(query, state)
        if out is None:
            self._forward(query, shared, torch.empty_like(lse), out := torch.empty_like(self.keys))
        out = out.contiguous()
        if self.dkeys is None:
            self.dkeys = torch.zeros(self.keys.shape, dtype=self.wide, device=self.keys.device)
        plan, (sequences, tokens, heads, _) = self._tiles(), query.shape
        grid = self._grid(plan)
        delta, dquery = torch.empty_like(lse), torch.empty_like(query)
        partial = torch.empty(grid, dtype=self.wide, device=query.device)
        given = tokens, heads, query, self.keys, shared, *self.positions, direction, lse, delta
        constants, of_keys = self._constants(plan), self._tiles(own_keys=True)
        with torch.cuda.device_of(query):
            programs.to_queries[grid](*given, out, dquery, partial, **constants, ROWS=plan.own, COLUMNS=plan.other)
            programs.to_keys[self._grid(of_keys)](
                *given, self.dkeys, **self._constants(of_keys), ROWS=of_keys.other, COLUMNS=of_keys.own
            )
            self.diagonal += partial.sum()
            if state is None:
                return out, dquery, None
            summed = query.new_zeros(sequences, tokens, tokens)  # dS, (B, T, T)
            of_pairs = triton.cdiv(tokens, plan.other), triton.cdiv(tokens, plan.own), sequences
            programs.over_heads[of_pairs](*given, summed, **constants, ROWS=plan.own, COLUMNS=plan.other)
        return out, dquery, self._through_shared(self._read(state), summed)

    def gradients(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Return the gradients of the keys, h d, bias_self and bias_cross."""
        assert self.dkeys is not None
        return self.dkeys, self.dcontext, self.diagonal, -self.diagonal

    def _forward(self, query: Tensor, shared: Tensor, lse: Tensor, out: Tensor) -> None:
        plan, (_, tokens, heads, _) = self._tiles(), query.shape
        given = tokens, heads, query, self.keys, shared, *self.positions, out, lse
        with torch.cuda.device_of(query):
            programs.forward[self._grid(plan)](*given, **self._constants(plan), ROWS=plan.own, COLUMNS=plan.other)

    def _shared(self, query: Tensor, state: Tensor | None) -> Tensor:
        """Compute C = u (h d)^T, (B, T, T); without a diagonal anything stands for it."""
        if state is None or self.context is None:
            return query
        state, columns = self._read(state), self.context.mT
        if state.dtype == self.wide:
            return torch.bmm(state, columns)
        if state.is_cuda:
            return torch.bmm(state, columns, out_dtype=self.wide)
        return torch.bmm(state.to(self.wide), columns.to(self.wide))

    def _through_shared(self, state: Tensor, summed: Tensor) -> Tensor:
        """Compute du, and add to d(h d), given dS / tau, (B, T, T)."""
        assert self.context is not None
        dcontext = torch.bmm(summed.mT, state)  # (B, T, D)
        self.dcontext = dcontext.to(self.wide) if self.dcontext is None else self.dcontext.add_(dcontext)
        return torch.bmm(summed, self.context)

    def _read(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.keys.dtype).contiguous()

    def _tiles(self, own_keys: bool = False) -> Tiles:
        return tiles(self.keys.shape[3], self.keys.element_size(), own_keys, properties(self.keys.device).capability)

    def _grid(self, plan: Tiles) -> tuple[int, int]:
        """Return the programs: heads of one tile beside each other, since they read the same tiles of C."""
        sequences, tokens, heads, _ = self.keys.shape
        return triton.cdiv(tokens, plan.own) * heads, sequences

    def _constants(self, plan: Tiles) -> dict[str, Any]:
        dtype = self.keys.dtype
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        exact = dtype != torch.float32 or torch.get_float32_matmul_precision() == "highest"
        return {
            "WIDE": _TYPES[self.wide],
            "DOT": _TYPES[self.wide if interpreted else dtype],
            "PRECISION": "ieee" if exact else "tf32",
            "INVERSE_TAU": 1 / self.tau,
            "SHARED": self.context is not None,
            "Y": self.keys.shape[3],
            "BLOCK": plan.block,
            "TAIL": plan.tail,
            "num_warps": plan.warps,
            "num_stages": plan.stages,
        }

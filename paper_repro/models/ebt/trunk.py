"""The trunk of EBT and of its Transformer++: RMSNorm, rotary positions, attention and SwiGLU, without biases.

The same weights serve two streams (EBT, appendix C.6).  The observed stream holds the tokens that are known; it never
sees a prediction.  The predicted stream holds in row i a candidate for what follows observed row i; that row attends to
the observed rows up to i and to itself.

Legend: B sequences, T tokens, D width, H heads, Y = D/H, M hidden width, L layers, N predictions for each sequence.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.arguments import at_least, positive
from paper_repro.kernels.causal_attention import causal_attention
from paper_repro.kernels.qk_rotary import RotaryTables, rotate, rotate_queries_and_keys, textbook_tables
from paper_repro.kernels.rms_norm import rms_norm
from paper_repro.kernels.self_slot_attention import self_slot_attention
from paper_repro.kernels.swiglu import swiglu
from paper_repro.models.gpt import check_heads

NORM_EPS = 1e-5


class Observed(NamedTuple):
    """What one layer's attention reads of the observed stream: rotated keys and values, (B, H, T, Y) each."""

    keys: Tensor
    values: Tensor


class Modulation(NamedTuple):
    """Shift, scale and gate of a branch, (B or 1, 1, D) each: x + gate * branch(norm(x) * (1 + scale) + shift)."""

    shift: Tensor
    scale: Tensor
    gate: Tensor

    def before(self, normalized: Tensor) -> Tensor:
        """Return what the branch reads, (B, T, D)."""
        return normalized * (1 + self.scale) + self.shift  # (B, T, D)


class Projection(nn.Module):
    """x W^T, or x W^T + b, for ``parts`` matrices of one shape side by side: (..., inputs) -> (..., parts outputs).

    Each matrix starts Xavier-normal by itself, with variance 2 / (inputs + outputs); b starts at zero.
    """

    def __init__(self, inputs: int, outputs: int, parts: int = 1, biased: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(parts * outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(parts * outputs)) if biased else None
        nn.init.normal_(self.weight, std=math.sqrt(2 / (inputs + outputs)))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)  # (..., parts outputs)

    def shifted(self, product: Tensor) -> Tensor:
        """Add b, where there is one, to x W^T, (..., parts outputs)."""
        return product if self.bias is None else product + self.bias


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * weight: (..., D) -> (..., D); energies that contain it are differentiated twice."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, cast(float, self.eps))  # (..., D)


class Attention(nn.Module):
    """Softmax attention with rotated queries and keys; (B, T, D) -> (B, T, D)."""

    def __init__(self, width: int, num_heads: int, projection: type[Projection] = Projection) -> None:
        super().__init__()
        self.num_heads = check_heads(width, num_heads)
        self.query_key_value = projection(width, width, 3)
        self.output = projection(width, width)

    def forward(self, x: Tensor, tables: RotaryTables | None, causal: bool) -> Tensor:
        """Let x, (B, T, D), attend to itself; ``tables`` None leaves the positions out."""
        query, key, value = self.projected(x, tables)  # (B, H, T, Y) each
        return self.written(self._attended(query, key, value, causal))

    def observed(self, x: Tensor, tables: RotaryTables) -> Observed:
        """Return the keys and values of the observed stream x, (B, T, D), for a layer whose output nobody reads."""
        width, joined = x.shape[-1], self.query_key_value
        bias = None if joined.bias is None else joined.bias[width:]
        read = functional.linear(x, joined.weight[width:], bias)  # (B, T, 2 D)
        key, value = read.unflatten(-1, (2, self.num_heads, -1)).unbind(2)  # (B, T, H, Y) each
        return Observed(rotate(key, tables), value.transpose(1, 2))  # (B, H, T, Y) each

    def observe(self, x: Tensor, tables: RotaryTables) -> tuple[Tensor, Observed]:
        """Let the observed stream x, (B, T, D), attend to itself causally; return keys and values, too."""
        query, key, value = self.projected(x, tables)  # (B, H, T, Y) each
        return self.written(self._attended(query, key, value, True)), Observed(key, value)

    def predict(self, y: Tensor, observed: Observed, tables: RotaryTables, lead: int) -> Tensor:
        """Let each row of the predicted stream y, (N B, T, D), attend to the observed rows before it and to itself."""
        query, key, value = self.projected(y, tables)  # (N B, H, T, Y) each
        return self.written(self_slot_attention(query, key, value, *observed, lead=lead))

    def projected(self, x: Tensor, tables: RotaryTables | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries and keys, and values, (B, H, T, Y) each, of a stream (B, T, D)."""
        query, key, value = self.query_key_value(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # (B, T, H, Y)
        if tables is None:
            return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)  # (B, H, T, Y) each
        query, key = rotate_queries_and_keys(query, key, tables)  # (B, H, T, Y) each
        return query, key, value.transpose(1, 2)

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        if causal:
            return causal_attention(query, key, value)  # (B, H, T, Y)
        scores = query @ key.mT / math.sqrt(query.shape[-1])  # (B, H, T, T)
        return torch.softmax(scores, -1) @ value  # (B, H, T, Y)

    def written(self, attended: Tensor) -> Tensor:
        """Return the branch (B, T, D) of what the heads have read, (B, H, T, Y)."""
        found: Tensor = self.output(attended.transpose(1, 2).flatten(2))  # (B, T, D)
        return found


class FeedForward(nn.Module):
    """SwiGLU, W_down(SiLU(W_gate x) * W_up x), with hidden width M; (..., D) -> (..., D)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = Projection(width, hidden, 2)
        self.down = Projection(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(swiglu(self.gate_up(x)))  # (..., D)
        return found


@dataclass(frozen=True)
class Parts:
    """What a trunk is made of; as it stands: EBT's on language."""

    norm: Callable[[int, float], nn.Module] = RMSNorm
    """Takes a width and an eps."""
    projection: type[Projection] = Projection
    """The products of attention."""
    feed_forward: Callable[[int, int], nn.Module] = FeedForward
    """Takes D and M."""


class Block(nn.Module):
    """Attention, then feed-forward, each x + gate * branch(modulated(norm(x))); without modulation the gate is 1.

    ``modulation`` maps SiLU(c) of a condition c, (B or 1, D), to shift, scale and gate of both branches, in this order
    (adaLN of EBT's code, after DiT, arXiv 2212.09748).
    """

    def __init__(self, width: int, num_heads: int, hidden: int, norm_eps: float, modulated: bool, parts: Parts) -> None:
        super().__init__()
        self.attention_norm = parts.norm(width, norm_eps)
        self.attention = Attention(width, num_heads, parts.projection)
        self.feed_forward_norm = parts.norm(width, norm_eps)
        self.feed_forward = parts.feed_forward(width, hidden)
        self.modulation = nn.Linear(width, 6 * width) if modulated else None

    def forward(
        self, x: Tensor, tables: RotaryTables | None, causal: bool = True, condition: Tensor | None = None
    ) -> Tensor:
        """Return the next stream (B, T, D) of one that attends to itself."""
        first, second = self.modulations(condition)
        x = self.added(x, self.attention(self.read(x, first), tables, causal), first)  # (B, T, D)
        return self.fed(x, second)

    def observe(self, x: Tensor, tables: RotaryTables, condition: Tensor | None) -> tuple[Tensor, Observed]:
        """Return the next observed stream (B, T, D), and what predictions read of it."""
        first, second = self.modulations(condition)
        attended, observed = self.attention.observe(self.read(x, first), tables)
        return self.fed(self.added(x, attended, first), second), observed

    def observed(self, x: Tensor, tables: RotaryTables, condition: Tensor | None) -> Observed:
        """Return what predictions read of the observed stream, (B, T, D), and compute nothing else."""
        return self.attention.observed(self.read(x, self.modulations(condition)[0]), tables)

    def predict(
        self, y: Tensor, observed: Observed, tables: RotaryTables, lead: int, condition: Tensor | None
    ) -> Tensor:
        """Return the next predicted stream (N B, T, D)."""
        first, second = self.modulations(condition)
        attended = self.attention.predict(self.read(y, first), observed, tables, lead)
        return self.fed(self.added(y, attended, first), second)

    def modulations(self, condition: Tensor | None) -> tuple[Modulation | None, Modulation | None]:
        """Return what modulates attention and feed-forward, from SiLU(c), (B or 1, D)."""
        if self.modulation is None or condition is None:
            return None, None
        parts = self.modulation(condition)[:, None].chunk(6, -1)  # (B or 1, 1, D) each
        return Modulation(*parts[:3]), Modulation(*parts[3:])

    def read(self, x: Tensor, modulation: Modulation | None) -> Tensor:
        """Return what attention reads of a stream (B, T, D)."""
        normalized: Tensor = self.attention_norm(x)  # (B, T, D)
        return normalized if modulation is None else modulation.before(normalized)

    def fed(self, x: Tensor, modulation: Modulation | None) -> Tensor:
        """Add the feed-forward branch to a stream (B, T, D)."""
        normalized: Tensor = self.feed_forward_norm(x)  # (B, T, D)
        read = normalized if modulation is None else modulation.before(normalized)
        return self.added(x, self.feed_forward(read), modulation)

    def added(self, x: Tensor, branch: Tensor, modulation: Modulation | None) -> Tensor:
        """Add a branch to the stream, both (B, T, D), through its gate."""
        return x + branch if modulation is None else x + modulation.gate * branch  # (B, T, D)


LANGUAGE = Parts()


class Trunk(nn.Module):
    """L blocks and a final norm.

    Args:
        width, num_heads, num_layers: D, H, L.
        hidden: M; D if None, as in EBT's code.
        norm_eps: of every norm.
        modulated: whether blocks and final norm are modulated by a condition (adaLN).
        block_length: the most positions; None leaves positions to the caller, with attention that has none of its own.
        parts: norms, projections and feed-forward.

    Raises:
        ValueError: a size below one, heads that do not divide D (into even parts where positions are rotated).
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden: int | None = None,
        norm_eps: float = NORM_EPS,
        modulated: bool = False,
        block_length: int | None = None,
        parts: Parts = LANGUAGE,
    ) -> None:
        super().__init__()
        self.width = at_least("width", width)
        head_width = width // check_heads(width, num_heads)
        hidden = width if hidden is None else at_least("hidden", hidden)
        eps = positive("norm_eps", norm_eps)
        self.blocks = nn.ModuleList(
            Block(width, num_heads, hidden, eps, modulated, parts) for _ in range(at_least("num_layers", num_layers))
        )
        self.final_norm = parts.norm(width, eps)
        self.final_modulation = nn.Linear(width, 2 * width) if modulated else None
        self.rotary = block_length is not None
        if block_length is not None:
            count, dtype = at_least("block_length", block_length), torch.get_default_dtype()
            tables = textbook_tables(count, head_width, dtype=dtype)
            for name, table in tables._asdict().items():
                self.register_buffer(f"rotary_{name}", table, persistent=False)

    def tables(self, first: int, count: int) -> RotaryTables:
        """Return the rotary tables of ``count`` positions from ``first`` on."""
        whole = (getattr(self, f"rotary_{name}") for name in RotaryTables._fields)
        return RotaryTables(*(table[first : first + count] for table in whole))

    def layers(self) -> list[Block]:
        """Return the blocks, the first one first."""
        return cast(list[Block], list(self.blocks))

    def forward(self, x: Tensor, causal: bool = True, condition: Tensor | None = None) -> Tensor:
        """Return the final states, normalised, of a stream x, (B, T, D), that attends to itself."""
        return self.final(self.states(x, causal, condition), condition)

    def states(self, x: Tensor, causal: bool = True, condition: Tensor | None = None) -> Tensor:
        """Return what the last block gives, (B, T, D), before the final norm."""
        tables = self.tables(0, x.shape[1]) if self.rotary else None
        for block in self.layers():
            x = block(x, tables, causal, condition)  # (B, T, D)
        return x

    def observe(self, x: Tensor, condition: Tensor | None = None) -> list[Observed]:
        """Return what each layer's predictions read of the observed stream x, (B, T, D).

        Its last layer is reduced to keys and values, because nothing reads its output.
        """
        tables, found = self.tables(0, x.shape[1]), []
        *before, last = self.layers()
        for block in before:
            x, observed = block.observe(x, tables, condition)  # (B, T, D)
            found.append(observed)
        return [*found, last.observed(x, tables, condition)]

    def predict(
        self, y: Tensor, observed: Sequence[Observed], lead: int = 0, condition: Tensor | None = None
    ) -> Tensor:
        """Return the final states, normalised, of the predicted stream y, (N B, T, D).

        Row i stands at position i + 1 + ``lead`` and sees the observed rows 0 ... i + ``lead``.
        """
        tables = self.tables(1 + lead, y.shape[1])
        for block, seen in zip(self.layers(), observed, strict=True):
            y = block.predict(y, seen, tables, lead, condition)  # (N B, T, D)
        return self.final(y, condition)

    def final(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return the states (B, T, D) as a head reads them: normalised, and modulated where there is a condition."""
        normalized: Tensor = self.final_norm(x)  # (B, T, D)
        if self.final_modulation is None or condition is None:
            return normalized
        shift, scale = self.final_modulation(condition)[:, None].chunk(2, -1)  # (B or 1, 1, D) each
        return normalized * (1 + scale) + shift

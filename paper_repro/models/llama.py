"""Decoders with rotary positions and gated MLPs, without biases: Llama, of parts that can be exchanged, and the parts
that nGPT shares with it.

Legend: B sequences, T or J tokens, V vocabulary, P block length, D width, H or K heads, Y = D/H, M or m hidden width, L
layers.  Every matrix is stored with D last: a matrix that reads a state as (outputs, D), one that writes to it as
(inputs, D).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.errors import at_least, one_of, positive
from paper_repro.models.common import (
    CausalLanguageModel,
    KeyValueCache,
    RotaryTables,
    check_heads,
    published_tables,
    textbook_tables,
)

try:
    from paper_repro.kernels.causal_attention import causal_attention
    from paper_repro.kernels.linear_ce import linear_cross_entropy, negative_log_likelihoods
    from paper_repro.kernels.qk_rotary import rotate
    from paper_repro.kernels.scaled_swiglu import scaled_swiglu
except ImportError:  # the same, slower
    from paper_repro.models.common import (  # type: ignore[assignment]
        causal_attention,
        linear_cross_entropy,
        negative_log_likelihoods,
        rotate,
        scaled_swiglu,
    )

TABLES: dict[str, Callable[..., RotaryTables]] = {"textbook": textbook_tables, "published": published_tables}
STORAGES = {"float32": None, "bfloat16": torch.bfloat16}
MODES = ("vector", "scalar", "fixed")


@dataclass(frozen=True)
class ScaleSpec:
    """How a vector of scales is learned (nGPT, section 2.5)."""

    mode: str = "vector"
    """One number for each element, one for all ("scalar"), or ``init`` for ever ("fixed")."""
    init: float | str = 1.0
    """The effective value at the start: a number, "sqrt(d)" or "1/sqrt(d)"."""
    scale: float | str = 1.0
    """The stored value at the start, by which the learning rate of the effective value is divided; as ``init``."""

    def __post_init__(self) -> None:
        one_of("mode", self.mode, MODES)
        self.numbers(1)

    def numbers(self, width: int) -> tuple[float, float]:
        """Return init and scale for a model of this width."""
        words = {"sqrt(d)": math.sqrt(width), "1/sqrt(d)": 1 / math.sqrt(width)}
        found = []
        for name, value in (("init", self.init), ("scale", self.scale)):
            if isinstance(value, str) and value not in words:
                raise ValueError(f"{name} must be a positive number, sqrt(d) or 1/sqrt(d), got {value!r}")
            found.append(positive(name, words[value] if isinstance(value, str) else value))
        return found[0], found[1]

    @classmethod
    def of(cls, name: str, given: "ScaleSpec | Mapping[str, Any]") -> "ScaleSpec":
        """Read the settings of the argument ``name`` from a config's mapping."""
        if isinstance(given, ScaleSpec):
            return given
        if not isinstance(given, Mapping):
            raise ValueError(f"{name} must be {{mode, init, scale}}, got {given!r}")
        try:
            return cls(**given)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error


class Scale(nn.Module):
    """effective = stored * init / scale, with ``stored`` = scale at the start (nGPT, section 2.5).

    Adam moves ``stored`` by about the learning rate, the effective value by init / scale times as much.  It returns the
    effective values, (size,), or (1,) where one number serves all.
    """

    def __init__(self, spec: ScaleSpec, size: int, width: int) -> None:
        super().__init__()
        init, scale = spec.numbers(width)
        self.learned = spec.mode != "fixed"
        self.factor = init / scale if self.learned else 1.0
        if self.learned:
            self.stored = nn.Parameter(torch.full((size if spec.mode == "vector" else 1,), scale))
        else:
            self.register_buffer("stored", torch.full((1,), init), persistent=False)

    def forward(self) -> Tensor:
        return self.stored * self.factor  # (size,) or (1,)

    def extra_repr(self) -> str:
        return f"factor={self.factor:g}, learned={self.learned}"


class Reading(nn.Module):
    """x W^T with W stored as (outputs, D): (..., D) -> (..., outputs)."""

    def __init__(self, outputs: int, width: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, width))
        nn.init.normal_(self.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.to(self.weight.dtype), self.weight)  # (..., outputs)


class Writing(Reading):
    """x W with W stored as (inputs, D): (..., inputs) -> (..., D)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.to(self.weight.dtype), self.weight.mT)  # (..., D)


class RotaryAttention(nn.Module):
    """Causal attention on rotated queries and keys; (B, T, D) -> (B, T, D).

    ``scale`` is s_qk, of D numbers or one, times queries and keys alike (nGPT, equations 15 and 16); with ``normalize``
    they have unit norm before it.  ``softmax_scale`` is the factor of the scores.
    """

    takes_cache = True

    def __init__(
        self,
        width: int,
        num_heads: int,
        std: float,
        writing_std: float,
        scale: Scale | None,
        normalize: bool,
        softmax_scale: float,
    ) -> None:
        super().__init__()
        self.num_heads, self.normalize = check_heads(width, num_heads), normalize
        self.softmax_scale = softmax_scale
        self.query_key_value = Reading(3 * width, width, std)
        self.output = Writing(width, width, writing_std)
        self.scale = scale

    def forward(self, x: Tensor, tables: RotaryTables, cache: KeyValueCache | None = None) -> Tensor:
        joined = self.query_key_value(x).unflatten(-1, (3, self.num_heads, -1))  # (B, T, 3, H, Y)
        query, key, value = joined.unbind(2)  # (B, T, H, Y)
        scale = None if self.scale is None else self.scale().expand(x.shape[-1]).view(self.num_heads, -1)  # (H, Y)
        query, key = (rotate(x, tables, scale, self.normalize) for x in (query, key))  # (B, H, T, Y) each
        # The scales are float32; attention computes in the type of what it reads.
        heads = (query.to(value.dtype), key.to(value.dtype), value.transpose(1, 2))  # (B, H, T, Y) each
        if cache is None:
            read = causal_attention(*heads, self.softmax_scale)
        else:
            read = cache.attend(causal_attention, *heads, self.softmax_scale)
        return self.output(read.transpose(1, 2).flatten(2))  # (B, H, T, Y) -> (B, T, D)


class GatedFeedForward(nn.Module):
    """(s_u u * SiLU(s_nu nu)) W_o with u, nu = W_u x, W_nu x (nGPT, equations 17 to 21); (..., D) -> (..., D).

    ``scales`` are the effective s_u and s_nu; None: 1.  They are multiplied by sqrt(D): on nu as the paper has it, on u
    as its code has it too, which changes nothing where the output is normalised.
    """

    def __init__(
        self, width: int, hidden: int, std: float, writing_std: float, scales: tuple[Scale, Scale] | None
    ) -> None:
        super().__init__()
        self.root = math.sqrt(width)
        self.up = Reading(2 * hidden, width, std)
        self.down = Writing(hidden, width, writing_std)
        self.scale_u = None if scales is None else scales[0]
        self.scale_nu = None if scales is None else scales[1]

    def forward(self, x: Tensor) -> Tensor:
        u = None if self.scale_u is None else self.scale_u() * self.root  # (M,) or (1,)
        nu = None if self.scale_nu is None else self.scale_nu() * self.root
        return self.down(scaled_swiglu(self.up(x), u, nu))


class RotaryLanguageModel(CausalLanguageModel):
    """Untied input and output tables around ``blocks``, which read a state and the rotary tables.

    Args:
        rope: "textbook", or "published": what NVIDIA's code computes, which is no rotation (its issue 10).
        std: of both tables at the start.
        storage: how the blocks' matrices, their gradients and Adam's moments of them are stored: "float32", or
            "bfloat16" as in the published code, which loses most late updates and all weight decay to rounding.
    """

    blocks: nn.ModuleList

    def __init__(
        self, vocabulary_size: int, block_length: int, width: int, num_heads: int, rope: str, std: float, storage: str
    ) -> None:
        super().__init__(vocabulary_size, block_length, width)
        self.head_width = width // check_heads(width, num_heads)
        self.rope = one_of("rope", rope, TABLES)
        self.storage = one_of("storage", storage, STORAGES)
        self.token_embedding = nn.Embedding(vocabulary_size, width)
        nn.init.normal_(self.token_embedding.weight, std=std)
        self.output = Reading(vocabulary_size, width, std)
        # A name of the state dict, so that weights trained with the other arm do not fit.
        self.register_buffer(f"rope_{rope}", torch.tensor(self.head_width))
        self.extend(block_length)

    def extend(self, block_length: int) -> None:
        """Let the model see ``block_length`` tokens at once, more or fewer than it was trained with."""
        self.block_length = at_least("block_length", block_length)
        device, present = self.token_embedding.weight.device, getattr(self, "rotary_cos", None)
        dtype = torch.get_default_dtype() if present is None else present.dtype
        for name, table in TABLES[self.rope](block_length, self.head_width, dtype=dtype)._asdict().items():
            self.register_buffer(f"rotary_{name}", table.to(device), persistent=False)

    has_cache = True

    def layers(self, cache: KeyValueCache | None = None) -> Sequence[Callable[[Tensor], Tensor]]:
        tables = self.tables(0 if cache is None else cache.length)
        return tuple(partial(block, tables=tables, cache=cache) for block in self.blocks)

    def tables(self, start: int = 0) -> RotaryTables:
        """Give the tables that every block reads, from a position on."""
        return RotaryTables(*(getattr(self, f"rotary_{name}")[start:] for name in RotaryTables._fields))

    def logits(self, x: Tensor) -> Tensor:
        scale = self.logit_scale()
        found = self.output(self.normalized(x))  # (..., V)
        return found if scale is None else found * scale

    def normalized(self, x: Tensor) -> Tensor:
        """Return what the output table reads, of final states (..., D)."""
        return x

    def logit_scale(self) -> Tensor | None:
        """s_z, (V,) or (1,), or None."""
        return None

    def cross_entropy(self, ids: Tensor, following: Tensor) -> Tensor:
        x = self.normalized(self.final_state(ids))  # (B, T, D)
        return linear_cross_entropy(x, self.output.weight, following, self.logit_scale())

    def negative_log_likelihoods(self, ids: Tensor, following: Tensor) -> Tensor:
        """-log p of every next token, (B, T), in nats; without gradients, the logits never whole in memory."""
        return self.negative_log_likelihoods_of(self.final_state(ids), following)

    def negative_log_likelihoods_of(self, x: Tensor, following: Tensor) -> Tensor:
        """Give the same, (B, T), from final states x, (B, T, D)."""
        return negative_log_likelihoods(self.normalized(x), self.output.weight, following, self.logit_scale())

    def _store_matrices(self) -> None:
        for part in self.blocks.modules():
            if isinstance(part, Reading):
                part.to(STORAGES[self.storage])


# Llama: blocks of an attention and a feed-forward part, each from stream to stream.

INIT_STD = 0.02
NORM_EPS = 1e-6
Part = Callable[..., nn.Module]


@runtime_checkable
class Descends(Protocol):
    """A part of a block that takes ``num_steps`` steps down an energy of its own (``models.cem.CEMPart``)."""

    num_steps: int
    final: Callable[..., Tensor]
    final_energy: Callable[..., Tensor]


class PreNorm(nn.Module):
    """x <- x + branch(RMSNorm(x)), ``num_passes`` times with the same weights (layer reuse of CEM's figures 3c and 4):
    (B, J, D) -> (B, J, D).  What follows the stream goes to the branch.
    """

    def __init__(self, branch: nn.Module, width: int, num_passes: int = 1) -> None:
        super().__init__()
        self.num_passes = at_least("num_passes", num_passes)
        self.norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.branch = branch

    def forward(self, stream: Tensor, *read: Any) -> Tensor:
        for _ in range(self.num_passes):
            stream = stream + self.branch(self.norm(stream), *read)  # (B, J, D)
        return stream

    def extra_repr(self) -> str:
        return f"num_passes={self.num_passes}"


def rotary_attention(width: int, num_heads: int, num_passes: int = 1, init_std: float = INIT_STD) -> PreNorm:
    """Build Llama's attention: rotary positions, no biases, scores over sqrt(D/K); 4 D^2 numbers and a norm."""
    scale = (width // num_heads) ** -0.5 if num_heads else 0.0
    branch = RotaryAttention(width, num_heads, init_std, init_std, None, False, scale)
    return PreNorm(branch, width, num_passes)


def gated_feed_forward(width: int, hidden: int, num_passes: int = 1, init_std: float = INIT_STD) -> PreNorm:
    """Build Llama's SwiGLU, without biases; 3 D m numbers and a norm."""
    branch = GatedFeedForward(width, hidden, init_std, init_std, None)
    return PreNorm(branch, width, num_passes)


class Block(nn.Module):
    """Attention, then feed-forward; each maps the stream (B, J, D) to the next."""

    def __init__(self, attention: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward

    def forward(self, stream: Tensor, tables: RotaryTables, cache: KeyValueCache | None = None) -> Tensor:
        read = (tables,) if cache is None else (tables, cache)
        return self.feed_forward(self.attention(stream, *read))  # (B, J, D)


class LlamaTrace(NamedTuple):
    """The end of a forward pass with a given number of inner steps, and its energies."""

    state: Tensor  # The last stream, (B, J, D)
    energies: dict[str, list[Tensor]]
    """Every layer's energies at the last inner step, (B, J), by the name of the part in the block."""


class Llama(RotaryLanguageModel):
    """Embeddings, L blocks, RMSNorm, an output table of its own (CEM, table 1 and appendix D).

    Args:
        num_layers, hidden: L, m.
        attention: called with (width=D, num_heads=K) for every layer: ``rotary_attention``, ``CEMAttention``, or
            anything that maps (stream, rotary tables) to the next stream.
        feed_forward: called with (width=D, hidden=m): ``gated_feed_forward``, ``CEMMLP``, or anything that maps the
            stream to the next.
        rope, storage: see RotaryLanguageModel.
        init_std: both tables start N(0, init_std).
    """

    def __init__(
        self,
        vocabulary_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden: int,
        attention: Part,
        feed_forward: Part,
        rope: str = "textbook",
        init_std: float = INIT_STD,
        storage: str = "float32",
    ) -> None:
        std = positive("init_std", init_std)
        super().__init__(vocabulary_size, block_length, width, num_heads, rope, std, storage)
        at_least("hidden", hidden)
        self.blocks = nn.ModuleList(
            Block(attention(width=width, num_heads=num_heads), feed_forward(width=width, hidden=hidden))
            for _ in range(at_least("num_layers", num_layers))
        )
        self.final_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self._store_matrices()

    @property
    def has_cache(self) -> bool:  # type: ignore[override]
        """Whether the attention of every block takes a cache: its class says ``takes_cache = True``."""
        parts = (block.attention for block in self.blocks)
        return all(getattr(getattr(part, "branch", part), "takes_cache", False) for part in parts)

    def normalized(self, x: Tensor) -> Tensor:
        return self.final_norm(x)  # (B, J, D)

    def descents(self) -> Iterator[Descends]:
        """Return the parts that descend an energy, the first layer's first."""
        parts = (part for block in self.blocks for part in block.children())
        return (part for part in parts if isinstance(part, Descends))

    def trace(self, ids: Tensor, num_steps: int) -> LlamaTrace:
        """Compute the final states of ids, (B, J), with ``num_steps`` inner steps in every part that descends."""
        state, tables, found = self.embed(ids), self.tables(), dict[str, list[Tensor]]()
        for block in self.blocks:
            for name, part in block.named_children():
                if isinstance(part, Descends):
                    before, state = state, part.final(state, num_steps)  # (B, J, D)
                    found.setdefault(name, []).append(part.final_energy(before, state))  # (B, J)
                else:
                    state = part(state, tables) if name == "attention" else part(state)
        return LlamaTrace(state, found)

    def set_inner_steps(self, number: int) -> None:
        """Let every part that descends make ``number`` steps, whatever it was trained with (section 5.2)."""
        parts = list(self.descents())
        if not parts:
            raise ValueError("no part descends an energy: choose attention=cem or feed_forward=cem")
        for part in parts:
            part.num_steps = at_least("num_steps", number)

"""EBT: predictions that descend a learned energy of a context and a candidate, and its Transformer++ (EBT, section 3).

Legend: B sequences (or N B predictions), T tokens, V vocabulary or numbers of a state, D width, H heads, Y = D/H, M
hidden width, L layers, N predictions or samples for each sequence, S steps.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.nn import functional

from paper_repro.base.errors import at_least, one_of, positive
from paper_repro.models.common import (
    CausalLanguageModel,
    KeyValueCache,
    RotaryTables,
    check_heads,
    embedded,
    textbook_tables,
)
from paper_repro.models.descent import computed_again, walk

try:
    from paper_repro.kernels.causal_attention import causal_attention
    from paper_repro.kernels.preferences import speed
    from paper_repro.kernels.qk_rotary import rotate
    from paper_repro.kernels.rms_norm import rms_norm
    from paper_repro.kernels.self_slot_attention import self_slot_attention
    from paper_repro.kernels.swiglu import swiglu
    from paper_repro.kernels.words_in_pieces import words_in_pieces
except ImportError:  # the same, slower
    from paper_repro.models.common import (  # type: ignore[assignment]
        causal_attention,
        rms_norm,
        rotate,
        self_slot_attention,
        speed,
        swiglu,
    )

    def words_in_pieces(logits: Tensor, embedding: Tensor) -> None:  # type: ignore[misc]
        """Take no step in pieces."""


# The trunk of EBT and of its Transformer++: RMSNorm, rotary positions, attention and SwiGLU, without biases.
# The same weights serve two streams (appendix C.6). The observed stream holds the tokens that are known; it never
# sees a prediction. The predicted stream holds in row i a candidate for what follows observed row i; that row attends
# to the observed rows up to i and to itself.

NORM_EPS = 1e-5
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""What the heads read, (B, H, T, Y), by rotated queries and keys, and values, (B, H, T, Y) each."""


class Observed(NamedTuple):
    """What one layer's attention reads of the observed stream: rotated keys and values, (B, H, T, Y) each."""

    keys: Tensor
    values: Tensor


class Modulation(NamedTuple):
    """Shift, scale and gate of a branch, (B or 1, 1, D) each: x + gate * branch(norm(x) * (1 + scale) + shift)."""

    shift: Tensor
    scale: Tensor
    gate: Tensor


class Projection(nn.Module):
    """x W^T (+ b) of ``parts`` matrices side by side, each Xavier-normal: (..., inputs) -> (..., parts outputs)."""

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

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, NORM_EPS)  # (..., D)


class Attention(nn.Module):
    """The products before and behind softmax attention with rotated queries and keys."""

    def __init__(self, width: int, num_heads: int, projection: type[Projection] = Projection) -> None:
        super().__init__()
        self.num_heads = check_heads(width, num_heads)
        self.query_key_value = projection(width, width, 3)
        self.output = projection(width, width)

    def projected(self, x: Tensor, tables: RotaryTables | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries and keys, and values, (B, H, T, Y) each, of x (B, T, D); without tables unrotated."""
        query, key, value = self.query_key_value(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # (B, T, H, Y)
        if tables is None:
            return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)  # (B, H, T, Y) each
        return rotate(query, tables), rotate(key, tables), value.transpose(1, 2)  # (B, H, T, Y) each

    def observed(self, x: Tensor, tables: RotaryTables) -> Observed:
        """Return the keys and values of the observed stream x, (B, T, D), for a layer whose output is not read."""
        width, joined = x.shape[-1], self.query_key_value
        bias = None if joined.bias is None else joined.bias[width:]
        read = functional.linear(x, joined.weight[width:], bias)  # (B, T, 2 D)
        key, value = read.unflatten(-1, (2, self.num_heads, -1)).unbind(2)  # (B, T, H, Y) each
        return Observed(rotate(key, tables), value.transpose(1, 2))  # (B, H, T, Y) each

    def written(self, attended: Tensor) -> Tensor:
        """Return the branch (B, T, D) of what the heads have read, (B, H, T, Y)."""
        return self.output(attended.transpose(1, 2).flatten(2))  # (B, T, D)


def full_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Let every token attend to all, (B, H, T, Y)."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])  # (B, H, T, T)
    return torch.softmax(scores, -1) @ value  # (B, H, T, Y)


class FeedForward(nn.Module):
    """SwiGLU, W_down(SiLU(W_gate x) * W_up x), with hidden width M; (..., D) -> (..., D)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = Projection(width, hidden, 2)
        self.down = Projection(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(swiglu(self.gate_up(x)))  # (..., D)


@dataclass(frozen=True)
class Parts:
    """What a trunk is made of; as it stands: EBT's on language."""

    norm: Callable[[int], nn.Module] = RMSNorm
    projection: type[Projection] = Projection
    """The products of attention."""
    feed_forward: Callable[[int, int], nn.Module] = FeedForward
    """Takes D and M."""


class Block(nn.Module):
    """Attention, then feed-forward, each x + gate * branch(norm(x) * (1 + scale) + shift); unmodulated, the gate is 1.

    ``modulation`` maps SiLU(c) of a condition c, (B or 1, D), to shift, scale and gate of both branches (adaLN of EBT's
    code, after DiT, arXiv 2212.09748).
    """

    def __init__(self, width: int, num_heads: int, hidden: int, modulated: bool, parts: Parts) -> None:
        super().__init__()
        self.attention_norm = parts.norm(width)
        self.attention = Attention(width, num_heads, parts.projection)
        self.feed_forward_norm = parts.norm(width)
        self.feed_forward = parts.feed_forward(width, hidden)
        self.modulation = nn.Linear(width, 6 * width) if modulated else None

    def forward(
        self, x: Tensor, tables: RotaryTables | None, attend: Attend, condition: Tensor | None = None
    ) -> Tensor:
        """Return the next stream (B, T, D) of x."""
        first, second = self._modulations(condition)
        query, key, value = self.attention.projected(_modulated(self.attention_norm(x), first), tables)
        x = _added(x, self.attention.written(attend(query, key, value)), first)  # (B, T, D)
        return _added(x, self.feed_forward(_modulated(self.feed_forward_norm(x), second)), second)

    def observed(self, x: Tensor, tables: RotaryTables, condition: Tensor | None) -> Observed:
        """Return what predictions read of the observed stream, (B, T, D), and compute nothing else."""
        first, _ = self._modulations(condition)
        return self.attention.observed(_modulated(self.attention_norm(x), first), tables)

    def _modulations(self, condition: Tensor | None) -> tuple[Modulation | None, Modulation | None]:
        """Return what modulates attention and feed-forward, from SiLU(c), (B or 1, D)."""
        if self.modulation is None or condition is None:
            return None, None
        parts = self.modulation(condition)[:, None].chunk(6, -1)  # (B or 1, 1, D) each
        return Modulation(*parts[:3]), Modulation(*parts[3:])


def _modulated(normalized: Tensor, modulation: Modulation | None) -> Tensor:
    return normalized if modulation is None else normalized * (1 + modulation.scale) + modulation.shift  # (B, T, D)


def _added(x: Tensor, branch: Tensor, modulation: Modulation | None) -> Tensor:
    return x + branch if modulation is None else x + modulation.gate * branch  # (B, T, D)


class Trunk(nn.Module):
    """L blocks and a final norm.

    Args:
        width, num_heads, num_layers, hidden: D, H, L, M; M is D if None, as in EBT's code.
        modulated: whether blocks and final norm are modulated by a condition (adaLN).
        block_length: the most positions; None: no positions.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden: int | None = None,
        modulated: bool = False,
        block_length: int | None = None,
        parts: Parts = Parts(),
    ) -> None:
        super().__init__()
        head_width = width // check_heads(width, num_heads)
        hidden = width if hidden is None else at_least("hidden", hidden)
        self.blocks = nn.ModuleList(
            Block(width, num_heads, hidden, modulated, parts) for _ in range(at_least("num_layers", num_layers))
        )
        self.final_norm = parts.norm(width)
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
            x = block(x, tables, causal_attention if causal else full_attention, condition)  # (B, T, D)
        return x

    def observe(self, x: Tensor, condition: Tensor | None = None) -> list[Observed]:
        """Return what each layer's predictions read of the observed stream x, (B, T, D): of the last one that alone."""
        found: list[Observed] = []
        tables = self.tables(0, x.shape[1])

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            found.append(Observed(key, value))
            return causal_attention(query, key, value)  # (B, H, T, Y)

        *before, last = self.layers()
        for block in before:
            x = block(x, tables, attend, condition)  # (B, T, D)
        return [*found, last.observed(x, tables, condition)]

    def predict(
        self, y: Tensor, observed: Sequence[Observed], lead: int = 0, condition: Tensor | None = None
    ) -> Tensor:
        """Return the final states, normalised, of the predicted stream y, (N B, T, D).

        Row i stands at position i + 1 + ``lead`` and sees the observed rows 0 ... i + ``lead``, and itself.
        """
        tables = self.tables(1 + lead, y.shape[1])
        for block, seen in zip(self.layers(), observed, strict=True):
            attend = partial(self_slot_attention, keys=seen.keys, values=seen.values, lead=lead)
            y = block(y, tables, attend, condition)  # (N B, T, D)
        return self.final(y, condition)

    def final(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return the states (B, T, D) as a head reads them: normalised, and modulated where there is a condition."""
        normalized: Tensor = self.final_norm(x)  # (B, T, D)
        if self.final_modulation is None or condition is None:
            return normalized
        shift, scale = self.final_modulation(condition)[:, None].chunk(2, -1)  # (B or 1, 1, D) each
        return normalized * (1 + scale) + shift

    def close(self) -> None:
        """Set all modulations to zero: every branch starts closed."""
        for module in self.modules():
            if isinstance(module, nn.Linear):  # the other products are ``Projection``s
                nn.init.zeros_(module.weight)
                nn.init.zeros_(module.bias)


VARIANTS = ("default", "time_embed", "adaln", "adaln_zero")


class Landscapes(nn.Module):
    """What tells a model's energy landscapes apart: a learned vector for each, which "default", with one, has not.

    Training may give each step of a prediction a landscape of its own (EBT's code).  With "time_embed" the vector
    stands first in the observed stream.  With "adaln" it modulates every block and the final norm; with "adaln_zero"
    modulations and energy head start at zero, too.
    """

    def __init__(self, variant: str, num_landscapes: int, width: int) -> None:
        super().__init__()
        if at_least("num_landscapes", num_landscapes) > 1 and variant == "default":
            known = ", ".join(VARIANTS[1:])
            raise ValueError(f"variant={variant} has one landscape, got num_landscapes={num_landscapes}: take {known}")
        self.variant = one_of("variant", variant, VARIANTS)
        self.lead = int(variant == "time_embed")
        """How many rows the observed stream has before its first token."""
        self.modulated = variant.startswith("adaln")
        self.embedding = None if variant == "default" else nn.Embedding(num_landscapes, width)

    def rows(self, observed: Tensor, landscape: int) -> Tensor:
        """Return the observed stream (B, lead + T, D) of the tokens' embeddings (B, T, D)."""
        if self.embedding is None or not self.lead:
            return observed
        token = self.embedding.weight[landscape].expand(observed.shape[0], 1, -1)  # (B, 1, D)
        return torch.cat([token, observed], 1)  # (B, 1 + T, D)

    def condition(self, landscape: int) -> Tensor | None:
        """Return what modulates the trunk, SiLU(c), (1, D), or None."""
        if self.embedding is None or not self.modulated:
            return None
        return functional.silu(self.embedding.weight[landscape : landscape + 1])  # (1, D)


# Both streams in one pass, as in EBT's code.


def concatenated_states(
    trunk: Trunk, observed: Tensor, predicted: Tensor, lead: int, condition: Tensor | None
) -> Tensor:
    """Return the final states, normalised, of the predictions, (B, T, D), of observed rows (B, lead + T, D); predicted
    row i, (B, T, D), is a candidate for the token after observed row lead + i.
    """
    rows, count = observed.shape[1], predicted.shape[1]
    before, after = trunk.tables(0, rows), trunk.tables(1 + lead, count)
    tables = RotaryTables(*(torch.cat(pair) for pair in zip(before, after, strict=True)))  # (R + T, Y/2) each

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = key[:, :, :rows], value[:, :, :rows]  # (B, H, R, Y) each
        own = self_slot_attention(query[:, :, rows:], key[:, :, rows:], value[:, :, rows:], keys, values, lead)
        return torch.cat([causal_attention(query[:, :, :rows], keys, values), own], 2)  # (B, H, R + T, Y)

    x = torch.cat([observed, predicted], 1)  # (B, R + T, D)
    for block in trunk.layers():
        x = block(x, tables, attend, condition)
    return trunk.final(x[:, rows:], condition)


# How a prediction is optimised: the step rules, and each technique of the training as a setting (3.3, C.2).
# The state of a descent is a prediction y, (B, T, V). Of tokens it is logits: a step turns them into p = softmax(y),
# descends the energy of the embedded candidate e = W p, and returns the next logits. A continuous state, such as the
# patches of an image, is read as it is, e = W y, and descends by itself ("direct").

Energies = Callable[[Tensor, int], Tensor]
"""Energies (B, T) of embedded candidates (B, T, D) on a landscape, given by its number."""
CODE, LISTING, DIRECT = "code", "listing", "direct"
RULES = (CODE, LISTING, DIRECT)
LOSSES = ("mean", "last")
NOISE_PLACES = ("before", "after")


class Thought(NamedTuple):
    """A prediction, and the energies of the state from which the step to it started."""

    prediction: Tensor  # Logits, or a continuous state, (B, T, V); without gradient where there is a loss
    energy: Tensor  # (B, T); zeros at the start
    loss: Tensor | None = None  # Mean cross-entropy, (), nan without a target; None where the prediction has a gradient


@dataclass(frozen=True)
class ThinkingSettings:
    """How predictions are optimised in training: the techniques of S1, the default, and S2 (sections 3.3 and C.2).

    S2: num_steps 2, most_steps 3, noise 3, step_size_spread 2, detach false, truncate true, loss last, and a replay
    buffer, which the module keeps.  Full backpropagation, as in EBT's pseudocode: detach false, truncate false.
    """

    num_steps: int = 2
    """S, the least if it is random."""
    most_steps: int | None = None
    """The most steps; S is uniform in num_steps ... most_steps for each batch.  None: S is num_steps."""
    rule: str = CODE
    """What a step does: y' = p - alpha dE/dp in EBT's code ("code"), or y' = y - alpha dE/dy, equation 1, where the
    model reads p ("listing") or y itself ("direct").
    """
    noise: float = 0.0
    """Sigma of the Langevin noise, in the units of y."""
    noise_place: str = "before"
    """Where noise is added: "before" the step, as in EBT's code on language, or "after" it, as in equation 2."""
    step_size_spread: float = 1.0
    """F: alpha is drawn uniformly from alpha/F ... F alpha for each token, once for all steps of a batch."""
    detach: bool = True
    """Whether a step's input counts as a constant."""
    truncate: bool = False
    """Whether the last step alone is differentiated."""
    loss: str = "mean"
    """Whether the losses of all steps are averaged, or the last one counts."""

    def __post_init__(self) -> None:
        at_least("num_steps", self.num_steps)
        if self.most_steps is not None and at_least("most_steps", self.most_steps) < self.num_steps:
            raise ValueError(f"most_steps must be at least num_steps={self.num_steps}, got {self.most_steps}")
        one_of("rule", self.rule, RULES)
        one_of("noise_place", self.noise_place, NOISE_PLACES)
        one_of("loss", self.loss, LOSSES)
        if not 0 <= self.noise < float("inf"):
            raise ValueError(f"noise must be a finite number of at least 0, got {self.noise!r}")
        if not 1 <= self.step_size_spread < float("inf"):
            raise ValueError(f"step_size_spread must be a finite number of at least 1, got {self.step_size_spread!r}")
        if self.truncate and self.loss != "last":
            raise ValueError("truncate=true differentiates the last step alone: it needs loss=last")

    @property
    def longest(self) -> int:
        """The most steps that are taken."""
        return self.num_steps if self.most_steps is None else self.most_steps


@dataclass(frozen=True)
class PredictionStep:
    """One step of a prediction: a rule for ``models.descent``.

    With p = softmax(y + noise before), e = W p and g = dE/de: dE/dp = W^T g and dE/dy = p * (dE/dp - <p, dE/dp>).
    Under the rule "direct" e = W y and dE/dy = W^T g.

    Args:
        embedding: W, (D, V).
        step_size: alpha, () or (B, T, 1).
        num_landscapes: L; step s of S descends landscape floor(s L / S).
        settings: rule, noise, detach and truncate; the rest is not read.
        weights: of the model; with them a step keeps no graph of dE/de and computes it again in the backward pass.
        targets: (B, T); with them a step from constant logits may take some tokens at a time, and give its loss.
        noise: returns the standard normal numbers (B, T, V) of step s, where ``settings.noise`` is above 0.
    """

    energies: Energies
    embedding: Tensor
    step_size: Tensor
    num_steps: int
    num_landscapes: int = 1
    settings: ThinkingSettings = ThinkingSettings()
    weights: tuple[Tensor, ...] = ()
    targets: Tensor | None = None
    noise: Callable[[int], Tensor] | None = None

    def __post_init__(self) -> None:
        if (self.noise is not None) != (self.settings.noise > 0):
            raise ValueError(f"noise={self.settings.noise:g} and drawn numbers go together: give both, or neither")
        if self.num_landscapes > at_least("num_steps", self.num_steps):
            raise ValueError(
                f"num_steps={self.num_steps} is fewer than the {self.num_landscapes} landscapes that a prediction "
                "passes: give more steps, or a smaller model.num_landscapes"
            )

    def __call__(self, state: Thought, index: int) -> Thought:
        settings = self.settings
        noise = None if self.noise is None else settings.noise * self.noise(index)  # (B, T, V)
        recorded = torch.is_grad_enabled() and (index == self.num_steps - 1 or not settings.truncate)
        logits = state.prediction.detach() if settings.detach else state.prediction
        with torch.set_grad_enabled(recorded):
            if noise is not None and settings.noise_place == "before":
                logits = logits + noise
            found = self._moved(logits, landscape_of_step(index, self.num_steps, self.num_landscapes))
            if noise is not None and settings.noise_place == "after":
                found = found._replace(prediction=found.prediction + noise)
        return found

    def energy(self, logits: Tensor, index: int) -> Tensor:
        """Return the energies (B, T) of a prediction (B, T, V) on the landscape of step ``index``."""
        landscape = landscape_of_step(index, self.num_steps, self.num_landscapes)
        return self.energies(self._read(logits) @ self.embedding.mT, landscape)

    def _read(self, logits: Tensor) -> Tensor:
        """Return what the model reads of a prediction, (B, T, V) both."""
        return logits if self.settings.rule == DIRECT else torch.softmax(logits, -1)

    def _moved(self, logits: Tensor, landscape: int) -> Thought:
        """Return the prediction after a step from logits (B, T, V), before noise, and the energies before it."""
        embedding, settings, pieces = self.embedding, self.settings, None
        constant = settings.detach or settings.truncate
        if self.targets is not None and constant and settings.rule == CODE and settings.noise_place == "before":
            pieces = words_in_pieces(logits, embedding)
        read = logits if pieces is not None else self._read(logits)  # (B, T, V)
        candidates = read @ embedding.mT if pieces is None else pieces.embedded(logits, embedding)  # (B, T, D)
        descent = torch.func.grad(partial(self._total, landscape), has_aux=True)
        if self.weights and torch.is_grad_enabled():
            descent = partial(computed_again, descent, weights=self.weights)
        gradient, energy = descent(candidates)  # (B, T, D), (B, T)
        change = self.step_size * gradient  # (B, T, D)
        if pieces is not None and self.targets is not None:
            loss, moved = pieces.moved(logits, change, embedding, self.targets)
            return Thought(moved, energy, loss)
        if settings.rule != LISTING:
            moved = torch.addmm(read.flatten(0, -2), change.flatten(0, -2), embedding, alpha=-1)
            return Thought(moved.view_as(logits), energy)
        change = change @ embedding  # (B, T, V)
        return Thought(logits - read * (change - (read * change).sum(-1, keepdim=True)), energy)

    def _total(self, landscape: int, candidates: Tensor) -> tuple[Tensor, Tensor]:
        energies = self.energies(candidates, landscape)  # (B, T)
        return energies.sum(), energies


def landscape_of_step(index: int, num_steps: int, num_landscapes: int) -> int:
    """Return the landscape of L, floor(s L / S), that step s of S descends; both from 0 on."""
    return index * num_landscapes // num_steps


def check_rule(rule: str, continuous: bool) -> None:
    """Raise ValueError if a rule does not fit what a model reads."""
    fitting = [name for name in RULES if (name == DIRECT) == continuous]
    if rule not in fitting:
        what = "a continuous state" if continuous else "distributions"
        raise ValueError(f"rule={rule} does not fit a model that reads {what}: take {' or '.join(fitting)}")


def thoughts(step: PredictionStep, start: Tensor) -> Iterator[Thought]:
    """Yield the prediction after each of the S steps from logits (B, T, V), each when it is asked for."""
    return walk(step, Thought(start, start.new_zeros(start.shape[:-1])), step.num_steps)


def normal_draws(like: Tensor) -> Callable[[int], Tensor]:
    """Return noise for ``PredictionStep``: standard normal numbers, shaped like a prediction, anew for every step."""
    return lambda index: torch.randn(like.shape, dtype=like.dtype, device=like.device)


# The models: an energy of every token's context and a candidate for the next token (section 3, C.6).

STREAMS = ("split", "concatenated")
LEAST_STEP_SIZE = 1e-4


class EnergyModel(nn.Module):
    """What training and thinking read of a model whose predictions descend an energy."""

    continuous: ClassVar[bool] = False
    """Whether a prediction is what the model reads; else it is the logits of a distribution, which is read."""
    num_landscapes = 1
    """Energy landscapes that a prediction passes one after the other."""
    prediction_embedding: Projection
    """W, (D, V)."""

    def add_head(self, width: int, step_size: float, learn_step_size: bool) -> None:
        """Give the model what reads energies of final states (..., D), and alpha, (), learned or kept."""
        self.energy_head = Projection(width, 1)
        self.step_size_parameter = nn.Parameter(
            torch.tensor(positive("step_size", step_size)), requires_grad=learn_step_size
        )

    def read(self, states: Tensor) -> Tensor:
        """Return the energies (B, T) of final states (B, T, D)."""
        return self.energy_head(states).squeeze(-1)

    @property
    def state_size(self) -> int:
        """V, the numbers of a prediction."""
        return self.prediction_embedding.weight.shape[1]

    @property
    def step_size(self) -> Tensor:
        """Alpha, (), not below 1e-4."""
        return self.step_size_parameter.clamp(min=LEAST_STEP_SIZE)

    def recomputed(self) -> tuple[Tensor, ...]:
        """Return the weights, for a step that is computed again, if ``machine.recompute`` asks for it; else nothing."""
        again = speed().recompute and torch.is_grad_enabled() and peek_interpreter_stack() is None
        return tuple(self.parameters()) if again else ()

    def energies(self, context: Tensor) -> Energies:
        """Return the energy function of a context, (B, T, ...): (embedded candidates (N B, T, D), landscape) -> (N B,
        T).  Row n B + b belongs to context b.  A bias of W is the function's to add.
        """
        raise NotImplementedError


class AutoregressiveEBT(EnergyModel):
    """E(context, candidate) for each position, whose gradient by the candidate drives the predictions.

    A candidate p, V numbers, enters the trunk as e = W p (``prediction_embedding``), so dE/dp = W^T dE/de: derivatives
    of the second order are taken in D dimensions, not in V.  Energies of different positions do not depend on each
    other's candidates.  A subclass says how the context is embedded.

    Args:
        state_size, block_length: V, and the most positions of a context.
        variant, num_landscapes: see Landscapes.
        step_size, learn_step_size: alpha at the start, of a step y - alpha dE/dp; whether it is learned.
        streams: "split" computes the observed stream once for all steps; "concatenated", the form of EBT's code, sends
            both streams through every step.  Both are equal but for rounding.
    """

    def __init__(
        self,
        state_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden: int | None = None,
        variant: str = "default",
        num_landscapes: int = 1,
        step_size: float = 500.0,
        learn_step_size: bool = True,
        streams: str = "split",
    ) -> None:
        super().__init__()
        self.block_length = at_least("block_length", block_length)
        self.streams, self.num_landscapes = one_of("streams", streams, STREAMS), num_landscapes
        self.landscapes = Landscapes(variant, num_landscapes, at_least("width", width))
        if not self.continuous:
            self.token_embedding = nn.Embedding(state_size, width)
        self.prediction_embedding = Projection(at_least("state_size", state_size), width, biased=self.continuous)
        positions = block_length + 1 + self.landscapes.lead
        self.trunk = Trunk(width, num_heads, num_layers, hidden, self.landscapes.modulated, positions)
        self.add_head(width, step_size, learn_step_size)
        if variant == "adaln_zero":
            nn.init.zeros_(self.energy_head.weight)
            self.trunk.close()

    def embed(self, context: Tensor) -> Tensor:
        """Return what enters the trunk, (B, T, D), of a context (B, T, ...)."""
        raise NotImplementedError

    def energies(self, context: Tensor) -> Energies:
        """Return the energy function of a context; see ``EnergyModel``.  Split, the observed stream is computed here,
        once for every landscape.
        """
        known = self.embed(context)  # (B, T, D)
        if self.streams == "concatenated":
            return partial(self._concatenated, known)
        trunk, kinds = self.trunk, self.landscapes
        observed = [
            trunk.observe(kinds.rows(known, landscape), kinds.condition(landscape))
            for landscape in range(self.num_landscapes)
        ]

        def split(candidates: Tensor, landscape: int) -> Tensor:
            candidates = self.prediction_embedding.shifted(candidates)
            return self.read(trunk.predict(candidates, observed[landscape], kinds.lead, kinds.condition(landscape)))

        return split

    def _concatenated(self, known: Tensor, candidates: Tensor, landscape: int) -> Tensor:
        rows, condition = self.landscapes.rows(known, landscape), self.landscapes.condition(landscape)
        rows = rows.repeat(len(candidates) // len(known), 1, 1)  # (N B, lead + T, D)
        candidates = self.prediction_embedding.shifted(candidates)
        return self.read(concatenated_states(self.trunk, rows, candidates, self.landscapes.lead, condition))


class EBT(AutoregressiveEBT):
    """EBT on tokens: a candidate is a distribution over the vocabulary of V words; see ``AutoregressiveEBT``."""

    def __init__(
        self,
        vocabulary_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden: int | None = None,
        variant: str = "default",
        num_landscapes: int = 1,
        step_size: float = 500.0,
        learn_step_size: bool = True,
        streams: str = "split",
    ) -> None:
        sizes = at_least("vocabulary_size", vocabulary_size), block_length, width, num_heads, num_layers, hidden
        super().__init__(*sizes, variant, num_landscapes, step_size, learn_step_size, streams)
        self.vocabulary_size = vocabulary_size

    def embed(self, context: Tensor) -> Tensor:
        """Return the tokens' embeddings (B, T, D) of ids, (B, T); errors as ``models.common.embedded``."""
        return embedded(self.token_embedding, context, self.block_length)


# Thinking at test time: more steps, and the sample of lowest energy among several (algorithm 2).


@dataclass(eq=False)
class Considered:
    """N predictions for each token after some number of steps, and their energies, computed once they are asked for."""

    predictions: Tensor
    """Logits, (N, B, T, V)."""
    compute: Callable[[], Tensor]
    """Returns the energies, (N, B, T)."""

    @cached_property
    def energies(self) -> Tensor:
        """The energies of the predictions, (N, B, T); without gradients."""
        return self.compute()

    def choose(self) -> tuple[Tensor, Tensor]:
        """Return each token's prediction of lowest energy, logits (B, T, V), and which sample it is, (B, T)."""
        best = self.energies.argmin(0)  # (B, T)
        places = best[None, ..., None].expand(1, *best.shape, self.predictions.shape[-1])  # (1, B, T, V)
        return self.predictions.gather(0, places)[0], best


def think(
    model: EnergyModel,
    ids: Tensor,
    start: Tensor,
    num_steps: int,
    settings: ThinkingSettings | None = None,
    noise: Callable[[int], Tensor] | None = None,
) -> Iterator[Considered]:
    """Yield what is thought of ids, (B, T), after 0, 1, ..., S steps, without gradients by the weights.

    The observed stream is computed once for all samples and steps.  The energies after the last step, and with noise
    those of every step, which are without it, cost one more pass, for those who read them.

    Args:
        start: the predictions at first, logits (N, B, T, V); usually standard normal numbers.
        num_steps: S; with several landscapes each is descended for an equal share of them.
        settings: rule and noise; the default is the step of EBT's code, without noise.
        noise: returns the standard normal numbers (N B, T, V) of a step, by its index.

    Raises:
        ValueError: fewer steps than landscapes, a rule or noise that does not fit, or an argument out of range.
    """
    samples = len(start)
    if samples < 1:
        raise ValueError("start holds no sample: draw N >= 1 of them")
    if settings is None:
        settings = ThinkingSettings(rule=DIRECT if model.continuous else CODE)
    check_rule(settings.rule, model.continuous)
    settings = replace(settings, detach=True, truncate=False)
    with torch.no_grad():
        energies, alpha, embedding = model.energies(ids), model.step_size, model.prediction_embedding.weight
    step = PredictionStep(energies, embedding, alpha, num_steps, model.num_landscapes, settings, noise=noise)

    def considered(state: Tensor, energy: Tensor | None, index: int) -> Considered:
        @torch.no_grad()
        def energies() -> Tensor:
            found = step.energy(state, index) if energy is None else energy  # (N B, T)
            return found.unflatten(0, (samples, -1))  # (N, B, T)

        return Considered(state.unflatten(0, (samples, -1)), energies)

    @torch.no_grad()  # torch compiles no_grad()(step) only in parts
    def without_gradients(thought: Thought, index: int) -> Thought:
        return step(thought, index)

    state = start.flatten(0, 1)  # (N B, T, V)
    first = Thought(state, state.new_zeros(state.shape[:-1]))
    for index, following in enumerate(walk(without_gradients, first, num_steps)):
        yield considered(state, None if settings.noise else following.energy, index)
        state = following.prediction
    yield considered(state, None, num_steps - 1)


# Transformer++, the baseline.


class TransformerPlusPlus(CausalLanguageModel):
    """Embeddings, L blocks, RMSNorm, an output table of its own (EBT, section 4.1 and appendix D.1).

    The embedding starts N(0, 1), the output table Xavier-normal, as in EBT's code.  With R = ``num_passes`` (ours: a
    baseline that computes as often as EBT thinks) the blocks are applied R times with the same weights, and the
    embeddings are added to the stream before each pass but the first.
    """

    def __init__(
        self,
        vocabulary_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden: int | None = None,
        num_passes: int = 1,
    ) -> None:
        super().__init__(vocabulary_size, block_length, width)
        self.num_passes = at_least("num_passes", num_passes)
        self.token_embedding = nn.Embedding(vocabulary_size, width)
        self.trunk = Trunk(width, num_heads, num_layers, hidden, block_length=block_length)
        self.output = Projection(width, vocabulary_size)

    def layers(self, cache: KeyValueCache | None = None) -> Sequence[Callable[[Tensor], Tensor]]:
        tables = self.trunk.tables(0, self.block_length)
        return tuple(partial(block, tables=tables, attend=causal_attention) for block in self.trunk.blocks)

    def final_state(self, ids: Tensor, num_passes: int | None = None) -> Tensor:
        """Return the last state (B, T, D); after other passes than R, if asked for."""
        embedded = self.embed(ids)  # (B, T, D)
        x = torch.zeros_like(embedded)
        for _ in range(self.num_passes if num_passes is None else at_least("num_passes", num_passes)):
            x = x + embedded
            for layer in self.layers():
                x = layer(x)  # (B, T, D)
        return x

    def logits(self, x: Tensor) -> Tensor:
        return self.output(self.trunk.final(x))  # (..., V)


# Video: both models on latents of frames.


def checked(latents: Tensor, state_size: int, block_length: int) -> Tensor:
    """Return latents (B, T, V) if a model can read them; else raise ValueError."""
    if latents.ndim != 3 or latents.shape[2] != state_size or not 1 <= latents.shape[1] <= block_length:
        raise ValueError(
            f"latents must have the shape (B, T, {state_size}) with T from 1 to {block_length}, got "
            f"{tuple(latents.shape)}"
        )
    return latents


class LatentEBT(AutoregressiveEBT):
    """EBT on frames: a candidate is the latent of the next frame, and observed frames enter as candidates do, W x + b.
    EBT's ``step_size`` on video is 30,000.
    """

    continuous = True

    def embed(self, context: Tensor) -> Tensor:
        """Return W x + b, (B, T, D), of latents x, (B, T, V); errors as ``checked``."""
        return self.prediction_embedding(checked(context, self.state_size, self.block_length))  # (B, T, D)


class LatentTransformer(nn.Module):
    """The baseline, Transformer++ on frames: W x + b, the trunk, and two products to the next frame's latent.

    Shape: latents (B, T, V) -> (B, T, V), of the frame that follows each.
    """

    def __init__(
        self,
        state_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        self.state_size, self.block_length = at_least("state_size", state_size), at_least("block_length", block_length)
        self.embedding = Projection(state_size, at_least("width", width), biased=True)
        self.trunk = Trunk(width, num_heads, num_layers, hidden, block_length=block_length)
        self.output = nn.Sequential(Projection(width, width), Projection(width, state_size, biased=True))

    def forward(self, latents: Tensor) -> Tensor:
        states = self.trunk(self.embedding(checked(latents, self.state_size, self.block_length)))  # (B, T, D)
        return self.output(states)  # (B, T, V)

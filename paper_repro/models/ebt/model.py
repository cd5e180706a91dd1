"""EBT, autoregressive: an energy of every token's context and a candidate for the next token (EBT, section 3, C.6).

Legend: B sequences, T tokens, V vocabulary (or the width of a continuous state), D width, N predictions per sequence.
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from paper_repro.base.arguments import at_least, one_of, positive
from paper_repro.models.causal import embedded
from paper_repro.models.ebt.concatenated import concatenated_states
from paper_repro.models.ebt.landscape import VARIANTS, landscapes
from paper_repro.models.ebt.steps import Energies
from paper_repro.models.ebt.trunk import NORM_EPS, Observed, Projection, Trunk

STREAMS = ("split", "concatenated")
LEAST_STEP_SIZE = 1e-4


class EnergyModel(nn.Module):
    """What training and thinking read of a model whose predictions descend an energy."""

    continuous: ClassVar[bool] = False
    """Whether a prediction is what the model reads; else it is the logits of a distribution, which is read."""
    prediction_embedding: Projection
    """W, (D, V)."""
    step_size_parameter: nn.Parameter
    """Alpha as it is stored, ()."""

    @property
    def state_size(self) -> int:
        """V, the numbers of a prediction."""
        return self.prediction_embedding.weight.shape[1]

    @property
    def num_landscapes(self) -> int:
        """Energy landscapes that a prediction passes one after the other."""
        return 1

    @property
    def step_size(self) -> Tensor:
        """Alpha, (), not below 1e-4."""
        return self.step_size_parameter.clamp(min=LEAST_STEP_SIZE)

    def energies(self, context: Tensor) -> Energies:
        """Return the energy function of a context, (B, T, ...): (embedded candidates, landscape) -> (N B, T).

        Embedded candidates are (N B, T, D); row n B + b belongs to context b.  A bias of W is the function's to add.
        """
        raise NotImplementedError


class AutoregressiveEBT(EnergyModel):
    """E(context, candidate) for each position, whose gradient by the candidate drives the predictions.

    A candidate p, V numbers, enters the trunk as e = W p (``prediction_embedding``), so dE/dp = W^T dE/de: derivatives
    of the second order are taken in D dimensions, not in V.  Energies of different positions do not depend on each
    other's candidates, so the gradient of their sum holds the gradient of each.  A subclass says what W is and how the
    context is embedded.

    Args:
        state_size, block_length: V, and the most positions of a context.
        width, num_heads, num_layers, hidden, norm_eps: see Trunk.
        variant: "default", "time_embed", "adaln" or "adaln_zero"; see ``models.ebt.landscape``.
        num_landscapes: energy landscapes that a prediction passes one after the other; 1 for "default".
        step_size: alpha at the start, of a step y - alpha dE/dp.
        learn_step_size: whether alpha is a parameter; else it is kept.
        streams: "split" computes the observed stream once for all steps; "concatenated", the form of EBT's code, sends
            both streams through every step.  Both are equal but for rounding.

    Raises:
        ValueError: sizes as Trunk, an unknown word, or a step size that is not positive.
    """

    def __init__(
        self,
        state_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden: int | None = None,
        norm_eps: float = NORM_EPS,
        variant: str = "default",
        num_landscapes: int = 1,
        step_size: float = 500.0,
        learn_step_size: bool = True,
        streams: str = "split",
    ) -> None:
        super().__init__()
        self.block_length = at_least("block_length", block_length)
        self.variant, self.streams = one_of("variant", variant, VARIANTS), one_of("streams", streams, STREAMS)
        self.landscapes = landscapes(variant, num_landscapes, at_least("width", width))
        self.add_embeddings(state_size, width)
        positions = block_length + 1 + self.landscapes.lead
        self.trunk = Trunk(width, num_heads, num_layers, hidden, norm_eps, self.landscapes.modulated, positions)
        self.energy_head = Projection(width, 1)
        self.step_size_parameter = nn.Parameter(
            torch.tensor(positive("step_size", step_size)), requires_grad=learn_step_size
        )
        self.landscapes.close(self.trunk, self.energy_head)

    @property
    def num_landscapes(self) -> int:
        return self.landscapes.num_landscapes

    def add_embeddings(self, state_size: int, width: int) -> None:
        """Give the model its ``prediction_embedding``, and what ``embed`` reads."""
        raise NotImplementedError

    def embed(self, context: Tensor) -> Tensor:
        """Return what enters the trunk, (B, T, D), of a context (B, T, ...)."""
        raise NotImplementedError

    def energies(self, context: Tensor, last: int | None = None) -> Energies:
        """Return the energy function of a context, (B, T, ...): (embedded candidates, landscape) -> (N B, T).

        Embedded candidates are (N B, T, D); row n B + b belongs to sequence b.  Of split streams the observed one is
        computed here, once for every landscape; all candidates and all steps share it.

        Args:
            last: P; candidates are (N B, P, D), of what follows each of the last P tokens.  The streams are split
                then.  None: T.

        Raises:
            ValueError: P outside 1 ... T, or a context as ``embed``.
        """
        known = self.embed(context)  # (B, T, D)
        if last is None and self.streams == "concatenated":
            return partial(self._concatenated, known)
        if last is not None and at_least("last", last) > known.shape[1]:
            raise ValueError(f"last must be at most the {known.shape[1]} positions of the context, got {last}")
        skipped = 0 if last is None else known.shape[1] - last
        observed = [self.observe(known, landscape) for landscape in range(self.num_landscapes)]
        return lambda candidates, landscape: self.energies_of(candidates, observed[landscape], landscape, skipped)

    def observe(self, known: Tensor, landscape: int) -> list[Observed]:
        """Return what each layer's predictions read of the tokens' embeddings ``known``, (B, T, D)."""
        return self.trunk.observe(self.landscapes.rows(known, landscape), self.landscapes.condition(landscape))

    def energies_of(self, candidates: Tensor, observed: Sequence[Observed], landscape: int, skipped: int = 0) -> Tensor:
        """Return the energies (N B, T) of embedded candidates (N B, T, D); the first follows row ``skipped``."""
        lead = self.landscapes.lead + skipped
        states = self.trunk.predict(candidates, observed, lead, self.landscapes.condition(landscape))  # (N B, T, D)
        energies: Tensor = self.energy_head(states)  # (N B, T, 1)
        return energies.squeeze(-1)

    def _concatenated(self, known: Tensor, candidates: Tensor, landscape: int) -> Tensor:
        rows, condition = self.landscapes.rows(known, landscape), self.landscapes.condition(landscape)
        rows = rows.repeat(len(candidates) // len(known), 1, 1)  # (N B, lead + T, D)
        states = concatenated_states(self.trunk, rows, candidates, self.landscapes.lead, condition)  # (N B, T, D)
        energies: Tensor = self.energy_head(states)  # (N B, T, 1)
        return energies.squeeze(-1)


class EBT(AutoregressiveEBT):
    """EBT on tokens: a candidate is a distribution over the vocabulary.

    Args:
        vocabulary_size: V.

    The other arguments and errors are those of ``AutoregressiveEBT``.
    """

    def __init__(
        self,
        vocabulary_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden: int | None = None,
        norm_eps: float = NORM_EPS,
        variant: str = "default",
        num_landscapes: int = 1,
        step_size: float = 500.0,
        learn_step_size: bool = True,
        streams: str = "split",
    ) -> None:
        super().__init__(
            at_least("vocabulary_size", vocabulary_size),
            block_length,
            width,
            num_heads,
            num_layers,
            hidden,
            norm_eps,
            variant,
            num_landscapes,
            step_size,
            learn_step_size,
            streams,
        )
        self.vocabulary_size = vocabulary_size

    def add_embeddings(self, state_size: int, width: int) -> None:
        self.token_embedding = nn.Embedding(state_size, width)
        self.prediction_embedding = Projection(state_size, width)

    def embed(self, context: Tensor) -> Tensor:
        """Return the tokens' embeddings (B, T, D) of ids, (B, T).

        Raises:
            ValueError: as ``models.causal.embedded``.
        """
        return embedded(self.token_embedding, context, self.block_length)

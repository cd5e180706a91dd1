"""Transformer++, the baseline of EBT: the trunk with causal attention and an output table of its own."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from paper_repro.base.arguments import at_least
from paper_repro.models.causal import CausalLanguageModel, KeyValueCache
from paper_repro.models.ebt.trunk import NORM_EPS, Projection, Trunk


class TransformerPlusPlus(CausalLanguageModel):
    """Embeddings, L blocks, RMSNorm, an output table of its own (EBT, section 4.1 and appendix D.1).

    The embedding starts N(0, 1), the output table Xavier-normal, as in EBT's code.

    With R passes (ours: a baseline that computes as often as EBT thinks) the blocks are applied R times with the same
    weights.  The embeddings are added to the stream before each pass but the first.

    Args:
        vocabulary_size, block_length, width: see CausalLanguageModel.
        num_heads, num_layers, hidden, norm_eps: see Trunk.
        num_passes: R.

    Shape: ids (B, T) -> logits (B, T, V).

    Raises:
        ValueError: as CausalLanguageModel and Trunk, or R below 1.
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
        num_passes: int = 1,
    ) -> None:
        super().__init__(vocabulary_size, block_length, width)
        self.num_passes = at_least("num_passes", num_passes)
        self.token_embedding = nn.Embedding(vocabulary_size, width)
        self.trunk = Trunk(width, num_heads, num_layers, hidden, norm_eps, block_length=block_length)
        self.output = Projection(width, vocabulary_size)

    def layers(self, cache: KeyValueCache | None = None) -> Sequence[Callable[[Tensor], Tensor]]:
        def through(block: nn.Module, x: Tensor) -> Tensor:
            found: Tensor = block(x, self.trunk.tables(0, x.shape[1]))  # (B, T, D)
            return found

        return tuple(partial(through, block) for block in self.trunk.blocks)

    def states(self, ids: Tensor) -> Tensor:
        """Return the embedding and the states after each block of each pass, (1 + R L, B, T, D)."""
        embedded = self.embed(ids)  # (B, T, D)
        return torch.stack([embedded, *self._stream(embedded, self.num_passes)])

    def final_state(self, ids: Tensor, num_passes: int | None = None) -> Tensor:
        """Return the last state (B, T, D); after other passes than R, if asked for."""
        passes = self.num_passes if num_passes is None else at_least("num_passes", num_passes)
        *_, last = self._stream(self.embed(ids), passes)
        return last

    def _stream(self, embedded: Tensor, passes: int) -> Iterator[Tensor]:
        x = torch.zeros_like(embedded)  # (B, T, D)
        for _ in range(passes):
            x = x + embedded  # (B, T, D)
            for layer in self.layers():
                x = layer(x)  # (B, T, D)
                yield x

    def logits(self, x: Tensor) -> Tensor:
        found: Tensor = self.output(self.trunk.final(x))  # (..., V)
        return found

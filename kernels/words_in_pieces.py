"""One step of a prediction over many words, y' = p - c W with p = softmax(y), and its cross-entropy, some tokens at a
time (EBT, section 3 and its published code).

y is constant, so only c and W have gradients: both are multiplied out while a piece of the logits is there, and p is
computed again for the gradient of e = W p. Of the size of all logits there are y and y' alone.

Legend: N tokens, n tokens of a piece, D width, V words.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paper_repro.kernels.dispatch import choose, device_type, under_autocast
from paper_repro.kernels.first_order import FirstOrder, WithGradient
from paper_repro.kernels.linear_ce import op as linear_ce
from paper_repro.kernels.linear_ce.op import Softmax

LEAST_WORDS = 4096
"""With fewer words the definition is taken: there is little to save."""


@dataclass(frozen=True)
class Pieces:
    """The products of a step with W (D, V); logits y (..., V) are constant."""

    softmax: Softmax

    def embedded(self, logits: Tensor, embedding: Tensor) -> Tensor:
        """Return e = W softmax(y), (..., D)."""
        found: Tensor = _Embedded.apply(logits.flatten(0, -2), embedding)
        return found.view(*logits.shape[:-1], -1)

    def moved(self, logits: Tensor, change: Tensor, embedding: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy of y' = softmax(y) - c W, nan where no target counts, and y', (..., V), which
        has no gradient; c is (..., D), targets (...) int64.
        """
        wanted = torch.is_grad_enabled() and (change.requires_grad or embedding.requires_grad)
        given = logits.flatten(0, -2), change.flatten(0, -2), embedding, targets.flatten()
        loss, moved, *_ = _Moved.apply(*given, self.softmax, wanted)
        return loss, moved.view_as(logits)


def words_in_pieces(logits: Tensor, embedding: Tensor) -> Pieces | None:
    """Return how a step from logits (..., V) with W (D, V) is computed in pieces; None where it is not."""
    constant = not logits.requires_grad and logits.dtype == embedding.dtype and not under_autocast(logits)
    if not constant or logits.shape[-1] < LEAST_WORDS:
        return None
    softmax = choose("words_in_pieces", linear_ce.WAYS, "auto", [logits, embedding], order=1)()
    return None if softmax is None else Pieces(softmax)


class _EmbeddedGradient(FirstOrder):
    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        gradient, logits, embedding = given
        found = torch.zeros_like(embedding)  # (D, V)
        for piece in _pieces(logits):
            found.addmm_(gradient[piece].mT, torch.softmax(logits[piece], -1))
        return None, found


class _Embedded(WithGradient):
    """y (N, V), W (D, V): e (N, D)."""

    gradient = _EmbeddedGradient

    @staticmethod
    def forward(*given: Any) -> Tensor:
        logits, embedding = given
        found = logits.new_empty(len(logits), len(embedding))  # (N, D)
        for piece in _pieces(logits):
            torch.mm(torch.softmax(logits[piece], -1), embedding.mT, out=found[piece])
        return found


class _MovedGradient(FirstOrder):
    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        gradient, *_, dchange, dembedding, count = given[:-2]
        factor = gradient / count.clamp(min=1)
        return None, dchange * factor, dembedding * factor, None


class _Moved(WithGradient):
    """y (N, V), c (N, D), W (D, V), targets (N): the mean loss; y', gradients of the sum, how many targets count."""

    gradient = _MovedGradient

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        logits, change, embedding, targets, softmax, wanted = given
        moved, losses = torch.empty_like(logits), logits.new_empty(len(logits))  # (N, V), (N,)
        dchange = torch.empty_like(change) if wanted else None  # (N, D)
        dembedding = torch.zeros_like(embedding) if wanted else None  # (D, V)
        for piece in _pieces(logits):
            z = torch.softmax(logits[piece], -1).addmm_(change[piece], embedding, alpha=-1)  # (n, V)
            moved[piece] = z
            losses[piece] = softmax(z, targets[piece], wanted)
            if dchange is not None and dembedding is not None:
                torch.mm(z, embedding.mT, out=dchange[piece]).neg_()
                dembedding.addmm_(change[piece].mT, z, alpha=-1)
        count = (targets != linear_ce.IGNORED).sum()
        return losses.sum() / count, moved, dchange, dembedding, count


def _pieces(logits: Tensor) -> Iterator[slice]:
    """Yield the tokens of each piece of logits (N, V)."""
    tokens, words = logits.shape
    size = linear_ce.chunk_size(tokens, words, device_type(logits) == "cpu")
    return (slice(start, start + size) for start in range(0, tokens, size))

"""What every causal language model here shares: from ids to logits, the loss, and writing on.

Legend: B sequences, T tokens, V vocabulary, P block length, D width, S layers.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.arguments import at_least, positive


class CausalLanguageModel(nn.Module):
    """Embeddings -> layers -> logits of the next token; the logits at token A depend on the tokens up to A alone.

    A subclass says what ``token_embedding`` is, how a state becomes logits and what ``layers()`` are.

    Args:
        vocabulary_size: V.
        block_length: P, the most tokens that the model sees at once.
        width: D.

    Shape: ids (B, T) with 1 <= T <= P -> logits (B, T, V).

    Raises:
        ValueError: a size below one.
    """

    token_embedding: nn.Embedding

    def __init__(self, vocabulary_size: int, block_length: int, width: int) -> None:
        super().__init__()
        self.vocabulary_size = at_least("vocabulary_size", vocabulary_size)
        self.block_length, self.width = at_least("block_length", block_length), at_least("width", width)

    def layers(self) -> Sequence[Callable[[Tensor], Tensor]]:
        """Return the maps (B, T, D) -> (B, T, D) that are applied one after the other."""
        raise NotImplementedError(f"{type(self).__name__} must say what its layers() are")

    def logits(self, x: Tensor) -> Tensor:
        """Return the next token's logits, (..., V), at final states x, (..., D)."""
        raise NotImplementedError(f"{type(self).__name__} must say what its logits() are")

    def embed(self, ids: Tensor) -> Tensor:
        """Return x_0 (B, T, D), the embedding of ids (B, T).

        Raises:
            ValueError: as ``embedded``.
        """
        return embedded(self.token_embedding, ids, self.block_length)

    def states(self, ids: Tensor) -> Tensor:
        """Return the states x_0 ... x_S (S + 1, B, T, D), before what ``logits`` does to the last."""
        found = [self.embed(ids)]  # (B, T, D)
        for layer in self.layers():
            found.append(layer(found[-1]))
        return torch.stack(found)  # (S + 1, B, T, D)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.final_state(ids))

    def cross_entropy(self, ids: Tensor, following: Tensor) -> Tensor:
        """Return the mean over all tokens of -log p(next token), in nats; ids and next ids (B, T)."""
        return functional.cross_entropy(self(ids).flatten(0, 1), following.flatten())

    def final_state(self, ids: Tensor) -> Tensor:
        """Return the last state x_S (B, T, D)."""
        x = self.embed(ids)  # (B, T, D)
        for layer in self.layers():
            x = layer(x)
        return x

    @torch.no_grad()
    def generate(
        self,
        ids: Tensor,
        num_tokens: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        final_state: Callable[[Tensor], Tensor] | None = None,
        num_allowed: int | None = None,
    ) -> Tensor:
        """Continue ids, (B, T), by ``num_tokens`` tokens: (B, T + num_tokens), without dropout.

        Each token is drawn from softmax(logits / temperature), or is the likeliest at temperature 0.  The context is
        cropped to its last ``block_length`` tokens and computed anew for every token, as in the authors' code: with
        absolute positions nothing can be kept once the window moves.  All rows draw from one generator: for texts that
        depend on their own prompt and seed alone see ``models.generation``.

        Args:
            ids: prompts of one length.
            num_tokens: how many follow.
            temperature: 0 or above.
            generator: of the draws, which are made on its device; torch's global one if None.
            final_state: ids to states (B, T, D) in the place of all ``layers()``; see ``models.generation``.
            num_allowed: only ids below it are generated; V if None.  For an output that is wider than the vocabulary.

        Raises:
            ValueError: ``num_tokens`` < 1, a negative temperature, or ``num_allowed`` outside 1 ... V.
        """
        at_least("num_tokens", num_tokens)
        if temperature:
            positive("temperature", temperature)
        if num_allowed is not None and at_least("num_allowed", num_allowed) > self.vocabulary_size:
            raise ValueError(f"num_allowed must be at most the vocabulary of {self.vocabulary_size}, got {num_allowed}")
        compute = self.final_state if final_state is None else final_state
        training = self.training
        self.eval()
        try:
            for _ in range(num_tokens):
                logits = self.logits(compute(ids[:, -self.block_length :])[:, -1])[:, :num_allowed]
                ids = torch.cat([ids, _next_token(logits, temperature, generator)], 1)  # (B, T + 1)
        finally:
            self.train(training)
        return ids


def embedded(table: nn.Embedding, ids: Tensor, block_length: int) -> Tensor:
    """Return the rows (B, T, D) of ids, (B, T), in a table of embeddings (V, D).

    Raises:
        ValueError: ids of another shape, no token, more than ``block_length``, or (on a CPU) an id outside the
            vocabulary; on a GPU the data module's check has to suffice.
    """
    if ids.ndim != 2 or not 1 <= ids.shape[1] <= block_length:
        raise ValueError(
            f"ids must have the shape (B, T) with 1 <= T <= {block_length} (block_length), "
            f"got {tuple(ids.shape)}: crop the sequences to their last {block_length} tokens"
        )
    try:
        found: Tensor = table(ids)  # (B, T, D)
    except IndexError as error:
        raise ValueError(
            f"token ids lie between {int(ids.min())} and {int(ids.max())}, the model's vocabulary_size is "
            f"{table.num_embeddings}: encode the text with the tokenizer that the model was trained with"
        ) from error
    return found


_COLD = 1e-30
"""Below this temperature logits / temperature overflow in float32, and only the likeliest token has a probability."""


def _next_token(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Choose the next tokens (B, 1) from logits (B, V)."""
    if temperature < _COLD:
        return logits.argmax(-1, keepdim=True)
    probabilities = torch.softmax(logits.float() / temperature, -1)  # (B, V)
    if generator is None:
        return torch.multinomial(probabilities, 1)
    return torch.multinomial(probabilities.to(generator.device), 1, generator=generator).to(logits.device)

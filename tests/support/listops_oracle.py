"""A model that knows the texts of ListOps with modulus 10."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from paper_repro.datamodules.listops import EOS, EQUALS, FIRST_NUMBER, Item

MODULUS, VOCABULARY = 10, 20
CERTAIN = 60.0
"""A logit above all others by this much is drawn but for a chance of 20 exp(-60)."""


class Oracle(nn.Module):
    """Goes on as the item does whose prompt it sees, behind any padding; it ends a text that it does not know.

    Args:
        answer: "right", "wrong", or "either", of which the wrong one is a little likelier.
    """

    def __init__(self, items: Iterable[Item], answer: str = "right") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.known = {tuple(item.prompt): item.tokens for item in items}
        self.answer = answer
        self.asked: list[tuple[int, ...]] = []
        self.contexts: set[int] = set()
        """Lengths of the padding before prompts."""
        self.widths: set[int] = set()

    def forward(self, ids: Tensor) -> Tensor:
        self.widths.add(ids.shape[1])
        logits = torch.zeros(*ids.shape, VOCABULARY)
        for row, tokens in enumerate(ids.tolist()):
            start = 0
            for place, token in enumerate(tokens):
                text = tuple(tokens[start : place + 1])
                if token == EOS:
                    start = place + 1
                elif EQUALS in text:
                    logits[row, place] = self._next(text, start)
        return logits

    def _next(self, text: tuple[int, ...], start: int) -> Tensor:
        prompt = text[: text.index(EQUALS) + 1]
        logits = torch.zeros(VOCABULARY)
        tokens = self.known.get(prompt, [])
        if tokens and len(text) == len(prompt):
            self.asked.append(prompt)
            self.contexts.add(start)
        if len(text) >= len(tokens) - 1:
            logits[EOS] = CERTAIN
        elif len(text) == len(tokens) - 2:
            wrong = FIRST_NUMBER + (tokens[-2] - FIRST_NUMBER + 1) % MODULUS
            if self.answer != "wrong":
                logits[tokens[-2]] = CERTAIN
            if self.answer != "right":
                logits[wrong] = CERTAIN + (0.0 if self.answer == "wrong" else 1e-3)
        else:
            logits[tokens[len(text)]] = CERTAIN
        return logits

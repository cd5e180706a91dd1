"""One text from one prompt and one seed, and NRGPT's descent stopped once a token's energy has settled.

Legend: T tokens, D width.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.errors import at_least
from paper_repro.base.identity import mix
from paper_repro.models.common import CausalLanguageModel
from paper_repro.models.nrgpt import NRGPT


@dataclass(frozen=True)
class Settle:
    """These settings say when the descent for a generated token stops.

    The energy that is watched is E_att + s E_ff of the last token, whose successor is predicted.

    Args:
        tolerance: stop after a step that changed the energy by at most this share of its size; 0 never stops.
        patience: so many such steps in a row.
        num_steps: the most inner steps; the model's own number if None, and it may exceed that.
    """

    tolerance: float
    patience: int = 1
    num_steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(f"tolerance must be a finite number of at least 0, got {self.tolerance!r}")
        at_least("patience", self.patience)
        if self.num_steps is not None:
            at_least("num_steps", self.num_steps)


@dataclass(frozen=True)
class Generation:
    """A generated text, in tokens."""

    ids: list[int]
    """The prompt's ids, then the new ones."""
    steps: list[int] = field(default_factory=list)
    """The inner steps for each new token; empty without ``settle``."""

    @property
    def mean_steps(self) -> float:
        return sum(self.steps) / len(self.steps)

    @property
    def histogram(self) -> dict[int, int]:
        """Count the tokens by their number of inner steps, ascending."""
        return dict(sorted(Counter(self.steps).items()))


def generate(
    model: CausalLanguageModel,
    prompt: Sequence[int],
    num_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
    settle: Settle | None = None,
    num_allowed: int | None = None,
    **options: Any,
) -> Generation:
    """Continue one prompt; see ``CausalLanguageModel.generate``, also for ``num_allowed`` and the options.

    Prompts are continued one at a time and the draws are made on the CPU from a generator of the text's own, so a text
    follows bit for bit from weights, prompt and seed, whatever is generated beside it.  ``settle`` stops the descent
    for each token early.

    Raises:
        ValueError: an empty prompt, an id outside the vocabulary, arguments out of range, or ``settle`` for a model
            without energies.
    """
    if not prompt:
        raise ValueError("the prompt has no token, expected at least one: a blank prompt is two newlines")
    if not 0 <= min(prompt) <= max(prompt) < model.vocabulary_size:
        raise ValueError(
            f"the prompt's ids go from {min(prompt)} to {max(prompt)}, expected 0 to {model.vocabulary_size - 1}: "
            "use the tokenizer that the model was trained with"
        )
    used: list[int] = []
    final_state = None
    if settle is not None:
        if not isinstance(model, NRGPT):
            raise ValueError(f"{type(model).__name__} has no energies that could settle: leave settle out")
        final_state = partial(_settled, model, settle, used)
    ids = torch.tensor([list(prompt)], device=model.token_embedding.weight.device)
    generator = torch.Generator().manual_seed(mix(seed, "text"))
    found = model.generate(ids, num_tokens, temperature, generator, final_state, num_allowed, **options)
    return Generation(found[0].tolist(), used)


def _settled(model: NRGPT, settle: Settle, used: list[int], ids: Tensor) -> Tensor:
    """Return the state (1, T, D) at which the last token's energy has settled; ``used`` gets the steps that it took."""
    found = model.descend(
        ids,
        settle.num_steps,
        energy=lambda x: model.energies(x).total[:, -1],  # (1,), E_att + s E_ff of the last token
        tolerance=settle.tolerance or None,
        patience=settle.patience,
    )
    used.append(found.num_steps)
    return found.state

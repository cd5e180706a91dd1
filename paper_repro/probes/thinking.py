"""EBT on sets of texts: the loss after more steps and of the best of several samples (sections 3.3 and 4.1); whether
energies say how uncertain a prediction is, and how foreign a text (figures B.3 and B.5).

Legend: B texts, N samples, T tokens, V vocabulary, S steps.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.identity import IGNORED, mix
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.text import VAL, TextData
from paper_repro.datamodules.text_sets import AbsentTextsError, TextSet
from paper_repro.metrics.ranks import auroc, grouped_rank_correlation
from paper_repro.models.ebt import EBT, AutoregressiveEBT, Considered, ThinkingSettings, TransformerPlusPlus, think
from paper_repro.probes.attachments import rounded
from paper_repro.training.module import PaperModule

VALIDATION = "validation"
Pair = tuple[Tensor, Tensor]


# Sets of texts: documents of validation, and sets of other distributions by name.


def check_sets(names: Sequence[str]) -> None:
    """Check the names of text sets; ``validation`` is the data's own."""
    if not names or len(set(names)) < len(names):
        raise ValueError(f"sets must be different names of text sets, at least one, got {list(names)}")
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


@dataclass(frozen=True)
class _Losses:
    """Nats of each counted token of a batch."""

    trained: Tensor  # as the model was trained, (tokens,)
    grid: dict[tuple[int, int], Tensor]  # by steps and samples, (tokens,) each
    oracle: dict[int, Tensor]  # by steps: of the sample with the lowest loss, (tokens,) each


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

    With one landscape and without noise, fewer steps and fewer samples are the beginning of what is computed for the
    most; with several landscapes or with noise each number of steps is computed by itself.  Fewer steps than
    landscapes are left out.  Alpha is the model's own.  A set whose files are absent is not available.

    Args:
        sets: names of ``datamodules.text_sets``, or "validation".
        steps: the numbers S.
        samples: the numbers N, 1 among them.
        num_texts: of each set, at most.
        batch_size: texts at once; N times as many predictions of T V numbers are in memory.
        noise: sigma of Langevin noise while thinking; the names of metrics then end with ``_noise<sigma>``.
    """

    sets: Sequence[str] = (VALIDATION, "gsm8k", "squad", "bigbench-math", "bigbench-dyck")
    steps: Sequence[int] = (1, 2, 3, 4, 6, 8)
    samples: Sequence[int] = (1, 2, 4, 10)
    num_texts: int = 64
    batch_size: int = 8
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_sets(self.sets)
        for name in ("steps", "samples"):
            numbers = getattr(self, name)
            if not numbers or len(set(numbers)) < len(numbers):
                raise ValueError(f"{name} must be different numbers, at least one, got {list(numbers)}")
            for number in numbers:
                at_least(name, number)
        if 1 not in self.samples:
            raise ValueError(f"samples must have 1 among them, got {list(self.samples)}")
        for name in ("num_texts", "batch_size"):
            at_least(name, getattr(self, name))
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise must be a finite number of at least 0, got {self.noise!r}")

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        found, rows = Findings(), ["set,steps,samples,loss,oracle"]
        suffix = f"_noise{self.noise:g}" if self.noise else ""
        for name in self.sets:
            try:
                batches = scored_batches(data, name, self.num_texts, self.batch_size)
            except AbsentTextsError as error:
                kinds = ("loss", "first_loss", "longer_loss", "best_loss")
                found.unavailable |= {f"{name}_{kind}{suffix}": lack(name, error) for kind in kinds}
                continue
            generator = torch.Generator().manual_seed(mix(seed, "thinking", name))
            parts = [self._losses(module, batch, generator) for batch in batches]
            found.metrics[f"{name}_loss{suffix}"] = mean_of_tokens([part.trained for part in parts])
            grid = {at: mean_of_tokens([part.grid[at] for part in parts]) for at in parts[0].grid}
            for (steps, samples), loss in grid.items():
                oracle = [part.oracle[steps] for part in parts if steps in part.oracle]
                last = f"{mean_of_tokens(oracle):.8g}" if oracle else ""
                rows.append(f"{name},{steps},{samples},{loss:.8g},{last}")
            found.metrics |= {f"{name}_{kind}{suffix}": value for kind, value in _corners(grid).items()}
        found.attachments[f"thinking{suffix}.csv"] = ("\n".join(rows) + "\n").encode()
        return found

    def _losses(self, module: PaperModule, batch: Pair, generator: torch.Generator) -> _Losses:
        model = module.model
        ids, following = (part.to(next(model.parameters()).device) for part in batch)  # (B, T)
        if isinstance(model, TransformerPlusPlus):
            return self._of_transformer(model, ids, following)
        if not isinstance(model, EBT):
            raise UsageError(
                f"probes.thinking: {type(model).__name__} cannot be scored; choose model=ebt/s1, ebt/s2 or "
                "ebt/transformer, or leave out the probe"
            )
        settings, counted = replace(settings_of(module), noise=self.noise), following != IGNORED
        trained, grid, oracle = torch.zeros(0), dict[tuple[int, int], Tensor](), dict[int, Tensor]()
        for number, considered in self._considered(model, ids, generator, settings):
            losses = negative_log_likelihoods(considered.predictions, following)  # (N, B, T)
            if number == settings.longest:
                trained = losses[0][counted]
            if number not in self.steps:
                continue
            for samples in self.samples:
                best = considered.energies[:samples].argmin(0, keepdim=True)  # (1, B, T)
                grid[number, samples] = losses.gather(0, best)[0][counted]
            oracle[number] = losses.amin(0)[counted]
        return _Losses(trained, grid, oracle)

    def _considered(
        self, model: EBT, ids: Tensor, generator: torch.Generator, settings: ThinkingSettings
    ) -> Iterator[tuple[int, Considered]]:
        """Yield each number of steps that is wanted, with what N samples have then become."""
        shape = (max(self.samples), *ids.shape, model.vocabulary_size)
        numbers = sorted(number for number in {*self.steps, settings.longest} if number >= model.num_landscapes)
        start = normal_start(shape, model, generator)  # (N, B, T, V)
        if model.num_landscapes == 1 and not self.noise:
            for number, considered in enumerate(think(model, ids, start, numbers[-1], settings)):
                if number in numbers:
                    yield number, considered
            return
        for number in numbers:
            noise = (lambda _: normal_start(start.flatten(0, 1).shape, model, generator)) if self.noise else None
            *_, considered = think(model, ids, start, number, settings, noise=noise)
            yield number, considered

    def _of_transformer(self, model: TransformerPlusPlus, ids: Tensor, following: Tensor) -> _Losses:
        def passed(passes: int) -> Tensor:
            logits = model.logits(model.final_state(ids, passes))  # (B, T, V)
            return negative_log_likelihoods(logits, following)[following != IGNORED]

        recurrent = {(passes, 1): passed(passes) for passes in self.steps if model.num_passes > 1}
        return _Losses(passed(model.num_passes), recurrent, {})


def _corners(grid: Mapping[tuple[int, int], float]) -> dict[str, float]:
    """Return the losses, by steps and samples, that are metrics of their own."""
    if not grid:
        return {}
    fewest, most, samples = min(grid)[0], max(grid)[0], max(samples for _, samples in grid)
    found = {"first_loss": grid[fewest, 1], "longer_loss": grid[most, 1]}
    return found if samples == 1 else {**found, "best_loss": grid[most, samples]}


# Uncertainty.


class _Text(NamedTuple):
    """The tokens of one text, and what a model says of them, (tokens,) each."""

    following: Tensor
    loss: Tensor
    entropy: Tensor
    energies: Tensor  # (S + 1, tokens), before and after each step; no row for a model without energies
    trained: int  # the row after the most steps of training

    @property
    def scores(self) -> dict[str, Tensor]:
        """The measures of uncertainty; all but the loss without knowing the next token."""
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
        if not isinstance(data, TextData):
            raise UsageError(f"probes.uncertainty shows tokens, the data are {type(data).__name__}")
        known = self._texts(module, data, VALIDATION, seed)
        kinds = [kind for kind in known[0].scores if kind != "loss"]
        found, kept = Findings(), [self._shown(VALIDATION, known[0], data)]
        for kind in kinds:
            scores = [text.scores[kind] for text in known]
            found.metrics[f"{VALIDATION}_{kind}"] = mean_of_tokens(scores)
            rank = grouped_rank_correlation(
                scores, [text.loss for text in known], mix(seed, "energy_uncertainty", kind)
            )
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
                found.metrics[f"{name}_{kind}_auroc"] = _area(kind, known, texts)
            if name in self.shown:
                kept.append(self._shown(name, texts[0], data))
        if "energy" in kinds:
            found.attachments["token_energies.json"] = json.dumps({"texts": kept}, ensure_ascii=False).encode() + b"\n"
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
        entropy = torch.distributions.Categorical(logits=logits.float(), validate_args=False).entropy().cpu()  # (B, T)
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
            "loss": rounded(text.loss[:most]),
            "energies": rounded(text.energies[:, :most]),
            "trained": text.trained,
        }


def _area(kind: str, known: Sequence[_Text], texts: Sequence[_Text]) -> float:
    """Return how often a text's mean score exceeds that of a validation document; NaN where a score is none."""
    negatives, positives = (torch.stack([text.scores[kind].mean() for text in side]) for side in (known, texts))
    if bool(torch.cat([negatives, positives]).isnan().any()):
        return math.nan
    return auroc(negatives, positives)

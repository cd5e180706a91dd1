"""EBT, sections 3.3 and 4.1: what more steps, and the best of several samples, do to the loss on sets of texts.

Legend: B texts, N samples, T tokens, V vocabulary, S steps.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.identity import IGNORED, mix
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.text_sets import AbsentTextsError
from paper_repro.models.ebt import EBT, AutoregressiveEBT, Considered, ThinkingSettings, TransformerPlusPlus, think
from paper_repro.probes.scored_texts import VALIDATION, Pair, check_sets, lack, scored_batches
from paper_repro.training.module import PaperModule

ATTACHMENT = "thinking"
DIGITS = 8


@dataclass(frozen=True)
class _Losses:
    """Nats of each counted token of a batch."""

    trained: Tensor
    """As the model was trained, (tokens,)."""
    grid: dict[tuple[int, int], Tensor]
    """By steps and samples, (tokens,) each."""
    oracle: dict[int, Tensor]
    """By steps: of the sample with the lowest loss, (tokens,) each."""


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
        sets: names of ``datamodules.text_sets``, or "validation": the first documents of the evaluation.
        steps: the numbers S.
        samples: the numbers N, 1 among them.
        num_texts: of each set, at most.
        batch_size: texts at once; N times as many predictions of T V numbers are in memory.
        noise: sigma of Langevin noise while thinking; what is measured is then called ``..._noise<sigma>``.

    Raises:
        ValueError: no set or step, one twice, an unknown set, no single sample, or a number out of range.
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
        """Score the texts, which are the same for every model and seed; the samples follow from the seed.

        Raises:
            UsageError: a model that is neither an EBT nor a Transformer++, or one with more landscapes than steps.
        """
        found, rows = Findings(), ["set,steps,samples,loss,oracle"]
        for name in self.sets:
            try:
                batches = scored_batches(data, name, self.num_texts, self.batch_size)
            except AbsentTextsError as error:
                kinds = ("loss", "first_loss", "longer_loss", "best_loss")
                found.unavailable |= {f"{name}_{kind}{self._suffix}": lack(name, error) for kind in kinds}
                continue
            generator = torch.Generator().manual_seed(mix(seed, "thinking", name))
            parts = [self._losses(module, batch, generator) for batch in batches]
            found.metrics[f"{name}_loss{self._suffix}"] = mean_of_tokens([part.trained for part in parts])
            grid = {at: mean_of_tokens([part.grid[at] for part in parts]) for at in parts[0].grid}
            for (steps, samples), loss in grid.items():
                oracle = [part.oracle[steps] for part in parts if steps in part.oracle]
                last = f"{mean_of_tokens(oracle):.{DIGITS}g}" if oracle else ""
                rows.append(f"{name},{steps},{samples},{loss:.{DIGITS}g},{last}")
            found.metrics |= {f"{name}_{kind}{self._suffix}": value for kind, value in _corners(grid).items()}
        found.attachments[f"{ATTACHMENT}{self._suffix}.csv"] = ("\n".join(rows) + "\n").encode()
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

    @property
    def _suffix(self) -> str:
        return f"_noise{self.noise:g}" if self.noise else ""


def _corners(grid: Mapping[tuple[int, int], float]) -> dict[str, float]:
    """Return what is a metric of its own of the losses by steps and samples."""
    if not grid:
        return {}
    fewest, most, samples = min(grid)[0], max(grid)[0], max(samples for _, samples in grid)
    found = {"first_loss": grid[fewest, 1], "longer_loss": grid[most, 1]}
    return found if samples == 1 else {**found, "best_loss": grid[most, samples]}


def mean_of_tokens(parts: Sequence[Tensor]) -> float:
    """Return the mean over the tokens of all parts, (tokens,) each."""
    return float(torch.cat(list(parts)).mean(dtype=torch.float64))


def settings_of(module: PaperModule) -> ThinkingSettings:
    """Return how an EBT was trained."""
    settings = getattr(module, "thinking", None)
    if not isinstance(settings, ThinkingSettings):
        raise TypeError(f"{type(module).__name__} has no ThinkingSettings called thinking")
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
    weight = model.prediction_embedding.weight
    return torch.randn(tuple(shape), generator=generator).to(weight)

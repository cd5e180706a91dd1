"""Thinking at test time: more steps of a prediction, and the sample of lowest energy among several (EBT, algorithm 2).

Legend: B sequences, N samples, T tokens, V vocabulary, S steps.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paper_repro.models.descent import walk
from paper_repro.models.ebt.model import EnergyModel
from paper_repro.models.ebt.steps import (
    CODE,
    DIRECT,
    Energies,
    PredictionStep,
    ThinkingSettings,
    check_noise,
    check_rule,
    first_thought,
)


class Considered:
    """N predictions for each token after some number of steps, and their energies.

    Args:
        predictions: logits, (N, B, T, V).
        energies: (N, B, T), or a function that computes them once they are asked for.
    """

    def __init__(self, predictions: Tensor, energies: Tensor | Callable[[], Tensor]) -> None:
        self.predictions, self._energies = predictions, energies

    @property
    def energies(self) -> Tensor:
        """The energies of the predictions, (N, B, T); without gradients."""
        if not isinstance(self._energies, Tensor):
            self._energies = self._energies()
        return self._energies

    def choose(self, num_samples: int | None = None) -> tuple[Tensor, Tensor]:
        """Take for each token the prediction of lowest energy among the first ``num_samples``; None: among all.

        Returns:
            Its logits (B, T, V), and which sample it is, (B, T).

        Raises:
            ValueError: ``num_samples`` outside 1 ... N.
        """
        energies = self.energies[:num_samples]
        if num_samples is not None and not 1 <= num_samples <= len(self.energies):
            raise ValueError(f"num_samples must lie in 1 ... {len(self.energies)}, got {num_samples}")
        best = energies.argmin(0)  # (B, T)
        places = best[None, ..., None].expand(1, *best.shape, self.predictions.shape[-1])  # (1, B, T, V)
        return self.predictions.gather(0, places)[0], best


def think(
    model: EnergyModel,
    ids: Tensor,
    start: Tensor,
    num_steps: int,
    settings: ThinkingSettings | None = None,
    step_size: float | None = None,
    noise: Any = None,
    energies: Energies | None = None,
) -> Iterator[Considered]:
    """Yield what is thought of ids, (B, T), after 0, 1, ..., S steps, without gradients by the weights.

    The observed stream is computed once for all samples and steps.  The energies after the last step cost one more
    pass, at the last landscape; where noise is added, so do those before each step, which are without the noise.  These
    passes are made for those who read the energies.

    Args:
        start: the predictions at first, logits (N, B, T, V); usually standard normal numbers.
        num_steps: S; with several landscapes each is descended for an equal share of them.
        settings: rule and noise; the default is the step of EBT's code, without noise.
        step_size: alpha; None: the model's own.
        noise: standard normal numbers (S, N B, T, V), or a function of the step's index; None without noise.
        energies: of ids; None: ``model.energies(ids)``.  Those of the last tokens alone want a start for these.

    Raises:
        ValueError: no sample, no step, fewer steps than landscapes, a step size of 0 or below, ids as ``EBT.embed``, a
            rule or noise that do not fit.
    """
    samples = len(start)
    if samples < 1:
        raise ValueError("start holds no sample: draw N >= 1 of them")
    if step_size is not None and not 0 < step_size < float("inf"):
        raise ValueError(f"step_size must be a positive finite number, got {step_size!r}")
    if settings is None:
        settings = ThinkingSettings(rule=DIRECT if model.continuous else CODE)
    check_rule(settings.rule, model.continuous)
    settings = replace(settings, detach=True, truncate=False)
    with torch.no_grad():
        energies = model.energies(ids) if energies is None else energies
        alpha = model.step_size
        alpha = alpha if step_size is None else torch.full_like(alpha, step_size)
    step = PredictionStep(energies, model.prediction_embedding.weight, alpha, num_steps, model.num_landscapes, settings)
    check_noise(settings, noise)
    energy_of, state = torch.no_grad()(step.energy), start.flatten(0, 1)  # (N B, T, V)
    for index, following in enumerate(walk(torch.no_grad()(step), first_thought(state), num_steps, noise)):
        energy = partial(energy_of, state, index) if settings.noise else following.energy
        yield _considered(state, energy, samples)
        state = following.prediction
    yield _considered(state, partial(energy_of, state, num_steps - 1), samples)


def _considered(state: Tensor, energy: Tensor | Callable[[], Tensor], samples: int) -> Considered:
    def each(flat: Tensor) -> Tensor:
        return flat.unflatten(0, (samples, -1))  # (N, B, T, ...)

    return Considered(each(state), each(energy) if isinstance(energy, Tensor) else lambda: each(energy()))

"""How EBT optimises a prediction: the step rules, and each technique of its training as a setting (EBT, 3.3, C.2).

The state of a descent is a prediction y, (B, T, V).  Of tokens it is logits: a step turns them into p = softmax(y),
descends the energy of the embedded candidate e = W p, and returns the next logits.  A continuous state, such as the
patches of an image, is read as it is, e = W y, and descends by itself ("direct").

Legend: B sequences (or N B predictions), T tokens, V vocabulary or numbers of a state, D width, S steps.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paper_repro.base.arguments import at_least, one_of
from paper_repro.models.descent import walk

Energies = Callable[[Tensor, int], Tensor]
"""Energies (B, T) of embedded candidates (B, T, D) on a landscape, given by its number."""
CODE, LISTING, DIRECT = "code", "listing", "direct"
RULES = (CODE, LISTING, DIRECT)
LOSSES = ("mean", "last")
NOISE_PLACES = ("before", "after")


class Thought(NamedTuple):
    """A prediction, and the energies of the state from which the step to it started."""

    prediction: Tensor
    """Logits, or a continuous state, (B, T, V)."""
    energy: Tensor
    """(B, T); zeros at the start."""


@dataclass(frozen=True)
class ThinkingSettings:
    """How predictions are optimised in training: the techniques of S1 and S2 as settings of one mechanism.

    S1 is the default.  EBT's S2: num_steps 2, most_steps 3, noise 3, step_size_spread 2, detach false, truncate true,
    loss last, and a replay buffer, which the module keeps.  Full backpropagation through the steps, as in EBT's
    pseudocode: detach false, truncate false.

    Raises:
        ValueError: a value out of range, or a truncation without loss=last.
    """

    num_steps: int = 2
    """S, the least if it is random."""
    most_steps: int | None = None
    """The most steps; S is uniform in num_steps ... most_steps for each batch.  None: S is num_steps."""
    rule: str = CODE
    """What a step does: y' = p - alpha dE/dp in EBT's code ("code"), or y' = y - alpha dE/dy, equation 1, where the
    model reads p ("listing") or y itself ("direct").
    """
    noise: float = 0.0
    """Sigma of the Langevin noise, in the units of y."""
    noise_place: str = "before"
    """Where noise is added: "before" the step, as in EBT's code on language, or "after" it, as in equation 2."""
    step_size_spread: float = 1.0
    """F: alpha is drawn uniformly from alpha/F ... F alpha for each token, once for all steps of a batch."""
    detach: bool = True
    """Whether a step's input counts as a constant."""
    truncate: bool = False
    """Whether the last step alone is differentiated."""
    loss: str = "mean"
    """Whether the losses of all steps are averaged, or the last one counts."""

    def __post_init__(self) -> None:
        at_least("num_steps", self.num_steps)
        if self.most_steps is not None and at_least("most_steps", self.most_steps) < self.num_steps:
            raise ValueError(f"most_steps must be at least num_steps={self.num_steps}, got {self.most_steps}")
        one_of("rule", self.rule, RULES)
        one_of("noise_place", self.noise_place, NOISE_PLACES)
        one_of("loss", self.loss, LOSSES)
        if not 0 <= self.noise < float("inf"):
            raise ValueError(f"noise must be a finite number of at least 0, got {self.noise!r}")
        if not 1 <= self.step_size_spread < float("inf"):
            raise ValueError(f"step_size_spread must be a finite number of at least 1, got {self.step_size_spread!r}")
        if self.truncate and self.loss != "last":
            raise ValueError("truncate=true differentiates the last step alone: it needs loss=last")

    @property
    def longest(self) -> int:
        """The most steps that are taken."""
        return self.num_steps if self.most_steps is None else self.most_steps


@dataclass(frozen=True)
class PredictionStep:
    """One step of a prediction: a rule for ``models.descent``.

    With p = softmax(y + noise before), e = W p and g = dE/de: dE/dp = W^T g and dE/dy = p * (dE/dp - <p, dE/dp>).
    Under the rule "direct" e = W y and dE/dy = W^T g.

    Args:
        energies: of the context.
        embedding: W, (D, V).
        step_size: alpha, () or (B, T, 1).
        num_steps: S.
        num_landscapes: L; step s descends landscape floor(s L / S).
        settings: rule, noise, detach and truncate; the rest is not read.

    Raises:
        ValueError: more landscapes than steps.
    """

    energies: Energies
    embedding: Tensor
    step_size: Tensor
    num_steps: int
    num_landscapes: int = 1
    settings: ThinkingSettings = ThinkingSettings()

    def __post_init__(self) -> None:
        if self.num_landscapes > at_least("num_steps", self.num_steps):
            raise ValueError(
                f"num_steps={self.num_steps} is fewer than the {self.num_landscapes} landscapes that a prediction "
                "passes: give more steps, or a smaller model.num_landscapes"
            )

    def __call__(self, state: Thought, index: int, noise: Any) -> Thought:
        settings = self.settings
        recorded = torch.is_grad_enabled() and (index == self.num_steps - 1 or not settings.truncate)
        logits = state.prediction.detach() if settings.detach else state.prediction
        with torch.set_grad_enabled(recorded):
            if noise is not None and settings.noise_place == "before":
                logits = logits + settings.noise * noise  # (B, T, V)
            logits, energy = self._moved(logits, self.landscape(index))
            if noise is not None and settings.noise_place == "after":
                logits = logits + settings.noise * noise  # (B, T, V)
        return Thought(logits, energy)

    def landscape(self, index: int) -> int:
        """Return the landscape that step ``index``, from 0 on, descends."""
        return landscape_of_step(index, self.num_steps, self.num_landscapes)

    def energy(self, logits: Tensor, index: int) -> Tensor:
        """Return the energies (B, T) of a prediction (B, T, V) on the landscape of step ``index``."""
        return self.energies(self._read(logits) @ self.embedding.mT, self.landscape(index))

    def _read(self, logits: Tensor) -> Tensor:
        """Return what the model reads of a prediction, (B, T, V) both."""
        return logits if self.settings.rule == DIRECT else torch.softmax(logits, -1)

    def _moved(self, logits: Tensor, landscape: int) -> tuple[Tensor, Tensor]:
        """Return the prediction after a step, (B, T, V), and the energies before it, (B, T)."""
        read = self._read(logits)  # (B, T, V)
        candidates = read @ self.embedding.mT  # (B, T, D)
        gradient, energy = torch.func.grad(self._total, has_aux=True)(candidates, landscape)  # (B, T, D), (B, T)
        change = self.step_size * gradient  # (B, T, D)
        if self.settings.rule != LISTING:
            moved = torch.addmm(read.flatten(0, -2), change.flatten(0, -2), self.embedding, alpha=-1)
            return moved.view_as(logits), energy
        change = change @ self.embedding  # (B, T, V)
        return logits - read * (change - (read * change).sum(-1, keepdim=True)), energy

    def _total(self, candidates: Tensor, landscape: int) -> tuple[Tensor, Tensor]:
        energies = self.energies(candidates, landscape)  # (B, T)
        return energies.sum(), energies


def landscape_of_step(index: int, num_steps: int, num_landscapes: int) -> int:
    """Return the landscape, floor(s L / S), that step s of S, both from 0 on, descends of L."""
    return index * num_landscapes // num_steps


def first_thought(start: Tensor) -> Thought:
    """Return the state from which a descent begins, of logits (B, T, V)."""
    return Thought(start, start.new_zeros(start.shape[:-1]))


def check_rule(rule: str, continuous: bool) -> None:
    """Check whether a rule fits what a model reads.

    Raises:
        ValueError: it does not.
    """
    fitting = [name for name in RULES if (name == DIRECT) == continuous]
    if rule not in fitting:
        what = "a continuous state" if continuous else "distributions"
        raise ValueError(f"rule={rule} does not fit a model that reads {what}: take {' or '.join(fitting)}")


def check_noise(settings: ThinkingSettings, noise: Any) -> None:
    """Check that numbers are drawn for the noise where there is noise, and only there.

    Raises:
        ValueError: it is not so.
    """
    if (noise is not None) != (settings.noise > 0):
        raise ValueError(f"noise={settings.noise:g} and the drawn numbers go together: give both, or neither")


def thoughts(step: PredictionStep, start: Tensor, noise: Any = None) -> Iterator[Thought]:
    """Yield the prediction after each of the S steps from logits (B, T, V), each when it is asked for.

    Args:
        noise: standard normal numbers (S, B, T, V), or a function of the step's index; None without noise.

    Raises:
        ValueError: noise without ``settings.noise``, or the reverse.
    """
    check_noise(step.settings, noise)
    return walk(step, first_thought(start), step.num_steps, noise)

"""What every EBT shares in training: predictions that descend an energy, differentiated through the descent."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from paper_repro.base.configs import TARGET, instantiate
from paper_repro.base.errors import UsageError, at_least, positive
from paper_repro.base.identity import IGNORED
from paper_repro.metrics.likelihood import mean_cross_entropy, num_counted, or_zero
from paper_repro.models.ebt import (
    EnergyModel,
    PredictionStep,
    ThinkingSettings,
    Thought,
    check_rule,
    normal_draws,
    thoughts,
)
from paper_repro.training.module import Draws, PaperModule
from paper_repro.training.schedules import Schedule, Times
from paper_repro.training.steps import Tree, rows_of, shares
from paper_repro.training.tensors import (
    Distribution,
    Integers,
    Normal,
    Uniform,
    add,
    choose,
    empty_ring,
    largest,
    map_tensors,
    spread,
)

Batch = Any
Pair = tuple[Tensor, Tensor]
REPLAYED = "replayed"
"""Among the draws of a micro-batch: the replayed rows that it computes, and whether each is there."""


@dataclass(frozen=True)
class ReplaySettings:
    """A ring of contexts with the predictions that they ended with, from which some rows of each batch start.

    EBT's code keeps 192 samples and adds half a batch of them.
    """

    capacity: int = 192
    """Samples that the ring keeps."""
    rows: int = 16
    """Samples that are added to each batch; their predictions go on from where they were left."""
    kept: int | None = 64
    """Probabilities of each token that are kept, the largest ones; None: all of them."""

    def __post_init__(self) -> None:
        at_least("capacity", self.capacity)
        if at_least("rows", self.rows) > self.capacity:
            raise ValueError(f"rows must be at most the capacity of {self.capacity}, got {self.rows}")
        if self.kept is not None:
            at_least("kept", self.kept)


class _Step(NamedTuple):
    """One batch, with what its replayed rows bring."""

    context: Tensor  # (B, T, ...)
    targets: Tensor  # (B, T, ...)
    start: Tensor  # (B, T, V)
    settings: ThinkingSettings


class PredictionDescent(PaperModule):
    """The error of predictions that descend a learned energy, differentiated through the descent.

    As it stands predictions are logits that begin as normal numbers, and the error is the cross-entropy.

    Args:
        thinking: see ``ThinkingSettings``.
        step_size_multiplier: of the learning rate, for alpha, if that is learned; its rate ends where the others' do.
        replay: see ``ReplaySettings``; None: every prediction starts from noise.

    Shape: ``read`` gives contexts and targets of a batch, (B, T) each, int64; targets of -100 do not count.  A
    continuous model has (B, T, V) in their place.
    """

    constants = frozenset({"num_steps"})
    model: EnergyModel

    def __init__(
        self,
        model: EnergyModel,
        optimizer: Callable[..., Optimizer],
        schedule: Schedule,
        thinking: ThinkingSettings | Mapping[str, Any] | None = None,
        step_size_multiplier: float = 1500.0,
        replay: ReplaySettings | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, optimizer, schedule)
        self.thinking = _built(ThinkingSettings, thinking or {})
        self.replay = None if replay is None else _built(ReplaySettings, replay)
        self.step_size_multiplier = positive("step_size_multiplier", step_size_multiplier)
        check_rule(self.thinking.rule, self.model.continuous)
        if self.model.continuous and replay is not None:
            raise UsageError("module.replay keeps distributions over tokens: leave it out where states are continuous")
        if self.model.num_landscapes > self.thinking.num_steps:
            raise UsageError(
                f"model.num_landscapes={self.model.num_landscapes} is more than the {self.thinking.num_steps} steps of "
                "a prediction: give module.thinking.num_steps at least as many, or fewer landscapes"
            )

    def read(self, batch: Batch) -> Pair:
        """Return contexts and targets of a batch, (B, T, ...) each."""
        return batch

    def start(self, batch: Batch, draws: dict[str, Tensor]) -> Tensor:
        """Return what the predictions of a batch begin with, (B, T, V); ``draws["start"]`` are standard normal."""
        return draws["start"]

    def error(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Return how far predictions (B, T, V) are from targets, (B, T, ...), as one number."""
        return mean_cross_entropy(prediction, targets)

    def num_targets(self, batch: Batch, draws: Draws | None = None, carry: Tree = None) -> Tensor | None:
        if self.model.continuous:
            return None
        targets = [self.read(batch)[1]]  # (B, T)
        if self.replay is not None and draws is not None:
            ring = {**carry, "entries": {"targets": carry["entries"]["targets"]}}
            old, there = draws.get(REPLAYED) or choose(ring, draws["keys"], self.replay.rows)  # (R, T), (R,)
            targets.append(torch.where(there[:, None], old["targets"], IGNORED))
        return num_counted(torch.cat(targets))

    def noise(self, ids: Tensor, samples: int) -> Tensor:
        """Draw N predictions to begin with, standard normal logits (N, B, T, V), for contexts (B, T)."""
        shape = (samples, *ids.shape[:2], self.model.state_size)
        return torch.randn(shape, device=ids.device, dtype=self._floating_dtype())  # (N, B, T, V)

    def random_tensors(self, batch: Batch) -> dict[str, Distribution]:
        rows, tokens = self.read(batch)[0].shape[:2]
        found: dict[str, Distribution] = {"start": Normal((rows, tokens, self.model.state_size))}
        if self.replay is not None:
            found["keys"] = Uniform((self.replay.capacity,))
            rows += self.replay.rows
        if self.thinking.step_size_spread > 1:
            found["step_size"] = Uniform((rows, tokens, 1))
        if self.thinking.longest > self.thinking.num_steps:
            found["num_steps"] = Integers(self.thinking.num_steps, self.thinking.longest)
        return found

    def split(self, batch: Batch, draws: Draws, carry: Tree, parts: Sequence[slice]) -> list[tuple[Batch, Draws]]:
        if self.replay is None or self.shares_rows:
            return super().split(batch, draws, carry, parts)
        old = choose(carry, draws["keys"], self.replay.rows, draws["start"].dtype)
        found = []
        for part, replayed in zip(parts, shares(self.replay.rows, len(parts)), strict=True):
            own = {**draws, "start": draws["start"][part], REPLAYED: map_tensors(lambda one: one[replayed], old)}  # noqa: B023
            if "step_size" in draws:
                fresh, further = draws["step_size"].split([rows_of(batch), self.replay.rows])
                own["step_size"] = torch.cat([fresh[part], further[replayed]])
            found.append((map_tensors(lambda tensor: tensor[part], batch), own))  # noqa: B023
        return found

    def initial_carry(self, batch: Batch) -> Any:
        if self.replay is None:
            return {}
        ids, targets = self.read(batch)  # (B, T)
        words = self.model.state_size
        kept = words if self.replay.kept is None else min(self.replay.kept, words)
        needed = self.replay.capacity * ids.shape[1] * (kept * (2 if kept == words else 6) + 16)
        free = _free_bytes(ids.device)
        if free is not None and needed > free:
            raise UsageError(
                f"module.replay.capacity={self.replay.capacity} needs {needed / 2**30:.1f} GiB and "
                f"{free / 2**30:.1f} GiB are free: lower it, or module.replay.kept={self.replay.kept}"
            )
        logits = torch.zeros(*ids.shape, words, dtype=torch.bfloat16, device=ids.device)  # (B, T, V)
        entries = {"ids": ids, "targets": targets, "prediction": self._narrow(logits)}
        return empty_ring(self.replay.capacity, entries)

    def loss_and_carry(self, batch: Batch, draws: dict[str, Tensor], carry: Any) -> tuple[Tensor, Any]:
        step = self._with_replayed(batch, draws, carry)
        found = list(self._thoughts(step, draws))
        each = [
            self.error(one.prediction, step.targets) if one.loss is None else or_zero(one.loss, step.targets)
            for one in found
        ]
        loss = each[-1] if self.thinking.loss == "last" else torch.stack(each).mean()
        if self.replay is not None:
            ids, targets = self.read(batch)
            prediction = self._narrow(found[-1].prediction.detach()[: len(ids)])
            carry = add(carry, {"ids": ids, "targets": targets, "prediction": prediction})
        return loss, carry

    def parameter_groups(self) -> list[dict[str, Any]]:
        alpha = self.model.step_size_parameter
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad and parameter is not alpha]
        if not alpha.requires_grad:
            return [{"params": trained}]
        schedule: Any = self.schedule
        if hasattr(schedule, "final_factor"):
            schedule = replace(schedule, final_factor=min(1.0, schedule.final_factor / self.step_size_multiplier))
        own = {"weight_decay": 0.0, "schedule": Times(schedule, self.step_size_multiplier)}
        return [{"params": trained}, {"params": [alpha], **own}]

    def _with_replayed(self, batch: Batch, draws: dict[str, Tensor], carry: Any) -> _Step:
        context, targets = self.read(batch)
        start = self.start(batch, draws)  # (B, T, V)
        settings, steps = self.thinking, draws.get("num_steps")
        if steps is not None:
            settings = replace(settings, num_steps=int(steps), most_steps=None)
        if self.replay is None:
            return _Step(context, targets, start, settings)
        old, there = draws.get(REPLAYED) or choose(carry, draws["keys"], self.replay.rows, start.dtype)
        counted = torch.where(there[:, None], old["targets"], IGNORED)  # (R, T)
        start = torch.cat([start, self._wide(old["prediction"])])  # (B + R, T, V)
        return _Step(torch.cat([context, old["ids"]]), torch.cat([targets, counted]), start, settings)

    def _thoughts(self, step: _Step, draws: dict[str, Tensor]) -> Iterator[Thought]:
        alpha, spread_by = self.model.step_size, step.settings.step_size_spread
        if spread_by > 1:
            alpha = alpha * (1 / spread_by + (spread_by - 1 / spread_by) * draws["step_size"])  # (B, T, 1)
        weights = self.model.recomputed()

        def with_context(candidates: Tensor, landscape: int) -> Tensor:
            return self.model.energies(step.context)(candidates, landscape)

        rule = PredictionStep(
            with_context if weights else self.model.energies(step.context),
            self.model.prediction_embedding.weight,
            alpha,
            step.settings.longest,
            self.model.num_landscapes,
            step.settings,
            weights,
            step.targets if weights and type(self).error is PredictionDescent.error else None,
            normal_draws(step.start) if step.settings.noise else None,
        )
        return thoughts(rule, step.start)

    def _narrow(self, logits: Tensor) -> dict[str, Tensor]:
        """Return what the ring keeps of logits (B, T, V)."""
        if self.replay is None or self.replay.kept is None or self.replay.kept >= logits.shape[-1]:
            return {"all": logits.to(torch.bfloat16)}  # (B, T, V)
        return largest(torch.softmax(logits, -1), self.replay.kept)  # (B, T, kept) each

    def _wide(self, kept: dict[str, Tensor]) -> Tensor:
        """Return logits (R, T, V), up to a constant for each token, of what the ring kept."""
        if "all" in kept:
            return kept["all"]
        return spread(kept, self.model.state_size).clamp(min=torch.finfo(torch.float32).tiny).log()


def _built(kind: Callable[..., Any], given: Any) -> Any:
    """Return settings as ``kind``, which a config may give as a mapping."""
    if not isinstance(given, Mapping):
        return given
    return instantiate(given) if TARGET in given else kind(**given)


def _free_bytes(device: torch.device) -> int | None:
    """Return the memory that is free on a device; None where it is not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu" or "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

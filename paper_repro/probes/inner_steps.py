"""Energies along inner steps: of CEM with more or fewer steps than in training (section 5.2), and of every token of
NRGPT (figures 2 and 6).

Letters: S inner steps, T tokens.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import IGNORED
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.llama import Llama
from paper_repro.models.nrgpt import NRGPT, NRGPTEnergies, attention_bounds, feed_forward_bound, radius
from paper_repro.training.module import PaperModule

NUM_BATCHES = 4
"""Batches of validation that ``InnerSteps`` evaluates."""


@dataclass(frozen=True)
class InnerSteps:
    """Evaluates the first windows of validation with S inner steps in every part that descends an energy.

    Metrics for each S: ``perplexity_T<S>``, and for each kind of part that descends, ``energy_attention_T<S>`` and
    ``energy_feed_forward_T<S>`` (the paper writes T for the steps): the energy at the last state, the mean over tokens
    and layers.  A model without such parts has none.

    Args:
        steps: the numbers S.
    """

    steps: Sequence[int] = (1, 2, 3, 4, 8)

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        model, findings = module.model, Findings()
        if not isinstance(model, Llama) or not list(model.descents()):
            return findings
        device = next(model.parameters()).device
        batches = [
            (ids.to(device), following.to(device))
            for (ids, following), _ in zip(data.evaluation_batches("val"), range(NUM_BATCHES), strict=False)
        ]
        for number in self.steps:
            losses, energies = [], dict[str, list[Tensor]]()
            for ids, following in batches:  # (B, T) each
                trace = model.trace(ids, number)
                counted = following != IGNORED
                losses.append(model.negative_log_likelihoods_of(trace.state, following).double()[counted])  # (tokens,)
                for kind, own in trace.energies.items():
                    energies.setdefault(kind, []).extend(energy.double()[counted] for energy in own)
            findings.metrics[f"perplexity_T{number}"] = math.exp(min(float(torch.cat(losses).mean()), 700.0))
            for kind, found in energies.items():
                findings.metrics[f"energy_{kind}_T{number}"] = float(torch.cat(found).mean())
        return findings


ATTACHMENT = "energies.csv"
ROUNDING, SETTLED = 1e-9, 0.01
"""Shares of a token's span: a smaller rise is rounding of float64; a token has settled within the second one."""


@dataclass(frozen=True)
class EnergyTrace:
    """Traces E, E_att and E_ff (without its scale) of the first ``num_tokens`` tokens of validation, in float64.

    Metrics, each over the tokens of one trained model; a token's span is the range of its energy over all S steps:

    * ``ends_lower``: share of tokens whose last energy is below their first, between 0 and 1.
    * ``late_change``: largest change of a token's energy within the last tenth of the steps, over its span.
    * ``first_token_rise``: largest rise of the first token's energy from one step to the next, over its span
      (proposition 2.1: none; the first token has no predecessor).
    * ``first_tokens_rising``: share of the vocabulary's V tokens whose energy rises at a step, by more than rounding,
      where they are the first; with ``first_tokens``.
    * ``settled_rise``: the same of every later token, from the step on at which all earlier tokens have settled: the
      energy of each stays within a hundredth of its span of its last value.  At the first such step the earlier
      tokens move little, not nothing, so a rise of that order is no contradiction.
    * ``judged_tokens``: how many tokens had predecessors that settled early enough to be judged.
    * ``bound_use``: largest share of the bounds of appendix E.2 that an energy takes up; above 1 it breaks them.
      Left out for a model without norm, whose energies have no bounds.

    Args:
        num_tokens: T; 64 in the paper.
        num_steps: S; 30 in figure 2, 100 in figure 6; it may exceed the steps that the model was trained with.
        first_tokens: whether every token of the vocabulary is traced in the first place, too.
    """

    num_tokens: int = 64
    num_steps: int = 30
    first_tokens: bool = False

    def check(self, module: PaperModule, data: CounterBasedDataModule) -> None:
        """Check that the model has energies and that windows are long enough."""
        _energy_model(module)
        window = getattr(data, "window", self.num_tokens)
        if window < self.num_tokens:
            raise UsageError(
                f"probes.energy.num_tokens={self.num_tokens} is more than the tokens of a sequence, "
                f"data.window={window}: give probes.energy.num_tokens={window}, or longer windows"
            )

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        model = copy.deepcopy(_energy_model(module)).to("cpu", torch.float64)
        ids = next(iter(data.evaluation_batches("val")))[0][:1, : self.num_tokens]  # (1, T)
        traced = model.trace(ids.cpu(), self.num_steps).energies  # each (S + 1, 1, T)
        energies = NRGPTEnergies(*(part[:, 0] for part in traced))  # each (S + 1, T)
        found = metrics(model, energies)
        if self.first_tokens:
            every = torch.arange(model.vocabulary_size)[:, None]  # (V, 1)
            total = model.trace(every, self.num_steps).energies.total[..., 0]  # (S + 1, V)
            found["first_tokens_rising"] = float((_rises(total).amax(0) > ROUNDING).double().mean())
        columns = torch.stack([energies.total, energies.attention, energies.feed_forward], -1)  # (S + 1, T, 3)
        rows = [
            f"{step},{token},{','.join(f'{value:.5g}' for value in values)}\n"
            for step, tokens in enumerate(columns.tolist())
            for token, values in enumerate(tokens)
        ]
        return Findings(found, {ATTACHMENT: "".join(["step,token,total,attention,feed_forward\n", *rows]).encode()})


def _energy_model(module: PaperModule) -> NRGPT:
    if not isinstance(module.model, NRGPT):
        raise UsageError(f"probes.energy: {type(module.model).__name__} has no energies; choose a model=nrgpt/ff...")
    return module.model


def metrics(model: NRGPT, energies: NRGPTEnergies) -> dict[str, float]:
    """Compute the metrics of ``EnergyTrace`` from the energies of T tokens before and after S steps, (S + 1, T)."""
    total, span, rises = energies.total, _span(energies.total), _rises(energies.total)
    late = total[-(1 + max(1, (len(total) - 1) // 10)) :]
    settled = ((total - total[-1]).abs() <= SETTLED * span).flip(0).cummin(0).values.flip(0)  # (S + 1, T)
    # (S, T - 1): whether this token and all before it have settled by this step
    after = settled.cummin(1).values[:-1, :-1]
    settled_rises = rises[:, 1:][after]  # as many as are True
    bound_use = {}
    if model.norm_kind != "none":
        r = radius(model)
        low, high = attention_bounds(model.attention, r, energies.attention.shape[1])
        middle, reach = (low + high) / 2, (high - low) / 2
        distance = (energies.attention - middle).abs()
        attention = torch.where(reach > 0, distance / reach.clamp(min=1e-300), distance)
        feed_forward = energies.feed_forward.abs() / feed_forward_bound(model.feed_forward, r)
        bound_use["bound_use"] = float(torch.maximum(attention.max(), feed_forward.max()))
    return {
        "ends_lower": float((total[-1] < total[0]).double().mean()),
        "late_change": float(((late.amax(0) - late.amin(0)) / span).max()),
        "first_token_rise": float(rises[:, 0].max()),
        "settled_rise": float(settled_rises.max()) if len(settled_rises) else 0.0,
        "judged_tokens": float(after.any(0).sum()),
        **bound_use,
    }


def _span(total: Tensor) -> Tensor:
    """Return the range of each token's energy, (T,), of energies (S + 1, T)."""
    return (total.amax(0) - total.amin(0)).clamp(min=torch.finfo(total.dtype).tiny)


def _rises(total: Tensor) -> Tensor:
    """Return by how much of its span a token's energy rises at each step, (S, T), of energies (S + 1, T)."""
    return (total[1:] - total[:-1]).clamp(min=0) / _span(total)

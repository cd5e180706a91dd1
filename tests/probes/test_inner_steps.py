import copy
import csv
import io
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.base.configs import compose
from paper_repro.base.errors import UsageError
from paper_repro.base.identity import IGNORED
from paper_repro.cells.tasks import Cell
from paper_repro.datamodules.listops import ListOps, ListOpsData
from paper_repro.lightning_modules.cem_slimpajama import CEMSlimPajama
from paper_repro.lightning_modules.nrgpt_listops import NRGPTListOps
from paper_repro.models.cem import CEMMLP, CEMAttention
from paper_repro.models.llama import Llama, gated_feed_forward, rotary_attention
from paper_repro.models.nrgpt import NRGPT_H_FF2W, NRGPTEnergies
from paper_repro.probes.inner_steps import ATTACHMENT, EnergyTrace, InnerSteps, metrics
from paper_repro.tests.support import golden, golden_nrgpt
from paper_repro.training.build import build as build_cell
from paper_repro.training.schedules import Constant

pytestmark = pytest.mark.usefixtures("without_gradients")
ATTENTION = partial(CEMAttention, num_steps=2, init_std=0.5)
FEED_FORWARD = partial(CEMMLP, num_steps=2, norm_context=True, norm_inside=True, init_std=0.5)


class Windows:
    """Five batches of validation."""

    def evaluation_batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        assert split == "val"
        generator = torch.Generator().manual_seed(0)
        for _ in range(5):
            ids = torch.randint(11, (2, 8), generator=generator)
            yield ids[:, :-1], ids[:, 1:]


def _module(attention: object, feed_forward: object) -> CEMSlimPajama:
    torch.manual_seed(0)
    model = Llama(11, 8, 12, 2, 2, 20, attention, feed_forward)  # type: ignore[arg-type]
    return CEMSlimPajama(model, partial(torch.optim.AdamW), Constant()).eval()


def _measured(module: CEMSlimPajama, probe: InnerSteps) -> dict[str, float]:
    return probe.measure(module, Windows(), 0).metrics  # type: ignore[arg-type]


def test_perplexities_and_energies_are_those_of_a_model_with_that_many_steps() -> None:
    module = _module(ATTENTION, FEED_FORWARD)
    found = _measured(module, InnerSteps((1, 3)))
    for number in (1, 3):
        other = _module(partial(ATTENTION.func, num_steps=number), partial(FEED_FORWARD, num_steps=number)).model
        other.load_state_dict(module.model.state_dict())
        losses, energies = [], []
        for (ids, following), _ in zip(Windows().evaluation_batches("val"), range(4), strict=False):
            losses.append(functional.cross_entropy(other(ids).flatten(0, 1), following.flatten()))
            stream = other.embed(ids)
            for block in other.blocks:
                trace = block.attention.trace(stream)
                energies.append(trace.energies[-1].mean())
                stream = block.feed_forward(trace.states[-1])
        perplexity = math.exp(float(torch.stack(losses).mean()))
        assert found[f"perplexity_T{number}"] == pytest.approx(perplexity, rel=1e-5)
        assert found[f"energy_attention_T{number}"] == pytest.approx(float(torch.stack(energies).mean()), rel=1e-4)
    assert len({round(value, 6) for value in found.values()}) == len(found) == 6


def test_parts_that_descend_are_counted_alone() -> None:
    found = _measured(_module(rotary_attention, FEED_FORWARD), InnerSteps((4,)))
    assert set(found) == {"perplexity_T4", "energy_feed_forward_T4"}
    assert _measured(_module(rotary_attention, gated_feed_forward), InnerSteps()) == {}


def test_padding_enters_neither_perplexity_nor_energies(monkeypatch: pytest.MonkeyPatch) -> None:
    module, probe = _module(ATTENTION, FEED_FORWARD), InnerSteps((2,))
    whole = list(Windows().evaluation_batches("val"))
    monkeypatch.setattr(Windows, "evaluation_batches", lambda *_: iter([(i[:, :4], f[:, :4]) for i, f in whole]))
    expected = _measured(module, probe)
    padded = [(ids, torch.where(torch.arange(7) < 4, following, IGNORED)) for ids, following in whole]
    monkeypatch.setattr(Windows, "evaluation_batches", lambda *_: iter(padded))
    assert _measured(module, probe) == pytest.approx(expected, rel=1e-5)


DESCENTS = golden.files("nrgpt", "nrgpt_*_etaI.npz")
WINDOW, TOKENS = 24, 10


def build(kind: Any = NRGPT_H_FF2W, **options: object) -> Any:
    torch.manual_seed(1)
    return kind(vocabulary_size=20, block_length=WINDOW, width=16, num_heads=1, num_steps=3, **options)


def module_of(model: torch.nn.Module) -> NRGPTListOps:
    return NRGPTListOps(model, partial(torch.optim.AdamW, lr=1e-3), Constant()).eval()


@pytest.fixture(scope="module")
def data() -> ListOpsData:
    task = ListOps(modulus=10, num_train=100, num_test=20)
    return ListOpsData(task, batch_size=2, window=WINDOW, num_evaluation_batches=2)


def judged(*tokens: list[float]) -> dict[str, float]:
    """The metrics of energies given token by token, (T, N + 1)."""
    total = torch.tensor(tokens, dtype=torch.float64).T
    return metrics(build().double(), NRGPTEnergies(torch.zeros_like(total), total, total))


FALLING = [10.0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
AT_2, AT_6 = [10.0, 5, *[0.0] * 9], [2.0, 1, 1.5, 1, 0.5, 0.75, *[0.0] * 5]
"""Settled at that step."""
OFF_AGAIN = [10.0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0]


@pytest.mark.parametrize(
    ("tokens", "rise"),
    [
        # The third rises by 1 of 4 at step 5, when the second has not settled yet, and falls afterwards; or later.
        ([AT_2, AT_6, [4.0, 4, 4, 4, 4, 1, 2, 1, 0, 0, 0]], 0.125),
        ([AT_2, AT_6, [4.0, 4, 4, 4, 4, 1, 1, 3, 0, 0, 0]], 0.5),
        # It is not enough that the token just before has settled.
        ([[10.0, 9, 8, 7, 6, 5, 4, 3, 0, 0, 0], AT_2, [1.0, 1, 1, 0, 0.5, 0, 0, 0, 0, 0, 0]], 0),
        # A token has settled within a hundredth of its span, and not if it is off again later.
        ([[10.0, 0, 0, 0, 0.1, *[0] * 6], [1.0, 1, 1, 0, 0.25, 0, 0, 0, 0, 0, 0]], 0.25),
        ([[10.0, 0, 0, 0, 0.11, *[0] * 6], [1.0, 1, 1, 0, 0.25, 0, 0, 0, 0, 0, 0]], 0),
        ([OFF_AGAIN, [2.0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0]], 0.5),
    ],
)
def test_a_rise_counts_once_all_earlier_tokens_have_settled_and_not_before(tokens, rise):
    found = judged(*tokens)
    assert found["settled_rise"] == rise and found["judged_tokens"] == len(tokens) - 1


def test_rises_of_the_first_token_late_changes_and_tokens_that_end_lower() -> None:
    rising = [0.0, 4, 3, *[5.0] * 8]
    found = judged(rising, FALLING, [1.0] * 11, FALLING)
    assert found["first_token_rise"] == 0.8
    assert found["ends_lower"] == 0.5  # a constant energy does not end lower
    assert judged(FALLING, rising)["first_token_rise"] == 0
    assert judged(AT_2, [10.0] * 8 + [0.0, 2.5, 0.0])["late_change"] == 0.25
    assert judged([10.0] * 8 + [2.5, 0.0, 0.0])["late_change"] == 0
    # A tenth of 30 steps are three: from state 27 on.
    assert judged([4.0] * 27 + [2.0, 0.0, 0.0, 0.0])["late_change"] == 0.5
    assert judged([4.0] * 27 + [0.0, 0.0, 0.0, 0.0])["late_change"] == 0
    assert judged([4.0] * 91 + [0.0] * 10)["late_change"] == 1


def test_the_bounds_are_used_up_in_proportion_to_the_energies_and_none_without_a_norm() -> None:
    once, thrice = judged(FALLING), judged([3 * value for value in FALLING])
    assert once["bound_use"] > 0 and thrice["bound_use"] == pytest.approx(3 * once["bound_use"], rel=1e-12)
    total = torch.tensor([FALLING], dtype=torch.float64).T
    found = metrics(build(norm="none"), NRGPTEnergies(total, total, total))
    assert set(once) - set(found) == {"bound_use"} and found["ends_lower"] == 1


def test_the_csv_holds_the_energies_of_the_model_s_own_trace(data: ListOpsData) -> None:
    model = build()
    model.feed_forward_scale.fill_(1.7)
    module, before = module_of(model), copy.deepcopy(model.state_dict())
    probe = EnergyTrace(num_tokens=TOKENS, num_steps=7)  # the model was built for 3
    found = probe.measure(module, data, seed=0)
    ids = next(iter(data.evaluation_batches("val")))[0][:1, :TOKENS]
    trace = copy.deepcopy(model).double().trace(ids, 7).energies
    rows = list(csv.DictReader(io.StringIO(found.attachments[ATTACHMENT].decode())))
    assert [(int(row["step"]), int(row["token"])) for row in rows] == [(s, t) for s in range(8) for t in range(TOKENS)]

    def column(name: str) -> Tensor:
        return torch.tensor([float(row[name]) for row in rows], dtype=torch.float64).view(8, TOKENS)

    for name in ("total", "attention", "feed_forward"):
        # Five digits are written.
        torch.testing.assert_close(column(name), getattr(trace, name)[:, 0], rtol=5e-5, atol=0)
    assert not torch.allclose(column("total"), column("attention") + column("feed_forward"), rtol=1e-3)
    assert found.metrics == metrics(copy.deepcopy(model).double(), NRGPTEnergies(*(part[:, 0] for part in trace)))
    assert found.metrics["bound_use"] <= 1
    assert all(tensor.dtype == torch.float32 for tensor in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_first_tokens_that_rise_are_counted_over_the_vocabulary(data: ListOpsData) -> None:
    model = build()
    model.inference_rate.coefficient(None).copy_(30.0 * torch.eye(16))  # steps that overshoot
    found = EnergyTrace(TOKENS, 3, first_tokens=True).measure(module_of(model), data, 0).metrics["first_tokens_rising"]
    alone = [copy.deepcopy(model).double().trace(torch.tensor([[token]]), 3).energies.total for token in range(20)]
    rising = [bool((one.diff(dim=0) > 1e-9 * (one.max() - one.min())).any()) for one in alone]
    assert sum(rising) > 0 and found == sum(rising) / 20


def test_what_cannot_be_traced_is_refused_before_training() -> None:
    changes = ["model.width=16", "model.num_steps=2", "data.window=32"]
    with pytest.raises(UsageError, match=r"give probes\.energy\.num_tokens=32"):
        build_cell(Cell("cell", compose("nrgpt/listops_energy", changes)))
    build_cell(Cell("cell", compose("nrgpt/listops_energy", [*changes, "probes.energy.num_tokens=32"])))


@pytest.mark.parametrize("path", DESCENTS)
def test_golden_nrgpt_at_eta_one_every_token_ends_lower_and_the_first_never_rises(path: Path) -> None:
    record = golden.read(path)
    assert bool((record["w.rate"] == torch.eye(len(record["w.rate"]))).all())
    model: Any = golden_nrgpt.build(record, "identity")
    attention, feed_forward = record["out.E_att"], record["out.E_ff"]
    recorded = NRGPTEnergies(attention, feed_forward, attention + record["w.ff_scale"] * feed_forward)
    for sequence in range(record["in.ids"].shape[0]):
        found = metrics(model, NRGPTEnergies(*(part[:, sequence] for part in recorded)))
        assert found["ends_lower"] == 1
        assert found["first_token_rise"] <= 1e-9  # rounding of the recorded numbers, over the token's span
        assert found["bound_use"] <= 1

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import IGNORED, mix
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.documents import DocumentData
from paper_repro.models.ebt import think
from paper_repro.probes.thinking import EnergyUncertainty, Thinking, scored_batches
from paper_repro.tests.support.ebt_language import documents, ebt_module, transformer_module

PROBE = EnergyUncertainty(("dyck-generated",), ("dyck-generated",), num_steps=4, num_texts=8, num_tokens=5)


@pytest.fixture
def data(tmp_path: Path) -> DocumentData:
    return documents(tmp_path)


@torch.no_grad()
def measured(probe: EnergyUncertainty, module: Any, data: DocumentData) -> Findings:
    return probe.measure(module, data, 0)


def test_energies_losses_and_entropies_of_one_batch_agree_with_the_model(data: DocumentData) -> None:
    module = ebt_module(num_steps=2, most_steps=3)
    found = measured(PROBE, module, data)
    seen = dict[str, list[Tensor]](energy=[], loss=[], entropy=[])
    kept = json.loads(found.attachments["token_energies.json"])["texts"][0]
    generator = torch.Generator().manual_seed(mix(0, "energy_uncertainty", "validation"))
    for ids, following in scored_batches(data, "validation", 8, 8):
        with torch.no_grad():
            start = torch.randn((1, *ids.shape, module.model.vocabulary_size), generator=generator)
            states = list(think(module.model, ids, start, 4))
        logarithms, counted = states[3].predictions[0].log_softmax(-1), following != IGNORED
        seen["energy"].append(states[3].energies[0][counted])
        seen["entropy"].append(-(logarithms.exp() * logarithms).sum(-1)[counted])
        seen["loss"].append(-logarithms.gather(-1, following.clamp(min=0)[..., None])[..., 0][counted])
        assert kept["energies"] == [pytest.approx(state.energies[0, 0, :5].tolist(), rel=1e-4) for state in states]
        assert kept["tokens"] == [data.tokenizer.decode([token]) for token in following[0, :5].tolist()]
    values = {name: torch.cat(parts) for name, parts in seen.items()}
    for name in ("energy", "entropy"):
        assert found.metrics[f"validation_{name}"] == pytest.approx(float(values[name].mean()), rel=1e-5)
    assert kept["loss"] == pytest.approx(values["loss"][:5].tolist(), rel=1e-4)
    for name in ("energy", "entropy"):
        expected = spearmanr(values[name].numpy(), values["loss"].numpy()).statistic
        assert found.metrics[f"{name}_rank"] == pytest.approx(expected, abs=1e-3)
        assert found.metrics[f"{name}_rank_low"] < expected < found.metrics[f"{name}_rank_high"]
    assert kept["trained"] == 3 and len(json.loads(found.attachments["token_energies.json"])["texts"]) == 2


def test_a_transformer_has_entropy_and_loss_but_no_energy(data: DocumentData) -> None:
    found = measured(PROBE, transformer_module(), data)
    assert not found.attachments and not any("energy" in name for name in found.metrics)
    assert {"entropy_rank", "dyck-generated_loss_auroc", "dyck-generated_entropy_auroc"} <= set(found.metrics)
    assert 0 <= found.metrics["dyck-generated_loss_auroc"] <= 1


@pytest.mark.parametrize("make", [lambda: ebt_module(num_steps=2), transformer_module])
def test_a_model_whose_weights_are_no_numbers_has_no_number_anywhere(make: Any, data: DocumentData) -> None:
    module = make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    found = measured(PROBE, module, data)
    assert found.metrics and all(map(math.isnan, found.metrics.values())), found.metrics


def test_both_probes_of_thinking_may_measure_one_cell(data: DocumentData) -> None:
    other = Thinking(("validation", "dyck-generated"), (1, 2), (1, 2), num_texts=2)
    for module in (ebt_module(num_steps=2), transformer_module()):
        with torch.no_grad():
            names = other.measure(module, data, 0).metrics.keys()
        assert not names & measured(PROBE, module, data).metrics.keys()


def test_of_several_landscapes_the_trained_steps_are_taken(data: DocumentData) -> None:
    found = measured(PROBE, ebt_module(2, num_steps=2), data)
    assert [len(text["energies"]) for text in json.loads(found.attachments["token_energies.json"])["texts"]] == [3, 3]


def test_fewer_steps_than_in_training_are_refused(data: DocumentData) -> None:
    with pytest.raises(UsageError, match="num_steps=4 is fewer than the 6 steps of training"):
        measured(PROBE, ebt_module(num_steps=6), data)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sets": ("validation",)}, "different"),
        ({"shown": ("python",)}, "not among"),
        ({"num_tokens": 0}, "num_tokens"),
    ],
)
def test_wrong_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EnergyUncertainty(**given)

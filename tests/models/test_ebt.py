"""EBT's streams, step rules and thinking against their definitions, and all of EBT against golden records."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.models.ebt import (
    DIRECT,
    EBT,
    PredictionStep,
    ThinkingSettings,
    TransformerPlusPlus,
    think,
    thoughts,
)
from paper_repro.models.ebt_image import ddim, noised
from paper_repro.models.ebt_image import losses as losses_of_diffusion
from paper_repro.tests.support import golden_ebt
from paper_repro.tests.support.float64 import randomised, tokens
from paper_repro.tests.support.golden import assert_golden, files, read

B, T, V, D = 2, 5, 11, 8


def made(variant: str = "default") -> EBT:
    """A small model away from its start."""
    model: EBT = randomised(EBT(V, T, D, 2, 3, 12, variant, step_size=0.7, learn_step_size=False))
    return model


IDS = torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(7))


def test_without_detaching_gradients_flow_through_all_steps() -> None:
    model, settings = made(), ThinkingSettings(num_steps=3, detach=False)
    weight, embedding, size = model.trunk.blocks[0].attention.output.weight, model.prediction_embedding.weight, 1e-6

    def loss() -> Tensor:
        step = PredictionStep(model.energies(IDS), embedding, model.step_size, 3, settings=settings)
        *_, last = thoughts(step, tokens(B, T, V))
        return functional.cross_entropy(last.prediction.flatten(0, 1), IDS.flatten())

    (gradient,) = torch.autograd.grad(loss(), weight)
    direction, losses = tokens(*weight.shape), []
    for shift in (size, -2 * size):
        with torch.no_grad():
            weight.add_(shift * direction)
        losses.append(loss().detach())
    slope = (losses[0] - losses[1]) / (2 * size)
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-4, atol=1e-9)


def test_a_closed_model_has_no_energy_at_first() -> None:
    energies = EBT(V, T, D, 2, 1, variant="adaln_zero", num_landscapes=2).energies(IDS)
    assert not energies(torch.ones(B, T, D), 1).any()


def test_the_energy_of_a_position_depends_on_its_own_candidate_and_the_tokens_up_to_it() -> None:
    model, candidates = made("time_embed"), tokens(B, T, D)
    before = model.energies(IDS)(candidates, 0)
    other = candidates.clone()
    other[:, 2] += 1
    assert (model.energies(IDS)(other, 0) != before).nonzero()[:, 1].unique().tolist() == [2]
    ids = IDS.clone()
    ids[:, 3] = (ids[:, 3] + 1) % V
    assert (model.energies(ids)(candidates, 0) != before).nonzero()[:, 1].unique().tolist() == [3, 4]


def test_a_recurrent_transformer_passes_its_blocks_again_with_the_embeddings_added() -> None:
    torch.manual_seed(0)
    model = TransformerPlusPlus(V, T, D, 2, 3, num_passes=2)
    x = embedded = model.embed(IDS)
    for passed in range(3):
        x = embedded if passed == 0 else x + embedded
        for layer in model.layers():
            x = layer(x)
        torch.testing.assert_close(model.final_state(IDS, passed + 1), x)
    torch.testing.assert_close(model.final_state(IDS), model.final_state(IDS, 2))


TRAINED = files("ebt", "ar_*.npz", "init_logits")
THOUGHT = files("ebt", "infer_*.npz", "init_logits")
TRANSFORMERS = files("ebt", "*.npz", "w/lm_head")
IMAGES = files("ebt", "*.npz", "w/condition")
DITS = files("ebt", "*.npz", "w/out_w")
STREAMS = ("split", "concatenated")


def losses(predictions: list[Tensor], record: dict[str, Tensor]) -> list[Tensor]:
    targets = record["target_ids"].long().flatten()
    return [functional.cross_entropy(logits.flatten(0, 1), targets, ignore_index=0) for logits in predictions]


def compare_gradients(model: nn.Module, expected: dict[str, Tensor]) -> None:
    assert expected
    parameters = dict(model.named_parameters())
    for name, value in expected.items():
        gradient = parameters[name].grad
        assert_golden(torch.zeros_like(value) if gradient is None else gradient, value)


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("path", TRAINED)
def test_golden_ebt_training_step(path: Path, streams: str) -> None:
    record = read(path)
    model = golden_ebt.build(record, streams)
    settings = golden_ebt.settings(record, listing="listing" in path.stem)
    alpha = record.get("alpha_used", model.step_size)
    embedding = model.prediction_embedding.weight
    noise = record["langevin_noise"] / settings.noise if settings.noise else None
    sizes = settings.num_steps, model.num_landscapes, settings
    energies, drawn = model.energies(record["input_ids"].long()), None if noise is None else noise.__getitem__
    step = PredictionStep(energies, embedding, alpha, *sizes, noise=drawn)
    start = record["init_logits"]
    found = list(thoughts(step, start))
    befores = [start, *(thought.prediction for thought in found[:-1])]
    for index, (before, thought) in enumerate(zip(befores, found, strict=True)):
        noised = before if noise is None else before + record["langevin_noise"][index]
        origin = noised if settings.rule == "listing" else torch.softmax(noised, -1)
        assert_golden(thought.energy, record["step_energy"][index])
        assert_golden(thought.prediction, record["step_pred"][index])
        assert_golden((origin - thought.prediction) / alpha, record["step_grad"][index])
    each = losses([thought.prediction for thought in found], record)
    loss = each[-1] if settings.loss == "last" else torch.stack(each).mean()
    assert_golden(loss, record["loss"])
    assert_golden(each[-1], record["final_step_loss"])
    loss.backward()
    compare_gradients(model, golden_ebt.tensors(record, "g"))


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("path", THOUGHT)
def test_golden_ebt_thinking(path: Path, streams: str) -> None:
    record = read(path)
    model = golden_ebt.build(record, streams)
    tokens = record["tokens"].long()
    steps = len(record["energies"]) - 1
    found = list(think(model, tokens[:, :-1], record["init_logits"].transpose(0, 1), steps))
    for index, considered in enumerate(found):
        assert_golden(considered.energies.transpose(0, 1), record["energies"][index])
        assert_golden(considered.predictions.transpose(0, 1), record["preds"][index])
    chosen, best = found[-1].choose()
    assert torch.equal(best, record["best_index"].long())
    assert_golden(chosen, record["chosen"])
    loss = functional.cross_entropy(chosen.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
    assert_golden(loss, record["ce"])
    assert_golden(loss.exp(), record["perplexity"])


@pytest.mark.parametrize("path", TRANSFORMERS)
def test_golden_ebt_transformer(path: Path) -> None:
    record = read(path)
    model = golden_ebt.build_transformer(record)
    logits = model(record["input_ids"].long())
    assert_golden(logits, record["logits"])
    (loss,) = losses([logits], record)
    assert_golden(loss, record["loss"])
    loss.backward()
    compare_gradients(model, golden_ebt.tensors(record, "g"))


@pytest.mark.parametrize("path", IMAGES)
def test_golden_ebt_image(path: Path) -> None:
    record = read(path)
    model = golden_ebt.build_image_model(record)
    assert_golden(model.patches.positions, record["w/pos_embed"][0])
    time = torch.full((len(record["real"]),), int(record["t"]))
    start = noised(record["real"], time, record["eps"])
    assert_golden(start, record["noised"])
    assert_golden(model.features(start), record["patch_features"])
    rows = model.patches.cut(start)
    assert_golden(model.patch_energies(rows @ model.prediction_embedding.weight.mT), record["patch_energy"])
    settings = replace(golden_ebt.settings(record, False), rule=DIRECT)
    step = PredictionStep(
        model.energies(rows), model.prediction_embedding.weight, model.step_size, settings.num_steps, settings=settings
    )
    found = list(thoughts(step, rows))
    befores = [rows, *(thought.prediction for thought in found[:-1])]
    each = []
    for index, (before, thought) in enumerate(zip(befores, found, strict=True)):
        assert_golden(thought.energy.sum(-1), record["step_energy"][index])
        prediction = model.patches.joined(thought.prediction)
        assert_golden(prediction, record["step_pred"][index])
        assert_golden(model.patches.joined(before - thought.prediction) / model.step_size, record["step_grad"][index])
        each.append(functional.smooth_l1_loss(prediction, record["real"]))
        assert_golden(each[-1], record["step_loss"][index])
    loss = each[-1] if settings.loss == "last" else torch.stack(each).mean()
    assert_golden(loss, record["loss"])
    loss.backward()
    compare_gradients(model, golden_ebt.tensors(record, "g"))


@pytest.mark.parametrize("path", DITS)
def test_golden_ebt_dit(path: Path) -> None:
    record = read(path)
    model = golden_ebt.build_image_model(record)
    assert_golden(model.patches.positions, record["w/pos_embed"][0])
    times = record["t"].long()
    assert_golden(model(record["x"], times), record["model_out"])
    assert_golden(noised(record["x"], times, record["eps"]), record["x_t"])
    squared, bits = losses_of_diffusion(model, record["x"], times, record["eps"])
    assert_golden(squared, record["mse"])
    assert_golden(bits, record["vb"])
    loss = (squared + bits).mean()
    assert_golden(loss, record["loss"])
    loss.backward()
    compare_gradients(model, golden_ebt.tensors(record, "g"))
    with torch.no_grad():
        *_, sampled = ddim(model, record["ddim_in"], int(record["ddim_start_t"]))
    assert_golden(sampled, record["ddim_out"])

"""EBT and its Transformer++ against golden records: energies, step gradients, predictions, losses, gradients."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.models.ebt import DIRECT, PredictionStep, think, thoughts
from paper_repro.models.ebt_image import ddim, noised
from paper_repro.models.ebt_image import losses as losses_of_diffusion
from paper_repro.tests.support import golden_ebt
from paper_repro.tests.support.golden import files, read

TRAINED = files("ebt", "ar_*.npz", "init_logits")
THOUGHT = files("ebt", "infer_*.npz", "init_logits")
TRANSFORMERS = files("ebt", "*.npz", "w/lm_head")
IMAGES = files("ebt", "*.npz", "w/condition")
DITS = files("ebt", "*.npz", "w/out_w")
STREAMS = ("split", "concatenated")


def close(found: Tensor, expected: Tensor) -> None:
    """Relative to the largest number of the record's tensor, 1e-9."""
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max().clamp(min=1e-300)))


def losses(predictions: list[Tensor], record: dict[str, Tensor]) -> list[Tensor]:
    targets = record["target_ids"].long().flatten()
    return [functional.cross_entropy(logits.flatten(0, 1), targets, ignore_index=0) for logits in predictions]


def compare_gradients(model: nn.Module, expected: dict[str, Tensor]) -> None:
    assert expected
    parameters = dict(model.named_parameters())
    for name, value in expected.items():
        gradient = parameters[name].grad
        close(torch.zeros_like(value) if gradient is None else gradient, value)


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("path", TRAINED)
def test_golden_ebt_training_step(path: Path, streams: str) -> None:
    record = read(path)
    model = golden_ebt.build(record, streams)
    settings = golden_ebt.settings(record, listing="listing" in path.stem)
    alpha = record.get("alpha_used", model.step_size)
    embedding = model.prediction_embedding.weight
    step = PredictionStep(
        model.energies(record["input_ids"].long()), embedding, alpha, settings.num_steps, model.num_landscapes, settings
    )
    noise = record["langevin_noise"] / settings.noise if settings.noise else None
    start = record["init_logits"]
    found = list(thoughts(step, start, noise))
    befores = [start, *(thought.prediction for thought in found[:-1])]
    for index, (before, thought) in enumerate(zip(befores, found, strict=True)):
        noised = before if noise is None else before + record["langevin_noise"][index]
        origin = noised if settings.rule == "listing" else torch.softmax(noised, -1)
        close(thought.energy, record["step_energy"][index])
        close(thought.prediction, record["step_pred"][index])
        close((origin - thought.prediction) / alpha, record["step_grad"][index])
    each = losses([thought.prediction for thought in found], record)
    loss = each[-1] if settings.loss == "last" else torch.stack(each).mean()
    close(loss, record["loss"])
    close(each[-1], record["final_step_loss"])
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
        close(considered.energies.transpose(0, 1), record["energies"][index])
        close(considered.predictions.transpose(0, 1), record["preds"][index])
    chosen, best = found[-1].choose()
    assert torch.equal(best, record["best_index"].long())
    close(chosen, record["chosen"])
    loss = functional.cross_entropy(chosen.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
    close(loss, record["ce"])
    close(loss.exp(), record["perplexity"])


@pytest.mark.parametrize("path", TRANSFORMERS)
def test_golden_ebt_transformer(path: Path) -> None:
    record = read(path)
    model = golden_ebt.build_transformer(record)
    logits = model(record["input_ids"].long())
    close(logits, record["logits"])
    (loss,) = losses([logits], record)
    close(loss, record["loss"])
    loss.backward()
    compare_gradients(model, golden_ebt.tensors(record, "g"))


@pytest.mark.parametrize("path", IMAGES)
def test_golden_ebt_image(path: Path) -> None:
    record = read(path)
    model = golden_ebt.build_image_model(record)
    close(model.patches.positions, record["w/pos_embed"][0])
    time = torch.full((len(record["real"]),), int(record["t"]))
    start = noised(record["real"], time, record["eps"])
    close(start, record["noised"])
    close(model.features(start), record["patch_features"])
    rows = model.patches.cut(start)
    close(model.patch_energies(rows @ model.prediction_embedding.weight.mT), record["patch_energy"])
    settings = replace(golden_ebt.settings(record, False), rule=DIRECT)
    step = PredictionStep(
        model.energies(rows), model.prediction_embedding.weight, model.step_size, settings.num_steps, settings=settings
    )
    found = list(thoughts(step, rows))
    befores = [rows, *(thought.prediction for thought in found[:-1])]
    each = []
    for index, (before, thought) in enumerate(zip(befores, found, strict=True)):
        close(thought.energy.sum(-1), record["step_energy"][index])
        prediction = model.patches.joined(thought.prediction)
        close(prediction, record["step_pred"][index])
        close(model.patches.joined(before - thought.prediction) / model.step_size, record["step_grad"][index])
        each.append(functional.smooth_l1_loss(prediction, record["real"]))
        close(each[-1], record["step_loss"][index])
    loss = each[-1] if settings.loss == "last" else torch.stack(each).mean()
    close(loss, record["loss"])
    loss.backward()
    compare_gradients(model, golden_ebt.image_tensors(record, "g"))


@pytest.mark.parametrize("path", DITS)
def test_golden_ebt_dit(path: Path) -> None:
    record = read(path)
    model = golden_ebt.build_image_model(record)
    close(model.patches.positions, record["w/pos_embed"][0])
    times = record["t"].long()
    close(model(record["x"], times), record["model_out"])
    close(noised(record["x"], times, record["eps"]), record["x_t"])
    squared, bits = losses_of_diffusion(model, record["x"], times, record["eps"])
    close(squared, record["mse"])
    close(bits, record["vb"])
    loss = (squared + bits).mean()
    close(loss, record["loss"])
    loss.backward()
    compare_gradients(model, golden_ebt.image_tensors(record, "g"))
    with torch.no_grad():
        *_, sampled = ddim(model, record["ddim_in"], int(record["ddim_start_t"]))
    close(sampled, record["ddim_out"])

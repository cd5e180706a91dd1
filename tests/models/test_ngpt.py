from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.models.llama import RotaryLanguageModel, Scale
from paper_repro.models.ngpt import NGPT, BaselineGPT
from paper_repro.tests.support import golden, golden_ngpt
from paper_repro.tests.support.float64 import in_float64, states

SIZES = {"vocabulary_size": 13, "block_length": 9, "width": 12, "num_heads": 3, "num_layers": 2}
IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
FOLLOWING = torch.tensor([[1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9]])
MODELS: Mapping[str, Callable[..., RotaryLanguageModel]] = {
    "gpt": BaselineGPT,
    "gpt_qk": lambda **options: BaselineGPT(qk_norm=True, **options),
    "ngpt": NGPT,
}


def unit_errors(model: NGPT) -> list[float]:
    return [float((p.detach().double().norm(dim=-1) - 1).abs().max()) for p in model.unit_row_parameters()]


def disturbed(**options: Any) -> NGPT:
    """A small model whose scales all differ from their start, some eigen learning rates negative; in float64."""
    torch.manual_seed(0)
    model: NGPT = in_float64(lambda: NGPT(**{**SIZES, **options}))
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, Scale) and part.learned:
                part.stored.mul_(torch.randn_like(part.stored).mul(0.5).add(1))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_is_the_cross_entropy_of_the_logits(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name](**SIZES)
    losses = torch.nn.functional.cross_entropy(model(IDS).flatten(0, 1), FOLLOWING.flatten(), reduction="none")
    torch.testing.assert_close(model.cross_entropy(IDS, FOLLOWING), losses.mean())
    torch.testing.assert_close(model.negative_log_likelihoods(IDS, FOLLOWING).flatten(), losses.detach())


@pytest.mark.parametrize("name", MODELS)
def test_a_longer_context_changes_nothing_within_the_old_one(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name](**SIZES)
    before = model(IDS)
    with pytest.raises(ValueError, match=r"1 <= T <= 9 \(block_length\), got \(2, 12\)"):
        model(torch.cat([IDS, IDS], 1))
    model.extend(12)
    # Tables of another length: a sine is computed by vector or by scalar instructions, depending on its place.
    torch.testing.assert_close(model(IDS), before, rtol=0, atol=1e-6)
    assert model(torch.cat([IDS, IDS], 1)).shape == (2, 12, 13)
    model.extend(9)
    torch.testing.assert_close(model(IDS), before, rtol=0, atol=1e-6)
    assert set(model.state_dict()) == set(MODELS[name](**SIZES).state_dict())


def test_states_and_matrices_are_unit_vectors() -> None:
    torch.manual_seed(0)
    model = NGPT(**SIZES)
    assert max(unit_errors(model)) < 1e-6
    torch.testing.assert_close(states(model, IDS).norm(dim=-1), torch.ones(3, 2, 6), rtol=0, atol=1e-6)
    with torch.no_grad():
        for parameter in model.unit_row_parameters():
            parameter.mul_(3).add_(0.1)
    model.project()
    assert max(unit_errors(model)) < 1e-6
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    assert len(model.unit_row_parameters()) + len(vectors) == len(list(model.parameters()))


def test_fixed_and_scalar_modes_have_the_parameters_they_say() -> None:
    def count(**options: Any) -> int:
        return sum(parameter.numel() for parameter in NGPT(**SIZES, **options).parameters() if parameter.ndim < 2)

    vectors = 2 * (12 + 12 + 12 + 48 + 48) + 13
    assert count() == vectors
    assert count(s_qk={"mode": "scalar"}) == vectors - 2 * 11
    assert count(s_qk={"mode": "fixed", "init": 1}) == vectors - 2 * 12
    assert count(s_u=None, s_nu={"mode": "scalar"}) == vectors - 2 * 95
    assert count(s_z={"mode": "scalar"}) == vectors - 12
    assert count(alpha_A={"mode": "scalar", "init": 0.05}, alpha_M={"mode": "scalar", "init": 0.05}) == vectors - 4 * 11


def test_a_flipped_sign_of_alpha_is_a_flipped_column_of_the_matrix_that_writes() -> None:
    """Appendix A.2: signed eigen learning rates reach nothing new; absolute ones ignore the sign."""
    model = disturbed(alpha_sign="signed")
    before = model(IDS)
    with torch.no_grad():
        model.blocks[0].attention_rate.stored[3] *= -1
    assert not torch.allclose(model(IDS), before, atol=1e-6)
    absolute = disturbed()
    before = absolute(IDS)
    with torch.no_grad():
        absolute.blocks[0].attention_rate.stored[3] *= -1
    assert torch.equal(absolute(IDS), before)


def test_the_riemannian_step_is_the_one_of_equation_25() -> None:
    model = disturbed(update="riemannian")
    h = model.embed(IDS)
    branch = model.blocks[0].attention(h, model.layers()[0].keywords["tables"])  # type: ignore[attr-defined]
    target = branch / branch.norm(dim=-1, keepdim=True)
    gradient = h * (h * target).sum(-1, keepdim=True) - target
    expected = h - model.blocks[0].attention_rate().abs() * gradient
    found = model.blocks[0].update(h, branch, model.blocks[0].attention_rate())
    torch.testing.assert_close(found, expected / expected.norm(dim=-1, keepdim=True), rtol=0, atol=1e-12)
    losses = [float(own.cross_entropy(IDS, FOLLOWING).detach()) for own in (model, disturbed())]
    assert abs(losses[0] - losses[1]) > 1e-6


@pytest.mark.parametrize("make", [BaselineGPT, NGPT])
def test_bf16_storage_is_of_the_blocks_matrices_alone(make: type[RotaryLanguageModel]) -> None:
    torch.manual_seed(0)
    model = make(**SIZES, storage="bfloat16")  # type: ignore[call-arg]
    stored = {name for name, parameter in model.named_parameters() if parameter.dtype is torch.bfloat16}
    assert stored == {name for name, parameter in model.named_parameters() if parameter.ndim == 2 and "blocks" in name}
    model.cross_entropy(IDS, FOLLOWING).backward()
    assert all(
        parameter.grad is not None and parameter.grad.dtype is parameter.dtype for parameter in model.parameters()
    )
    torch.manual_seed(0)
    exact = make(**SIZES)  # type: ignore[call-arg]
    torch.testing.assert_close(model(IDS), exact(IDS), rtol=0, atol=0.05)


def test_weights_trained_with_the_other_rope_do_not_fit() -> None:
    with pytest.raises(RuntimeError, match="rope_textbook"):
        NGPT(**SIZES).load_state_dict(NGPT(**SIZES, rope="published").state_dict())


FILES = golden.files("ngpt", "*.npz")


@pytest.mark.parametrize("path", FILES)
def test_golden_ngpt_states_logits_loss_and_gradients(path: Path) -> None:
    record = golden.read(path)
    model = golden_ngpt.build(record)
    expected = torch.stack([record[f"act/hidden.{layer}"] for layer in range(record["meta"]["layers"] + 1)])
    torch.testing.assert_close(states(model, record["idx"]), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(model(record["idx"]), record["logits"], rtol=0, atol=1e-10)
    loss = golden_ngpt.loss(model, record)
    torch.testing.assert_close(loss, record["loss"], rtol=0, atol=1e-10)
    loss.backward()
    gradients = golden_ngpt.ours(record, "grad")
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=0, atol=1e-10)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.testing.assert_close(norm, record["grad_norm"], rtol=0, atol=1e-10)

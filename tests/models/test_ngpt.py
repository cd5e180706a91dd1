import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.models.llama import TABLES, RotaryLanguageModel, Scale, ScaleSpec
from paper_repro.models.ngpt import NGPT, BaselineGPT

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
    torch.set_default_dtype(torch.float64)
    try:
        model = NGPT(**{**SIZES, **options})
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, Scale) and part.learned:
                part.stored.mul_(torch.randn_like(part.stored).mul(0.5).add(1))
    return model


@pytest.mark.parametrize(
    ("vocabulary", "layers", "width", "heads", "gpt", "ngpt"),
    [
        (32_000, 24, 1024, 16, 468_239_360, 468_491_520),  # table 2: 468.2M, and 468.4M by truncation
        (32_000, 36, 1280, 20, 1_025_731_840, 1_026_177_280),  # 1025.7M, and 1026.1M by truncation
    ],
)
def test_parameters_are_those_of_table_2(
    vocabulary: int, layers: int, width: int, heads: int, gpt: int, ngpt: int
) -> None:
    sizes = {"block_length": 1024, "width": width, "num_heads": heads, "num_layers": layers}
    with torch.device("meta"):
        models = [make(vocabulary_size=vocabulary, **sizes) for make in (BaselineGPT, NGPT)]
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
    matrices = 2 * vocabulary * width + 16 * layers * width**2
    assert counts == [gpt, ngpt]
    assert counts == [matrices + (2 * layers + 1) * width, matrices + 11 * layers * width + vocabulary]


@pytest.mark.parametrize("name", MODELS)
def test_logits_do_not_look_ahead(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name](**SIZES)
    changed = IDS.clone()
    changed[:, 4:] = 7
    torch.testing.assert_close(model(changed)[:, :4], model(IDS)[:, :4], rtol=0, atol=1e-6)
    assert not torch.allclose(model(changed)[:, 4], model(IDS)[:, 4], atol=1e-4)


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


@pytest.mark.parametrize("rope", ["textbook", "published"])
def test_tables_of_another_length_keep_their_dtype(rope: str) -> None:
    model = NGPT(**SIZES, rope=rope)
    tables = model.layers()[0].keywords["tables"]  # type: ignore[attr-defined]
    assert {table.dtype for table in tables} == {torch.float32}
    model.double().extend(12)
    tables = model.layers()[0].keywords["tables"]  # type: ignore[attr-defined]
    # Computed in float64, not cast from float32.
    for table, expected in zip(tables, TABLES[rope](12, 4, dtype=torch.float64), strict=True):
        torch.testing.assert_close(table, expected, rtol=0, atol=0)


def test_positions_matter_only_by_their_distance() -> None:
    """Textbook RoPE: with one layer, a token's logits do not change where the same tokens stand further right."""
    torch.manual_seed(0)
    model = NGPT(**{**SIZES, "num_layers": 1})
    one = model.blocks[0].attention
    h = torch.randn(1, 4, 12)
    tables = model.layers()[0].keywords["tables"]  # type: ignore[attr-defined]
    shifted = type(tables)(*(table[3:] for table in tables))
    torch.testing.assert_close(one(h, tables), one(h, shifted), rtol=0, atol=1e-6)
    other = NGPT(**{**SIZES, "num_layers": 1}, rope="published")
    tables = other.layers()[0].keywords["tables"]  # type: ignore[attr-defined]
    shifted = type(tables)(*(table[3:] for table in tables))
    assert not torch.allclose(other.blocks[0].attention(h, tables), other.blocks[0].attention(h, shifted), atol=1e-3)


def test_states_and_matrices_are_unit_vectors() -> None:
    torch.manual_seed(0)
    model = NGPT(**SIZES)
    assert max(unit_errors(model)) < 1e-6
    torch.testing.assert_close(model.states(IDS).norm(dim=-1), torch.ones(3, 2, 6), rtol=0, atol=1e-6)
    with torch.no_grad():
        for parameter in model.unit_row_parameters():
            parameter.mul_(3).add_(0.1)
    model.project()
    assert max(unit_errors(model)) < 1e-6
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    assert len(model.unit_row_parameters()) + len(vectors) == len(list(model.parameters()))


def test_at_the_start_the_effective_scales_are_their_init() -> None:
    model = NGPT(**SIZES)
    block = model.blocks[0]
    found = [block.attention_rate(), block.attention.scale(), block.feed_forward.scale_u(), model.scale_z()]
    sizes = [12, 12, 48, 13]
    for effective, init, size in zip(found, (0.05, 1.0, 1.0, 1.0), sizes, strict=True):
        torch.testing.assert_close(effective, torch.full((size,), init))
    torch.testing.assert_close(block.attention_rate.stored.detach(), torch.full((12,), 12**-0.5))


def test_the_effective_scale_moves_by_init_over_scale_times_the_stored_one() -> None:
    scale = Scale(ScaleSpec("vector", "sqrt(d)", "1/sqrt(d)"), 3, 16)
    with torch.no_grad():
        scale.stored += 0.01
    torch.testing.assert_close(scale(), torch.full((3,), 4 + 0.01 * 16))


def _losses(**options: Any) -> Tensor:
    return disturbed(**options).cross_entropy(IDS, FOLLOWING)


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


def test_a_scalar_on_u_alone_does_nothing_and_one_shared_with_nu_does() -> None:
    """The branch is normalised, so that a constant on u cancels (digest, section 1)."""
    model = disturbed(s_u={"mode": "scalar"})
    model.cross_entropy(IDS, FOLLOWING).backward()
    assert max(float(block.feed_forward.scale_u.stored.grad.abs().max()) for block in model.blocks) < 1e-15
    shared = disturbed(s_u=None, s_nu={"mode": "scalar"})
    shared.cross_entropy(IDS, FOLLOWING).backward()
    assert min(float(block.feed_forward.scale_nu.stored.grad.abs().max()) for block in shared.blocks) > 1e-6
    assert shared.blocks[0].feed_forward.scale_u is shared.blocks[0].feed_forward.scale_nu


@pytest.mark.parametrize("matrix", ["attention.output", "feed_forward.down"])
def test_the_length_of_a_branch_does_not_matter(matrix: str) -> None:
    model = disturbed()
    before = model(IDS)
    with torch.no_grad():
        model.get_submodule(f"blocks.0.{matrix}").weight.mul_(7)
    torch.testing.assert_close(model(IDS), before, rtol=0, atol=1e-12)


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
    assert abs(float((_losses(update="riemannian") - _losses()).detach())) > 1e-6


def test_without_qk_norm_the_scores_are_those_of_the_projections() -> None:
    assert abs(float((_losses(qk_norm=False) - _losses()).detach())) > 1e-6


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


def test_it_continues_a_prompt() -> None:
    torch.manual_seed(0)
    found = NGPT(**SIZES).generate(IDS, 8, temperature=0)
    assert found.shape == (2, 14)
    assert int(found.max()) < 13


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 9}, r"head width must be even .*got 3 \(RoPE"),
        ({"num_heads": 5}, "num_heads must divide the width 12"),
        ({"rope": "txtbook"}, "rope must be one of textbook, published, got 'txtbook' .*did you mean 'textbook'"),
        ({"alpha_A": {"init": 0}}, "alpha_A: init must be a positive finite number, got 0"),
        ({"alpha_M": {"init": -0.05}}, "alpha_M: init must be a positive finite number, got -0.05"),
        ({"s_qk": {"scale": 0}}, "s_qk: scale must be a positive finite number, got 0"),
        (
            {"s_z": {"init": "sqrt(V)"}},
            r"s_z: init must be a positive number, sqrt\(d\) or 1/sqrt\(d\), got 'sqrt\(V\)'",
        ),
        ({"s_u": {"mode": "vectr"}}, "s_u: mode must be one of vector, scalar, fixed, got 'vectr' .*'vector'"),
        ({"s_nu": {"inti": 1}}, "s_nu: unknown key 'inti' .*'init'"),
        ({"s_qk": None}, "s_qk must be {mode, init, scale}, got None"),
        ({"alpha_sign": "both"}, "alpha_sign must be one of absolute, signed"),
        ({"update": "slerp"}, "update must be one of lerp, riemannian"),
        ({"storage": "float16"}, "storage must be one of float32, bfloat16"),
        ({"num_layers": 0}, "num_layers must be a whole number of at least 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NGPT(**{**SIZES, **options})


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 13, the model's vocabulary_size is 13: encode the text"):
        NGPT(**SIZES)(torch.tensor([[0, 13]]))


def test_weights_trained_with_the_other_rope_do_not_fit() -> None:
    with pytest.raises(RuntimeError, match="rope_textbook"):
        NGPT(**SIZES).load_state_dict(NGPT(**SIZES, rope="published").state_dict())


def test_an_energy_of_unit_keys_is_bounded_at_the_start() -> None:
    """Logits at the start are cosines: s_z is 1 (nGPT, section 2.1)."""
    torch.manual_seed(0)
    assert float(NGPT(**SIZES)(IDS).abs().max()) <= 1 + 1e-6
    assert math.isclose(float(NGPT(**SIZES).cross_entropy(IDS, FOLLOWING)), math.log(13), abs_tol=0.5)

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.models import gpt
from paper_repro.tests.support.float64 import assert_exact, randomised

MODELS = [
    lambda **options: gpt.GPT(11, 7, 6, 2, num_layers=3, **options),
    lambda **options: gpt.RGPT(11, 7, 6, 2, num_steps=3, **options),
    lambda **options: gpt.RGPTParallel(11, 7, 6, 2, num_steps=3, **options),
]
OWT = {"vocabulary_size": 50304, "block_length": 1024}
SHAKESPEARE = {"vocabulary_size": 65, "block_length": 256}
LISTOPS = {"vocabulary_size": 20, "block_length": 128, "num_heads": 1, "num_steps": 5}


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_attention_equals_its_definition_head_by_head() -> None:
    attention = randomised(gpt.CausalSelfAttention(6, 3)).eval()
    assert isinstance(attention, gpt.CausalSelfAttention)
    x, weight = torch.randn(2, 5, 6, dtype=torch.float64), attention.query_key_value.weight.view(3, 3, 2, 6)
    heads = []
    for query_map, key_map, value_map in zip(*weight, strict=True):
        scores = (x @ query_map.T) @ (x @ key_map.T).mT / 2**0.5
        later = torch.ones(5, 5, dtype=torch.bool).triu(1)
        heads.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ (x @ value_map.T))
    expected = functional.linear(torch.cat(heads, -1), attention.output.weight, attention.output.bias)
    torch.testing.assert_close(attention(x), expected, rtol=1e-12, atol=1e-12)


def test_the_feed_forward_branch_uses_relu() -> None:
    branch = gpt.FeedForward(1, 1)
    branch.load_state_dict(
        {
            "up.weight": torch.tensor([[2.0]]),
            "up.bias": torch.tensor([-1.0]),
            "down.weight": torch.tensor([[3.0]]),
            "down.bias": torch.tensor([0.5]),
        }
    )
    assert branch(torch.tensor([[-1.0], [0.25], [2.0]])).flatten().tolist() == [0.5, 0.5, 9.5]


def test_blocks_apply_their_branches_one_after_the_other_or_side_by_side() -> None:
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    serial, parallel = gpt.SerialBlock(6, 2, 12), gpt.ParallelBlock(6, 2, 12)
    for block in (randomised(serial).eval(), randomised(parallel).eval()):
        assert isinstance(block, gpt.SerialBlock)
        middle = x + block.attention(block.attention_norm(x))
        seen = x if isinstance(block, gpt.ParallelBlock) else middle
        expected = middle + block.feed_forward(block.feed_forward_norm(seen))
        torch.testing.assert_close(block(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", MODELS)
def test_no_logit_sees_a_later_token(make) -> None:  # type: ignore[no-untyped-def]
    model = randomised(make()).eval()
    ids = torch.randint(11, (2, 7))
    changed = ids.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 11
    before, after = model(ids), model(changed)
    assert_exact(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("make", MODELS)
def test_models_start_as_the_authors_do(make) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    for name, parameter in make().named_parameters():
        if parameter.ndim == 2:
            # The standard deviation of n normal numbers scatters by 0.02 / sqrt(2 n): six such widths.
            assert abs(float(parameter.detach().std()) - 0.02) < 6 * 0.02 / (2 * parameter.numel()) ** 0.5, name
        else:
            assert torch.equal(parameter, torch.full_like(parameter, float("norm.weight" in name))), name


@pytest.mark.parametrize(
    ("model", "options", "published"),
    [
        (gpt.GPT, {**OWT, "width": 768, "num_heads": 12, "num_layers": 12}, 163_132_032),
        (gpt.GPT, {**OWT, "width": 768, "num_heads": 12, "num_layers": 12, "tie_output": True}, 124_498_560),
        (gpt.RGPTParallel, {**OWT, "width": 768, "num_heads": 12, "num_steps": 12}, 85_190_784),
        (gpt.RGPTParallel, {**OWT, "width": 768, "num_heads": 12, "num_steps": 12, "tie_output": True}, 46_557_312),
        (gpt.RGPTParallel, {**OWT, "width": 1740, "num_heads": 12, "num_steps": 6}, 213_242_064),
        (gpt.RGPTParallel, {**OWT, "width": 1740, "num_heads": 12, "num_steps": 6, "tie_output": True}, 125_713_104),
        (gpt.GPT, {**SHAKESPEARE, "width": 64, "num_heads": 4, "num_layers": 8}, 423_233),
        (gpt.GPT, {**SHAKESPEARE, "width": 64, "num_heads": 4, "num_layers": 8, "tie_output": True}, 419_073),
        (gpt.RGPT, {**SHAKESPEARE, "width": 256, "num_heads": 1, "num_steps": 8}, 888_385),
        (gpt.RGPT, {**SHAKESPEARE, "width": 256, "num_heads": 1, "num_steps": 8, "tie_output": True}, 871_745),
        (gpt.RGPTParallel, {**SHAKESPEARE, "width": 128, "num_heads": 1, "num_steps": 8}, 247_617),
        (gpt.RGPTParallel, {**SHAKESPEARE, "width": 128, "num_heads": 1, "num_steps": 8, "tie_output": True}, 239_297),
        (gpt.RGPTParallel, {**LISTOPS, "vocabulary_size": 30, "width": 32}, 18_718),
        (gpt.RGPTParallel, {**LISTOPS, "vocabulary_size": 30, "width": 40}, 27_230),
    ],
)
def test_parameter_counts(model: type, options: dict[str, int], published: int) -> None:
    with torch.device("meta"):
        assert _count(model(**options)) == published


def test_parameter_counts_on_listops() -> None:
    counts = {16: 5972, 20: 8420, 25: 12020, 32: 18068, 40: 26420, 50: 39020, 64: 60692, 80: 91220}
    with torch.device("meta"):
        assert {width: _count(gpt.RGPTParallel(**LISTOPS, width=width)) for width in counts} == counts


def test_dropout_acts_in_training_only() -> None:
    model = gpt.RGPT(11, 7, 6, 2, num_steps=2, dropout=0.5)
    ids = torch.randint(11, (2, 7))
    assert not torch.equal(model(ids), model(ids))
    assert torch.equal(model.eval()(ids), model(ids))


def test_a_tied_output_is_the_token_embedding() -> None:
    model = gpt.RGPT(11, 7, 6, 2, num_steps=1, tie_output=True)
    assert model.output.weight is model.token_embedding.weight
    assert gpt.RGPT(11, 7, 6, 2, num_steps=1).output.weight is not model.token_embedding.weight


class _Constant(gpt.PositionalLanguageModel):
    """Logits that do not depend on the context: the output's bias."""

    def layers(self) -> tuple[()]:
        return ()


def _constant(logits: Tensor) -> _Constant:
    model = _Constant(len(logits), 4, 2)
    nn.init.zeros_(model.output.weight)
    model.output.bias.data = logits
    return model


def test_generation_draws_from_the_tempered_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0])
    generator = torch.Generator().manual_seed(1)
    ids = _constant(logits).generate(torch.zeros(20_000, 1, dtype=torch.long), 1, temperature=2.0, generator=generator)
    found = torch.bincount(ids[:, 1], minlength=3) / 20_000
    # Four standard deviations of a frequency in 20,000 draws.
    torch.testing.assert_close(found, torch.softmax(logits / 2, 0), rtol=0, atol=4 * 0.5 / 20_000**0.5)


def test_generation_at_temperature_zero_takes_the_likeliest_without_dropout() -> None:
    model = randomised(gpt.GPT(11, 9, 6, 2, num_layers=1, dropout=0.5)).train()
    ids = model.generate(torch.randint(11, (40, 2)), 7, temperature=0)
    assert ids.shape == (40, 9) and model.training
    assert torch.equal(ids[:, 2:], model.eval()(ids)[:, 1:-1].argmax(-1))


def test_generation_crops_the_context_to_the_last_tokens() -> None:
    model = _Constant(4, 4, 4)  # each logit is the last position's: its argmax tells the length of the context
    for weight in (model.position_embedding.weight, model.output.weight):
        nn.init.eye_(weight)
    nn.init.zeros_(model.token_embedding.weight)
    ids = model.generate(torch.full((1, 1), 3), 6, temperature=0)
    assert ids.tolist() == [[3, 0, 1, 2, 3, 3, 3]]


def test_the_same_seed_draws_the_same_text() -> None:
    model, start = _constant(torch.zeros(50)), torch.zeros(1, 1, dtype=torch.long)
    first, again, other = (
        model.generate(start, 20, generator=torch.Generator().manual_seed(seed)) for seed in (7, 7, 8)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 10}, "num_heads must divide the width 10"),
        ({"num_heads": 0}, "num_heads must be a whole number of at least 1"),
        ({"num_steps": 0}, "num_steps"),
        ({"hidden_factor": 0}, "hidden_factor"),
        ({"vocabulary_size": 0}, "vocabulary_size"),
        ({"block_length": -1}, "block_length"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], message: str) -> None:
    sizes = {"vocabulary_size": 11, "block_length": 7, "width": 12, "num_heads": 4, "num_steps": 2}
    with pytest.raises(ValueError, match=message):
        gpt.RGPT(**{**sizes, **options})  # type: ignore[arg-type]


def test_wrong_input_is_refused() -> None:
    model = gpt.RGPT(11, 7, 6, 2, num_steps=1)
    with pytest.raises(ValueError, match=r"1 <= T <= 7 \(block_length\), got \(1, 8\): crop"):
        model(torch.zeros(1, 8, dtype=torch.long))
    with pytest.raises(ValueError, match=r"got \(1, 0\)"):
        model(torch.zeros(1, 0, dtype=torch.long))
    with pytest.raises(ValueError, match="temperature must be a positive finite number"):
        model.generate(torch.zeros(1, 1, dtype=torch.long), 1, temperature=-1.0)
    with pytest.raises(ValueError, match="num_tokens"):
        model.generate(torch.zeros(1, 1, dtype=torch.long), 0)
    with pytest.raises(NotImplementedError, match=r"PositionalLanguageModel must say what its layers\(\) are"):
        gpt.PositionalLanguageModel(11, 7, 6)(torch.zeros(1, 1, dtype=torch.long))

import pytest
import torch
from torch import Tensor, nn

from paper_repro.models import gpt
from paper_repro.tests.support.float64 import randomised

MODELS = [
    lambda **options: gpt.GPT(11, 7, 6, 2, num_layers=3, **options),
    lambda **options: gpt.RGPT(11, 7, 6, 2, num_steps=3, **options),
    lambda **options: gpt.RGPTParallel(11, 7, 6, 2, num_steps=3, **options),
]


@pytest.mark.parametrize("make", MODELS)
def test_models_start_as_the_authors_do(make) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    for name, parameter in make().named_parameters():
        if parameter.ndim == 2:
            # The standard deviation of n normal numbers scatters by 0.02 / sqrt(2 n): six such widths.
            assert abs(float(parameter.detach().std()) - 0.02) < 6 * 0.02 / (2 * parameter.numel()) ** 0.5, name
        else:
            assert torch.equal(parameter, torch.full_like(parameter, float("norm.weight" in name))), name


def test_dropout_acts_in_training_only() -> None:
    model = gpt.RGPT(11, 7, 6, 2, num_steps=2, dropout=0.5)
    ids = torch.randint(11, (2, 7))
    assert not torch.equal(model(ids), model(ids))
    assert torch.equal(model.eval()(ids), model(ids))


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

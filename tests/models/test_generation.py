from itertools import product

import pytest
import torch

from paper_repro.models import gpt
from paper_repro.models.generation import generate
from paper_repro.tests.support.float64 import randomised


def test_a_text_depends_on_its_own_prompt_and_seed() -> None:
    model = randomised(gpt.GPT(11, 8, 6, 2, num_layers=1))
    alone = generate(model, [4, 5], 20, seed=7)
    torch.manual_seed(0)
    around = [generate(model, prompt, 20, seed=seed) for prompt, seed in product([[1], [4, 5], [4, 5, 6]], [7, 8])]
    assert alone in around and len({tuple(some) for some in around}) == 6


def test_only_allowed_ids_are_generated() -> None:
    model = randomised(gpt.GPT(11, 8, 6, 2, num_layers=1))
    for temperature in (0, 3.0):
        assert max(generate(model, [0], 200, temperature, num_allowed=3)) < 3
    assert max(generate(model, [0], 200, 3.0)) > 3


def test_wrong_arguments_are_refused() -> None:
    model = gpt.GPT(11, 8, 6, 2, num_layers=1)
    with pytest.raises(ValueError, match="no token"):
        generate(model, [], 1)
    with pytest.raises(ValueError, match="num_allowed must be at most the vocabulary of 11, got 12"):
        generate(model, [1], 1, num_allowed=12)


BASELINES = [
    lambda **options: gpt.GPT(11, 7, 6, 2, num_layers=3, **options),
    lambda **options: gpt.RGPT(11, 7, 6, 2, num_steps=3, **options),
    lambda **options: gpt.RGPTParallel(11, 7, 6, 2, num_steps=3, **options),
]


@pytest.mark.parametrize("make", BASELINES)
def test_models_start_as_the_authors_do(make) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    for name, parameter in make().named_parameters():
        if parameter.ndim == 2:
            # The standard deviation of n normal numbers scatters by 0.02 / sqrt(2 n): six such widths.
            assert abs(float(parameter.detach().std()) - 0.02) < 6 * 0.02 / (2 * parameter.numel()) ** 0.5, name
        else:
            assert torch.equal(parameter, torch.full_like(parameter, float("norm.weight" in name))), name


def test_generation_at_temperature_zero_takes_the_likeliest_without_dropout() -> None:
    model = randomised(gpt.GPT(11, 9, 6, 2, num_layers=1, dropout=0.5)).train()
    ids = model.generate(torch.randint(11, (40, 2)), 7, temperature=0)
    assert ids.shape == (40, 9) and model.training
    assert torch.equal(ids[:, 2:], model.eval()(ids)[:, 1:-1].argmax(-1))

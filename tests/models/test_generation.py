from itertools import pairwise, product

import pytest
import torch

from paper_repro.models import gpt, nrgpt
from paper_repro.models.generation import Settle, generate
from paper_repro.tests.support.float64 import randomised

SIZES = {"vocabulary_size": 11, "block_length": 8, "width": 6, "num_heads": 2, "num_steps": 5}
MODELS = [
    (kind, {"mask": mask, "learn_head_weights": learn, "beta": beta})
    for kind, mask, learn, beta in [
        (nrgpt.NRGPT_H_FF1, "strict", False, "one"),
        (nrgpt.NRGPT_H_FF2W, "inclusive", True, "inverse_root_head_width"),
        (nrgpt.NRGPT_H_FF2, "strict", True, "inverse_root_head_width"),
    ]
]
MODELS.append((nrgpt.NRGPT_H_FF1, {"inference_rate_schedule": [1.0, 0.5, 0.4, 0.3, 0.2]}))


def descending(**options: object) -> nrgpt.NRGPT:
    """A model with small weights and eta = 1, whose energies fall and settle."""
    torch.manual_seed(3)
    return nrgpt.NRGPT_H_FF2W(**{**SIZES, "inference_rate": "identity", **options}).double()  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "options"), MODELS)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_tolerance_zero_is_plain_generation(kind: type[nrgpt.NRGPT], options: dict, temperature: float) -> None:
    model = randomised(kind(**SIZES, **options))
    plain = generate(model, [1, 2, 3], 12, temperature, seed=4)
    settled = generate(model, [1, 2, 3], 12, temperature, seed=4, settle=Settle(0.0))
    assert settled.ids == plain.ids and len(plain.ids) == 15
    assert (plain.steps, settled.steps) == ([], [5] * 12)


@pytest.mark.parametrize(("tolerance", "patience"), [(0.02, 1), (0.02, 3), (1e-3, 1)])
def test_steps_are_counted_to_where_the_energy_of_the_trace_settles(tolerance: float, patience: int) -> None:
    model = descending()
    settle = Settle(tolerance, patience, num_steps=60)
    found = generate(model, [1, 2, 3], 6, seed=1, settle=settle)
    for end, steps in zip(range(3, 9), found.steps, strict=True):
        trace = model.trace(torch.tensor([found.ids[:end]]), 60).energies.total[:, 0, -1].tolist()
        changes = [abs(b - a) / max(abs(a), abs(b)) for a, b in pairwise(trace)]
        calm = [all(change < tolerance for change in changes[i - patience : i]) for i in range(patience, 61)]
        assert steps == calm.index(True) + patience if any(calm) else steps == 60
    assert patience <= min(found.steps) and max(found.steps) < 60  # it settles, beyond the 5 trained steps if need be


def test_a_text_depends_on_its_own_prompt_and_seed() -> None:
    model = randomised(gpt.GPT(11, 8, 6, 2, num_layers=1))
    alone = generate(model, [4, 5], 20, seed=7)
    torch.manual_seed(0)
    around = [generate(model, prompt, 20, seed=seed) for prompt, seed in product([[1], [4, 5], [4, 5, 6]], [7, 8])]
    assert alone in around and len({tuple(some.ids) for some in around}) == 6


def test_only_allowed_ids_are_generated() -> None:
    model = randomised(gpt.GPT(11, 8, 6, 2, num_layers=1))
    for temperature in (0, 3.0):
        assert max(generate(model, [0], 200, temperature, num_allowed=3).ids) < 3
    assert max(generate(model, [0], 200, 3.0).ids) > 3


def test_wrong_arguments_are_refused() -> None:
    model = gpt.GPT(11, 8, 6, 2, num_layers=1)
    with pytest.raises(ValueError, match="no token"):
        generate(model, [], 1)
    with pytest.raises(ValueError, match="GPT has no energies that could settle"):
        generate(model, [1], 1, settle=Settle(0.1))
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

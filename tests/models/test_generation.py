"""Generation: with a cache of keys and values the same logits; what is drawn; what is refused."""

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.models.cem import CEMAttention
from paper_repro.models.common import CausalLanguageModel, KeyValueCache
from paper_repro.models.generation import generate
from paper_repro.models.gpt import GPT, RGPT, RGPTParallel
from paper_repro.models.llama import Llama, gated_feed_forward, rotary_attention
from paper_repro.models.ngpt import NGPT, BaselineGPT
from paper_repro.models.nrgpt import NRGPT_H_FF2W
from paper_repro.tests.support.float64 import randomised

V, P, D, H = 13, 10, 16, 2
SIZES = (V, P, D, H)


def llama(attention: object) -> Llama:
    return Llama(*SIZES, num_layers=2, hidden=24, attention=attention, feed_forward=gated_feed_forward)  # type: ignore[arg-type]


CEM_OPTIONS: dict[str, dict[str, object]] = {
    "cem": {"num_steps": 2, "preconditioner": "diagonal_low_rank"},
    "cem, gradient": {"diagonal": "per_head", "value_diagonal": True, "num_steps": 3},
    "cem, without positions": {"diagonal": "none", "slopes": "none", "start": "normed"},
}
MODELS = {
    "gpt": lambda: GPT(*SIZES, num_layers=2),
    "rgpt": lambda: RGPT(*SIZES, num_steps=3),
    "rgpt parallel": lambda: RGPTParallel(*SIZES, num_steps=3),
    "ngpt": lambda: NGPT(*SIZES, num_layers=2),
    "ngpt baseline": lambda: BaselineGPT(*SIZES, num_layers=2, qk_norm=True),
    "llama": lambda: llama(rotary_attention),
    "llama, two passes": lambda: llama(partial(rotary_attention, num_passes=2)),
    **{
        name: partial(lambda options: llama(partial(CEMAttention, **options)), own) for name, own in CEM_OPTIONS.items()
    },
}


@pytest.fixture(params=MODELS, scope="module")
def model(request: pytest.FixtureRequest) -> CausalLanguageModel:
    torch.manual_seed(0)
    made: CausalLanguageModel = randomised(MODELS[request.param]()).eval()
    return made


@torch.no_grad()
def test_each_token_has_the_logits_of_the_whole_window(model: CausalLanguageModel) -> None:
    ids, cache = torch.randint(V, (3, P)), KeyValueCache()
    states = [model.next_state(ids[:, :4], cache)]
    states += [model.next_state(ids[:, place : place + 1], cache) for place in range(4, P)]
    torch.testing.assert_close(model.logits(torch.cat(states, 1)), model(ids), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_full_window_keeps_its_newer_half(model: CausalLanguageModel) -> None:
    ids = model.generate(torch.randint(V, (2, 3)), 2 * P, temperature=0, use_cache=True)
    for place in range(4, ids.shape[1]):
        first = 0 if place <= P else P + 1 - P // 2 + (place - P - 1) // (P // 2 + 1) * (P // 2 + 1)
        assert torch.equal(model(ids[:, first:place])[:, -1].argmax(-1), ids[:, place])


class Constant(GPT):
    """The logits are the bias of the output, whatever the ids."""

    def __init__(self, probabilities: Tensor) -> None:
        super().__init__(len(probabilities), 64, 2, 1, num_layers=1)
        torch.nn.init.zeros_(self.output.weight)
        self.output.bias.data = probabilities.log()


def drawn(model: CausalLanguageModel, **options: object) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    ids = model.generate(torch.zeros(10_000, 1, dtype=torch.long), 1, generator=generator, **options)  # type: ignore[arg-type]
    return torch.bincount(ids[:, 1], minlength=model.vocabulary_size) / len(ids)


@pytest.mark.parametrize(
    ("options", "kept"),
    [({"top_k": 2}, [1, 2]), ({"top_k": 9}, [0, 1, 2, 3]), ({"top_p": 0.75}, [1, 2]), ({"top_p": 0.81}, [1, 2, 0]),
     ({"top_p": 1e-9}, [1]), ({"top_p": 1.0}, [0, 1, 2, 3]), ({"top_k": 3, "top_p": 0.5}, [1, 2])],
)  # fmt: skip
def test_tokens_are_drawn_from_the_likeliest(options: dict[str, float], kept: list[int]) -> None:
    expected = torch.zeros(4)
    expected[kept] = torch.tensor([0.15, 0.45, 0.35, 0.05])[kept]
    found = drawn(Constant(torch.tensor([0.15, 0.45, 0.35, 0.05])), **options)
    torch.testing.assert_close(found, expected / expected.sum(), rtol=0, atol=0.02)
    assert (found[expected == 0] == 0).all()


def test_a_text_ends_with_its_end_of_text() -> None:
    model = Constant(torch.tensor([0.5, 0.5]))
    ids = model.generate(torch.zeros(8, 1, dtype=torch.long), 50, generator=torch.Generator().manual_seed(1), stop=1)
    assert ids.shape[1] < 51  # all 8 rows ended
    for row in ids.tolist():
        assert set(row[row.index(1) :]) == {1}


def test_tokens_are_drawn_from_the_tempered_softmax() -> None:
    probabilities = torch.tensor([0.1, 0.2, 0.7])
    expected = torch.softmax(probabilities.log() / 2, 0)
    torch.testing.assert_close(drawn(Constant(probabilities), temperature=2.0), expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("options", [{"top_k": 0}, {"top_p": 1.5}, {"temperature": -1.0}, {"num_allowed": 12}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    ids = torch.zeros(1, 1, dtype=torch.long)
    with pytest.raises(ValueError, match=next(iter(options))):
        Constant(torch.ones(3)).generate(ids, 1, **options)
    with pytest.raises(ValueError, match="NRGPT_H_FF2W has no cache"):
        NRGPT_H_FF2W(5, 4, 4, 1, 1).generate(ids, 1, use_cache=True)
    with pytest.raises(ValueError, match="no token"):
        generate(NRGPT_H_FF2W(5, 4, 4, 1, 1), [], 1)


def test_a_text_depends_on_its_own_prompt_and_seed() -> None:
    model = randomised(GPT(11, 8, 6, 2, num_layers=1))
    alone = generate(model, [4, 5], 20, seed=7)
    torch.manual_seed(0)
    around = [generate(model, prompt, 20, seed=seed) for prompt, seed in product([[1], [4, 5], [4, 5, 6]], [7, 8])]
    assert alone in around and len({tuple(some) for some in around}) == 6


def test_only_allowed_ids_are_generated() -> None:
    model = randomised(GPT(11, 8, 6, 2, num_layers=1))
    for temperature in (0, 3.0):
        assert max(generate(model, [0], 200, temperature, num_allowed=3)) < 3
    assert max(generate(model, [0], 200, 3.0)) > 3


@pytest.mark.parametrize("name", ["gpt", "rgpt", "rgpt parallel"])
def test_models_start_as_the_authors_do(name: str) -> None:
    torch.manual_seed(0)
    for own, parameter in MODELS[name]().named_parameters():
        if parameter.ndim == 2:
            # The standard deviation of n normal numbers scatters by 0.02 / sqrt(2 n): six such widths.
            assert abs(float(parameter.detach().std()) - 0.02) < 6 * 0.02 / (2 * parameter.numel()) ** 0.5, own
        else:
            assert torch.equal(parameter, torch.full_like(parameter, float("norm.weight" in own))), own

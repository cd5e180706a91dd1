"""Thoughts about texts, boards and images, against thinking step by step."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro import load
from paper_repro.base.errors import UsageError
from paper_repro.base.identity import mix
from paper_repro.datamodules.image_sources import Faces
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.datamodules.sudoku_boards import puzzle
from paper_repro.datamodules.tokenizers import CharacterTokenizer
from paper_repro.models import ebt_image as diffusion
from paper_repro.models.cet import CET
from paper_repro.models.ebt import DIRECT, EBT, ThinkingSettings, think
from paper_repro.models.ebt_image import denoised
from paper_repro.models.ebt_sudoku import SudokuEBT
from paper_repro.probes.thoughts import Manner, Reader, complete_image, think_of_board, think_of_image, trace
from paper_repro.tests.support.float64 import in_float64

TOKENIZER = CharacterTokenizer("abcdefgh ")
V, D, T = 11, 8, 12  # two ids more than the tokenizer has
TEXT = "a bad cafe"
IDS = TOKENIZER.encode(TEXT)


def made(num_landscapes: int = 2, **given: Any) -> EBT:
    torch.manual_seed(0)
    variant = "time_embed" if num_landscapes > 1 else "default"
    sizes: dict[str, Any] = {"width": D, "num_heads": 2, "num_layers": 2, "hidden": 12, "step_size": 6.0, **given}
    model: EBT = in_float64(lambda: EBT(V, T, variant=variant, num_landscapes=num_landscapes, **sizes))
    return model


def start(manner: Manner, places: int, words: int = V) -> Tensor:
    seeds = [mix(manner.seed, "start", 0, sample) for sample in range(manner.num_samples)]
    each = [torch.randn((places, words), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(each)[:, None].double()  # (N, 1, T, V)


def test_places_hold_what_thinking_gives_the_texts_tokens() -> None:
    model, settings = made(), ThinkingSettings(rule="listing")
    manner = Manner(4, settings, seed=5)
    found = Reader(model, TOKENIZER, manner).read(IDS, 4)
    states = list(think(model, torch.tensor([IDS]), start(manner, len(IDS)), 4, settings))
    energies = torch.stack([state.energies[:, 0] for state in states])  # (S + 1, N, T)
    best = energies[-1].argmin(0)  # (T,)
    assert len(set(best.tolist())) > 1
    losses = []
    for index, place in enumerate(found.places):
        assert (place.sample, place.energies) == (int(best[index]), energies[:, best[index], index].tolist())
        p = torch.softmax(states[-1].predictions[best[index], 0, index], -1)
        assert place.probability == pytest.approx(float(p[:9].max()))
        assert TOKENIZER.encode(place.thought) == [int(p[:9].argmax())]
        if index + 1 < len(IDS):
            assert place.token == TEXT[index + 1]
            assert place.own_probability == pytest.approx(float(p[IDS[index + 1]]))
            losses.append(-math.log(float(p[IDS[index + 1]])))
        else:
            assert (place.token, place.own_probability) == (None, None)
            ranked = p[:9].sort(descending=True)
            assert [token for token, _ in found.following] == [TOKENIZER.decode([i]) for i in ranked.indices[:5]]
    assert found.perplexity == pytest.approx(math.exp(sum(losses) / len(losses)))
    assert found.trace.num_evaluations == 4 * 4 + 1


def test_a_samples_numbers_do_not_depend_on_how_many_there_are() -> None:
    model, ids = made(), torch.tensor([IDS])
    few, many = (trace(model, ids, 2, Manner(count, seed=3)).energies for count in (2, 5))
    torch.testing.assert_close(many[:, :2], few, rtol=1e-12, atol=1e-12)
    assert not torch.equal(many[:, 2], few[:, 0])
    assert not torch.equal(trace(model, ids, 2, Manner(2, seed=4)).energies, few)


def test_what_cannot_be_thought_about_is_refused() -> None:
    reader = Reader(made(), TOKENIZER, Manner())
    assert reader.read(IDS[:1], 2).perplexity is None
    with pytest.raises(UsageError, match="13 tokens, the model's context"):
        reader.encode("abcabcabcabca")
    broken = made()
    with torch.no_grad():
        broken.energy_head.weight.fill_(math.nan)
    with pytest.raises(ValueError, match="the energy is not finite after 0 steps"):
        Reader(broken, TOKENIZER, Manner()).read(IDS, 2)


GIVENS, SOLUTION = puzzle(3, 76)


def test_a_board_is_that_of_the_sample_whose_cells_energies_have_the_lowest_sum() -> None:
    torch.manual_seed(0)
    model: SudokuEBT = in_float64(lambda: SudokuEBT(D, 2, 2, step_size=40.0))
    manner = Manner(5, seed=2)
    found = think_of_board(model, GIVENS, 3, manner)
    states = list(think(model, torch.tensor([GIVENS]), start(manner, 81, 9), 3))
    sums = states[-1].energies[:, 0].sum(-1)  # (N,)
    assert found.sample == int(sums.argmin()) and len(set(sums.tolist())) == 5
    for state, own, energies, accepted in zip(states, found.boards, found.energies, found.accepted, strict=True):
        digits = (state.predictions[found.sample, 0].argmax(-1) + 1).tolist()
        assert own == [given or digit for given, digit in zip(GIVENS, digits, strict=True)]
        assert energies == pytest.approx(state.energies[found.sample, 0].tolist(), rel=1e-12)
        assert accepted == (own == list(SOLUTION))
    assert found.trace.num_evaluations == 5 * 3 + 1


def test_an_image_is_noised_and_descends_as_in_evaluation() -> None:
    model: Any = load("ebt_image")
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1
    settings = ThinkingSettings(rule=DIRECT, num_steps=1)
    found = think_of_image(model, image, 99, 3, settings)
    noise = (found.found[0] - diffusion.signal(99) * image) / diffusion.noise_std(99)
    assert 0.7 < float(noise.std()) < 1.3
    for step, (expected, energy) in enumerate(denoised(model, found.found[:1], 3, settings)):
        assert torch.allclose(found.found[step], expected[0], atol=1e-6)
        assert found.energies[step] == pytest.approx(float(energy), rel=1e-5)
    error = ((found.found[3].clamp(-1, 1) - image) * 127.5).square().mean()
    assert found.psnr[3] == pytest.approx(10 * float((255**2 / error).log10()), abs=1e-3)
    assert found.pictures.shape == (5, 16, 16, 3) and 0 <= found.pictures.min() <= found.pictures.max() <= 1


@torch.no_grad()
def test_cet_completes_a_masked_image_and_its_energy_falls() -> None:
    torch.manual_seed(0)
    model = CET(1, 12, 4, 4, width=16, num_heads=2, head_width=8, num_memories=8, start="drive")
    image = torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(1)) * 2 - 1
    data = MaskedImageData(source=Faces(size=12), batch_size=1, cell=3)
    masked = data.masked(image[None], torch.Generator().manual_seed(0))[0]
    found = complete_image(model, image, masked, num_steps=4, step_size=0.5)
    assert torch.equal(found.found[0], masked)
    clamped = model.clamp(masked[None])
    state = model.first(clamped)
    for step in range(5):
        assert found.energies[step] == pytest.approx(float(model.energy(state, clamped)), rel=1e-4)
        if step:
            assert torch.allclose(found.found[step], model.patches.images(state.y)[0], atol=1e-5)
        state = model.step(state, clamped, 0.5)
    assert all(after < before for before, after in itertools.pairwise(found.energies))
    error = ((masked - image) * 127.5).square().mean()
    assert found.psnr[0] == pytest.approx(10 * float((255**2 / error).log10()), abs=0.05)

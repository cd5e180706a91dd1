import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import mix
from paper_repro.datamodules.sudoku_boards import puzzle
from paper_repro.datamodules.tokenizers import CharacterTokenizer
from paper_repro.models.ebt import CODE, EBT, LISTING, ThinkingSettings, think
from paper_repro.models.ebt_sudoku import SudokuEBT
from paper_repro.probes.thoughts import SPACES, Manner, Reader, around_board, rows, think_of_board, trace
from paper_repro.scripts.think import wants_color
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


def start(manner: Manner, places: int, name: str = "start", index: int = 0) -> Tensor:
    seeds = [mix(manner.seed, name, index, sample) for sample in range(manner.num_samples)]
    each = [torch.randn((places, V), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(each)[:, None].double()  # (N, 1, T, V)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_places_hold_what_thinking_gives_the_texts_tokens(noise: float) -> None:
    model, manner = made(), Manner(4, ThinkingSettings(rule="listing", noise=noise), step_size=9.0, seed=5)
    found = Reader(model, TOKENIZER, manner).read(IDS, 4)
    draws = torch.stack([start(manner, len(IDS), index=index)[:, 0] for index in range(1, 5)]) if noise else None
    settings = ThinkingSettings(rule="listing", noise=noise)
    states = list(think(model, torch.tensor([IDS]), start(manner, len(IDS)), 4, settings, 9.0, draws))
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
    assert found.trace.landscapes == [0, 0, 1, 1, 1]


def test_a_samples_numbers_do_not_depend_on_how_many_there_are() -> None:
    model, ids = made(), torch.tensor([IDS])
    few, many = (trace(model, ids, 2, Manner(count, seed=3)).energies for count in (2, 5))
    torch.testing.assert_close(many[:, :2], few, rtol=1e-12, atol=1e-12)
    assert not torch.equal(many[:, 2], few[:, 0])
    assert not torch.equal(trace(model, ids, 2, Manner(2, seed=4)).energies, few)


def test_a_continuation_thinks_about_one_token_at_a_time_and_sees_what_the_context_holds() -> None:
    model, manner = made(), Manner(3, seed=2)
    new = list(Reader(model, TOKENIZER, manner).extend(IDS, 5, 2))
    text = TEXT
    for number, place in enumerate(new):
        ids = torch.tensor([TOKENIZER.encode(text)[-T:]])
        whole = start(manner, ids.shape[1]).clone()
        whole[:, :, -1:] = start(manner, 1, f"token {number}")
        *_, last = think(model, ids, whole, 2)
        logits, best = last.choose()
        assert place.sample == int(best[0, -1])
        assert place.energies[-1] == pytest.approx(float(last.energies[place.sample, 0, -1]), rel=1e-9)
        text += TOKENIZER.decode([int(logits[0, -1, :9].argmax())])
        assert text.endswith(place.thought) and place.name == place.thought
    assert len(text) == len(TEXT) + 5 > T


def test_what_cannot_be_thought_about_is_refused() -> None:
    reader = Reader(made(), TOKENIZER, Manner())
    assert reader.read(IDS[:1], 2).perplexity is None
    for text, message in (
        ("", "the prompt is empty"),
        ("abcabcabcabca", "13 tokens, the model's context"),
        ("x", "'x'"),
    ):
        with pytest.raises(UsageError, match=message):
            reader.encode(text)
    small = Reader(in_float64(lambda: EBT(4, T, D, 2, 1)), TOKENIZER, Manner())
    with pytest.raises(UsageError, match="the model's vocabulary_size is 4: leave out 'h'"):
        small.encode("h")
    broken = made()
    with torch.no_grad():
        broken.energy_head.weight.fill_(math.nan)
    with pytest.raises(ValueError, match="the energy is not finite after 0 steps"):
        Reader(broken, TOKENIZER, Manner()).read(IDS, 2)


@pytest.mark.parametrize(("rule", "landscapes", "steps"), [(CODE, 1, 2), (LISTING, 1, 2), (CODE, 2, 3), (CODE, 1, 1)])
def test_rows_of_a_surface_hold_curves_planes_and_path_of_both_spaces(rule: str, landscapes: int, steps: int) -> None:
    reader = Reader(made(landscapes), TOKENIZER, Manner(2, ThinkingSettings(rule=rule)))
    thought = reader.read(IDS, steps)
    expected, surfaces = thought.places[-1].energies, reader.around(IDS, thought)
    every = list(rows(surfaces, seed=1, num_curves=3, points=5))
    for found, space in zip(surfaces, SPACES, strict=True):
        here = [row for row in every if row["space"] == space]
        kinds = [(row["kind"], row["over"]) for row in here]
        assert {kind: kinds.count(kind) for kind in kinds} == {
            **{("curve", "random"): 15, ("curve", "path"): 5},
            **{(kind, over): n for kind, n in (("plane", 25), ("path", steps + 1)) for over in ("random", "path")},
        }
        assert torch.equal(found.random_directions(4, 1), found.random_directions(4, 1))
        for directions, over in ((found.random_directions(3, 1)[:2], "random"), (found.path_directions(), "path")):
            torch.testing.assert_close(directions @ directions.T, torch.eye(2).double(), rtol=0, atol=1e-9)
            on_them = [row for row in here if row["over"] == over and row["kind"] == "plane"]
            on_them += [row for row in here if (row["kind"], row["over"], row["line"]) == ("curve", over, 0)]
            for row in on_them:
                point = found.centre + row["x"] * directions[0] + row["y"] * directions[1]
                assert row["energy"] == pytest.approx(float(found.energies(point[None])), rel=1e-9)
        path = [row for row in here if (row["kind"], row["over"]) == ("path", "path")]
        same = slice(-1, None) if landscapes > 1 else slice(None)  # steps whose energy is on the last landscape
        assert [row["energy"] for row in path[same]] == pytest.approx(expected[same], rel=1e-9)
        assert (path[-1]["x"], path[-1]["y"]) == (0.0, 0.0) and path[0]["x"] > 0
        if steps < 3:  # the plane holds the whole path
            at = torch.tensor([[row["x"], row["y"]] for row in path], dtype=torch.float64)
            assert float((found.centre + at @ found.path_directions() - found.path).abs().max()) < 1e-9
            assert 1.25 * float(at.norm(dim=-1).max()) == pytest.approx(found.radius)


GIVENS, SOLUTION = puzzle(3, 76)


def plays(clamp_givens: bool = True) -> SudokuEBT:
    torch.manual_seed(0)
    model: SudokuEBT = in_float64(lambda: SudokuEBT(D, 2, 2, step_size=30.0, clamp_givens=clamp_givens))
    return model


def test_a_board_is_that_of_the_sample_whose_cells_energies_have_the_lowest_sum() -> None:
    model, manner = plays(), Manner(5, step_size=40.0, seed=2)
    found = think_of_board(model, GIVENS, 3, manner)
    seeds = [mix(2, "start", 0, sample) for sample in range(5)]
    each = [torch.randn((81, 9), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    states = list(think(model, torch.tensor([GIVENS]), torch.stack(each)[:, None].double(), 3, step_size=40.0))
    sums = states[-1].energies[:, 0].sum(-1)  # (N,)
    assert found.sample == int(sums.argmin()) and len(set(sums.tolist())) == 5
    for state, own, energies, accepted in zip(states, found.boards, found.energies, found.accepted, strict=True):
        digits = (state.predictions[found.sample, 0].argmax(-1) + 1).tolist()
        assert own == [given or digit for given, digit in zip(GIVENS, digits, strict=True)]
        assert energies == pytest.approx(state.energies[found.sample, 0].tolist(), rel=1e-12)
        assert accepted == (own == list(SOLUTION))
    assert found.trace.num_evaluations == 5 * 3 + 1


@pytest.mark.parametrize("clamp_givens", [True, False])
def test_the_energy_around_a_board_moves_its_free_cells(clamp_givens: bool) -> None:
    model = plays(clamp_givens)
    thought = think_of_board(model, GIVENS, 2, Manner(2))
    free = GIVENS.count(0) if clamp_givens else 81
    candidates, logits = around_board(model, GIVENS, thought)
    assert (len(candidates.centre), len(logits.centre)) == (free * D, free * 9)
    for found in (candidates, logits):
        for point, energies in zip(found.path, thought.energies, strict=True):
            assert float(found.energy(point[None]).detach()) == pytest.approx(sum(energies), rel=1e-9)
        step = found.random_directions(1, 0)[0]
        assert float(found.energies((found.centre - step)[None])) != float(found.energies((found.centre + step)[None]))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colors_are_for_terminals_that_nobody_asked_to_be_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert wants_color(Terminal()) and not wants_color(io.StringIO())
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not wants_color(Terminal())

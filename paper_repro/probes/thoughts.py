"""Thoughts of an EBT about one text, Sudoku board or image: predictions and energies after each step, and the energy
around the last prediction; and the descents that the forward passes of NRGPT and CET are.

Legend: N samples, T tokens or cells that are thought about, K of them kept, or places whose energies are summed; V
vocabulary or digits, D width, S steps; C channels and H side of an image; M points and R directions of a surface, whose
points have F numbers.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paper_repro.base.errors import UsageError, at_least, positive
from paper_repro.base.identity import mix
from paper_repro.datamodules.pixels import CentralSquare, UnfitError, encoded
from paper_repro.datamodules.tokenizers import Tokenizer
from paper_repro.metrics.likelihood import summed_negative_log_likelihood
from paper_repro.metrics.pooled import new_errors, update_errors
from paper_repro.metrics.sudoku import filled, solved
from paper_repro.models import ebt_image as diffusion
from paper_repro.models.cet import CET
from paper_repro.models.common import CausalLanguageModel
from paper_repro.models.ebt import EBT, Considered, Energies, EnergyModel, ThinkingSettings, landscape_of_step, think
from paper_repro.models.ebt_image import ImageEBT
from paper_repro.models.ebt_sudoku import SudokuEBT
from paper_repro.models.nrgpt import NRGPT

SPACES = ("candidates", "logits")
MARGIN = 1.25  # how far a curve or a plane goes, over the largest distance of the path from its end
CHUNK = 256  # points whose energies are computed at once
Row = dict[str, Any]
KINDS = {"prompt": EBT, "board": SudokuEBT, "image": ImageEBT}
"""The EBTs that think.py serves, by the option that asks them."""
DESCENTS = {"prompt": NRGPT, "image": CET}
"""The models whose forward pass it shows."""


def command_for(model: nn.Module) -> str:
    """Say which command serves a model, for the error of one that does not."""
    if isinstance(model, CausalLanguageModel):
        return "generate.py continues texts with this one"
    for option, kind in (*KINDS.items(), *DESCENTS.items()):
        if isinstance(model, kind):
            return f"think.py --{option} shows how this one thinks"
    return "export.py writes the weights of this one"


@dataclass(frozen=True)
class Manner:
    """How a context is thought about."""

    num_samples: int = 1  # N
    settings: ThinkingSettings = field(default_factory=ThinkingSettings)  # rule and noise; the rest is not read
    step_size: float | None = None  # alpha; None: the model's own
    seed: int = 0
    """The seed of the first predictions and of the noise.  A sample's numbers do not depend on how many there are."""

    def __post_init__(self) -> None:
        at_least("num_samples", self.num_samples)
        if self.step_size is not None:
            positive("step_size", self.step_size)


@dataclass(frozen=True)
class Trace:
    """A thought about one context, step by step."""

    energies: Tensor  # after 0, 1, ..., S steps, (S + 1, N, T)
    kept: Tensor  # logits of the last K places after 0, 1, ..., S steps, (S + 1, N, K, V)
    last: Considered  # after S steps; its B is 1
    num_landscapes: int = 1  # L

    @property
    def num_steps(self) -> int:
        return len(self.energies) - 1

    @property
    def num_evaluations(self) -> int:
        return num_evaluations(self.energies.shape[1], self.num_steps)

    @property
    def landscapes(self) -> list[int]:
        """The landscape, from 0 on, on which the energies after 0, 1, ..., S steps lie: that of the next step."""
        steps = range(self.num_steps)
        following = [landscape_of_step(index, self.num_steps, self.num_landscapes) for index in steps]
        return [*following, self.num_landscapes - 1]


def num_evaluations(num_samples: int, num_steps: int) -> int:
    """Return N S + 1: a gradient for each sample and step, and one pass, with all samples, that compares them."""
    return num_samples * num_steps + 1


@torch.no_grad()
def trace(
    model: EnergyModel,
    ids: Tensor,
    num_steps: int,
    manner: Manner,
    last: int | None = None,
    kept: int = 0,
    name: str = "start",
) -> Trace:
    """Think about ids, (1, T), for S steps.

    Args:
        last: of a text, only what follows the last so many tokens is thought about; None: all T places.
        kept: K.
        name: gives other random numbers for another name.

    Raises:
        ValueError: as ``models.ebt.think``, or energies that cease to be finite.
    """
    energies_of = model.energies(ids, last) if isinstance(model, EBT) else model.energies(ids)
    places = ids.shape[1] if last is None else last
    shape = (places, model.state_size)  # (T, V)

    def drawn(index: int) -> Tensor:
        seeds = (mix(manner.seed, name, index, sample) for sample in range(manner.num_samples))
        each = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return torch.stack(each).to(model.step_size)  # (N, T, V)

    noise: Callable[[int], Tensor] | None = (lambda index: drawn(index + 1)) if manner.settings.noise else None
    settings = replace(manner.settings, num_steps=num_steps, most_steps=None)
    start = drawn(0)[:, None]  # (N, 1, T, V)
    energies, states = [], []
    for considered in think(model, ids, start, num_steps, settings, manner.step_size, noise, energies_of):
        energies.append(considered.energies[:, 0])  # (N, T)
        states.append(considered.predictions[:, 0, places - kept :])  # (N, K, V)
        if not bool(torch.isfinite(energies[-1]).all()):
            raise ValueError(f"the energy is not finite after {len(energies) - 1} steps: take a smaller step size")
    return Trace(torch.stack(energies), torch.stack(states), considered, model.num_landscapes)


# Texts.


@dataclass(frozen=True)
class Place:
    """The thought about one token."""

    token: str | None  # the text's own token there; None after the end of the text
    own_probability: float | None  # the probability of the text's own token
    thought: str  # the token that is predicted
    probability: float  # the probability of that one
    sample: int  # which sample was chosen: that of the lowest energy after the last step
    energies: list[float]  # the energies of that sample after 0, 1, ..., S steps

    @property
    def name(self) -> str:
        """The token that this thought is about: the text's own, or else the predicted one."""
        return self.thought if self.token is None else self.token


@dataclass(frozen=True)
class TextThought:
    """The thought about a text of T tokens in S steps: about its tokens from the second on, and what follows."""

    places: list[Place]  # T of them
    perplexity: float | None  # the perplexity of the text's T - 1 tokens after the first; None where it has one token
    following: list[tuple[str, float]]
    """The likeliest tokens after the text, the first one first, with their probabilities."""
    trace: Trace  # its kept places are those after the text, one


class Reader:
    """Thinks about texts with one model.

    Args:
        model, tokenizer: of one cell; an EBT, or for ``descend`` an NRGPT.
        manner: how an EBT thinks.
    """

    def __init__(self, model: EBT | NRGPT, tokenizer: Tokenizer, manner: Manner | None = None) -> None:
        self.model: Any = model
        self.tokenizer, self.manner = tokenizer, manner or Manner()
        self.num_words = min(tokenizer.vocabulary_size, model.vocabulary_size)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; UsageError: an unknown token, none, or more than the model's context holds."""
        ids = self.tokenizer.encode(text)
        context = self.model.block_length
        if not ids:
            raise UsageError("the prompt is empty, expected at least one token: a blank prompt is two newlines")
        if len(ids) > context:
            raise UsageError(
                f"the prompt {text[:40]!r} has {len(ids)} tokens, the model's context holds {context}: shorten it"
            )
        if max(ids) >= self.model.vocabulary_size:
            raise UsageError(
                f"the prompt {text[:40]!r} has the token id {max(ids)}, the model's vocabulary_size is "
                f"{self.model.vocabulary_size}: leave out {self.tokenizer.decode([max(ids)])!r}"
            )
        return ids

    def read(self, ids: Sequence[int], num_steps: int, num_following: int = 5) -> TextThought:
        """Think about every token of a text from the second on, and about what follows it."""
        found = trace(self.model, self._batch(ids), num_steps, self.manner, kept=1)
        logits, best = (part[0] for part in found.last.choose())  # (T, V), (T,)
        following = torch.softmax(logits[-1, : self.num_words], -1).topk(min(num_following, self.num_words))
        tokens = [self.tokenizer.decode([index]) for index in following.indices.tolist()]
        known = torch.tensor(list(ids[1:]), device=logits.device)  # (T - 1,)
        total, count = summed_negative_log_likelihood(logits[:-1], known)
        return TextThought(
            list(self._places(ids, logits, best, found.energies)),
            float((total / count).exp()) if len(known) else None,
            list(zip(tokens, following.values.tolist(), strict=True)),
            found,
        )

    def extend(self, ids: Sequence[int], num_tokens: int, num_steps: int) -> Iterator[Place]:
        """Yield the thought about each of ``num_tokens`` further tokens; the likeliest one is taken each time."""
        so_far = list(ids)
        for number in range(num_tokens):
            context = self._batch(so_far[-self.model.block_length :])
            found = trace(self.model, context, num_steps, self.manner, last=1, name=f"token {number}")
            logits, best = (part[0] for part in found.last.choose())  # (1, V), (1,)
            so_far.append(int(logits[0, : self.num_words].argmax()))
            yield from self._places([so_far[-1]], logits, best, found.energies)

    @torch.no_grad()
    def descend(self, ids: Sequence[int], num_steps: int) -> list[Place]:
        """Return what an NRGPT predicts after each token of a text, with the energies of the token's state after
        0, 1, ..., S steps of the forward pass.
        """
        found = self.model.trace(self._batch(ids), num_steps)
        logits = self.model.logits(found.state)[0]  # (T, V)
        best = torch.zeros(len(ids), dtype=torch.long)  # (T,)
        return list(self._places(ids, logits, best, found.energies.total))  # (S + 1, 1, T)

    def around(self, ids: Sequence[int], thought: TextThought) -> list["Surface"]:
        """Return the energy around the prediction of the token after the text, by the sample that was chosen there."""
        with torch.no_grad():
            energies = self.model.energies(self._batch(ids), 1)
        return surfaces(self.model, energies, thought.trace.kept[:, thought.places[-1].sample])

    def _batch(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=self.model.token_embedding.weight.device)  # (1, T)

    def _places(self, ids: Sequence[int], logits: Tensor, best: Tensor, energies: Tensor) -> Iterator[Place]:
        """Yield the thoughts, by logits (T, V) and energies (S + 1, N, T), after each of T ids."""
        probabilities = torch.softmax(logits, -1)  # (T, V)
        likeliest = probabilities[:, : self.num_words].max(-1)
        for index, sample in enumerate(best.tolist()):
            known = ids[index + 1] if index + 1 < len(ids) else None
            yield Place(
                None if known is None else self.tokenizer.decode([known]),
                None if known is None else float(probabilities[index, known]),
                self.tokenizer.decode([int(likeliest.indices[index])]),
                float(likeliest.values[index]),
                sample,
                energies[:, sample, index].tolist(),
            )


# Sudoku boards.


@dataclass(frozen=True)
class BoardThought:
    """The thought about one board in S steps, by the sample whose cells' energies have the lowest sum at the end."""

    sample: int
    boards: list[list[int]]  # the filled board, 81 digits, after 0, 1, ..., S steps
    energies: list[list[float]]  # the energies of its cells
    accepted: list[bool]  # whether the board obeys the rules and keeps its givens
    trace: Trace  # its kept places are all cells


def think_of_board(model: SudokuEBT, givens: Sequence[int], num_steps: int, manner: Manner) -> BoardThought:
    """Think about a board of 81 digits, 0 for a blank."""
    ids = _cells(model, givens)  # (1, T)
    found = trace(model, ids, num_steps, manner, kept=ids.shape[1])
    sample = int(found.energies[-1].sum(-1).argmin())
    boards = filled(ids, found.kept[:, sample])  # (S + 1, T)
    energies = found.energies[:, sample]  # (S + 1, T)
    return BoardThought(sample, boards.tolist(), energies.tolist(), solved(ids, boards).tolist(), found)


@torch.no_grad()
def around_board(model: SudokuEBT, givens: Sequence[int], thought: BoardThought) -> list["Surface"]:
    """Return the energy of the whole board around its last prediction; given cells that are clamped do not move."""
    ids = _cells(model, givens)
    free = ids[0] == 0 if model.clamp_givens else torch.ones_like(ids[0], dtype=torch.bool)  # (T,), K of them True
    energies = model.energies(ids)

    def of_free(candidates: Tensor, landscape: int) -> Tensor:
        whole = candidates.new_zeros((len(candidates), len(free), candidates.shape[-1]))  # (M, T, D)
        whole[:, free] = candidates  # (M, K, D)
        return energies(whole, landscape)  # (M, T)

    return surfaces(model, of_free, thought.trace.kept[:, thought.sample][:, free])


def _cells(model: SudokuEBT, givens: Sequence[int]) -> Tensor:
    return torch.tensor([list(givens)], device=model.prediction_embedding.weight.device)  # (1, T)


# Images.


@dataclass(frozen=True)
class ImageThought:
    """The images found in a noised or masked one after 0, 1, ..., S steps."""

    original: Tensor  # the image, (C, H, H) in [-1, 1]
    found: Tensor  # the noised or masked image, and the one found after each step, (S + 1, C, H, H)
    energies: list[float]  # S + 1 of them
    psnr: list[float]  # PSNR in dB against the original, after each is clipped to 8 bits; S + 1 of them

    @property
    def pictures(self) -> Any:
        """The original, and each that was found, as an array (S + 2, H, H, C) in [0, 1]."""
        every = torch.cat([self.original[None], self.found]).clamp(-1, 1).add(1).div(2)  # (S + 2, C, H, H)
        return every.permute(0, 2, 3, 1).numpy()


def read_image(path: Path, side: int, channels: int) -> Tensor:
    """Return the central square of an image file, (C, H, H) in [-1, 1]; UsageError: there is no image in it."""
    try:
        square, _ = CentralSquare(side)(encoded(path))
    except (UnfitError, FileNotFoundError) as error:
        raise UsageError(f"--image {path}: {error}") from error
    image = torch.from_numpy(square.copy()).permute(2, 0, 1) / 127.5 - 1  # (3, H, H)
    return image if channels == 3 else image.mean(0, keepdim=True)


def think_of_image(model: ImageEBT, image: Tensor, time: int, num_steps: int, manner: Manner) -> ImageThought:
    """Noise an image, (C, H, H) in [-1, 1], as at time t, and descend the energy from there.

    Of ``manner`` the rule, alpha and the seed count; there is one sample, and no noise in the steps.

    Raises:
        ValueError: an image of another shape, a time outside 0 ... 999, more than one sample, or as ``think``.
    """
    if manner.num_samples != 1 or manner.settings.noise:
        raise ValueError("an image begins as what is noised: one sample, and no noise in its steps")
    generator = torch.Generator().manual_seed(mix(manner.seed, "image"))
    signal, std = diffusion.signal(time), diffusion.noise_std(time)
    noised = signal * image + std * torch.randn(image.shape, generator=generator)  # (C, H, H)
    start = model.patches.cut(noised[None].to(model.step_size.device))  # (1, T, V)
    settings = replace(manner.settings, num_steps=num_steps, most_steps=None)
    considered = list(think(model, start, start[None], num_steps, settings, manner.step_size))
    found = torch.cat([model.patches.joined(each.predictions[0]) for each in considered]).cpu()  # (S + 1, C, H, H)
    energies = [float(each.energies.sum()) for each in considered]
    return ImageThought(image, found, energies, list(_psnr(found, image)))


@torch.no_grad()
def complete_image(model: CET, image: Tensor, masked: Tensor, num_steps: int, step_size: float = 1.0) -> ImageThought:
    """Relax a CET from a masked form of an image, (C, H, H) in [-1, 1] both, by steps of size eps."""
    clamped = model.clamp(masked[None].to(next(model.parameters()).device))
    every = range(num_steps + 1)
    found = model.relax(model.first(clamped), clamped, num_steps, step_size, energies_at=every, states_at=every)
    images = [model.patches.images(y).cpu() for y in found.states.y[1:]]
    completed = torch.cat([masked[None], *images])  # (S + 1, C, H, H)
    return ImageThought(image, completed, found.energies[:, 0].tolist(), list(_psnr(completed, image)))


def _psnr(found: Tensor, image: Tensor) -> Iterator[float]:
    for each in found:
        errors = new_errors()
        update_errors(errors, each[None], image[None])
        yield float(errors["psnr"].compute())


# The energy around a prediction.


@dataclass(frozen=True)
class Surface:
    """A space with an energy, and the path of a descent in it, whose last point, the prediction, is the centre.

    In logit space a point is y and its energy E(W softmax(y)), so every point is a prediction.  In candidate space a
    point is the embedded candidate e, which the trunk reads, and its energy E(e); not every e is W p of a distribution
    p.
    """

    space: str  # one of ``SPACES``
    energy: Callable[[Tensor], Tensor]  # energies (M,) of points (M, F)
    path: Tensor  # (S + 1, F), F = K D or K V

    @property
    def centre(self) -> Tensor:
        """The prediction that the descent ended with, (F,)."""
        return self.path[-1]

    @property
    def radius(self) -> float:
        """The largest distance from the centre that is looked at."""
        return MARGIN * float((self.path - self.centre).norm(dim=-1).max())

    def random_directions(self, count: int, seed: int) -> Tensor:
        """Draw directions of length 1 that are orthogonal to each other, (R, F)."""
        generator = torch.Generator().manual_seed(mix(seed, "directions", self.space))
        drawn = torch.randn((len(self.centre), count), generator=generator, dtype=torch.float64)  # (F, R)
        return torch.linalg.qr(drawn).Q.T.to(self.path)  # (R, F)

    def path_directions(self) -> Tensor:
        """Return the two directions along which the path extends most, (2, F): principal directions from its end.

        A path of one step has one; then the second one is random.
        """
        steps = (self.path[:-1] - self.centre).double()  # (S, F)
        *_, directions = torch.linalg.svd(steps, full_matrices=False)  # (S or F, F)
        first = directions[0] * (1 if float(steps[0] @ directions[0]) >= 0 else -1)
        others = torch.cat([directions[1:2], self.random_directions(1, 0).double()])  # (1 or 2, F)
        second = others[0] - (others[0] @ first) * first
        return torch.stack([first, second / second.norm()]).to(self.path)  # (2, F)

    @torch.no_grad()
    def energies(self, points: Tensor) -> Tensor:
        """Return the energies (M,) of points (M, F), computed part by part."""
        return torch.cat([self.energy(part) for part in points.split(CHUNK)])


def surfaces(model: EnergyModel, energies: Energies, path: Tensor) -> list[Surface]:
    """Return the energy in each of ``SPACES`` on the last landscape.

    Args:
        energies: of the context; candidates (M, K, D).
        path: the logits after 0, 1, ..., S steps, (S + 1, K, V).
    """
    weight, landscape = model.prediction_embedding.weight, model.num_landscapes - 1
    places, words = path.shape[1:]

    def of_candidates(points: Tensor) -> Tensor:
        return energies(points.unflatten(-1, (places, -1)), landscape).sum(-1)  # (M, K D) -> (M,)

    def of_logits(points: Tensor) -> Tensor:
        candidates = torch.softmax(points.unflatten(-1, (places, words)), -1) @ weight.mT  # (M, K, D)
        return energies(candidates, landscape).sum(-1)  # (M,)

    with torch.no_grad():
        embedded = torch.softmax(path, -1) @ weight.mT  # (S + 1, K, D)
    kinds = ((of_candidates, embedded), (of_logits, path))
    return [Surface(space, of, points.flatten(1)) for space, (of, points) in zip(SPACES, kinds, strict=True)]


def rows(found: Sequence[Surface], seed: int, num_curves: int = 8, points: int = 41) -> Iterator[Row]:
    """Yield the rows of a figure: for each space curves along random directions and along the path, and two planes.

    ``kind`` is "curve", "plane" or "path", ``over`` the directions: "random" or "path".  ``line`` is the number of a
    curve, or the step of a point of the path.
    """
    for surface in found:
        row: Callable[..., Row] = functools.partial(dict, space=surface.space)
        offsets = torch.linspace(-surface.radius, surface.radius, points).to(surface.path)  # (M,)
        random, own = surface.random_directions(num_curves, seed), surface.path_directions()
        for over, directions in {"random": random, "path": own[:1]}.items():
            for line, direction in enumerate(directions):
                energies = surface.energies(surface.centre + offsets[:, None] * direction)  # (M,)
                for x, energy in zip(offsets.tolist(), energies.tolist(), strict=True):
                    yield row(kind="curve", over=over, line=line, x=x, y=0.0, energy=energy)
        grid = torch.cartesian_prod(offsets, offsets)  # (M M, 2)
        for over, directions in {"random": random[:2], "path": own}.items():
            energies = surface.energies(surface.centre + grid @ directions)  # (M M,)
            for (x, y), energy in zip(grid.tolist(), energies.tolist(), strict=True):
                yield row(kind="plane", over=over, line=0, x=x, y=y, energy=energy)
            coordinates = (surface.path - surface.centre) @ directions.T  # (S + 1, 2)
            energies = surface.energies(surface.path)  # (S + 1,)
            for step, ((x, y), energy) in enumerate(zip(coordinates.tolist(), energies.tolist(), strict=True)):
                yield row(kind="path", over=over, line=step, x=x, y=y, energy=energy)

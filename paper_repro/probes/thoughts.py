"""Thoughts of an EBT about one text, Sudoku board or image: predictions and energies after each step; and the descents
that the forward passes of NRGPT and CET are.

Legend: N samples, T tokens or cells that are thought about, K of them kept; V vocabulary or digits, S steps; C channels
and H side of an image.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import mix
from paper_repro.datamodules.pixels import UnfitError, central_square
from paper_repro.datamodules.tokenizers import Tokenizer
from paper_repro.metrics.likelihood import summed_negative_log_likelihood
from paper_repro.metrics.pooled import new_errors, update_errors
from paper_repro.metrics.sudoku import filled, solved
from paper_repro.models import ebt_image as diffusion
from paper_repro.models.cet import CET
from paper_repro.models.common import CausalLanguageModel
from paper_repro.models.ebt import EBT, Considered, EnergyModel, ThinkingSettings, think
from paper_repro.models.ebt_image import ImageEBT, denoised
from paper_repro.models.ebt_sudoku import SudokuEBT
from paper_repro.models.nrgpt import NRGPT

ASKED = {EBT: "prompt", SudokuEBT: "board", ImageEBT: "image", NRGPT: "prompt", CET: "image"}
"""The models that think.py shows, with the option that asks them."""


def asked_by(model: nn.Module) -> str | None:
    """Return the option of think.py that asks a model; None for a model that has no energy to watch."""
    return next((option for kind, option in ASKED.items() if isinstance(model, kind)), None)


def command_for(model: nn.Module) -> str:
    """Say which command serves a model, for the error of one that does not."""
    if isinstance(model, CausalLanguageModel):
        return "generate.py continues texts with this one"
    if option := asked_by(model):
        return f"think.py --{option} shows how this one thinks"
    return "export.py writes the weights of this one"


@dataclass(frozen=True)
class Manner:
    """How a context is thought about; no noise is added to the steps."""

    num_samples: int = 1  # N
    settings: ThinkingSettings = field(default_factory=ThinkingSettings)  # the rule; the rest is not read
    seed: int = 0
    """The seed of the first predictions.  A sample's numbers do not depend on how many there are."""


@dataclass(frozen=True)
class Trace:
    """A thought about one context, step by step."""

    energies: Tensor  # after 0, 1, ..., S steps, (S + 1, N, T)
    kept: Tensor  # logits of the last K places after 0, 1, ..., S steps, (S + 1, N, K, V)
    last: Considered  # after S steps; its B is 1

    @property
    def num_evaluations(self) -> int:
        """N S + 1: a gradient for each sample and step, and one pass, with all samples, that compares them."""
        return self.energies.shape[1] * (len(self.energies) - 1) + 1


@torch.no_grad()
def trace(model: EnergyModel, ids: Tensor, num_steps: int, manner: Manner, kept: int = 0) -> Trace:
    """Think about ids, (1, T), for S steps, and keep the logits of the last K places.

    Raises:
        ValueError: as ``models.ebt.think``, or energies that cease to be finite.
    """
    shape = (ids.shape[1], model.state_size)  # (T, V)
    seeds = (mix(manner.seed, "start", 0, sample) for sample in range(manner.num_samples))
    each = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    start = torch.stack(each)[:, None].to(model.step_size)  # (N, 1, T, V)
    settings = replace(manner.settings, noise=0.0, num_steps=num_steps, most_steps=None)
    energies, states = [], []
    for considered in think(model, ids, start, num_steps, settings):
        energies.append(considered.energies[:, 0])  # (N, T)
        states.append(considered.predictions[:, 0, shape[0] - kept :])  # (N, K, V)
        if not bool(torch.isfinite(energies[-1]).all()):
            raise ValueError(f"the energy is not finite after {len(energies) - 1} steps")
    return Trace(torch.stack(energies), torch.stack(states), considered)


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

    @torch.no_grad()
    def descend(self, ids: Sequence[int], num_steps: int) -> list[Place]:
        """Return what an NRGPT predicts after each token of a text, with the energies of the token's state after
        0, 1, ..., S steps of the forward pass.
        """
        found = self.model.trace(self._batch(ids), num_steps)
        logits = self.model.logits(found.state)[0]  # (T, V)
        best = torch.zeros(len(ids), dtype=torch.long)  # (T,)
        return list(self._places(ids, logits, best, found.energies.total))  # (S + 1, 1, T)

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
    ids = torch.tensor([list(givens)], device=model.prediction_embedding.weight.device)  # (1, T)
    found = trace(model, ids, num_steps, manner, kept=ids.shape[1])
    sample = int(found.energies[-1].sum(-1).argmin())
    boards = filled(ids, found.kept[:, sample])  # (S + 1, T)
    energies = found.energies[:, sample]  # (S + 1, T)
    return BoardThought(sample, boards.tolist(), energies.tolist(), solved(ids, boards).tolist(), found)


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
        square = central_square(path.read_bytes(), side)
    except (UnfitError, OSError) as error:
        raise UsageError(f"--image {path}: {error}") from error
    image = torch.from_numpy(square.copy()).permute(2, 0, 1) / 127.5 - 1  # (3, H, H)
    return image if channels == 3 else image.mean(0, keepdim=True)


def think_of_image(
    model: ImageEBT, image: Tensor, time: int, num_steps: int, settings: ThinkingSettings, seed: int = 0
) -> ImageThought:
    """Noise an image, (C, H, H) in [-1, 1], as at time t, and descend the energy from there, by the rule of
    ``settings`` and without noise in the steps.
    """
    generator = torch.Generator().manual_seed(mix(seed, "image"))
    signal, std = diffusion.signal(time), diffusion.noise_std(time)
    noised = signal * image + std * torch.randn(image.shape, generator=generator)  # (C, H, H)
    images, energies = zip(*denoised(model, noised[None].to(model.step_size.device), num_steps, settings), strict=True)
    found = torch.cat(images).cpu()  # (S + 1, C, H, H)
    return ImageThought(image, found, list(map(float, energies)), _psnr(found, image))


@torch.no_grad()
def complete_image(model: CET, image: Tensor, masked: Tensor, num_steps: int, step_size: float = 1.0) -> ImageThought:
    """Relax a CET from a masked form of an image, (C, H, H) in [-1, 1] both, by steps of size eps."""
    clamped = model.clamp(masked[None].to(next(model.parameters()).device))
    every = range(num_steps + 1)
    found = model.relax(model.first(clamped), clamped, num_steps, step_size, energies_at=every, states_at=every)
    images = [model.patches.images(y).cpu() for y in found.states.y[1:]]
    completed = torch.cat([masked[None], *images])  # (S + 1, C, H, H)
    return ImageThought(image, completed, found.energies[:, 0].tolist(), _psnr(completed, image))


def _psnr(found: Tensor, image: Tensor) -> list[float]:
    errors = [new_errors() for _ in found]
    for own, each in zip(errors, found, strict=True):
        update_errors(own, each[None], image[None])
    return [float(own["psnr"].compute()) for own in errors]

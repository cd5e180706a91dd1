"""Images with EBT's trunk made of DiT's parts: an energy of an image, and DiT itself, the baseline (EBT, 4.4 and D.4).

An image is a sequence of its patches.  Each patch attends to all others.

Legend: B images, C channels, S image side, P patch side, T = (S/P)^2 patches, V = C P^2 numbers of a patch, D width,
N predictions for each image; t from 0 to 999.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.errors import at_least
from paper_repro.models.common import from_blocks, to_blocks
from paper_repro.models.ebt import (
    DIRECT,
    Energies,
    EnergyModel,
    Landscapes,
    Parts,
    Projection,
    ThinkingSettings,
    Trunk,
    think,
)

# Denoising diffusion (arXiv 2006.11239) with a learned variance (arXiv 2102.09672), and sampling without noise (DDIM,
# arXiv 2010.02502). x_t = sqrt(a_t) x + sqrt(1 - a_t) eps, with a_t the product of 1 - beta_s for s = 0 ... t. A model
# gives for x_t and t the noise eps and v, which places the variance between its two bounds: (B, 2 C, ...).

NUM_TIMES = 1000
FIRST_BETA, LAST_BETA = 1e-4, 0.02
Model = Callable[[Tensor, Tensor], Tensor]
"""Noised images (B, C, ...) and times (B,), int64, to (B, 2 C, ...)."""

_BETAS = torch.linspace(FIRST_BETA, LAST_BETA, NUM_TIMES, dtype=torch.float64, device="cpu")  # (1000,)
_KEPT = (1 - _BETAS).cumprod(0)  # (1000,), a_t
_KEPT_NUMBERS: list[float] = _KEPT.tolist()
"""As plain numbers: a compiled loss that reads one of a tensor is cut in two there."""
_KEPT_BEFORE = torch.cat([torch.ones_like(_KEPT[:1]), _KEPT[:-1]])  # (1000,), a_{t-1}
_VARIANCE = _BETAS * (1 - _KEPT_BEFORE) / (1 - _KEPT)  # (1000,), of q(x_{t-1} | x_t, x)
_LEAST_LOG = torch.cat([_VARIANCE[1:2], _VARIANCE[1:]]).log()  # (1000,): the variance at 0 is 0
_HALF_LEVEL = 1 / 255
"""Half of the distance between two of 256 levels in [-1, 1]."""


def signal(time: int) -> float:
    """Return sqrt(a_t), what is left of an image at time t; errors as ``check_time``."""
    return math.sqrt(_KEPT_NUMBERS[check_time(time)])


def noise_std(time: int) -> float:
    """Return sqrt(1 - a_t), the standard deviation of the noise at time t; errors as ``check_time``."""
    return math.sqrt(1 - _KEPT_NUMBERS[check_time(time)])


def check_time(time: int) -> int:
    """Return a time if it lies in 0 ... 999; else raise ValueError."""
    if at_least("time", time, 0) >= NUM_TIMES:
        raise ValueError(f"time must lie in 0 ... {NUM_TIMES - 1}, got {time}")
    return time


def noised(images: Tensor, times: Tensor, noise: Tensor) -> Tensor:
    """Return x_t of images and standard normal numbers, (B, ...) each, at times (B,)."""
    kept = _at(_KEPT, times, images)  # (B, 1, ...)
    return kept.sqrt() * images + (1 - kept).sqrt() * noise


def losses(model: Model, images: Tensor, times: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two terms of the hybrid loss, (B,) each; both count once.

    The first is the mean squared error of the noise.  The second trains the variance alone: the divergence of the
    model's step from q(x_{t-1} | x_t, x), at t = 0 the negative log-likelihood of the 256 levels, in bits per number.
    Images (B, C, ...) are in [-1, 1], times (B,) int64, noise is standard normal.
    """
    x = noised(images, times, noise)
    found, place = model(x, times).chunk(2, 1)  # (B, C, ...) each
    squared = (found - noise).square().flatten(1).mean(1)  # (B,)
    mean, share = _step(x, origin(x, times, found.detach()), times), (place + 1) / 2
    log_variance = share * _at(_BETAS.log(), times, place) + (1 - share) * _at(_LEAST_LOG, times, place)
    true_mean, true_log = _step(x, images, times), _at(_LEAST_LOG, times, images)
    apart = (true_log - log_variance).exp() + (true_mean - mean).square() * (-log_variance).exp()
    divergence = 0.5 * (log_variance - true_log - 1 + apart)
    bits = torch.where(_wide(times == 0, images), -_level_log_likelihood(images, mean, log_variance), divergence)
    return squared, bits.flatten(1).mean(1) / math.log(2)


def ddim(model: Model, start: Tensor, time: int, num_steps: int | None = None, passes: int = 1) -> Iterator[Tensor]:
    """Yield x after each step of DDIM without noise from x_t, (B, C, ...), down to the image.

    The image that the noise stands for is clipped to [-1, 1] at each step.  Several passes begin again at t with the
    image that the one before gave, as EBT's script does.  A pass has ``num_steps`` evenly spaced times, of which t is
    the first, or all t + 1.
    """
    count = check_time(time) + 1 if num_steps is None else at_least("num_steps", num_steps)
    if count > time + 1:
        raise ValueError(f"num_steps must be at most the {time + 1} times from {time} down to 0, got {num_steps}")
    places = [round(index * (time + 1) / count) - 1 for index in range(count, 0, -1)]
    x = start
    for _ in range(at_least("passes", passes)):
        for now, following in zip(places, [*places[1:], None], strict=True):
            times = torch.full((len(x),), now, device=x.device)  # (B,)
            image = origin(x, times, model(x, times).chunk(2, 1)[0]).clamp(-1, 1)
            kept, after = float(_KEPT[now]), 1.0 if following is None else float(_KEPT[following])
            noise = (x - math.sqrt(kept) * image) / math.sqrt(1 - kept)
            x = math.sqrt(after) * image + math.sqrt(1 - after) * noise
            yield x


def origin(x: Tensor, times: Tensor, noise: Tensor) -> Tensor:
    """Return the image, (B, ...), that a noise stands for in x_t, (B, ...) both, at times (B,)."""
    kept = _at(_KEPT, times, x)
    return (x - (1 - kept).sqrt() * noise) / kept.sqrt()


def _step(x: Tensor, origin: Tensor, times: Tensor) -> Tensor:
    """Return the mean of q(x_{t-1} | x_t, x)."""
    from_origin = _BETAS * _KEPT_BEFORE.sqrt() / (1 - _KEPT)
    from_noised = (1 - _KEPT_BEFORE) * (1 - _BETAS).sqrt() / (1 - _KEPT)
    return _at(from_origin, times, x) * origin + _at(from_noised, times, x) * x


def _level_log_likelihood(images: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return the log-probability of each number's level, under a normal law whose distribution function is taken by
    tanh; the lowest and the highest level have all that lies beyond.
    """
    scale = (-0.5 * log_variance).exp()
    below, above = (_normal_cdf(scale * (images - mean + side * _HALF_LEVEL)) for side in (-1, 1))
    inside = (above - below).clamp(min=1e-12).log()
    highest = torch.where(images > 0.999, (1 - below).clamp(min=1e-12).log(), inside)
    return torch.where(images < -0.999, above.clamp(min=1e-12).log(), highest)


def _normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _at(table: Tensor, times: Tensor, like: Tensor) -> Tensor:
    """Return a table's entries at times (B,), (B, 1, ...), in the dtype and on the device of ``like``."""
    return _wide(table.to(like.device)[times], like).to(like.dtype)


def _wide(numbers: Tensor, like: Tensor) -> Tensor:
    return numbers.view(-1, *[1] * (like.ndim - 1))


# The models.

NORM_EPS = 1e-6
POSITION_BASE = TIME_BASE = 10_000.0
TIME_NUMBERS = 256
TIME_STD = 0.02


class UniformProjection(Projection):
    """x W^T + b: W starts Xavier-uniform as a whole, b at zero, as in DiT's code."""

    def __init__(self, inputs: int, outputs: int, parts: int = 1) -> None:
        super().__init__(inputs, outputs, parts, biased=True)
        nn.init.xavier_uniform_(self.weight)


class GELUFeedForward(nn.Module):
    """W_2 GELU(W_1 x + b_1) + b_2, GELU by tanh, with hidden width M; (..., D) -> (..., D)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = UniformProjection(width, hidden)
        self.down = UniformProjection(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))  # (..., D)


DIT = Parts(partial(nn.LayerNorm, eps=NORM_EPS, elementwise_affine=False), UniformProjection, GELUFeedForward)
"""The norm has no weights: the modulation has them."""


class Patches(nn.Module):
    """Cuts images into patches, row by row, and knows their positions; it has no weights.

    The position of a patch is sine and cosine of its column in the first half of the channels, and of its row in the
    second one, at D/4 frequencies from 1 down to nearly 1/10,000.
    """

    positions: Tensor

    def __init__(self, image_size: int, patch: int, channels: int, width: int) -> None:
        super().__init__()
        self.image_size, self.patch = at_least("image_size", image_size), at_least("patch", patch)
        self.channels = at_least("channels", channels)
        if image_size % patch:
            raise ValueError(f"patches of {patch} do not tile images of {image_size}: give a patch that divides it")
        if at_least("width", width) % 4:
            raise ValueError(f"width must be a multiple of 4, for the positions of patches, got {width}")
        self.side = image_size // patch
        self.count, self.numbers = self.side**2, channels * patch**2
        self.register_buffer("positions", _positions(self.side, width), persistent=False)  # (T, D)

    def cut(self, images: Tensor) -> Tensor:
        """Return the patches (B, T, V) of images (B, C, S, S); its numbers are ordered by channel, row, column."""
        expected = (self.channels, self.image_size, self.image_size)
        if images.shape[1:] != expected:
            raise ValueError(f"images must have the shape (B, {', '.join(map(str, expected))}), got {images.shape}")
        return to_blocks(images, self.patch).flatten(1, 2)

    def joined(self, patches: Tensor) -> Tensor:
        """Return the images (B, C, S, S) of patches (B, T, C P^2); C may be another one."""
        return from_blocks(patches.unflatten(1, (self.side, self.side)), self.patch)


class ImageEBT(EnergyModel):
    """E(image), the mean of an energy for each patch; its gradient by the image drives the prediction.

    There is no context: a prediction begins at the noised image, and that is all the model knows of it.  The state is
    the image in patches: e = W patch + b enters the trunk, and W is ``prediction_embedding``.  All modulations and the
    energy head start at zero, so the first energies are 0 and the first predictions are what they began with.

    Args:
        image_size, patch, channels: S, P, C.
        num_landscapes: learned conditions, through which a prediction passes one after the other; EBT's code has one.
        step_size, learn_step_size: alpha at the start, of a step x - alpha dE/dx; whether it is learned.
    """

    continuous = True

    def __init__(
        self,
        image_size: int,
        patch: int,
        width: int,
        num_heads: int,
        num_layers: int,
        channels: int = 3,
        hidden: int | None = None,
        num_landscapes: int = 1,
        step_size: float = 3000.0,
        learn_step_size: bool = True,
    ) -> None:
        super().__init__()
        self.patches = Patches(image_size, patch, channels, width)
        self.landscapes, self.num_landscapes = Landscapes("adaln_zero", num_landscapes, width), num_landscapes
        self.prediction_embedding = UniformProjection(self.patches.numbers, width)
        self.trunk = Trunk(width, num_heads, num_layers, hidden, modulated=True, parts=DIT)
        self.add_head(width, step_size, learn_step_size)
        nn.init.zeros_(self.energy_head.weight)
        self.trunk.close()

    def energies(self, context: Tensor) -> Energies:
        """Return the energy function: (embedded candidates (N B, T, D), landscape) -> (N B, T), each patch's share of
        the mean.  ``context`` is not read.
        """
        return lambda candidates, landscape: self.patch_energies(candidates, landscape) / self.patches.count

    def patch_energies(self, candidates: Tensor, landscape: int = 0) -> Tensor:
        """Return the energy of each patch (B, T) of W patch, (B, T, D)."""
        condition = self.landscapes.condition(landscape)
        return self.read(self.trunk.final(self.states(candidates, landscape), condition))

    def states(self, candidates: Tensor, landscape: int = 0) -> Tensor:
        """Return what the last block gives, (B, T, D), of W patch, (B, T, D)."""
        rows = self.prediction_embedding.shifted(candidates) + self.patches.positions  # (B, T, D)
        return self.trunk.states(rows, False, self.landscapes.condition(landscape))

    def features(self, images: Tensor) -> Tensor:
        """Return the last block's states (B, T, D) of images (B, C, S, S), for a probe."""
        return self.states(self.patches.cut(images) @ self.prediction_embedding.weight.mT)


def denoised(
    model: ImageEBT, noised: Tensor, num_steps: int, settings: ThinkingSettings | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the images (B, C, S, S) and their energies (B,) after 0, 1, ..., S steps from noised ones.

    ``settings`` are those of training, whose noise is left out; None: EBT's.
    """
    start = model.patches.cut(noised)  # (B, T, V)
    settings = replace(settings or ThinkingSettings(rule=DIRECT), num_steps=num_steps, most_steps=None, noise=0.0)
    for considered in think(model, start, start[None], num_steps, settings):
        yield model.patches.joined(considered.predictions[0]), considered.energies[0].sum(-1)


class DiT(nn.Module):
    """The diffusion transformer (arXiv 2212.09748) without classes: noise and a variance of noised images.

    The time t enters as 128 cosines and 128 sines, through W_2 SiLU(W_1 x + b_1) + b_2, and modulates all layers.  The
    modulations and the output start at zero.

    Shape: images (B, C, S, S) and times (B,) -> (B, 2 C, S, S), the noise and what stands for its variance.
    """

    def __init__(
        self,
        image_size: int,
        patch: int,
        width: int,
        num_heads: int,
        num_layers: int,
        channels: int = 3,
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        self.patches = Patches(image_size, patch, channels, width)
        self.patch_embedding = UniformProjection(self.patches.numbers, width)
        self.time_embedding = nn.Sequential(
            UniformProjection(TIME_NUMBERS, width), nn.SiLU(), UniformProjection(width, width)
        )
        self.trunk = Trunk(width, num_heads, num_layers, hidden, modulated=True, parts=DIT)
        self.output = UniformProjection(width, 2 * self.patches.numbers)
        for module in self.time_embedding.children():
            if isinstance(module, Projection):
                nn.init.normal_(module.weight, std=TIME_STD)
        self.trunk.close()
        nn.init.zeros_(self.output.weight)

    def forward(self, images: Tensor, times: Tensor) -> Tensor:
        condition = self.condition(times)
        states = self.trunk.final(self._states(images, condition), condition)  # (B, T, D)
        return self.patches.joined(self.output(states))  # (B, 2 C, S, S)

    def features(self, images: Tensor) -> Tensor:
        """Return the last block's states (B, T, D) of images (B, C, S, S) at t = 0, for a probe."""
        return self._states(images, self.condition(images.new_zeros(len(images))))

    def condition(self, times: Tensor) -> Tensor:
        """Return SiLU(c), (B, D), of times (B,)."""
        waves = time_waves(times).to(self.output.weight.dtype)  # (B, 256)
        return functional.silu(self.time_embedding(waves))  # (B, D)

    def _states(self, images: Tensor, condition: Tensor) -> Tensor:
        rows = self.patch_embedding(self.patches.cut(images)) + self.patches.positions  # (B, T, D)
        return self.trunk.states(rows, False, condition)


def time_waves(times: Tensor) -> Tensor:
    """Return cos(w t), then sin(w t), (B, 256), of times (B,), at 128 frequencies w from 1 down to nearly 1/10,000."""
    half = TIME_NUMBERS // 2
    powers = torch.arange(half, device=times.device, dtype=torch.float64) / half
    angles = times.double()[:, None] * TIME_BASE**-powers  # (B, 128)
    return torch.cat([angles.cos(), angles.sin()], 1)


def _positions(side: int, width: int) -> Tensor:
    frequencies = POSITION_BASE ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))  # (D/4,)
    angles = torch.arange(side, dtype=torch.float64)[:, None] * frequencies  # (R, D/4)
    waves = torch.cat([angles.sin(), angles.cos()], 1)  # (R, D/2)
    columns, rows = waves.repeat(side, 1), waves.repeat_interleave(side, 0)  # (T, D/2) each
    return torch.cat([columns, rows], 1).to(torch.get_default_dtype())

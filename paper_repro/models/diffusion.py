"""Denoising diffusion (arXiv 2006.11239) with a learned variance (arXiv 2102.09672), and sampling without noise (DDIM,
arXiv 2010.02502): what EBT's baseline on images is trained and sampled by.

x_t = sqrt(a_t) x + sqrt(1 - a_t) eps, with a_t the product of 1 - beta_s for s = 0 ... t.  A model gives for x_t and t
the noise eps and v, which places the variance between its two bounds: (B, 2 C, ...).

Legend: B images, C channels, t from 0 to 999.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from paper_repro.base.arguments import at_least

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
    """Return sqrt(a_t), what is left of an image at time t.

    Raises:
        ValueError: t outside 0 ... 999.
    """
    return math.sqrt(_KEPT_NUMBERS[check_time(time)])


def noise_std(time: int) -> float:
    """Return sqrt(1 - a_t), the standard deviation of the noise at time t; errors as ``signal``."""
    return math.sqrt(1 - _KEPT_NUMBERS[check_time(time)])


def check_time(time: int) -> int:
    """Return a time if it is one.

    Raises:
        ValueError: it is outside 0 ... 999.
    """
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

    Args:
        images: in [-1, 1], (B, C, ...).
        times: (B,), int64.
        noise: standard normal, as the images.
    """
    x = noised(images, times, noise)
    found, place = model(x, times).chunk(2, 1)  # (B, C, ...) each
    squared = (found - noise).square().flatten(1).mean(1)  # (B,)
    mean, log_variance = _step(x, origin(x, times, found.detach()), times), _log_variance(place, times)
    true_mean, true_log = _step(x, images, times), _at(_LEAST_LOG, times, images)
    apart = (true_log - log_variance).exp() + (true_mean - mean).square() * (-log_variance).exp()
    divergence = 0.5 * (log_variance - true_log - 1 + apart)
    bits = torch.where(_wide(times == 0, images), -_level_log_likelihood(images, mean, log_variance), divergence)
    return squared, bits.flatten(1).mean(1) / math.log(2)


def ddim(model: Model, start: Tensor, time: int, num_steps: int | None = None, passes: int = 1) -> Iterator[Tensor]:
    """Yield x after each step of DDIM without noise from x_t, (B, C, ...), down to the image.

    The image that the noise stands for is clipped to [-1, 1] at each step.  Several passes begin again at t with the
    image that the one before gave, as EBT's script does.

    Args:
        num_steps: of a pass, at evenly spaced times, t the first of them; None: t + 1, at each time.
        passes: how often.

    Raises:
        ValueError: a time as ``check_time``, ``num_steps`` outside 1 ... t + 1, or ``passes`` below 1.
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


def _log_variance(place: Tensor, times: Tensor) -> Tensor:
    share = (place + 1) / 2
    return share * _at(_BETAS.log(), times, place) + (1 - share) * _at(_LEAST_LOG, times, place)


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

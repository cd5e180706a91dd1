"""Images with EBT's trunk made of DiT's parts: an energy of an image, and DiT itself, the baseline (EBT, 4.4 and D.4).

An image is a sequence of its patches.  Each patch attends to all others.

Legend: B images, C channels, S image side, P patch side, T = (S/P)^2 patches, V = C P^2 numbers of a patch, D width,
N predictions for each image.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.arguments import at_least, positive
from paper_repro.models.ebt.landscape import ZeroStepModulation, close_modulations
from paper_repro.models.ebt.model import EnergyModel
from paper_repro.models.ebt.steps import DIRECT, Energies, ThinkingSettings
from paper_repro.models.ebt.thinking import think
from paper_repro.models.ebt.trunk import Parts, Projection, Trunk

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
        found: Tensor = self.down(functional.gelu(self.up(x), approximate="tanh"))  # (..., D)
        return found


def plain_norm(width: int, eps: float) -> nn.Module:
    """Return a LayerNorm without weights: the modulation has them."""
    return nn.LayerNorm(width, eps, elementwise_affine=False)


DIT = Parts(plain_norm, UniformProjection, GELUFeedForward)


class Patches(nn.Module):
    """Cuts images into patches, row by row, and knows their positions; it has no weights.

    The position of a patch is sine and cosine of its column in the first half of the channels, and of its row in the
    second one, at D/4 frequencies from 1 down to nearly 1/10,000.

    Raises:
        ValueError: a number below one, a patch that does not tile the image, or a width that 4 does not divide.
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
        """Return the patches (B, T, V) of images (B, C, S, S); a patch's numbers are ordered by channel, row, column.

        Raises:
            ValueError: images of another shape.
        """
        expected = (self.channels, self.image_size, self.image_size)
        if images.shape[1:] != expected:
            raise ValueError(f"images must have the shape (B, {', '.join(map(str, expected))}), got {images.shape}")
        cells = images.unflatten(3, (self.side, self.patch)).unflatten(2, (self.side, self.patch))  # (B, C, R, P, R, P)
        return cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, T, V)

    def joined(self, patches: Tensor) -> Tensor:
        """Return the images (B, C, S, S) of patches (B, T, C P^2); C may be another one."""
        cells = patches.unflatten(1, (self.side, self.side)).unflatten(3, (-1, self.patch, self.patch))
        return cells.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)  # (B, R, R, C, P, P) -> (B, C, S, S)


class ImageEBT(EnergyModel):
    """E(image), the mean of an energy for each patch; its gradient by the image drives the prediction.

    There is no context: a prediction begins at the noised image, and that is all the model knows of it.  The state is
    the image in patches: e = W patch + b enters the trunk, and W is ``prediction_embedding``.  All modulations and the
    energy head start at zero, so the first energies are 0 and the first predictions are what they began with.

    Args:
        image_size, patch, channels: S, P, C.
        width, num_heads, num_layers, hidden, norm_eps: see Trunk.
        num_landscapes: learned conditions, through which a prediction passes one after the other; EBT's code has one.
        step_size: alpha at the start, of a step x - alpha dE/dx.
        learn_step_size: whether alpha is a parameter; else it is kept.

    Raises:
        ValueError: sizes as Trunk and Patches, or a step size that is not positive.
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
        norm_eps: float = NORM_EPS,
        num_landscapes: int = 1,
        step_size: float = 3000.0,
        learn_step_size: bool = True,
    ) -> None:
        super().__init__()
        self.patches = Patches(image_size, patch, channels, width)
        self.landscapes = ZeroStepModulation(num_landscapes, width)
        self.prediction_embedding = UniformProjection(self.patches.numbers, width)
        self.trunk = Trunk(width, num_heads, num_layers, hidden, norm_eps, modulated=True, parts=DIT)
        self.energy_head = Projection(width, 1)
        self.step_size_parameter = nn.Parameter(
            torch.tensor(positive("step_size", step_size)), requires_grad=learn_step_size
        )
        self.landscapes.close(self.trunk, self.energy_head)

    @property
    def num_landscapes(self) -> int:
        return self.landscapes.num_landscapes

    def energies(self, context: Tensor) -> Energies:
        """Return the energy function: (embedded candidates (N B, T, D), landscape) -> (N B, T), each patch's share of
        the mean.  ``context`` is not read.
        """
        return lambda candidates, landscape: self.patch_energies(candidates, landscape) / self.patches.count

    def patch_energies(self, candidates: Tensor, landscape: int = 0) -> Tensor:
        """Return the energy of each patch (B, T) of W patch, (B, T, D)."""
        condition = self.landscapes.condition(landscape)
        states = self.trunk.final(self.states(candidates, landscape), condition)  # (B, T, D)
        energies: Tensor = self.energy_head(states)  # (B, T, 1)
        return energies.squeeze(-1)

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

    Args:
        num_steps: S.
        settings: of training, whose noise is left out; None: EBT's.

    Raises:
        ValueError: as ``think``.
    """
    start = model.patches.cut(noised)  # (B, T, V)
    settings = replace(settings or ThinkingSettings(rule=DIRECT), num_steps=num_steps, most_steps=None, noise=0.0)
    for considered in think(model, start, start[None], num_steps, settings):
        yield model.patches.joined(considered.predictions[0]), considered.energies[0].sum(-1)


class DiT(nn.Module):
    """The diffusion transformer (arXiv 2212.09748) without classes: noise and a variance of noised images.

    The time t enters as 128 cosines and 128 sines, through W_2 SiLU(W_1 x + b_1) + b_2, and modulates all layers.  The
    modulations and the output start at zero.

    Args:
        image_size, patch, channels: S, P, C.
        width, num_heads, num_layers, hidden, norm_eps: see Trunk.

    Shape: images (B, C, S, S) and times (B,) -> (B, 2 C, S, S), the noise and what stands for its variance.

    Raises:
        ValueError: sizes as Trunk and Patches.
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
        norm_eps: float = NORM_EPS,
    ) -> None:
        super().__init__()
        self.patches = Patches(image_size, patch, channels, width)
        self.patch_embedding = UniformProjection(self.patches.numbers, width)
        self.time_embedding = nn.Sequential(
            UniformProjection(TIME_NUMBERS, width), nn.SiLU(), UniformProjection(width, width)
        )
        self.trunk = Trunk(width, num_heads, num_layers, hidden, norm_eps, modulated=True, parts=DIT)
        self.output = UniformProjection(width, 2 * self.patches.numbers)
        for module in self.time_embedding.children():
            if isinstance(module, Projection):
                nn.init.normal_(module.weight, std=TIME_STD)
        close_modulations(self.trunk)
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

"""CET, the Convergent Energy Transformer: an energy of tokens and an output image, and its relaxation.

Letters as in ``cet_energy``; T steps, eps step size, beta strength of the nudge.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paper_repro.arguments import at_least, one_of, positive
from paper_repro.models.cet_energy import (
    Attention,
    Clamped,
    Decoder,
    Encoder,
    Memory,
    Patches,
    Position,
    State,
    Term,
)

STARTS = ("drive", "zeros")
PROJECTION_EPS = 1e-12
"""Under the root, as in the golden records: a constant token would divide by zero."""


class Nudge(NamedTuple):
    """beta C(y, x) added to the energy, C the sum of squares over an image."""

    target: Tensor
    """x in blocks, (B, H/s, H/s, C s^2)."""
    beta: Tensor
    """One number for each image, (B,): of both signs where both nudged phases run as one batch."""


class Relaxation(NamedTuple):
    """Where a relaxation ended, and, on request, how it went."""

    state: State
    steps: int
    """Fewer than asked for where a tolerance stopped it."""
    residual: Tensor
    """max |state - next state| / eps of the last step, (B,): z and y together."""
    energies: Tensor | None = None
    """(steps + 1, B)."""
    residuals: Tensor | None = None
    """(steps, B)."""


def project(z: Tensor) -> Tensor:
    """The nearest tokens of mean 0 and population standard deviation 1: of each row of (..., D) (equation 2)."""
    centred = z - z.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + PROJECTION_EPS)


class CET(nn.Module):
    """E(xbar, z, y) = enc + pos + mem + att + dec, relaxed by projected gradient descent (equations 1 to 3).

        z <- Proj(z - eps dE/dz),  y <- y - eps dE/dy,  both gradients at the old state

    The paper gives eps = 1 in its text and 0.1 in its Table 4: here it is an argument, 1 by default.  It gives neither
    the first state nor the first weights: tokens start at Proj(F(xbar) + b_enc + b_pos), the image at 0; weights
    N(0, std), biases 0.

    Args:
        channels, size, patch, stride: of the images, C, H, p, s.
        width: D.
        num_heads, head_width, gamma: K, R, and the inverse temperature of the attention.
        num_memories: M.
        init_std, attention_std: of the weights at the start; W_Q and W_K have their own.
        start: "drive", or "zeros", which makes the first step at eps = 1 end there.

    Shape: masked images (B, C, H, H) -> completed images (B, C, H, H).

    Raises:
        ValueError: a size below 1, patches that do not tile the images, or an unknown start.
    """

    def __init__(
        self,
        channels: int = 3,
        size: int = 120,
        patch: int = 20,
        stride: int = 10,
        width: int = 768,
        num_heads: int = 12,
        head_width: int = 64,
        num_memories: int = 3072,
        gamma: float = 0.25,
        init_std: float = 0.02,
        attention_std: float = 0.02,
        start: str = "drive",
    ) -> None:
        super().__init__()
        self.patches = Patches(channels, size, patch, stride)
        self.width, self.start = at_least("width", width), one_of("start", start, STARTS)
        self.encoder = Encoder(self.patches, width, init_std)
        self.position = Position(self.patches.count, width, init_std)
        self.memory = Memory(num_memories, width, init_std)
        self.attention = Attention(width, num_heads, head_width, gamma, attention_std)
        self.decoder = Decoder(self.patches, width, init_std)

    def terms(self) -> dict[str, Term]:
        return {name: part for name, part in self.named_children() if isinstance(part, Term)}

    def clamp(self, masked: Tensor) -> Clamped:
        """Of masked images (B, C, H, H): computed once a relaxation."""
        patches = self.patches.gather(self.patches.blocks(masked))
        return Clamped(patches, self.encoder.drive(patches))

    def first(self, clamped: Clamped) -> State:
        """The state from which the free phase relaxes."""
        blocks = self.patches.size // self.patches.stride
        y = clamped.drive.new_zeros(len(clamped.drive), blocks, blocks, self.patches.channels * self.patches.stride**2)
        if self.start == "zeros":
            return State(torch.zeros_like(clamped.drive), y)
        return State(project(clamped.drive + self.position.bias), y)

    def energies(self, state: State, clamped: Clamped) -> dict[str, Tensor]:
        """Each term's, (B,)."""
        return {name: term.energy(state, clamped) for name, term in self.terms().items()}

    def energy(self, state: State, clamped: Clamped) -> Tensor:
        """E, (B,)."""
        return torch.stack(list(self.energies(state, clamped).values())).sum(0)

    def gradient(self, state: State, clamped: Clamped, nudge: Nudge | None = None) -> State:
        """dE/dz and dE/dy; of E + beta C with a nudge."""
        found = [term.gradient(state, clamped) for term in self.terms().values()]
        z, y = (torch.stack([part for part in parts if part is not None]).sum(0) for parts in zip(*found, strict=True))
        if nudge is not None:
            y = y + 2 * nudge.beta.view(-1, 1, 1, 1) * (state.y - nudge.target)
        return State(z, y)

    def step(self, state: State, clamped: Clamped, step_size: float = 1.0, nudge: Nudge | None = None) -> State:
        gradient = self.gradient(state, clamped, nudge)
        return State(project(state.z - step_size * gradient.z), state.y - step_size * gradient.y)

    def relax(
        self,
        state: State,
        clamped: Clamped,
        num_steps: int,
        step_size: float = 1.0,
        nudge: Nudge | None = None,
        tolerance: float | None = None,
        trace: bool = False,
    ) -> Relaxation:
        """``num_steps`` steps from ``state``, fewer where no image's residual exceeds ``tolerance`` any more.

        Raises:
            ValueError: a number of steps or a step size out of range.
        """
        at_least("num_steps", num_steps)
        positive("step_size", step_size)
        energies, residuals = [], []
        if trace:
            energies.append(self.energy(state, clamped))
        residual = state.z.new_full((len(state.z),), math.inf)
        for taken in range(1, num_steps + 1):
            following = self.step(state, clamped, step_size, nudge)
            if trace or tolerance is not None or taken == num_steps:
                residual = _residual(state, following) / step_size
            state = following
            if trace:
                energies.append(self.energy(state, clamped))
                residuals.append(residual)
            if tolerance is not None and bool((residual <= tolerance).all()):
                break
        if not trace:
            return Relaxation(state, taken, residual)
        return Relaxation(state, taken, residual, torch.stack(energies), torch.stack(residuals))

    def forward(self, masked: Tensor, num_steps: int = 150, step_size: float = 1.0) -> Tensor:
        clamped = self.clamp(masked)
        return self.patches.images(self.relax(self.first(clamped), clamped, num_steps, step_size).state.y)

    def parameter_gradients(self, state: State, clamped: Clamped, weights: Tensor) -> dict[str, Tensor]:
        """Of sum_b weights_b E_b, weights (B,): by the names of ``named_parameters``."""
        return {
            f"{name}.{own}": value
            for name, term in self.terms().items()
            for own, value in term.parameter_gradients(state, clamped, weights).items()
        }


def _residual(before: State, after: State) -> Tensor:
    changes = [(one - two).abs().flatten(1).amax(1) for one, two in zip(before, after, strict=True)]
    return torch.maximum(*changes)

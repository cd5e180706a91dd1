"""CET, the Convergent Energy Transformer: an energy of tokens and an output image, and its relaxation.

Letters as in ``models.cet.energy``; S steps, eps step size, beta strength of the nudge.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from paper_repro.base.arguments import at_least, one_of, positive
from paper_repro.kernels.preferences import speed
from paper_repro.kernels.projected_step import project
from paper_repro.models.cet.energy import (
    CETAttention,
    CETClamped,
    CETDecoder,
    CETEncoder,
    CETMemory,
    CETNudge,
    CETPatches,
    CETPosition,
    CETState,
    CETTerm,
)
from paper_repro.models.cet.relaxation import (
    PRECISIONS,
    Divergence,
    PlainSteps,
    PreparedSteps,
    RelaxationSettings,
    captured,
    divergence,
    preparable,
)
from paper_repro.models.descent import Energy, Trajectory, descend

STARTS = ("drive", "zeros")


class CET(nn.Module):
    """CET relaxes E(xbar, z, y) = enc + pos + mem + att + dec by projected gradient descent (equations 1 to 3).

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
        precision: of the factors of a relaxation's products where no gradient is asked for: "float32" (as torch is
            set), "tf32" (a GPU's) or "bfloat16" (also a CPU's that has such products); sums and state stay float32.

    A process that prefers CUDA graphs (``kernels.preferences``, ``machine.cuda_graph``) replays relaxations without
    gradients, tolerance and records as one graph each, which takes their memory for good.

    Shape: masked images (B, C, H, H) -> completed images (B, C, H, H).

    Raises:
        ValueError: a size below 1, patches that do not tile the images, an unknown start or precision.
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
        precision: str = "float32",
    ) -> None:
        super().__init__()
        self.patches = CETPatches(channels, size, patch, stride)
        self.width, self.start = at_least("width", width), one_of("start", start, STARTS)
        self.precision = one_of("precision", precision, PRECISIONS)
        self.encoder = CETEncoder(self.patches, width, init_std)
        self.position = CETPosition(self.patches.count, width, init_std)
        self.memory = CETMemory(num_memories, width, init_std)
        self.attention = CETAttention(width, num_heads, head_width, gamma, attention_std)
        self.decoder = CETDecoder(self.patches, width, init_std)

    def terms(self) -> dict[str, CETTerm]:
        """Return the five terms by name."""
        return {name: part for name, part in self.named_children() if isinstance(part, CETTerm)}

    def clamp(self, masked: Tensor) -> CETClamped:
        """Compute what stays fixed for masked images (B, C, H, H), once for each relaxation."""
        patches = self.patches.gather(self.patches.blocks(masked))  # (B, C, H, H) -> (B, H/s, H/s, C s^2) -> (B, N, P)
        return CETClamped(patches, self.encoder.drive(patches))

    def first(self, clamped: CETClamped) -> CETState:
        """Return the state from which the free phase relaxes."""
        blocks = self.patches.size // self.patches.stride
        y = clamped.drive.new_zeros(len(clamped.drive), blocks, blocks, self.patches.channels * self.patches.stride**2)
        if self.start == "zeros":
            return CETState(torch.zeros_like(clamped.drive), y)
        return CETState(project(clamped.drive + self.position.bias), y)

    def energies(self, state: CETState, clamped: CETClamped) -> dict[str, Tensor]:
        """Compute each term's energy, (B,)."""
        return {name: term.energy(state, clamped) for name, term in self.terms().items()}

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        """Compute Compute the energy E, (B,)."""
        return torch.stack(list(self.energies(state, clamped).values())).sum(0)  # (terms, B) -> (B,)

    def gradient(self, state: CETState, clamped: CETClamped, nudge: CETNudge | None = None) -> CETState:
        """Compute dE/dz, (B, N, D), and dE/dy, (B, H/s, H/s, C s^2); of E + beta C with a nudge."""
        found = [term.gradient(state, clamped) for term in self.terms().values()]
        z, y = (torch.stack([part for part in parts if part is not None]).sum(0) for parts in zip(*found, strict=True))
        if nudge is not None:
            y = y + 2 * nudge.beta.view(-1, 1, 1, 1) * (state.y - nudge.target)  # (B, H/s, H/s, C s^2)
        return CETState(z, y)

    def step(
        self, state: CETState, clamped: CETClamped, step_size: float = 1.0, nudge: CETNudge | None = None
    ) -> CETState:
        """Take one step of size eps: the two lines of the class."""
        gradient = self.gradient(state, clamped, nudge)
        return CETState(project(state.z - step_size * gradient.z), state.y - step_size * gradient.y)

    def relax(
        self,
        state: CETState,
        clamped: CETClamped,
        num_steps: int,
        step_size: float = 1.0,
        nudge: CETNudge | None = None,
        *,
        tolerance: float | None = None,
        energy: Energy[CETState] | None = None,
        energies_at: Collection[int] = (),
        states_at: Collection[int] = (),
    ) -> Trajectory[CETState]:
        """Descend from ``state`` until no image's residual exceeds ``tolerance``; see ``models.descent.descend``.

        The change of a step is its residual, max |state - state before| / eps, (B,): z and y together.  Without
        gradients (torch.no_grad) the steps are those of ``PreparedSteps``, else ``step``.

        Args:
            state: where the relaxation starts.
            clamped: what stays fixed.
            num_steps: S.
            step_size: eps.
            nudge: what is added to the energy.
            tolerance: None never stops early.
            energy: what is recorded of a state; ``self.energy`` without the nudge if None.
            energies_at, states_at: the steps at which energies, (recorded, B), and states are recorded.

        Raises:
            ValueError: a number of steps or a step size out of range, precision="tf32" or a preferred CUDA graph off
                CUDA.
        """
        at_least("num_steps", num_steps)
        settings = RelaxationSettings(positive("step_size", step_size), nudge)
        prepared = self._prepares(state)
        if prepared and speed().cuda_graph and tolerance is None and not energies_at and not states_at:
            return captured(self, state, clamped, settings, num_steps)
        rule: PreparedSteps | PlainSteps = PlainSteps(self, clamped, settings)
        if prepared:
            measured = None if tolerance is not None else {num_steps, *energies_at}
            rule = PreparedSteps(self, state, clamped, settings, measured)
            state = rule.state
        return descend(
            rule,
            state,
            num_steps,
            energy=energy or (lambda reached: self.energy(reached, clamped)),
            energies_at=energies_at,
            states_at=states_at,
            change=rule.residual,
            tolerance=tolerance,
        )

    def divergence(
        self,
        state: CETState,
        clamped: CETClamped,
        num_steps: int,
        step_size: float = 1.0,
        nudge: CETNudge | None = None,
    ) -> Divergence | None:
        """Return at which step, and in whose gradient, such a relaxation is first not finite; None if it stays finite.

        It is replayed for that, term by term, in the model's dtype: ask when an end was not finite.
        """
        return divergence(self, state, clamped, num_steps, RelaxationSettings(step_size, nudge))

    def forward(self, masked: Tensor, num_steps: int = 150, step_size: float = 1.0) -> Tensor:
        clamped = self.clamp(masked)
        return self.patches.images(self.relax(self.first(clamped), clamped, num_steps, step_size).state.y)

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of sum_b weights_b E_b, weights (B,), by the names of ``named_parameters``."""
        return {
            f"{name}.{own}": value
            for name, term in self.terms().items()
            for own, value in term.parameter_gradients(state, clamped, weights).items()
        }

    def _prepares(self, state: CETState) -> bool:
        """Return whether ``PreparedSteps`` may stand for ``step``: a subclass may have its own, or other terms."""
        own = type(self).step is CET.step and type(self).gradient is CET.gradient
        return own and preparable(self.terms(), state)

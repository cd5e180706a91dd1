"""CEM, "Recasting Transformer layers as energy models": the element-wise energy (MLP) and the models of its Table 3.

Legend: D width, m hidden width, S inner steps (the paper's T), r rank of the preconditioner; ``...`` for the tokens.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.arguments import at_least, one_of, positive
from paper_repro.kernels import cem_mlp
from paper_repro.kernels.cem_mlp import ACTIVATIONS
from paper_repro.models.cem.part import CEMPart, Preconditioner

DEFAULT_RANK = 16

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)
_LI2_COEFFICIENTS = tuple(b / math.factorial(2 * k + 1) for k, b in enumerate(_BERNOULLI, start=1))


def silu_potential(x: Tensor) -> Tensor:
    """Compute phi(x) = x softplus(x) + Li2(-e^x), the integral of SiLU from minus infinity (CEM, below equation 11).

    For t <= 0 and s = softplus(t), Li2(-e^t) = -s - s^2/4 - sum_k B_2k s^(2k+1) / (2k+1)!; s <= log 2, so nine terms
    reach the last bit.  Positive x follow from phi(x) + phi(-x) = x^2/2 - pi^2/6.  Plain operations, so autograd
    differentiates it to any order.

    Accuracy: in float64 within 2e-15 relative for x <= 0 and 2e-15 max(1, phi) for x > 0, where phi changes sign (at
    x = 1.505).
    """
    t = torch.where(x > 0, -x, x)
    s = torch.log1p(torch.exp(t))
    square = s * s
    series = torch.zeros_like(s)
    for coefficient in reversed(_LI2_COEFFICIENTS):
        series = (series + coefficient) * square
    left = t * s - s - square / 4 - s * series
    return torch.where(x > 0, x * x / 2 - math.pi**2 / 6 - left, left)


def gelu_potential(x: Tensor) -> Tensor:
    """Compute phi(x) = ((x^2 - 1) Phi(x) + x pdf(x)) / 2, the integral of the exact GELU from minus infinity.

    Accuracy: in float64 within 1e-15 max(1, phi); in the left tail relative to phi within x^2 2e-16.
    """
    cumulative = torch.special.erfc(-x / math.sqrt(2)) / 2
    density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return ((x * x - 1) * cumulative + x * density) / 2


POTENTIALS = {"silu": silu_potential, "gelu": gelu_potential}


class CEMMLP(CEMPart):
    """An MLP that takes S preconditioned gradient steps on xi(x | h) = -gamma . phi(V x) with gamma = W h.

    It is (CEM, equations 7, 8, 13, 15, 17)

        x <- x + eta P V^T (gamma * act(V u)),  act = phi'

    ``context_weight`` is W (HF Llama: up_proj), ``reading_weight`` is V (gate_proj, tied with down_proj), both (m, D)
    and without bias.  P is folded into V once per forward.

    The defaults are the block of Table 3: no norm, no P, eta = 1.

    Args:
        width: D.
        hidden: m.
        num_steps, norm_context, norm_inside, start, norm_eps: see ``CEMPart``; num_steps is S.
        activation: "silu" (Algorithm 1) or "gelu" (exact).
        preconditioner: "none" (P = I), "diagonal" or "diagonal_low_rank".
        rank: r of "diagonal_low_rank"; 16 if None.
        preconditioner_diagonal, preconditioner_std: ``diagonal_init`` and ``init_std`` of ``Preconditioner``, its
            defaults if None.
        step_size: eta, the value at the start if ``learn_step_size``.
        context_init_scale, reading_init_scale: W and V start uniform in +-scale / sqrt(D).
        init_std: both start N(0, init_std) instead.

    Shape: (..., D) -> (..., D).

    Raises:
        ValueError: an argument out of range, an unknown name, or an option that the others leave without effect.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        num_steps: int = 1,
        activation: str = "silu",
        norm_context: bool = False,
        norm_inside: bool = False,
        start: str = "raw",
        preconditioner: str = "none",
        rank: int | None = None,
        preconditioner_diagonal: float | None = None,
        preconditioner_std: float | None = None,
        step_size: float = 1.0,
        learn_step_size: bool = False,
        norm_eps: float = 1e-6,
        context_init_scale: float = 1.0,
        reading_init_scale: float = 1.0,
        init_std: float | None = None,
    ) -> None:
        super().__init__(width, num_steps, norm_context, norm_inside, start, step_size, norm_eps)
        self.hidden = at_least("hidden", hidden)
        self.activation = one_of("activation", activation, ACTIVATIONS)
        self.context_weight = _uniform(hidden, width, positive("context_init_scale", context_init_scale))
        self.reading_weight = _uniform(hidden, width, positive("reading_init_scale", reading_init_scale))
        if init_std is not None:
            if (context_init_scale, reading_init_scale) != (1.0, 1.0):
                raise ValueError("init_std replaces context_init_scale and reading_init_scale: leave them out")
            for weight in (self.context_weight, self.reading_weight):
                nn.init.normal_(weight, std=positive("init_std", init_std))
        self.preconditioner = Preconditioner.of(
            preconditioner, width, rank, DEFAULT_RANK, (), preconditioner_diagonal, preconditioner_std
        )
        if learn_step_size:
            self.step_size = nn.Parameter(torch.tensor(float(step_size)))

    def energy(self, u: Tensor, context: Tensor) -> Tensor:
        """Compute xi(u | h) = -gamma . phi(V u), (...,), for u and h (..., D) (CEM, equation 7)."""
        gamma = functional.linear(context, self.context_weight)  # (..., m)
        read = functional.linear(u, self.reading_weight)  # (..., m)
        return -(gamma * POTENTIALS[self.activation](read)).sum(-1)  # (...,)

    def update(self, x: Tensor, context: Tensor) -> Tensor:
        """Compute P V^T (gamma * act(V u)), (..., D): -P times the gradient of the energy at u (equation 15)."""
        return self._update(x, functional.linear(context, self.context_weight), self._writing_weight())

    def forward(self, stream: Tensor) -> Tensor:
        return self.descend(stream).state

    def stepper(self, context: Tensor) -> Callable[[Tensor], Tensor]:
        gamma, writing = functional.linear(context, self.context_weight), self._writing_weight()  # (..., m), (m, D)
        return lambda x: x + self.step_size * self._update(x, gamma, writing)

    def all_steps(self, x: Tensor, context: Tensor, num_steps: int) -> Tensor | None:
        if self.norm_inside:
            return None
        gamma, writing = functional.linear(context, self.context_weight), self._writing_weight()  # (..., m), (m, D)
        step_size = self.step_size
        if isinstance(step_size, Tensor):
            writing, step_size = step_size * writing, 1.0
        return cem_mlp.descend(
            x,
            gamma,
            self.reading_weight,
            writing,
            num_steps=num_steps,
            step_size=step_size,
            activation=self.activation,
        )

    def _writing_weight(self) -> Tensor:
        return self.reading_weight if self.preconditioner is None else self.preconditioner.fold(self.reading_weight)

    def _update(self, x: Tensor, gamma: Tensor, writing: Tensor) -> Tensor:
        read = functional.linear(self.point(x), self.reading_weight)  # (..., D) -> (..., m)
        return torch.matmul(gamma * ACTIVATIONS[self.activation](read), writing)  # (..., D)

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}, activation={self.activation}, {super().extra_repr()}"


def _uniform(rows: int, columns: int, scale: float) -> nn.Parameter:
    bound = scale / math.sqrt(columns)
    return nn.Parameter(torch.empty(rows, columns).uniform_(-bound, bound))

"""CEM, "Recasting Transformer layers as energy models": the element-wise energy (MLP) and the models of its Table 3.

Legend: D width, m hidden width, T inner steps, N tokens, r rank of the preconditioner.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.arguments import at_least, one_of, positive
from paper_repro.kernels.cem_mlp import IMPLEMENTATIONS, descend
from paper_repro.kernels.cem_mlp.reference import ACTIVATIONS

PRECONDITIONERS = ("none", "diagonal", "diagonal_low_rank")
STARTS = ("raw", "normed")
DEFAULT_RANK = 16
PRECONDITIONER_DIAGONAL = 1.0
PRECONDITIONER_STD = 0.02

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)
_LI2_COEFFICIENTS = tuple(b / math.factorial(2 * k + 1) for k, b in enumerate(_BERNOULLI, start=1))


def silu_potential(x: Tensor) -> Tensor:
    """phi(x) = x softplus(x) + Li2(-e^x), the integral of SiLU from minus infinity (CEM, below equation 11).

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
    """phi(x) = ((x^2 - 1) Phi(x) + x pdf(x)) / 2, the integral of the exact GELU from minus infinity.

    Accuracy: in float64 within 1e-15 max(1, phi); in the left tail relative to phi within x^2 2e-16.
    """
    cumulative = torch.special.erfc(-x / math.sqrt(2)) / 2
    density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return ((x * x - 1) * cumulative + x * density) / 2


POTENTIALS = {"silu": silu_potential, "gelu": gelu_potential}


class Descent(NamedTuple):
    """What the inner loop went through."""

    states: Tensor
    """(T + 1, ..., D): x_0 ... x_T."""
    energies: Tensor
    """(T + 1, ...): the energy at u_0 ... u_T, the points at which the gradient is taken (u = x without inner norm)."""


class Preconditioner(nn.Module):
    """P = diag(softplus(sqrt(D) p)) + U V^T + V U^T (CEM, equation 13 and Appendix D.4).

    ``diagonal`` is p, (D,); ``left`` is U and ``right`` is V, (D, r), at first N(0, init_std) and zero; with rank 0
    there is a diagonal only.  The paper's P > 0 holds only while U V^T + V U^T is small against the diagonal: nothing
    enforces it.

    Args:
        width, rank: D, r.
        stack: leading dimensions of all three, for one P each, such as (K,) for K heads.
        diagonal_init: of d = sqrt(D) p.  At the paper's 1 (p = 1/sqrt(D)) P starts at softplus(1) = 1.313; at
            log(e - 1) = 0.5413 it starts at the identity.
        init_std: of U; the paper's is 0.02.

    Raises:
        ValueError: ``width`` < 1, ``rank`` outside 0 ... width, or an ``init_std`` that is not positive.
    """

    def __init__(
        self,
        width: int,
        rank: int = DEFAULT_RANK,
        stack: tuple[int, ...] = (),
        diagonal_init: float = PRECONDITIONER_DIAGONAL,
        init_std: float = PRECONDITIONER_STD,
    ) -> None:
        super().__init__()
        self.width = at_least("width", width)
        if at_least("rank", rank, 0) > width:
            raise ValueError(f"rank must lie between 0 (diagonal only) and the width {width}, got {rank}")
        self.rank = rank
        self.diagonal = nn.Parameter(torch.full((*stack, width), diagonal_init / math.sqrt(width)))
        positive("init_std", init_std)
        if rank:
            self.left = nn.Parameter(torch.randn(*stack, width, rank) * init_std)
            self.right = nn.Parameter(torch.zeros(*stack, width, rank))

    @classmethod
    def of(
        cls,
        kind: str,
        width: int,
        rank: int | None,
        default_rank: int,
        stack: tuple[int, ...] = (),
        diagonal_init: float | None = None,
        init_std: float | None = None,
    ) -> "Preconditioner | None":
        """By the words of a config: "none" (P = I), "diagonal", or "diagonal_low_rank"; None is the default.

        Raises:
            ValueError: an unknown word, a value that has no effect, or one out of range.
        """
        one_of("preconditioner", kind, PRECONDITIONERS)
        low_rank = kind == "diagonal_low_rank"
        for name, value, read in (
            ("rank", rank, low_rank),
            ("preconditioner_diagonal", diagonal_init, kind != "none"),
            ("preconditioner_std", init_std, low_rank),
        ):
            if value is not None and not read:
                raise ValueError(f"{name}={value} has no effect with preconditioner={kind!r}: leave it out")
        if kind == "none":
            return None
        return cls(
            width,
            at_least("rank", default_rank if rank is None else rank) if low_rank else 0,
            stack,
            PRECONDITIONER_DIAGONAL if diagonal_init is None else float(diagonal_init),
            PRECONDITIONER_STD if init_std is None else positive("preconditioner_std", init_std),
        )

    def fold(self, matrix: Tensor) -> Tensor:
        """matrix P, (..., *stack, m, D) as ``matrix``: m r D multiply-adds once, instead of work for every token."""
        folded = matrix * functional.softplus(math.sqrt(self.width) * self.diagonal).unsqueeze(-2)
        if self.rank:
            folded = folded + (matrix @ self.left) @ self.right.mT + (matrix @ self.right) @ self.left.mT
        return folded

    def extra_repr(self) -> str:
        return f"width={self.width}, rank={self.rank}"


class EnergyPart(nn.Module):
    """A part of a block that takes T steps down an energy of its own: x <- x + eta update(x, h) (CEM, Algorithm 1).

    A subclass says what ``energy`` and ``update`` are.  RMSNorm(x) = x / rms(x) * g with one learnable g, (D,), for:

    * ``norm_context``: h = RMSNorm(stream), else h = stream;
    * ``norm_inside``: u = RMSNorm(x), else u = x; the gradient is taken at u and added to x, without the chain rule
      through the norm;

    and ``start``: x_0 is the stream ("raw", with which T = 1, P = I is a weight-tied pre-norm block) or h ("normed",
    Algorithm 1 read literally, which loses the residual stream).

    Args:
        width: D.
        num_steps: T.
        step_size: eta.
        norm_eps: added to the mean square under the root; only read with a norm.

    Raises:
        ValueError: an argument out of range, an unknown start, or one without effect.
    """

    def __init__(
        self,
        width: int,
        num_steps: int,
        norm_context: bool,
        norm_inside: bool,
        start: str,
        step_size: float,
        norm_eps: float,
    ) -> None:
        super().__init__()
        self.width, self.num_steps = at_least("width", width), at_least("num_steps", num_steps)
        self.norm_context, self.norm_inside = norm_context, norm_inside
        self.start = one_of("start", start, STARTS)
        if start == "normed" and not norm_context:
            raise ValueError("start='normed' has no effect without norm_context=True: set that, or start='raw'")
        self.norm_eps = positive("norm_eps", norm_eps)
        self.norm_weight = nn.Parameter(torch.ones(width)) if norm_context or norm_inside else None
        self.step_size: float | nn.Parameter = positive("step_size", step_size)

    def energy(self, u: Tensor, context: Tensor) -> Tensor:
        """Of every token, (...,), for u and h (..., D)."""
        raise NotImplementedError(f"{type(self).__name__} must say what its energy is")

    def update(self, x: Tensor, context: Tensor) -> Tensor:
        """What a step adds at x, (..., D), before eta."""
        raise NotImplementedError(f"{type(self).__name__} must say what its update is")

    def context(self, stream: Tensor) -> Tensor:
        """h, (..., D): the stream, normed with ``norm_context``; it stays fixed during the descent."""
        return self._rms_norm(stream) if self.norm_context else stream

    def point(self, x: Tensor) -> Tensor:
        """u, (..., D), at which the gradient is taken: x, normed with ``norm_inside``."""
        return self._rms_norm(x) if self.norm_inside else x

    def first(self, stream: Tensor, context: Tensor) -> Tensor:
        """x_0, (..., D)."""
        return context if self.start == "normed" else stream

    def trace(self, stream: Tensor) -> Descent:
        """The states and energies of the forward pass on ``stream``, (..., D)."""
        context = self.context(stream)
        states = [self.first(stream, context)]
        for _ in range(self.num_steps):
            states.append(states[-1] + self.step_size * self.update(states[-1], context))
        energies = [self.energy(self.point(x), context) for x in states]
        return Descent(torch.stack(states), torch.stack(energies))

    def _rms_norm(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (self.width,), self.norm_weight, self.norm_eps)

    def extra_repr(self) -> str:
        return (
            f"width={self.width}, num_steps={self.num_steps}, norm_context={self.norm_context}, "
            f"norm_inside={self.norm_inside}, start={self.start}"
        )


class EnergyMLP(EnergyPart):
    """T preconditioned gradient steps on xi(x | h) = -gamma . phi(V x), gamma = W h (CEM, equations 7, 8, 13, 15, 17).

        x <- x + eta P V^T (gamma * act(V u)),  act = phi'

    ``context_weight`` is W (HF Llama: up_proj), ``reading_weight`` is V (gate_proj, tied with down_proj), both (m, D)
    and without bias.  P is folded into V once per forward.

    The defaults are the block of Table 3: no norm, no P, eta = 1.

    Args:
        width: D.
        hidden: m.
        num_steps, norm_context, norm_inside, start, norm_eps: see ``EnergyPart``.
        activation: "silu" (Algorithm 1) or "gelu" (exact).
        preconditioner: "none" (P = I), "diagonal" or "diagonal_low_rank".
        rank: r of "diagonal_low_rank"; 16 if None.
        preconditioner_diagonal, preconditioner_std: ``diagonal_init`` and ``init_std`` of ``Preconditioner``, its
            defaults if None.
        step_size: eta, the value at the start if ``learn_step_size``.
        context_init_scale, reading_init_scale: W and V start uniform in +-scale / sqrt(D).
        init_std: both start N(0, init_std) instead.
        implementation: "auto", "closed_form" or "reference" (for second derivatives), see ``kernels.cem_mlp.descend``.

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
        implementation: str = "auto",
    ) -> None:
        super().__init__(width, num_steps, norm_context, norm_inside, start, step_size, norm_eps)
        self.hidden = at_least("hidden", hidden)
        self.activation = one_of("activation", activation, ACTIVATIONS)
        self.implementation = one_of("implementation", implementation, IMPLEMENTATIONS)
        if norm_inside and implementation != "auto":
            raise ValueError("implementation has no effect with norm_inside=True: leave it at 'auto'")
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
        """xi(u | h) = -gamma . phi(V u), (...,), for u and h (..., D) (CEM, equation 7)."""
        gamma = functional.linear(context, self.context_weight)
        return -(gamma * POTENTIALS[self.activation](functional.linear(u, self.reading_weight))).sum(-1)

    def update(self, x: Tensor, context: Tensor) -> Tensor:
        """P V^T (gamma * act(V u)), (..., D): -P times the gradient of the energy at u (equation 15)."""
        return self._update(x, functional.linear(context, self.context_weight), self._writing_weight())

    def forward(self, stream: Tensor) -> Tensor:
        context = self.context(stream)
        x = self.first(stream, context)
        gamma, writing = functional.linear(context, self.context_weight), self._writing_weight()
        if self.norm_inside:
            for _ in range(self.num_steps):
                x = x + self.step_size * self._update(x, gamma, writing)
            return x
        step_size = self.step_size
        if isinstance(step_size, Tensor):
            writing, step_size = step_size * writing, 1.0
        return descend(
            x,
            gamma,
            self.reading_weight,
            writing,
            num_steps=self.num_steps,
            step_size=step_size,
            activation=self.activation,
            implementation=self.implementation,
        )

    def _writing_weight(self) -> Tensor:
        return self.reading_weight if self.preconditioner is None else self.preconditioner.fold(self.reading_weight)

    def _update(self, x: Tensor, gamma: Tensor, writing: Tensor) -> Tensor:
        return torch.matmul(
            gamma * ACTIVATIONS[self.activation](functional.linear(self.point(x), self.reading_weight)), writing
        )

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}, activation={self.activation}, {super().extra_repr()}"


class PlainMLP(nn.Module):
    """h + W_down act(W_up h + b) + b', the plain baseline of CEM's Table 3; (..., D) -> (..., D).

    Raises:
        ValueError: a size below one or an unknown activation.
    """

    def __init__(self, width: int, hidden: int, activation: str = "silu") -> None:
        super().__init__()
        self.width, self.hidden = at_least("width", width), at_least("hidden", hidden)
        self.activation = one_of("activation", activation, ACTIVATIONS)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.down(ACTIVATIONS[self.activation](self.up(h)))


class GatedMLP(nn.Module):
    """h + W_down (act(W_up h) * (W_gate h)) with the letters of CEM's equation 6; each matrix has a bias (Table 3).

    Shape: (..., D) -> (..., D).

    Raises:
        ValueError: a size below one or an unknown activation.
    """

    def __init__(self, width: int, hidden: int, activation: str = "silu") -> None:
        super().__init__()
        self.width, self.hidden = at_least("width", width), at_least("hidden", hidden)
        self.activation = one_of("activation", activation, ACTIVATIONS)
        self.up = nn.Linear(width, hidden)
        self.gate = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.down(ACTIVATIONS[self.activation](self.up(h)) * self.gate(h))


class GaussianProcessRegressor(nn.Module):
    """Linear -> affine LayerNorm -> one block -> Linear, to one number (CEM, Table 3).

    ``block`` maps (..., width) to (..., width): PlainMLP, GatedMLP or EnergyMLP.

    Shape: (..., num_inputs) -> (...,).

    Raises:
        ValueError: a size below one, or a block built for another width.
    """

    def __init__(self, block: nn.Module, num_inputs: int = 10, width: int = 64) -> None:
        super().__init__()
        self.num_inputs, self.width = at_least("num_inputs", num_inputs), at_least("width", width)
        block_width = getattr(block, "width", width)
        if block_width != width:
            raise ValueError(f"width is {width}, but the block was built with width {block_width}: make them equal")
        self.input = nn.Linear(num_inputs, width)
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.block = block
        self.output = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.block(self.norm(self.input(x)))).squeeze(-1)


def _uniform(rows: int, columns: int, scale: float) -> nn.Parameter:
    bound = scale / math.sqrt(columns)
    return nn.Parameter(torch.empty(rows, columns).uniform_(-bound, bound))

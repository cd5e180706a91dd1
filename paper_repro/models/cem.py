"""CEM, "Recasting Transformer layers as energy models": attention and MLP as steps down an energy of each token.

Legend: B sequences, J tokens, D width, K heads, Y = D/K, m hidden width, S inner steps (the paper's T), R recorded
steps, r rank of the preconditioners; ``...`` for the tokens, such as (B, J).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.errors import at_least, one_of, positive
from paper_repro.models.common import KeyValueCache, Positions, check_heads
from paper_repro.models.descent import Trajectory, descend

try:
    from paper_repro.kernels.tied_attention import descend as descend_attention
except ImportError:  # the same, slower
    from paper_repro.models.common import descend_attention  # type: ignore[assignment]

# What attention and MLP share: S steps down an energy, and the preconditioner of a step.

PRECONDITIONERS = ("none", "diagonal", "diagonal_low_rank")
STARTS = ("raw", "normed")


class Preconditioner(nn.Module):
    """The preconditioner of a step is P = diag(softplus(sqrt(D) p)) + U V^T + V U^T (CEM, equation 13, appendix D.4).

    ``diagonal`` is p, (D,); ``left`` is U and ``right`` is V, (D, r), at first N(0, 0.02) and zero.  The paper's P > 0
    holds only while U V^T + V U^T is small against the diagonal: nothing enforces it.

    Args:
        width, rank: D, and r; ``default_rank`` if None.
        stack: leading dimensions of p, U and V, for one P each, such as (K,) for K heads.
        diagonal_init: of d = sqrt(D) p.  At the paper's 1 (p = 1/sqrt(D)), the default, P starts at softplus(1) =
            1.313; at log(e - 1) = 0.5413 it starts at the identity.
    """

    def __init__(
        self,
        kind: str,
        width: int,
        rank: int | None,
        default_rank: int,
        stack: tuple[int, ...],
        diagonal_init: float | None,
    ) -> None:
        super().__init__()
        self.kind, self.width, self.rank = one_of("preconditioner", kind, PRECONDITIONERS), width, 0
        low_rank = kind == "diagonal_low_rank"
        for name, value, read in (
            ("rank", rank, low_rank),
            ("preconditioner_diagonal", diagonal_init, kind != "none"),
        ):
            if value is not None and not read:
                raise ValueError(f"{name}={value} has no effect with preconditioner={kind!r}: leave it out")
        if kind != "none":
            diagonal = 1.0 if diagonal_init is None else float(diagonal_init)
            self.diagonal = nn.Parameter(torch.full((*stack, width), diagonal / math.sqrt(width)))
        if low_rank:
            self.rank = at_least("rank", default_rank if rank is None else rank)
            if self.rank > width:
                raise ValueError(f"rank must lie between 0 (diagonal only) and the width {width}, got {self.rank}")
            self.left = nn.Parameter(torch.randn(*stack, width, self.rank) * 0.02)
            self.right = nn.Parameter(torch.zeros(*stack, width, self.rank))

    def fold(self, matrix: Tensor) -> Tensor:
        """Return matrix P, (..., *stack, m, D) as ``matrix``: m r D multiply-adds once, not for every token."""
        if self.kind == "none":
            return matrix
        diagonal = functional.softplus(math.sqrt(self.width) * self.diagonal).unsqueeze(-2)  # (*stack, 1, D)
        folded = matrix * diagonal  # (..., *stack, m, D)
        if self.rank:
            folded = folded + (matrix @ self.left) @ self.right.mT  # (m, D) (D, r) (r, D)
            folded = folded + (matrix @ self.right) @ self.left.mT
        return folded

    def extra_repr(self) -> str:
        return f"width={self.width}, rank={self.rank}"


class CEMPart(nn.Module):
    """A part of a block that takes S steps down an energy of its own: x <- x + eta update(x, h) (CEM, Algorithm 1).

    A subclass defines ``energy`` of every token, (...,), for u and h (..., D), and ``update``, (..., D), what a step
    adds at x and h (..., D), before eta; it may define ``all_steps``.  RMSNorm(x) = x / rms(x) * g, with one learnable
    g, (D,), stands for ``norm_context``: h = RMSNorm(stream), else h = stream; and for ``norm_inside``: u = RMSNorm(x),
    else u = x; the gradient is taken at u and added to x, without the chain rule through the norm.

    ``start``: x_0 is the stream ("raw", with which S = 1, P = I is a weight-tied pre-norm block) or h ("normed",
    Algorithm 1 read literally, which loses the residual stream).  D, S and eta are width, num_steps and step_size.
    """

    energy: Callable[[Tensor, Tensor], Tensor]
    update: Callable[[Tensor, Tensor], Tensor]
    norm_eps = 1e-6
    """Added to the mean square under the root."""

    def __init__(
        self, width: int, num_steps: int, norm_context: bool, norm_inside: bool, start: str, step_size: float
    ) -> None:
        super().__init__()
        self.width, self.num_steps = at_least("width", width), at_least("num_steps", num_steps)
        self.norm_context, self.norm_inside = norm_context, norm_inside
        self.start = one_of("start", start, STARTS)
        if start == "normed" and not norm_context:
            raise ValueError("start='normed' has no effect without norm_context=True: set that, or start='raw'")
        self.norm_weight = nn.Parameter(torch.ones(width)) if norm_context or norm_inside else None
        self.step_size = positive("step_size", step_size)

    def context(self, stream: Tensor) -> Tensor:
        """Return h, (..., D): the stream, normed with ``norm_context``; it stays fixed during the descent."""
        return self._rms_norm(stream) if self.norm_context else stream

    def point(self, x: Tensor) -> Tensor:
        """Return u, (..., D), at which the gradient is taken: x, normed with ``norm_inside``."""
        return self._rms_norm(x) if self.norm_inside else x

    def first(self, stream: Tensor, context: Tensor) -> Tensor:
        """Return x_0, (..., D)."""
        return context if self.start == "normed" else stream

    def stepper(self, context: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map from one state to the next, (..., D) -> (..., D), at the context h, (..., D)."""
        return lambda x: x + self.step_size * self.update(x, context)

    def all_steps(self, x: Tensor, context: Tensor, num_steps: int) -> Tensor:
        """Return the last state, (..., D), from x_0 and h."""
        step = self.stepper(context)
        for _ in range(num_steps):
            x = step(x)  # (..., D)
        return x

    def final(self, stream: Tensor, num_steps: int | None = None) -> Tensor:
        """Return the last state, (..., D), of a descent from ``stream``, (..., D), by S steps."""
        count = self.num_steps if num_steps is None else at_least("num_steps", num_steps)
        context = self.context(stream)  # (..., D)
        return self.all_steps(self.first(stream, context), context, count)

    def final_energy(self, stream: Tensor, last: Tensor) -> Tensor:
        """Return the energy, (...,), of the state that ``final`` found, at u, where the gradient is taken."""
        return self.energy(self.point(last), self.context(stream))

    def trace(self, stream: Tensor) -> Trajectory[Tensor]:
        """Descend with the states, (S + 1, ..., D), and the energies at u, (S + 1, ...), of all steps."""
        context, every = self.context(stream), range(self.num_steps + 1)
        step = self.stepper(context)
        return descend(
            lambda x, index: step(x),
            self.first(stream, context),
            self.num_steps,
            energy=lambda x: self.energy(self.point(x), context),
            energies_at=every,
            states_at=every,
        )

    def _rms_norm(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (self.width,), self.norm_weight, self.norm_eps)

    def extra_repr(self) -> str:
        return (
            f"width={self.width}, num_steps={self.num_steps}, norm_context={self.norm_context}, "
            f"norm_inside={self.norm_inside}, start={self.start}"
        )


# Attention: steps on the interaction energy.

DIAGONALS = ("none", "shared", "per_head")
TEMPERATURES = ("head", "model")
SLOPES = ("press", "powers", "none")
DEFAULT_RANK = 4


def press_slopes(num_heads: int) -> list[float]:
    """Return ALiBi's slopes m_k, K of them (Press et al. 2022): 2^(-8k/K) for a power of two; for another K those of
    the next lower power of two, then every second one of the next higher.
    """
    lower = 2 ** int(math.log2(num_heads))
    found = [2 ** (-8 * k / lower) for k in range(1, lower + 1)]
    between = [2 ** (-8 * k / (2 * lower)) for k in range(1, 2 * lower + 1, 2)]
    return found + between[: num_heads - lower]


class CEMAttention(CEMPart):
    """Attention that takes S preconditioned gradient steps on CEM's interaction energy.

    It is (CEM, equations 1, 4, 12 to 14, 16; Algorithm 1)

        epsilon(u_i | h) = -tau sum_k log sum_{j<=i} exp(s_ijk)
        s_ijk = (k_jk . q_ik + h_j . (d_k * u_i)) / tau - m_k (i - j) + (b_self where i = j, else b_cross)
        x <- x + eta sum_k P_k W^Q_k^T sum_j softmax_j(s_ijk) k_jk,   q = W^Q u,  k = W^K h: also the values

    Keys, h and the folded matrices W^Q_k P_k are computed once.  Where ``value_diagonal`` is false, as in Algorithm 1,
    a diagonal is in the scores alone, and the update is not minus the energy's gradient; with it
    d_k * sum_j softmax_j(s_ijk) h_j is added before P_k (equation 12 in 2), and it is.

    Args:
        width, num_heads, num_steps: D, K, S.
        diagonal: "none", "shared" by the heads, (D,), or "per_head", (K, D); it starts at 0.
        temperature: tau = sqrt(Y) ("head", which makes standard attention the special case that the text claims) or
            sqrt(D) ("model", the paper's letter).
        slopes: ALiBi's m_k: "press", "powers" (2^-k: appendix B read literally) or "none", with which b_self and
            b_cross, learned from 0, are absent too.
        preconditioner, rank (4 if None), preconditioner_diagonal: of P_k, see ``Preconditioner``.
        norm_context, norm_inside, start, step_size: see ``CEMPart``.
        init_std: both matrices start N(0, init_std).

    Shape: (B, J, D) -> (B, J, D).
    """

    takes_cache = True
    slopes: Tensor | None

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_steps: int = 1,
        diagonal: str = "shared",
        value_diagonal: bool = False,
        temperature: str = "head",
        slopes: str = "press",
        preconditioner: str = "none",
        rank: int | None = None,
        preconditioner_diagonal: float | None = None,
        norm_context: bool = True,
        norm_inside: bool = True,
        start: str = "raw",
        step_size: float = 1.0,
        init_std: float = 0.02,
    ) -> None:
        super().__init__(width, num_steps, norm_context, norm_inside, start, step_size)
        self.num_heads = check_heads(width, num_heads)
        self.diagonal_kind = one_of("diagonal", diagonal, DIAGONALS)
        if value_diagonal and diagonal == "none":
            raise ValueError("value_diagonal=True has no effect with diagonal='none': choose shared or per_head")
        self.value_diagonal = value_diagonal
        one_of("temperature", temperature, TEMPERATURES)
        self.tau = math.sqrt(width if temperature == "model" else width // num_heads)
        self.query_weight = nn.Parameter(torch.empty(width, width))
        self.key_weight = nn.Parameter(torch.empty(width, width))
        for weight in (self.query_weight, self.key_weight):
            nn.init.normal_(weight, std=positive("init_std", init_std))
        if diagonal != "none":
            shape = (width,) if diagonal == "shared" else (num_heads, width)
            self.diagonal = nn.Parameter(torch.zeros(shape))
        one_of("slopes", slopes, SLOPES)
        self.bias_self = self.bias_cross = None
        if slopes != "none":
            self.bias_self, self.bias_cross = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        powers = [2.0**-k for k in range(1, num_heads + 1)]
        values = {"press": torch.tensor(press_slopes(num_heads)), "powers": torch.tensor(powers), "none": None}
        self.register_buffer("slopes", values[slopes], persistent=False)
        self.preconditioner = Preconditioner(
            preconditioner, width, rank, DEFAULT_RANK, (num_heads,), preconditioner_diagonal
        )

    def energy(self, u: Tensor, context: Tensor) -> Tensor:
        """Compute epsilon(u_i | h_1 ... h_i), (B, J), for u and h (B, J, D) (CEM, equations 1 and 12, appendix B)."""
        keys = self._heads(context, self.key_weight)  # (B, K, J, Y)
        log_sums = torch.logsumexp(self._scores(u, context, keys), -1)  # (B, K, J)
        return -self.tau * log_sums.sum(1)  # (B, J)

    def update(self, x: Tensor, context: Tensor) -> Tensor:
        """Compute sum_k P_k (W^Q_k^T sum_j a_ijk k_jk [+ d_k * sum_j a_ijk h_j]), (B, J, D) (equation 14)."""
        return self._update(x, context, self._heads(context, self.key_weight))

    def _update(self, x: Tensor, context: Tensor, keys: Tensor) -> Tensor:
        """Compute ``update`` at the last tokens' x, (B, T, D), with keys (B, K, J, Y) of all."""
        weights = torch.softmax(self._scores(self.point(x), context, keys), -1)  # (B, K, T, J)
        read = torch.matmul(weights, keys)  # (B, K, T, Y)
        written = read.transpose(1, 2).flatten(2) @ self._writing_weight()  # (B, J, K Y) -> (B, J, D)
        if not self.value_diagonal:
            return written
        along = torch.matmul(weights, context.unsqueeze(1)) * self._diagonals()  # (B, K, J, D)
        return written + self.preconditioner.fold(along).sum(1)  # (B, K, J, D) -> (B, J, D)

    def forward(self, stream: Tensor, tables: object = None, cache: KeyValueCache | None = None) -> Tensor:
        if cache is None:
            return self.final(stream)
        own = self.context(stream)  # (B, T, D)
        context, keys = cache.extend(own, self._heads(own, self.key_weight))  # (B, J, D), (B, K, J, Y)
        if context.shape[1] == stream.shape[1]:
            return self.final(stream)
        x = self.first(stream, own)
        for _ in range(self.num_steps):
            x = x + self.step_size * self._update(x, context, keys)  # (B, T, D)
        return x

    def all_steps(self, x: Tensor, context: Tensor, num_steps: int) -> Tensor:
        if self.diagonal_kind == "per_head" or self.value_diagonal:
            return super().all_steps(x, context, num_steps)
        return descend_attention(
            x,
            self._heads(context, self.key_weight).transpose(1, 2),  # (B, J, K, Y)
            self.query_weight,
            self._writing_weight(),
            context * self.diagonal if self.diagonal_kind == "shared" else None,
            self.norm_weight if self.norm_inside else None,
            self._positions(),
            num_steps=num_steps,
            step_size=self.step_size,
            tau=self.tau,
            norm_eps=self.norm_eps,
        )

    def _positions(self) -> Positions | None:
        if self.slopes is None or self.bias_self is None or self.bias_cross is None:
            return None
        return Positions(self.slopes, self.bias_self, self.bias_cross)

    def _heads(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, K, J, Y)

    def _diagonals(self) -> Tensor:
        """Return d_k, (1 or K, 1, D)."""
        return self.diagonal.view(-1, 1, self.width)

    def _scores(self, u: Tensor, context: Tensor, keys: Tensor) -> Tensor:
        """Compute s_ijk of the last T tokens, (B, K, T, J), from u (B, T, D); minus infinity where j > i."""
        scores = torch.matmul(self._heads(u, self.query_weight), keys.mT)
        if self.diagonal_kind != "none":
            scaled = u.unsqueeze(1) * self._diagonals()  # (B, 1 or K, T, D)
            scores = scores + torch.matmul(scaled, context.unsqueeze(1).mT)  # (B, K, T, J)
        scores = scores / self.tau
        place = torch.arange(context.shape[1], device=u.device)  # (J,)
        distance = place[-u.shape[1] :].unsqueeze(1) - place  # (T, J)
        if (positions := self._positions()) is not None:
            scores = scores - positions.slopes.view(-1, 1, 1) * distance
            scores = scores + torch.where(distance == 0, positions.bias_self, positions.bias_cross)
        return scores.masked_fill(distance < 0, -torch.inf)

    def _writing_weight(self) -> Tensor:
        """Return W^Q_k P_k of all heads, (D, D)."""
        if self.preconditioner.kind == "none":
            return self.query_weight
        by_head = self.query_weight.unflatten(0, (self.num_heads, -1))  # (K, Y, D)
        return self.preconditioner.fold(by_head).flatten(0, 1)  # (K, Y, D) -> (D, D)

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, diagonal={self.diagonal_kind}, value_diagonal={self.value_diagonal}, "
            f"tau={self.tau:g}, {super().extra_repr()}"
        )


# The MLP: steps on the element-wise energy.

DEFAULT_MLP_RANK = 16

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)
_LI2_COEFFICIENTS = tuple(b / math.factorial(2 * k + 1) for k, b in enumerate(_BERNOULLI, start=1))


def silu_potential(x: Tensor) -> Tensor:
    """Compute phi(x) = x softplus(x) + Li2(-e^x), the integral of SiLU from minus infinity (CEM, below equation 11).

    For t <= 0 and s = softplus(t), Li2(-e^t) = -s - s^2/4 - sum_k B_2k s^(2k+1) / (2k+1)!; s <= log 2, so nine terms
    reach the last bit.  Positive x follow from phi(x) + phi(-x) = x^2/2 - pi^2/6.  Plain operations, so autograd
    differentiates it to any order.

    Accuracy: in float64 within 2e-15 relative for x <= 0 and 2e-15 max(1, phi) for x > 0.
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
    """Compute phi(x) = ((x^2 - 1) Phi(x) + x pdf(x)) / 2, the integral of the exact GELU from minus infinity; in
    float64 within 1e-15 max(1, phi).
    """
    cumulative = torch.special.erfc(-x / math.sqrt(2)) / 2
    density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return ((x * x - 1) * cumulative + x * density) / 2


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": functional.silu, "gelu": functional.gelu}
POTENTIALS = {"silu": silu_potential, "gelu": gelu_potential}


class CEMMLP(CEMPart):
    """An MLP that takes S preconditioned gradient steps on xi(x | h) = -gamma . phi(V x) with gamma = W h.

    It is (CEM, equations 7, 8, 13, 15, 17)

        x <- x + eta P V^T (gamma * act(V u)),  act = phi'

    ``context_weight`` is W (HF Llama: up_proj), ``reading_weight`` is V (gate_proj, tied with down_proj), both (m, D)
    and without bias.  P is folded into V once per forward.

    Args:
        width, hidden, num_steps: D, m, S.
        norm_context, norm_inside, start: see ``CEMPart``.
        activation: "silu" (Algorithm 1) or "gelu" (exact).
        preconditioner, rank (16 if None), preconditioner_diagonal: of P, see ``Preconditioner``.
        step_size: eta.
        init_std: W and V start N(0, init_std); None: uniform in +-1 / sqrt(D).

    Shape: (..., D) -> (..., D).
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
        step_size: float = 1.0,
        init_std: float | None = None,
    ) -> None:
        super().__init__(width, num_steps, norm_context, norm_inside, start, step_size)
        self.hidden = at_least("hidden", hidden)
        self.activation = one_of("activation", activation, ACTIVATIONS)
        bound = 1 / math.sqrt(width)
        self.context_weight = nn.Parameter(torch.empty(hidden, width).uniform_(-bound, bound))
        self.reading_weight = nn.Parameter(torch.empty(hidden, width).uniform_(-bound, bound))
        if init_std is not None:
            for weight in (self.context_weight, self.reading_weight):
                nn.init.normal_(weight, std=positive("init_std", init_std))
        self.preconditioner = Preconditioner(preconditioner, width, rank, DEFAULT_MLP_RANK, (), preconditioner_diagonal)

    def energy(self, u: Tensor, context: Tensor) -> Tensor:
        """Compute xi(u | h) = -gamma . phi(V u), (...,), for u and h (..., D) (CEM, equation 7)."""
        gamma = functional.linear(context, self.context_weight)  # (..., m)
        read = functional.linear(u, self.reading_weight)  # (..., m)
        return -(gamma * POTENTIALS[self.activation](read)).sum(-1)  # (...,)

    def update(self, x: Tensor, context: Tensor) -> Tensor:
        """Compute P V^T (gamma * act(V u)), (..., D): -P times the gradient of the energy at u (equation 15)."""
        return self._update(x, functional.linear(context, self.context_weight), self._writing_weight())

    def forward(self, stream: Tensor) -> Tensor:
        return self.final(stream)

    def stepper(self, context: Tensor) -> Callable[[Tensor], Tensor]:
        gamma, writing = functional.linear(context, self.context_weight), self._writing_weight()  # (..., m), (m, D)
        return lambda x: x + self.step_size * self._update(x, gamma, writing)

    def _writing_weight(self) -> Tensor:
        return self.preconditioner.fold(self.reading_weight)  # (m, D)

    def _update(self, x: Tensor, gamma: Tensor, writing: Tensor) -> Tensor:
        read = functional.linear(self.point(x), self.reading_weight)  # (..., D) -> (..., m)
        return torch.matmul(gamma * ACTIVATIONS[self.activation](read), writing)  # (..., D)

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}, activation={self.activation}, {super().extra_repr()}"


# The regressors of one block that Table 3 compares (appendix E).


class PlainMLP(nn.Module):
    """The plain baseline of CEM's Table 3 computes h + W_down act(W_up h + b) + b', (..., D) -> (..., D)."""

    gated = False

    def __init__(self, width: int, hidden: int, activation: str = "silu") -> None:
        super().__init__()
        self.width, self.hidden = at_least("width", width), at_least("hidden", hidden)
        self.activation = one_of("activation", activation, ACTIVATIONS)
        self.up = nn.Linear(width, hidden)
        self.gate = nn.Linear(width, hidden) if self.gated else None
        self.down = nn.Linear(hidden, width)

    def forward(self, h: Tensor) -> Tensor:
        read = ACTIVATIONS[self.activation](self.up(h))  # (..., m)
        return h + self.down(read if self.gate is None else read * self.gate(h))  # (..., D)


class GatedMLP(PlainMLP):
    """The gated baseline, h + W_down (act(W_up h) * (W_gate h)), each matrix with a bias (CEM, equation 6)."""

    gated = True


class GaussianProcessRegressor(nn.Module):
    """A regressor maps its inputs to one number by Linear, affine LayerNorm, one block, Linear (CEM, Table 3).

    ``block`` maps (..., width) to (..., width): PlainMLP, GatedMLP or CEMMLP; the whole (..., num_inputs) -> (...,).
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
        h = self.norm(self.input(x))  # (..., num_inputs) -> (..., width)
        return self.output(self.block(h)).squeeze(-1)  # (...,)

"""What CEM's attention and MLP share: S steps down an energy, and the preconditioner of a step.

Legend: D width, S inner steps (the paper's T), R recorded steps, r rank of the preconditioner, m rows of a matrix, and
``...`` for the tokens, such as (B, J).
"""

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.arguments import at_least, one_of, positive
from paper_repro.models.descent import Trajectory, descend

PRECONDITIONERS = ("none", "diagonal", "diagonal_low_rank")
STARTS = ("raw", "normed")
PRECONDITIONER_DIAGONAL = 1.0
PRECONDITIONER_STD = 0.02


class Preconditioner(nn.Module):
    """The preconditioner of a step is P = diag(softplus(sqrt(D) p)) + U V^T + V U^T (CEM, equation 13, appendix D.4).

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
        rank: int,
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
        """Build the preconditioner that a config names: "none" (P = I), "diagonal" or "diagonal_low_rank".

        A rank, ``diagonal_init`` or ``init_std`` of None takes the default.

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
        """Return matrix P, (..., *stack, m, D) as ``matrix``: m r D multiply-adds once, not for every token."""
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

    A subclass defines ``energy`` and ``update``, and may define ``all_steps``.  RMSNorm(x) = x / rms(x) * g, with one
    learnable g, (D,), stands for:

    * ``norm_context``: h = RMSNorm(stream), else h = stream;
    * ``norm_inside``: u = RMSNorm(x), else u = x; the gradient is taken at u and added to x, without the chain rule
      through the norm;

    and ``start``: x_0 is the stream ("raw", with which S = 1, P = I is a weight-tied pre-norm block) or h ("normed",
    Algorithm 1 read literally, which loses the residual stream).

    Args:
        width: D.
        num_steps: S.
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
        """Compute the energy of every token, (...,), for u and h (..., D)."""
        raise NotImplementedError(f"{type(self).__name__} must say what its energy is")

    def update(self, x: Tensor, context: Tensor) -> Tensor:
        """Compute what a step adds at x, (..., D), before eta."""
        raise NotImplementedError(f"{type(self).__name__} must say what its update is")

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

    def all_steps(self, x: Tensor, context: Tensor, num_steps: int) -> Tensor | None:
        """Take all steps in one op: the last state, (..., D), from x_0 and h; None where there is no such op."""
        return None

    def descend(
        self,
        stream: Tensor,
        num_steps: int | None = None,
        *,
        energies_at: Collection[int] = (),
        states_at: Collection[int] = (),
    ) -> Trajectory[Tensor]:
        """Descend from ``stream``, (..., D); what only asks for the last step goes through ``all_steps``.

        Args:
            stream: what the block hands on to this part.
            num_steps: S of this descent; the part's own if None.
            energies_at, states_at: the steps at which energies, (R, ...), and states, (R, ..., D), are recorded.  The
                energy of x is the one at u, where the gradient is taken.

        Raises:
            ValueError: ``num_steps`` < 1.
        """
        count = self.num_steps if num_steps is None else at_least("num_steps", num_steps)
        context = self.context(stream)  # (..., D)
        start = self.first(stream, context)  # (..., D)
        if not states_at and all(number == count for number in energies_at):
            last = self.all_steps(start, context, count)
            if last is not None:
                energies = self.energy(self.point(last), context).unsqueeze(0) if energies_at else None  # (1, ...)
                return Trajectory(last, count, energies=energies)
        step = self.stepper(context)
        return descend(
            lambda x, index, draws: step(x),
            start,
            count,
            energy=lambda x: self.energy(self.point(x), context),
            energies_at=energies_at,
            states_at=states_at,
        )

    def trace(self, stream: Tensor) -> Trajectory[Tensor]:
        """Descend with the states, (S + 1, ..., D), and the energies, (S + 1, ...), of all steps."""
        every = range(self.num_steps + 1)
        return self.descend(stream, energies_at=every, states_at=every)

    def _rms_norm(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (self.width,), self.norm_weight, self.norm_eps)

    def extra_repr(self) -> str:
        return (
            f"width={self.width}, num_steps={self.num_steps}, norm_context={self.norm_context}, "
            f"norm_inside={self.norm_inside}, start={self.start}"
        )

"""CEM, "Recasting Transformer layers as energy models": attention as gradient steps on the interaction energy.

Legend: B sequences, J tokens, D width, K heads, Y = D/K head width, S inner steps (the paper's T), r rank of the
preconditioners.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.arguments import one_of, positive
from paper_repro.kernels import tied_attention
from paper_repro.models.causal import KeyValueCache
from paper_repro.models.cem.part import CEMPart, Preconditioner
from paper_repro.models.descent import descend
from paper_repro.models.gpt import check_heads

DIAGONALS = ("none", "shared", "per_head")
TEMPERATURES = ("head", "model")
SLOPES = ("press", "powers", "none")
DEFAULT_RANK = 4


def press_slopes(num_heads: int) -> list[float]:
    """Return ALiBi's slopes m_k, K of them (Press et al. 2022): 2^(-8k/K) for a power of two.

    For another K they are those of the next lower power of two, then every second one of the next higher.
    """
    lower = 2 ** int(math.log2(num_heads))
    found = [2 ** (-8 * k / lower) for k in range(1, lower + 1)]
    between = [2 ** (-8 * k / (2 * lower)) for k in range(1, 2 * lower + 1, 2)]
    return found + between[: num_heads - lower]


def power_slopes(num_heads: int) -> list[float]:
    """Return 2^-k, k = 1 ... K: what the paper's appendix B says literally; with 12 heads down to 2^-12."""
    return [2.0**-k for k in range(1, num_heads + 1)]


class CEMAttention(CEMPart):
    """Attention that takes S preconditioned gradient steps on CEM's interaction energy.

    It is (CEM, equations 1, 4, 12 to 14, 16; Algorithm 1)

        epsilon(u_i | h) = -tau sum_k log sum_{j<=i} exp(s_ijk)
        s_ijk = (k_jk . q_ik + h_j . (d_k * u_i)) / tau - m_k (i - j) + (b_self where i = j, else b_cross)
        x <- x + eta sum_k P_k W^Q_k^T sum_j softmax_j(s_ijk) k_jk,   q = W^Q u,  k = W^K h: also the values

    Keys, h and the folded matrices W^Q_k P_k are computed once.  ``norm_context``, ``norm_inside`` and ``start`` as in
    ``CEMPart``.  The defaults are the weight-tied pre-norm attention of the text (one step, no preconditioner) with
    the shared diagonal.

    Where ``value_diagonal`` is false, as in Algorithm 1, a diagonal is in the scores alone, and the update is not minus
    the energy's gradient; with it d_k * sum_j softmax_j(s_ijk) h_j is added before P_k (equation 12 in 2), and it is.

    Args:
        width, num_heads: D, K.
        num_steps: S.
        diagonal: "none", "shared" by the heads, (D,), or "per_head", (K, D); it starts at ``diagonal_init``.
        value_diagonal: see above; needs a diagonal.
        temperature: tau = sqrt(Y) ("head", which makes standard attention the special case that the text claims) or
            sqrt(D) ("model", the paper's letter).
        slopes: ALiBi's m_k: "press", "powers" (2^-k) or "none", with which b_self and b_cross, learned from 0, are
            absent too.
        preconditioner, rank: P_k, see ``Preconditioner``: "none", "diagonal", "diagonal_low_rank" (r = 4 if None).
        preconditioner_diagonal, preconditioner_std: its ``diagonal_init`` and ``init_std``; its defaults if None.
        norm_context, norm_inside, start, step_size, norm_eps: see ``CEMPart``.
        init_std: both matrices start N(0, init_std).

    Shape: (B, J, D) -> (B, J, D); rotary tables, which other attentions read, have no effect.

    Raises:
        ValueError: an argument out of range, heads that do not divide D, a rank above D, an unknown word, or an option
            that the others leave without effect.
    """

    takes_cache = True
    slopes: Tensor | None

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_steps: int = 1,
        diagonal: str = "shared",
        diagonal_init: float = 0.0,
        value_diagonal: bool = False,
        temperature: str = "head",
        slopes: str = "press",
        preconditioner: str = "none",
        rank: int | None = None,
        preconditioner_diagonal: float | None = None,
        preconditioner_std: float | None = None,
        norm_context: bool = True,
        norm_inside: bool = True,
        start: str = "raw",
        step_size: float = 1.0,
        norm_eps: float = 1e-6,
        init_std: float = 0.02,
    ) -> None:
        super().__init__(width, num_steps, norm_context, norm_inside, start, step_size, norm_eps)
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
            self.diagonal = nn.Parameter(torch.full(shape, float(diagonal_init)))
        elif diagonal_init:
            raise ValueError("diagonal_init has no effect with diagonal='none': leave it out")
        self._set_up_positions(slopes)
        self.preconditioner = Preconditioner.of(
            preconditioner, width, rank, DEFAULT_RANK, (num_heads,), preconditioner_diagonal, preconditioner_std
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
        folded = along if self.preconditioner is None else self.preconditioner.fold(along)  # (B, K, J, D)
        return written + folded.sum(1)  # (B, J, D)

    def forward(self, stream: Tensor, tables: object = None, cache: KeyValueCache | None = None) -> Tensor:
        if cache is None:
            return self.descend(stream).state
        own = self.context(stream)  # (B, T, D)
        context, keys = cache.extend(own, self._heads(own, self.key_weight))  # (B, J, D), (B, K, J, Y)
        if context.shape[1] == stream.shape[1]:
            return self.descend(stream).state
        return descend(
            lambda x, index, draws: x + self.step_size * self._update(x, context, keys),  # (B, T, D)
            self.first(stream, own),
            self.num_steps,
        ).state

    def all_steps(self, x: Tensor, context: Tensor, num_steps: int) -> Tensor | None:
        if self.diagonal_kind == "per_head" or self.value_diagonal:
            return None
        return tied_attention.descend(
            x,
            self._heads(context, self.key_weight).transpose(1, 2),  # (B, J, K, Y)
            self.query_weight,
            self._writing_weight(),
            context * self.diagonal if self.diagonal_kind == "shared" else None,
            self.norm_weight if self.norm_inside else None,
            num_steps=num_steps,
            step_size=float(self.step_size),
            tau=self.tau,
            norm_eps=self.norm_eps,
            slopes=self.slopes,
            bias_self=self.bias_self,
            bias_cross=self.bias_cross,
        )

    def _set_up_positions(self, slopes: str) -> None:
        one_of("slopes", slopes, SLOPES)
        self.bias_self = self.bias_cross = None
        if slopes != "none":
            self.bias_self, self.bias_cross = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        drawn = {"press": press_slopes, "powers": power_slopes}.get(slopes)
        values = None if drawn is None else torch.tensor(drawn(self.num_heads))
        self.register_buffer("slopes", values, persistent=False)

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
        positions = torch.arange(context.shape[1], device=u.device)  # (J,)
        distance = positions[-u.shape[1] :].unsqueeze(1) - positions  # (T, J)
        if self.slopes is not None and self.bias_self is not None and self.bias_cross is not None:
            scores = scores - self.slopes.view(-1, 1, 1) * distance
            scores = scores + torch.where(distance == 0, self.bias_self, self.bias_cross)
        return scores.masked_fill(distance < 0, -torch.inf)

    def _writing_weight(self) -> Tensor:
        """Return W^Q_k P_k of all heads, (D, D)."""
        if self.preconditioner is None:
            return self.query_weight
        by_head = self.query_weight.unflatten(0, (self.num_heads, -1))  # (K, Y, D)
        return self.preconditioner.fold(by_head).flatten(0, 1)  # (K, Y, D) -> (D, D)

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, diagonal={self.diagonal_kind}, value_diagonal={self.value_diagonal}, "
            f"tau={self.tau:g}, {super().extra_repr()}"
        )

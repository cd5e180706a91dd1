"""nGPT, the Transformer on the hypersphere (arXiv 2410.01131), and the GPT that it is held against.

Legend: B sequences, T tokens, V vocabulary, P block length, D width, H heads, Y = D/H, M hidden width, L layers;
unit(x) = x / |x| over the last dimension.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from paper_repro.base.errors import at_least, one_of
from paper_repro.models.common import KeyValueCache, RotaryTables, check_heads, project_rows_, riemannian_step, unit
from paper_repro.models.llama import (
    INIT_STD,
    GatedFeedForward,
    Llama,
    PreNorm,
    Reading,
    RotaryAttention,
    RotaryLanguageModel,
    Scale,
    ScaleSpec,
)

try:
    from paper_repro.kernels.sphere_step import sphere_step
except ImportError:  # the same, slower
    from paper_repro.models.common import sphere_step  # type: ignore[assignment]

UPDATES = {"lerp": sphere_step, "riemannian": riemannian_step}
SIGNS = ("absolute", "signed")
Spec = ScaleSpec | Mapping[str, Any]

ALPHA = ScaleSpec("vector", 0.05, "1/sqrt(d)")
S_QK = ScaleSpec("vector", 1.0, "1/sqrt(d)")
S_MLP = ScaleSpec("vector", 1.0, 1.0)
S_Z = ScaleSpec("vector", 1.0, "1/sqrt(d)")


class BaselineGPT(Llama):
    """The paper's GPT: RMSNorm, rotary positions, SwiGLU, no biases (nGPT, section 2 and table 2).

    Matrices start N(0, init_std), those that write to the state N(0, init_std / sqrt(2 L)).

    Args:
        num_layers, hidden_factor: L, M / D.
        qk_norm: normalise queries and keys as nGPT does (unit norm, times s_qk, scores times sqrt(Y)), and change
            nothing else: what nGPT's speedup has to be held against, ours and not in the paper.
        s_qk, rope, storage: see NGPT and RotaryLanguageModel.
        init_std: the paper's at its widths.
    """

    def __init__(
        self,
        vocabulary_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden_factor: int = 4,
        qk_norm: bool = False,
        s_qk: Spec = S_QK,
        init_std: float = INIT_STD,
        rope: str = "textbook",
        storage: str = "float32",
    ) -> None:
        writing_std = init_std / math.sqrt(2 * at_least("num_layers", num_layers))
        spec = ScaleSpec.of("s_qk", s_qk)
        softmax_scale = (width // check_heads(width, num_heads)) ** (0.5 if qk_norm else -0.5)

        def attention(width: int, num_heads: int) -> PreNorm:
            scale = Scale(spec, width, width) if qk_norm else None
            branch = RotaryAttention(width, num_heads, init_std, writing_std, scale, qk_norm, softmax_scale)
            return PreNorm(branch, width)

        def feed_forward(width: int, hidden: int) -> PreNorm:
            return PreNorm(GatedFeedForward(width, hidden, init_std, writing_std, None), width)

        hidden = at_least("hidden_factor", hidden_factor) * width
        sizes = vocabulary_size, block_length, width, num_heads, num_layers, hidden
        super().__init__(*sizes, attention, feed_forward, rope, init_std, storage)


class NormalizedBlock(nn.Module):
    """h <- unit(h + alpha_A (unit(ATTN h) - h)), then the same with MLP and alpha_M (nGPT, equations 10 and 11).

    The published code normalises the h that a branch is added to once more.  Behind another block that changes neither
    values nor gradients; on the embeddings it takes the radial part out of their gradient: the ``first`` block does it.
    """

    def __init__(
        self,
        attention: RotaryAttention,
        attention_rate: Scale,
        feed_forward: GatedFeedForward,
        feed_forward_rate: Scale,
        update: Callable[[Tensor, Tensor, Tensor], Tensor],
        first: bool,
    ) -> None:
        super().__init__()
        self.attention, self.attention_rate = attention, attention_rate
        self.feed_forward, self.feed_forward_rate = feed_forward, feed_forward_rate
        self.update, self.first = update, first

    def forward(self, h: Tensor, tables: RotaryTables, cache: KeyValueCache | None = None) -> Tensor:
        start = unit(h) if self.first else h  # (B, T, D)
        h = self.update(start, self.attention(h, tables, cache), self.attention_rate())  # (B, T, D), rates (D,) or (1,)
        return self.update(h, self.feed_forward(h), self.feed_forward_rate())  # (B, T, D)


class NGPT(RotaryLanguageModel):
    """The normalized Transformer: states, tables and every matrix's vectors along D have unit norm (nGPT, section 2.6).

    The matrices are unit when the model is made and have to be made so again after every optimiser step: the
    parameters of ``unit_row_parameters()`` belong in a group with ``unit_rows: true`` (training.optim).  Shared
    between u and nu, one number for both scales has an effect; on u alone it has none, the branch being normalised.

    Args:
        num_layers, hidden_factor: L, M / D.
        alpha_A, alpha_M, s_qk: the eigen learning rates, and on queries and keys: D numbers for each layer or one.
        s_u, s_nu: on both halves of the MLP's hidden layer, M numbers each or one; s_u None: the same numbers as s_nu.
        s_z: on the logits, V numbers or one.
        alpha_sign: "absolute": |alpha| is used; "signed": alpha (appendix A.2).
        update: "lerp", or "riemannian": the step along the tangent (equations 25 and 26; not in the published code).
        qk_norm: whether queries and keys are made unit vectors; table 6 leaves it out and keeps s_qk and sqrt(Y).
        rope, storage: see RotaryLanguageModel.
    """

    def __init__(
        self,
        vocabulary_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden_factor: int = 4,
        alpha_A: Spec = ALPHA,
        alpha_M: Spec = ALPHA,
        s_qk: Spec = S_QK,
        s_u: Spec | None = S_MLP,
        s_nu: Spec = S_MLP,
        s_z: Spec = S_Z,
        alpha_sign: str = "absolute",
        update: str = "lerp",
        qk_norm: bool = True,
        rope: str = "textbook",
        storage: str = "float32",
    ) -> None:
        std = at_least("width", width) ** -0.5
        super().__init__(vocabulary_size, block_length, width, num_heads, rope, std, storage)
        writing_std = std / math.sqrt(2 * at_least("num_layers", num_layers))
        hidden = at_least("hidden_factor", hidden_factor) * width
        absolute = one_of("alpha_sign", alpha_sign, SIGNS) == "absolute"
        step = partial(UPDATES[one_of("update", update, UPDATES)], absolute=absolute)
        given = {"alpha_A": alpha_A, "alpha_M": alpha_M, "s_qk": s_qk, "s_nu": s_nu, "s_z": s_z}
        given |= {} if s_u is None else {"s_u": s_u}
        specs = {name: ScaleSpec.of(name, spec) for name, spec in given.items()}

        def scale(name: str, size: int) -> Scale:
            return Scale(specs[name], size, width)

        def block(index: int) -> NormalizedBlock:
            nu, sizes = scale("s_nu", hidden), (std, writing_std)
            attention = RotaryAttention(
                width, num_heads, *sizes, scale("s_qk", width), qk_norm, softmax_scale=self.head_width**0.5
            )
            feed_forward = GatedFeedForward(width, hidden, *sizes, (nu if s_u is None else scale("s_u", hidden), nu))
            rates = scale("alpha_A", width), scale("alpha_M", width)
            return NormalizedBlock(attention, rates[0], feed_forward, rates[1], step, first=index == 0)

        self.blocks = nn.ModuleList(map(block, range(num_layers)))
        self.scale_z = scale("s_z", vocabulary_size)
        self._store_matrices()
        self.project()

    def logit_scale(self) -> Tensor:
        return self.scale_z()  # (V,) or (1,)

    def unit_row_parameters(self) -> list[Tensor]:
        """Return both tables and every matrix of the blocks; all are stored with D last."""
        matrices = [part.weight for part in self.modules() if isinstance(part, Reading)]  # (outputs, D) each
        return [self.token_embedding.weight, *matrices]

    def project(self) -> None:
        """Make every row of ``unit_row_parameters()`` a unit vector, computed in float32 or finer."""
        for parameter in self.unit_row_parameters():
            project_rows_(parameter)

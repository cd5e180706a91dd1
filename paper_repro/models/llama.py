"""Llama, of parts that can be exchanged: blocks of an attention and a feed-forward part, each from stream to stream.

Legend: B sequences, J tokens, V vocabulary, P block length, D width, K heads, m hidden width, L layers.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from paper_repro.base.arguments import at_least, positive
from paper_repro.kernels.qk_rotary import RotaryTables
from paper_repro.models.cem.part import CEMPart
from paper_repro.models.rotary import GatedFeedForward, RotaryAttention, RotaryLanguageModel

INIT_STD = 0.02
NORM_EPS = 1e-6
Part = Callable[..., nn.Module]


class PreNorm(nn.Module):
    """x <- x + branch(RMSNorm(x)), ``num_passes`` times with the same weights; (B, J, D) -> (B, J, D).

    More than one pass is the plain layer reuse of CEM's figures 3c and 4.  What follows the stream goes to the branch.

    Raises:
        ValueError: ``num_passes`` < 1.
    """

    def __init__(self, branch: nn.Module, width: int, num_passes: int = 1, norm_eps: float = NORM_EPS) -> None:
        super().__init__()
        self.num_passes = at_least("num_passes", num_passes)
        self.norm = nn.RMSNorm(width, eps=norm_eps)
        self.branch = branch

    def forward(self, stream: Tensor, *read: Any) -> Tensor:
        for _ in range(self.num_passes):
            stream = stream + self.branch(self.norm(stream), *read)  # (B, J, D)
        return stream

    def extra_repr(self) -> str:
        return f"num_passes={self.num_passes}"


def rotary_attention(width: int, num_heads: int, num_passes: int = 1, init_std: float = INIT_STD) -> PreNorm:
    """Build Llama's attention: rotary positions, no biases, scores over sqrt(D/K); 4 D^2 numbers and a norm."""
    scale = (width // num_heads) ** -0.5 if num_heads else 0.0
    branch = RotaryAttention(width, num_heads, init_std, init_std, None, False, scale)
    return PreNorm(branch, width, num_passes)


def gated_feed_forward(width: int, hidden: int, num_passes: int = 1, init_std: float = INIT_STD) -> PreNorm:
    """Build Llama's SwiGLU, without biases; 3 D m numbers and a norm."""
    branch = GatedFeedForward(width, hidden, init_std, init_std, None)
    return PreNorm(branch, width, num_passes)


class Block(nn.Module):
    """Attention, then feed-forward, each of which maps the stream (B, J, D) to the next."""

    def __init__(self, attention: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward

    def forward(self, stream: Tensor, tables: RotaryTables) -> Tensor:
        found: Tensor = self.feed_forward(self.attention(stream, tables))  # (B, J, D)
        return found

    def trace(self, stream: Tensor, tables: RotaryTables, num_steps: int) -> "LlamaTrace":
        """Compute the next stream with ``num_steps`` inner steps, and the energies of the parts that descend."""
        found: dict[str, list[Tensor]] = {}
        for name, part in self.named_children():
            if isinstance(part, CEMPart):
                descent = part.descend(stream, num_steps, energies_at=(num_steps,))
                found[name], stream = [descent.energies[-1]], descent.state
            else:
                stream = part(stream, tables) if part is self.attention else part(stream)
        return LlamaTrace(stream, found)


class LlamaTrace(NamedTuple):
    """The end of a forward pass with a given number of inner steps, and its energies."""

    state: Tensor
    """The last stream, (B, J, D)."""
    energies: dict[str, list[Tensor]]
    """Every layer's energies at the last inner step, (B, J), by the name of the part in the block."""


class Llama(RotaryLanguageModel):
    """Embeddings, L blocks, RMSNorm, an output table of its own (CEM, table 1 and appendix D).

    Args:
        vocabulary_size, block_length, width, num_heads, rope, storage: see RotaryLanguageModel.
        num_layers: L.
        hidden: m.
        attention: called with (width=D, num_heads=K) for every layer: ``rotary_attention``, ``CEMAttention``, or
            anything that maps (stream, rotary tables) to the next stream.
        feed_forward: called with (width=D, hidden=m): ``gated_feed_forward``, ``CEMMLP``, or anything that maps the
            stream to the next.
        init_std: both tables start N(0, init_std).

    Shape: ids (B, J) -> logits (B, J, V).

    Raises:
        ValueError: as RotaryLanguageModel and the parts, or an ``init_std`` that is not positive.
    """

    def __init__(
        self,
        vocabulary_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden: int,
        attention: Part,
        feed_forward: Part,
        rope: str = "textbook",
        init_std: float = INIT_STD,
        storage: str = "float32",
    ) -> None:
        std = positive("init_std", init_std)
        super().__init__(vocabulary_size, block_length, width, num_heads, rope, std, storage)
        at_least("hidden", hidden)
        self.blocks = nn.ModuleList(
            Block(attention(width=width, num_heads=num_heads), feed_forward(width=width, hidden=hidden))
            for _ in range(at_least("num_layers", num_layers))
        )
        self.final_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self._store_matrices()

    def normalized(self, x: Tensor) -> Tensor:
        found: Tensor = self.final_norm(x)  # (B, J, D)
        return found

    def descents(self) -> Iterator[CEMPart]:
        """Return the parts that descend an energy, the first layer's first."""
        parts = (part for block in self.blocks for part in block.children())
        return (part for part in parts if isinstance(part, CEMPart))

    def trace(self, ids: Tensor, num_steps: int) -> LlamaTrace:
        """Compute the final states of ids, (B, J), with ``num_steps`` inner steps in every part that descends.

        Raises:
            ValueError: ``num_steps`` < 1, or ids as in ``embed``.
        """
        state, found = self.embed(ids), dict[str, list[Tensor]]()
        for block in self.blocks:
            assert isinstance(block, Block)
            state, energies = block.trace(state, self.tables(), num_steps)  # (B, J, D)
            for name, own in energies.items():
                found.setdefault(name, []).extend(own)
        return LlamaTrace(state, found)

    def set_inner_steps(self, number: int) -> None:
        """Let every part that descends make ``number`` steps from now on, whatever it was trained with (section 5.2).

        Raises:
            ValueError: ``number`` < 1, or no such part.
        """
        parts = list(self.descents())
        if not parts:
            raise ValueError("no part descends an energy: choose attention=cem or feed_forward=cem")
        for part in parts:
            part.num_steps = at_least("num_steps", number)

"""Video with EBT's trunk: each frame is one position, and its state is the frame's latent numbers (EBT, B.1 and D.2).

Legend: B clips, T frames, V numbers of a frame's latent, D width, N predictions for each clip.
"""

from torch import Tensor, nn

from paper_repro.base.arguments import at_least
from paper_repro.models.ebt.model import AutoregressiveEBT
from paper_repro.models.ebt.steps import Energies
from paper_repro.models.ebt.trunk import NORM_EPS, Projection, Trunk


def checked(latents: Tensor, state_size: int, block_length: int) -> Tensor:
    """Return latents (B, T, V) if a model can read them.

    Raises:
        ValueError: another shape, or more frames than the model's block length.
    """
    if latents.ndim != 3 or latents.shape[2] != state_size or not 1 <= latents.shape[1] <= block_length:
        raise ValueError(
            f"latents must have the shape (B, T, {state_size}) with T from 1 to {block_length}, got "
            f"{tuple(latents.shape)}"
        )
    return latents


class LatentEBT(AutoregressiveEBT):
    """EBT on frames: a candidate is the latent of the next frame, and observed frames enter as candidates do, W x + b.

    Arguments and errors are those of ``AutoregressiveEBT``; EBT's ``step_size`` on video is 30,000.
    """

    continuous = True

    def add_embeddings(self, state_size: int, width: int) -> None:
        self.prediction_embedding = Projection(at_least("state_size", state_size), width, biased=True)

    def embed(self, context: Tensor) -> Tensor:
        """Return W x + b, (B, T, D), of latents x, (B, T, V); errors as ``checked``."""
        found: Tensor = self.prediction_embedding(checked(context, self.state_size, self.block_length))  # (B, T, D)
        return found

    def energies(self, context: Tensor, last: int | None = None) -> Energies:
        of_embedded = super().energies(context, last)
        return lambda candidates, landscape: of_embedded(self.prediction_embedding.shifted(candidates), landscape)


class LatentTransformer(nn.Module):
    """The baseline, Transformer++ on frames: W x + b, the trunk, and two products to the next frame's latent.

    Args:
        state_size, block_length: V, and the most frames of a context.
        width, num_heads, num_layers, hidden, norm_eps: see Trunk.

    Shape: latents (B, T, V) -> (B, T, V), of the frame that follows each.

    Raises:
        ValueError: sizes as Trunk; latents as ``checked``.
    """

    def __init__(
        self,
        state_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden: int | None = None,
        norm_eps: float = NORM_EPS,
    ) -> None:
        super().__init__()
        self.state_size, self.block_length = at_least("state_size", state_size), at_least("block_length", block_length)
        self.embedding = Projection(state_size, at_least("width", width), biased=True)
        self.trunk = Trunk(width, num_heads, num_layers, hidden, norm_eps, block_length=block_length)
        self.output = nn.Sequential(Projection(width, width), Projection(width, state_size, biased=True))

    def forward(self, latents: Tensor) -> Tensor:
        states = self.trunk(self.embedding(checked(latents, self.state_size, self.block_length)))  # (B, T, D)
        found: Tensor = self.output(states)  # (B, T, V)
        return found

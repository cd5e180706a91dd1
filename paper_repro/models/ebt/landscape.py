"""What tells EBT's energy landscapes apart: nothing, a token that all rows see, or a modulation of all layers.

Training may give each step of a prediction a landscape of its own (EBT's code: mcmc_num_steps landscapes).

Legend: B sequences, T tokens, D width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.arguments import at_least
from paper_repro.models.ebt.trunk import Projection


class OneLandscape(nn.Module):
    """All steps descend the same energy (EBT's code: "default")."""

    lead = 0
    """How many rows the observed stream has before its first token."""
    modulated = False
    num_landscapes = 1

    def rows(self, observed: Tensor, landscape: int) -> Tensor:
        """Return the observed stream (B, lead + T, D) of the tokens' embeddings (B, T, D)."""
        return observed

    def condition(self, landscape: int) -> Tensor | None:
        """Return what modulates the trunk, SiLU(c), (1, D), or None."""
        return None

    def close(self, trunk: nn.Module, energy_head: Projection) -> None:
        """Set to zero what starts at zero: nothing here."""


class StepToken(OneLandscape):
    """A learned token for each landscape stands first in the observed stream ("time_embed"); every row sees it."""

    lead = 1

    def __init__(self, num_landscapes: int, width: int) -> None:
        super().__init__()
        self.num_landscapes = at_least("num_landscapes", num_landscapes)
        self.embedding = nn.Embedding(num_landscapes, width)

    def rows(self, observed: Tensor, landscape: int) -> Tensor:
        token = self.embedding.weight[landscape].expand(observed.shape[0], 1, -1)  # (B, 1, D)
        return torch.cat([token, observed], 1)  # (B, 1 + T, D)


class StepModulation(OneLandscape):
    """A learned vector for each landscape modulates every block and the final norm ("adaln")."""

    modulated = True

    def __init__(self, num_landscapes: int, width: int) -> None:
        super().__init__()
        self.num_landscapes = at_least("num_landscapes", num_landscapes)
        self.embedding = nn.Embedding(num_landscapes, width)

    def condition(self, landscape: int) -> Tensor | None:
        return functional.silu(self.embedding.weight[landscape : landscape + 1])  # (1, D)


class ZeroStepModulation(StepModulation):
    """The same, whose modulations and energy head start at zero: every branch starts closed ("adaln_zero")."""

    def close(self, trunk: nn.Module, energy_head: Projection) -> None:
        nn.init.zeros_(energy_head.weight)
        close_modulations(trunk)


def close_modulations(trunk: nn.Module) -> None:
    """Set all modulations of a trunk to zero: every branch starts closed."""
    for module in trunk.modules():
        if isinstance(module, nn.Linear):  # the trunk's other products are ``Projection``s
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)


VARIANTS: dict[str, type[OneLandscape]] = {
    "default": OneLandscape,
    "time_embed": StepToken,
    "adaln": StepModulation,
    "adaln_zero": ZeroStepModulation,
}


def landscapes(variant: str, num_landscapes: int, width: int) -> OneLandscape:
    """Build the landscapes of a variant.

    Raises:
        ValueError: a variant with one landscape is asked for several, or ``num_landscapes`` < 1.
    """
    kind = VARIANTS[variant]
    if kind is not OneLandscape:
        return kind(num_landscapes, width)
    if at_least("num_landscapes", num_landscapes) > 1:
        known = ", ".join(name for name in VARIANTS if name != variant)
        raise ValueError(f"variant={variant} has one landscape, got num_landscapes={num_landscapes}: take {known}")
    return OneLandscape()

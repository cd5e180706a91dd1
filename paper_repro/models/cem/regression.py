"""CEM, appendix E: the regressors of one block that Table 3 compares."""

from torch import Tensor, nn

from paper_repro.base.arguments import at_least, one_of
from paper_repro.kernels.cem_mlp import ACTIVATIONS


class PlainMLP(nn.Module):
    """The plain baseline of CEM's Table 3 computes h + W_down act(W_up h + b) + b'.

    Shape: (..., D) -> (..., D).

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
        return h + self.down(ACTIVATIONS[self.activation](self.up(h)))  # (..., D) -> (..., m) -> (..., D)


class GatedMLP(nn.Module):
    """The gated baseline of CEM's Table 3 computes h + W_down (act(W_up h) * (W_gate h)), each matrix with a bias.

    The letters are those of CEM's equation 6.

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
        gated = ACTIVATIONS[self.activation](self.up(h)) * self.gate(h)  # (..., m)
        return h + self.down(gated)  # (..., D)


class GaussianProcessRegressor(nn.Module):
    """A regressor maps its inputs to one number by Linear, affine LayerNorm, one block, Linear (CEM, Table 3).

    ``block`` maps (..., width) to (..., width): PlainMLP, GatedMLP or CEMMLP.

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
        h = self.norm(self.input(x))  # (..., num_inputs) -> (..., width)
        return self.output(self.block(h)).squeeze(-1)  # (...,)

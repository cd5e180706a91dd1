"""What every op with a backward pass of its own says when it is differentiated further than it can be."""

from typing import Any, NoReturn

from torch import Tensor
from torch.autograd import Function


class FirstOrder(Function):
    """An op with first derivatives in reverse mode only.

    A forward pass derives from it and its ``backward`` applies a second one, which leaves ``backward`` as it stands
    here: a second derivative then raises, where a plain ``backward`` would give the derivative of something else.

    Raises:
        NotImplementedError: a second derivative of the second, a forward-mode derivative of either.
    """

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        _refuse(ctx)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        _refuse(ctx)


def _refuse(ctx: Any) -> NoReturn:
    raise NotImplementedError(
        f"{type(ctx).__name__.removesuffix('Backward')} has first derivatives in reverse mode only: "
        "pass implementation='reference' for second or forward-mode derivatives"
    )

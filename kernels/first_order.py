"""Ops with backward passes of their own, and what they say when they are differentiated further than they can be."""

from typing import Any, ClassVar, NoReturn

from torch import Tensor
from torch.autograd import Function


def _refusing(has: str, further: str, order: int) -> Any:
    """Return what raises instead of a derivative of the order that is missing."""

    def refuse(ctx: Any, *given: Tensor | None) -> NoReturn:
        raise NotImplementedError(
            f"{type(ctx).__name__.removesuffix('Backward')} has {has} derivatives in reverse mode only: "
            f"compute it within paper_repro.kernels.dispatch.differentiable(order={order}), or pass "
            f"implementation='reference', for {further} or forward-mode derivatives"
        )

    return staticmethod(refuse)


class FirstOrder(Function):
    """An op with first derivatives in reverse mode only.

    A forward pass derives from it, and its ``backward`` applies a second one, which leaves ``backward`` as it is here:
    a second derivative then raises, where a plain ``backward`` would give the derivative of something else.

    Raises:
        NotImplementedError: a second derivative of the second, a forward-mode derivative of either.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing: nothing is differentiated."""

    backward = jvp = _refusing("first", "second", 2)


class SecondOrder(FirstOrder):
    """An op with first and second derivatives in reverse mode only.

    Its forward pass, its backward pass and the backward pass of that derive from it, each applies the next, and the
    last leaves ``backward`` as it stands.

    Raises:
        NotImplementedError: a third derivative, or a forward-mode derivative of any of them.
    """

    backward = jvp = _refusing("first and second", "third", 3)


class WithGradient(FirstOrder):
    """A pass from tensors (or None), then options, to its results, then what is kept for the way back.

    A subclass names its ``gradient``: that is applied to the gradients of the results, the tensors, the results if it
    ``keeps_results``, what was kept, the options and, if it is ``selective``, which arguments need a gradient.  It
    returns the gradients of the tensors, or of the first of them.
    """

    gradient: ClassVar[type[FirstOrder]]
    num_results: ClassVar[int] = 1
    keeps_results: ClassVar[bool] = False
    selective: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            kept = outputs[cls.num_results :]
            tensors = [value for value in inputs if value is None or isinstance(value, Tensor)]
            ctx.options = inputs[len(tensors) :]
            ctx.mark_non_differentiable(*(value for value in kept if value is not None))
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*tensors, *(outputs if cls.keeps_results else kept))

        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            given, count = gradients[: cls.num_results], len(ctx.needs_input_grad)
            if all(gradient is None for gradient in given):
                return (None,) * count
            needs = (ctx.needs_input_grad,) if cls.selective else ()
            found = cls.gradient.apply(*given, *ctx.saved_tensors, *ctx.options, *needs)
            return *found, *(None for _ in range(count - len(found)))

        super().__init_subclass__()
        cls.setup_context = staticmethod(setup_context)  # type: ignore[method-assign]
        cls.backward = staticmethod(backward)


class Stackable(FirstOrder):
    """An op on a stack of E models, dimension 0 of every tensor, with which the dimension of vmap is joined."""

    def __init_subclass__(cls) -> None:
        def over_models(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
            found = cls.apply(*(joined(info.batch_size, *pair) for pair in zip(arguments, in_dims, strict=True)))
            return tuple(one.unflatten(0, (info.batch_size, -1)) for one in found), (0,) * len(found)

        super().__init_subclass__()
        cls.vmap = staticmethod(over_models)  # type: ignore[method-assign]


def joined(size: int, value: Any, dim: int | None) -> Any:
    """Return a tensor whose first dimension is that of vmap, ``dim``, of this size, and its own; else the value."""
    if not isinstance(value, Tensor):
        return value
    return (value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)).flatten(0, 1)

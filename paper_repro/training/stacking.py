"""The parameters of many same-shape models in one matrix, and an optimiser over its rows.

Legend: S models, P columns.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paper_repro.base.errors import UsageError
from paper_repro.training.module import PaperModule
from paper_repro.training.schedules import Schedule
from paper_repro.training.unit_adam import UnitAdamW
from paper_repro.training.unit_rows import keep_unit_rows

ALIGNMENT = 16
"""Columns per parameter are rounded up to this many, so that every view starts on a 64-byte boundary (float32)."""

ELEMENT_WISE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
"""Optimisers of torch.optim for which a whole row of parameters is the same as the parameters one by one.

So it is for UnitAdamW, and for none of them where rows are kept at unit norm.
"""


@dataclass(frozen=True)
class Layout:
    """Which columns of a row hold which parameter; the parameters of one group are neighbours."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    starts: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    """Positions in ``names``, group by group, in the order of the columns."""
    width: int

    def stop(self, index: int) -> int:
        """Return the column after the parameter and its padding."""
        return self.starts[index + 1] if index + 1 < len(self.starts) else self.width

    def view(self, matrix: Tensor, index: int) -> Tensor:
        """Return parameter ``index`` of every row, (S, *shape), sharing memory with ``matrix``, (S, P)."""
        start, shape = self.starts[index], self.shapes[index]
        return matrix[:, start : start + shape.numel()].view(len(matrix), *shape)

    def state_dict(self) -> dict[str, Any]:
        return {"names": list(self.names), "shapes": [list(shape) for shape in self.shapes], "width": self.width}


def layout_of(modules: Sequence[PaperModule]) -> Layout:
    """Return the layout that all of ``modules`` share.

    Raises:
        UsageError: they differ in type, in the names, shapes or types of parameters and buffers, or in their groups; or
            a parameter that is trained stands in no group.
    """
    first = _description(modules[0])
    for index, module in enumerate(modules):
        for found, expected in zip(_description(module), first, strict=True):
            if found != expected:
                raise UsageError(
                    f"model {index} of the batch differs from model 0: {_difference(found, expected)}; only models of "
                    "one shape are trained together: leave this key out of machine.stack.over"
                )
    parameters = dict(modules[0].named_parameters())
    groups = group_names(modules[0])
    names = tuple(name for group in groups for name in group)
    trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
    if sorted(names) != sorted(trained):
        odd = sorted(set(names) ^ set(trained))
        raise UsageError(
            f"parameter_groups() and the parameters with requires_grad differ in {', '.join(odd) or names}"
        )
    starts, column = [], 0
    for name in names:
        starts.append(column)
        column += -(-parameters[name].numel() // ALIGNMENT) * ALIGNMENT
    ends = [sum(len(group) for group in groups[: index + 1]) for index in range(len(groups))]
    positions = tuple(tuple(range(end - len(group), end)) for end, group in zip(ends, groups, strict=True))
    return Layout(names, tuple(parameters[name].shape for name in names), tuple(starts), positions, column)


def group_names(module: PaperModule) -> list[list[str]]:
    """Return the names of the parameters in each of the module's groups."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in module.parameter_groups()]


class StackedOptimizer:
    """The config's own optimiser over the rows of ``values``, each model with its options and its schedule.

    Models with equal options and schedule share a parameter group of the optimiser, which costs less time and changes
    nothing: no optimiser lets one parameter see another.  Fused kernels are used where the optimiser has them.

    Args:
        values, gradients: (S, P); the optimiser reads the second and writes the first.

    Raises:
        UsageError: the models' optimisers are of different classes, or of one that wants a closure.
    """

    def __init__(self, modules: Sequence[PaperModule], layout: Layout, values: Tensor, gradients: Tensor) -> None:
        make, keywords = _maker(modules[0])
        groups: dict[str, dict[str, Any]] = {}
        self._schedules: list[Schedule] = []
        for row, module in enumerate(modules):
            own_make, own = _maker(module)
            if own_make is not make:
                names = f"{make.__name__} and {own_make.__name__}"
                raise UsageError(f"models trained together need one optimiser class, found {names}")
            triples = zip(layout.groups, *module.groups_and_schedules(), strict=True)
            for index, (positions, group, schedule) in enumerate(triples):
                if not positions:
                    continue
                options = {**own, **{key: value for key, value in group.items() if key != "params"}}
                key = repr((index, sorted(options.items()), schedule))
                if key not in groups:
                    groups[key] = {"params": [], **options}
                    self._schedules.append(schedule)
                whole = _element_wise(make) and not options.get("unit_rows")
                groups[key]["params"] += _pieces(whole, layout, values[row], gradients[row], positions)
        self.optimizer = make(list(groups.values()), **_with_fused(make, keywords, values.device))
        keep_unit_rows(self.optimizer)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def step(self, step: int, steps: int) -> None:
        """Take one update with the learning rates of step ``step`` (0-based) of ``steps``."""
        for group, rate, schedule in zip(self.optimizer.param_groups, self._rates, self._schedules, strict=True):
            group["lr"] = rate * schedule.factor(step, steps)
        self.optimizer.step()


def _element_wise(make: Callable[..., Any]) -> bool:
    return make in {UnitAdamW, *(getattr(torch.optim, name) for name in ELEMENT_WISE)}


def _pieces(whole: bool, layout: Layout, row: Tensor, grad: Tensor, positions: Sequence[int]) -> list[Tensor]:
    if whole:
        columns = slice(layout.starts[positions[0]], layout.stop(positions[-1]))
        pairs = [(row[columns], grad[columns])]
    else:
        pairs = [(layout.view(row[None], index)[0], layout.view(grad[None], index)[0]) for index in positions]
    for piece, gradient in pairs:
        piece.grad = gradient
    return [piece for piece, _ in pairs]


def _maker(module: PaperModule) -> tuple[Callable[..., Optimizer], dict[str, Any]]:
    make = getattr(module.optimizer, "func", module.optimizer)
    if make is torch.optim.LBFGS:
        raise UsageError("LBFGS evaluates the loss several times a step: train these cells one by one")
    return make, dict(getattr(module.optimizer, "keywords", {}))


def _with_fused(make: Callable[..., Any], keywords: dict[str, Any], device: torch.device) -> dict[str, Any]:
    takes = inspect.signature(make).parameters
    chosen = {"fused", "foreach", "differentiable"} & keywords.keys()
    if "fused" in takes and not chosen and device.type in ("cpu", "cuda"):
        return {**keywords, "fused": True}
    return keywords


def _description(module: PaperModule) -> tuple[Any, ...]:
    def tensors(items: Any) -> list[str]:
        return [f"{name} {tuple(t.shape)} {t.dtype}{' trained' * t.requires_grad}" for name, t in items]

    return (
        [f"module {type(module).__qualname__}"],
        tensors(module.named_parameters()),
        tensors(module.named_buffers()),
        [f"groups {group_names(module)}"],
        [f"layer {name} {child.extra_repr()}" for name, child in module.named_modules()],
    )


def _difference(found: list[str], expected: list[str]) -> str:
    odd = [item for item in found if item not in expected][:1] or ["nothing"]
    wanted = [item for item in expected if item not in found][:1] or ["nothing"]
    return f"found {odd[0]}, expected {wanted[0]}"


class LossOf(nn.Module):
    """A module whose forward is ``loss_and_carry``, for ``functional_call``; names begin with ``module.``."""

    def __init__(self, module: PaperModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any, draws: Any, carry: Any) -> tuple[Tensor, Any]:
        return self.module.loss_and_carry(batch, draws, carry)

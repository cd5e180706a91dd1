"""Many small models of one shape trained at once, each as if it were alone: they share each kernel launch.

Their parameters are the rows of one matrix, (S models, P columns).
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from paper_repro.base.errors import UsageError, first_line
from paper_repro.base.identity import mix
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.common import causal_attention
from paper_repro.training.module import PaperModule
from paper_repro.training.optim import UnitAdamW, keep_unit_rows
from paper_repro.training.schedules import Schedule
from paper_repro.training.steps import Compute
from paper_repro.training.tensors import map_tensors, place, stack, tensors_of

PRECISIONS: dict[str, torch.dtype] = {
    "32-true": torch.float32,
    "64-true": torch.float64,
    "bf16-true": torch.bfloat16,
    "bf16-mixed": torch.float32,
}
CLIP_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""
ALIGNMENT = 16
"""Columns per parameter are rounded up to this many, so that every view starts on a 64-byte boundary (float32)."""
ELEMENT_WISE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
"""Optimisers of torch.optim that, as UnitAdamW, update a whole row of parameters as they update them one by one."""
MASKS = "dropout masks"
"""Their name among the draws of a step."""


class Dropout(TorchFunctionMode):
    """Has dropout multiply by the given masks, one a call; without masks it drops nothing and notes what is asked for.

    Under vmap dropout would draw one mask for all models, or masks that no model draws alone.
    """

    def __init__(self, masks: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.asked: list[tuple[torch.Size, torch.dtype, float]] = []
        """Shape and dtype of each input, for one model, and the share of it that is dropped."""
        self._masks = None if masks is None else iter(masks)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout:
            return self._dropped(*args, **kwargs)
        if func is functional.scaled_dot_product_attention and kwargs.get("dropout_p") and kwargs.get("is_causal"):
            query, key, value = args
            with self:
                return causal_attention(query, key, value, kwargs.get("scale"), kwargs["dropout_p"])
        return func(*args, **kwargs)

    def _dropped(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return input
        if self._masks is not None:
            return input * next(self._masks)
        self.asked.append((input.shape, input.dtype, p))
        return input


class Ensemble:
    """S models, one matrix of parameters, one backward of the summed losses: each model receives its own gradient.

    UsageError: models that cannot be trained together.

    Args:
        modules: of one shape (``layout_of``); they receive their weights in ``unstack``.
        clip_norm: largest gradient norm, per model; None for no clipping.
        graphs: makes CUDA graphs of the computation of losses and gradients (``steps.Graphs``); None: none.
    """

    def __init__(
        self,
        modules: Sequence[PaperModule],
        data: Sequence[CounterBasedDataModule],
        steps: int,
        clip_norm: float | None = None,
        precision: str = "32-true",
        device: torch.device | str = "cpu",
        graphs: Callable[[Compute], Compute] | None = None,
    ) -> None:
        self.device, self.steps, self.clip_norm = torch.device(device), steps, clip_norm
        self.dtype, self._autocast = PRECISIONS[precision], precision == "bf16-mixed"
        self.modules = [module.to(self.device, self.dtype) for module in modules]
        self.data = list(data)
        self.step = 0
        self.layout = layout_of(self.modules)
        self.values = torch.zeros(len(self.modules), self.layout.starts[-1], dtype=self.dtype, device=self.device)
        self._gradients = torch.zeros_like(self.values)
        views = [self.layout.view(self.values, index) for index in range(len(self.layout.names))]
        self._parameters = dict(zip(self.layout.names, views, strict=True))
        each = [_tensors(module) for module in self.modules]
        frozen = [name for name, tensor in each[0].items() if not tensor.requires_grad]
        self._constants = {name: torch.stack([own[name].detach() for own in each]) for name in frozen}
        with torch.no_grad():
            for row, module in enumerate(self.modules):
                for name, view in self._parameters.items():
                    view[row].copy_(module.get_parameter(name))
        self._optimizer, self._schedules = _optimizer(self.modules, self.layout, self.values, self._gradients)
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        self._leaves = [view.requires_grad_() for view in views]
        self._gradient_views = [self.layout.view(self._gradients, index) for index in range(len(views))]
        self._ones = torch.ones(len(self.modules), dtype=torch.float32, device=self.device)
        self._template = _Loss(self.modules[0].train())
        self._losses = torch.func.vmap(self._loss, randomness="error")
        self._carry: Any = None
        self._dropped: dict[Any, list[tuple[torch.Size, torch.dtype, float]]] = {}
        """``Dropout.asked`` for each shape of a batch."""
        self._compute: Compute = self._computed if graphs is None else graphs(self._computed)

    def advance(self) -> Tensor:
        """Take one optimiser step of every model; returns their losses before it, (S,)."""
        each = [data.train_batch(self.step) for data in self.data]
        batch = place(stack(each), self.device, self.dtype)
        pairs = [*zip(self.modules, each, strict=True)]
        draws = stack([module.draws_of(own, self.step, 0, self.device) for module, own in pairs])
        if self._carry is None:
            self._carry = stack([module.initial_carry(place(own, self.device, self.dtype)) for module, own in pairs])
        draws[MASKS] = self._masks(batch, draws)
        losses, self._carry, gradients = self._compute(batch, draws, self._carry)
        torch._foreach_copy_(self._gradient_views, [one for one in gradients if one is not None])
        if self.clip_norm is not None:
            norms = torch.linalg.vector_norm(self._gradients, dim=1, keepdim=True)
            self._gradients.mul_((self.clip_norm / (norms + CLIP_EPSILON)).clamp_(max=1.0))
        for group, rate, schedule in zip(self._optimizer.param_groups, self._rates, self._schedules, strict=True):
            group["lr"] = rate * schedule.factor(self.step, self.steps)
        self._optimizer.step()
        self.step += 1
        return losses

    def _masks(self, batch: Any, draws: Any) -> list[Tensor]:
        """Draw the masks of a step's dropout, (S, ...) each: those that every model draws when it is trained alone."""
        key = tuple(tensor.shape for tensor in tensors_of(batch))
        if key not in self._dropped:
            with torch.no_grad(), self.forward_context(), _refusals_explained(), Dropout() as noted:
                self._losses(self._tensors(), batch, {**draws, MASKS: []}, map_tensors(Tensor.clone, self._carry))
            self._dropped[key] = noted.asked
        each = []
        for module in self.modules if self._dropped[key] else ():
            torch.manual_seed(mix(module.seed, "step", self.step))
            ones = [(torch.ones(shape, dtype=dtype, device=self.device), p) for shape, dtype, p in self._dropped[key]]
            each.append([functional.dropout(one, p) for one, p in ones])
        return stack(each) if each else []

    def _tensors(self) -> dict[str, Tensor]:
        return {f"module.{name}": tensor for name, tensor in (self._parameters | self._constants).items()}

    def _loss(self, tensors: dict[str, Tensor], batch: Any, draws: Any, carry: Any) -> tuple[Tensor, Any]:
        own, masks = {name: draw for name, draw in draws.items() if name != MASKS}, draws[MASKS]
        with Dropout(masks) if masks else contextlib.nullcontext():
            found: tuple[Tensor, Any] = functional_call(self._template, tensors, (batch, own, carry))
        return found

    def _computed(self, batch: Any, draws: Any, carry: Any) -> tuple[Tensor, Any, Any]:
        with self.forward_context(), _refusals_explained():
            losses, carry = self._losses(self._tensors(), batch, draws, carry)
        gradients = torch.autograd.grad(losses, self._leaves, self._ones.to(losses.dtype), allow_unused=True)
        for name, gradient in zip(self.layout.names, gradients, strict=True):
            if gradient is None:
                advice = "set requires_grad=False on it, or train these cells one by one"
                raise UsageError(f"the loss does not depend on {name}: {advice}")
        return losses.detach(), map_tensors(Tensor.detach, carry), gradients

    def unstack(self) -> None:
        """Copy every model's weights and buffers back into its own module."""
        stacked = self._parameters | self._constants
        with torch.no_grad():
            for row, module in enumerate(self.modules):
                for name, tensor in _tensors(module).items():
                    tensor.copy_(stacked[name][row])

    def forward_context(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self._autocast else contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "names": [*self.layout.names],
            "values": self.values,
            "constants": self._constants,
            "optimizer": self._optimizer.state_dict(),
            "carry": self._carry,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, bit for bit on a CPU; UsageError: it is of other parameters."""
        if state["names"] != [*self.layout.names] or state["values"].shape != self.values.shape:
            raise UsageError("the checkpoint is of models with other parameters: delete it to start anew")
        with torch.no_grad():
            self.values.copy_(state["values"])
            for name, tensor in self._constants.items():
                tensor.copy_(state["constants"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self._carry = map_tensors(lambda tensor: tensor.to(self.device, copy=True), state["carry"])
        self.step = int(state["step"])


def _tensors(module: PaperModule) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


@contextlib.contextmanager
def _refusals_explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        reason = f"the loss cannot be computed for many models at once ({first_line(error)})"
        raise UsageError(f"{reason}: train these cells one by one, with machine.stack=null") from error


@dataclass(frozen=True)
class Layout:
    """Which columns of a row hold which parameter; the parameters of one group are neighbours."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    starts: tuple[int, ...]
    """The first column of each parameter, and the number of all columns."""
    groups: tuple[tuple[int, ...], ...]
    """Positions in ``names``, group by group, in the order of the columns."""

    def view(self, matrix: Tensor, index: int) -> Tensor:
        """Return parameter ``index`` of every row, (S, *shape), sharing memory with ``matrix``, (S, P)."""
        start, shape = self.starts[index], self.shapes[index]
        return matrix[:, start : start + shape.numel()].view(len(matrix), *shape)


def layout_of(modules: Sequence[PaperModule]) -> Layout:
    """Return the layout that all of ``modules`` share; UsageError: they differ, or a parameter is in no group."""
    expected = _description(modules[0])
    for index, module in enumerate(modules):
        if odd := sorted({*_description(module)} ^ {*expected}):
            raise UsageError(
                f"model {index} of the batch differs from model 0 ({'; '.join(odd)}); only models of one shape are "
                "trained together: leave this key out of machine.stack.over"
            )
    parameters = dict(modules[0].named_parameters())
    groups = _group_names(modules[0])
    names = tuple(name for group in groups for name in group)
    trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
    if sorted(names) != sorted(trained):
        odd = sorted(set(names) ^ set(trained))
        raise UsageError(
            f"parameter_groups() and the parameters with requires_grad differ in {', '.join(odd) or names}"
        )
    widths = [-(-parameters[name].numel() // ALIGNMENT) * ALIGNMENT for name in names]
    places = iter(range(len(names)))
    positions = tuple(tuple(islice(places, len(group))) for group in groups)
    shapes = tuple(parameters[name].shape for name in names)
    return Layout(names, shapes, tuple(accumulate(widths, initial=0)), positions)


def _group_names(module: PaperModule) -> list[list[str]]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in module.parameter_groups()]


def _optimizer(
    modules: Sequence[PaperModule], layout: Layout, values: Tensor, gradients: Tensor
) -> tuple[Optimizer, list[Schedule]]:
    """Return the config's own optimiser over the rows of ``values`` and ``gradients``, (S, P), fused where it can be,
    and the schedule of each of its groups; UsageError: optimisers of different classes, or LBFGS.

    Models with equal options and schedule share a parameter group.
    """
    make, keywords = _maker(modules[0])
    if make is torch.optim.LBFGS:
        raise UsageError("LBFGS evaluates the loss several times a step: train these cells one by one")
    element_wise = make in {UnitAdamW, *(getattr(torch.optim, name) for name in ELEMENT_WISE)}
    groups: dict[str, dict[str, Any]] = {}
    schedules: list[Schedule] = []
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
                schedules.append(schedule)
            if element_wise and not options.get("unit_rows"):
                columns = slice(layout.starts[positions[0]], layout.starts[positions[-1] + 1])
                pieces = [(values[row, columns], gradients[row, columns])]
            else:
                pieces = [(layout.view(values, at)[row], layout.view(gradients, at)[row]) for at in positions]
            for piece, gradient in pieces:
                piece.grad = gradient
                groups[key]["params"].append(piece)
    if "fused" in inspect.signature(make).parameters and not {"fused", "foreach", "differentiable"} & keywords.keys():
        keywords["fused"] = True
    optimizer = make(list(groups.values()), **keywords)
    keep_unit_rows(optimizer)
    return optimizer, schedules


def _maker(module: PaperModule) -> tuple[Callable[..., Optimizer], dict[str, Any]]:
    return getattr(module.optimizer, "func", module.optimizer), dict(getattr(module.optimizer, "keywords", {}))


def _description(module: PaperModule) -> list[str]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [
        f"module {type(module).__qualname__}",
        *(f"{name} {tuple(own.shape)} {own.dtype}{' trained' * own.requires_grad}" for name, own in tensors),
        f"groups {_group_names(module)}",
        *(f"layer {name} {child.extra_repr()}" for name, child in module.named_modules()),
    ]


class _Loss(nn.Module):
    """A module whose forward is ``loss_and_carry``, for ``functional_call``; names begin with ``module.``."""

    def __init__(self, module: PaperModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any, draws: Any, carry: Any) -> tuple[Tensor, Any]:
        return self.module.loss_and_carry(batch, draws, carry)

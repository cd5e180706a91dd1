"""Many small models of one shape trained at once, each as if it were alone: they share each kernel launch.

Each parameter of all S models is one tensor, (S, ...).
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from paper_repro.training.optim import keep_unit_rows
from paper_repro.training.schedules import Schedule
from paper_repro.training.steps import Compute
from paper_repro.training.tensors import map_tensors, place, stack, tensors_of

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
    """S models, one backward of the summed losses: each model receives its own gradient.

    UsageError: models that cannot be trained together.

    Args:
        modules: of one shape; they receive their weights in ``unstack``.
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
        self.dtype = {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(precision, torch.float32)
        self._autocast = precision == "bf16-mixed"
        self.modules = [module.to(self.device, self.dtype) for module in modules]
        self.data = list(data)
        self.step = 0
        groups = _group_names(self.modules[0])
        each = [_tensors(module) for module in self.modules]
        stacked = {name: torch.stack([own[name].detach() for own in each]) for name in each[0]}  # (S, ...)
        self._parameters = {name: stacked.pop(name).requires_grad_() for group in groups for name in group}
        self._constants = stacked
        self._gradients = {name: torch.zeros_like(own) for name, own in self._parameters.items()}
        self._optimizer, self._schedules = _optimizer(self.modules, groups, self._parameters, self._gradients)
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        self._ones = torch.ones(len(self.modules), dtype=torch.float32, device=self.device)
        self._template = nn.Module()  # for functional_call; its names begin with "module."
        self._template.module = self.modules[0].train()
        self._template.forward = self.modules[0].loss_and_carry
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
        torch._foreach_copy_([*self._gradients.values()], [one for one in gradients if one is not None])
        if self.clip_norm is not None:
            self._clip(self.clip_norm)
        for group, rate, schedule in zip(self._optimizer.param_groups, self._rates, self._schedules, strict=True):
            group["lr"] = rate * schedule.factor(self.step, self.steps)
        self._optimizer.step()
        self.step += 1
        return losses

    def _clip(self, most: float) -> None:
        """Scale the gradients of each model whose norm over all parameters is above ``most``."""
        rows = [own.view(len(own), -1) for own in self._gradients.values()]  # (S, ...) each
        norms = torch.stack([torch.linalg.vector_norm(own, dim=1) for own in rows]).norm(dim=0)  # (S,)
        scale = (most / (norms + 1e-6)).clamp_(max=1.0)  # as torch.nn.utils.clip_grad_norm_
        for own in rows:
            own.mul_(scale[:, None])

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

    def _stacked(self) -> dict[str, Tensor]:
        return self._parameters | self._constants

    def _tensors(self) -> dict[str, Tensor]:
        return {f"module.{name}": tensor for name, tensor in self._stacked().items()}

    def _loss(self, tensors: dict[str, Tensor], batch: Any, draws: Any, carry: Any) -> tuple[Tensor, Any]:
        own, masks = {name: draw for name, draw in draws.items() if name != MASKS}, draws[MASKS]
        with Dropout(masks) if masks else contextlib.nullcontext():
            found: tuple[Tensor, Any] = functional_call(self._template, tensors, (batch, own, carry))
        return found

    def _computed(self, batch: Any, draws: Any, carry: Any) -> tuple[Tensor, Any, Any]:
        with self.forward_context(), _refusals_explained():
            losses, carry = self._losses(self._tensors(), batch, draws, carry)
        leaves, ones = [*self._parameters.values()], self._ones.to(losses.dtype)
        gradients = torch.autograd.grad(losses, leaves, ones, allow_unused=True)
        for name, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is None:
                advice = "set requires_grad=False on it, or train these cells one by one"
                raise UsageError(f"the loss does not depend on {name}: {advice}")
        return losses.detach(), map_tensors(Tensor.detach, carry), gradients

    def unstack(self) -> None:
        """Copy every model's weights and buffers back into its own module."""
        stacked = self._stacked()
        with torch.no_grad():
            for row, module in enumerate(self.modules):
                for name, tensor in _tensors(module).items():
                    tensor.copy_(stacked[name][row])

    def forward_context(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self._autocast else contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tensors": {name: tensor.detach() for name, tensor in self._stacked().items()},
            "optimizer": self._optimizer.state_dict(),
            "carry": self._carry,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, bit for bit on a CPU; UsageError: it is of other parameters."""
        own, found = self._stacked(), state["tensors"]
        if {name: one.shape for name, one in own.items()} != {name: one.shape for name, one in found.items()}:
            raise UsageError("the checkpoint is of models with other parameters: delete it to start anew")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(found[name])
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


def _group_names(module: PaperModule) -> list[list[str]]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = module.parameter_groups()
    return [[names[id(own)] for own in group["params"] if own.requires_grad] for group in groups]


def _optimizer(
    modules: Sequence[PaperModule],
    groups: Sequence[Sequence[str]],
    parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
) -> tuple[Optimizer, list[Schedule]]:
    """Return the config's own optimiser over each model's part of ``parameters`` and ``gradients``, fused where it can
    be, and the schedule of each of its groups; UsageError: optimisers of different classes.

    Models with equal options and schedule share a parameter group.
    """
    make, keywords = _maker(modules[0])
    found: dict[str, dict[str, Any]] = {}
    schedules: list[Schedule] = []
    for row, module in enumerate(modules):
        own_make, own = _maker(module)
        if own_make is not make:
            both = f"{make.__name__} and {own_make.__name__}"
            raise UsageError(f"models trained together need one optimiser class, found {both}")
        triples = zip(groups, *module.groups_and_schedules(), strict=True)
        for index, (names, group, schedule) in enumerate(triples):
            options = {**own, **{key: value for key, value in group.items() if key != "params"}}
            key = repr((index, sorted(options.items()), schedule))
            if key not in found:
                found[key] = {"params": [], **options}
                schedules.append(schedule)
            for name in names:
                part = parameters[name].detach()[row]
                part.grad = gradients[name][row]
                found[key]["params"].append(part)
    if "fused" in inspect.signature(make).parameters and not {"fused", "foreach", "differentiable"} & keywords.keys():
        keywords["fused"] = True
    optimizer = make(list(found.values()), **keywords)
    keep_unit_rows(optimizer)
    return optimizer, schedules


def _maker(module: PaperModule) -> tuple[Callable[..., Optimizer], dict[str, Any]]:
    return getattr(module.optimizer, "func", module.optimizer), dict(getattr(module.optimizer, "keywords", {}))

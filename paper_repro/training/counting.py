"""Counts a model's parameters, the FLOPs of a computation, and the memory of its tensors, without computing them."""

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from paper_repro.base.configs import without_seeds
from paper_repro.base.errors import UsageError
from paper_repro.base.identity import fingerprint
from paper_repro.cells.tasks import Cell, Cost
from paper_repro.kernels.dispatch import launching_nothing
from paper_repro.kernels.preferences import prefer
from paper_repro.training.build import BuiltCell, build
from paper_repro.training.machine import Machine
from paper_repro.training.tensors import map_tensors, tensors_of

ATEN = torch.ops.aten
LAYER_NORM_PER_ELEMENT = 5
"""Multiply-adds of a LayerNorm, as fvcore counts them: the convention of the FLOP column of CEM's Table 3."""
BYTES_PER_PARAMETER = 12
"""The float32 weight and the two moments of Adam; the gradient is among the tensors of a step."""


def _product(*shapes: torch.Size, **_: Any) -> int:
    """Return FLOPs of (..., m, k) @ (..., k, n), the last two shapes; n is missing where the last is a vector."""
    one, two = shapes[-2:]
    return 2 * one.numel() * (two[-1] if len(two) > 1 else 1)


LEFT_OUT = (ATEN.mv, ATEN.dot, ATEN.vdot, ATEN.addmm_, ATEN.baddbmm_, ATEN.addmv, ATEN.addmv_)
"""Products that torch's own counter leaves out: of vectors, and those that write into their first operand."""


def num_parameters(model: nn.Module, leave_out: Collection[str] = (), frozen: bool = False) -> int:
    """Return the model's number of trainable parameters (``frozen``: of all), without the children in ``leave_out``."""
    named = ((name.partition(".")[0], parameter) for name, parameter in model.named_parameters())
    counted = (parameter for child, parameter in named if child not in leave_out)
    return sum(parameter.numel() for parameter in counted if frozen or parameter.requires_grad)


def count_flops(work: Callable[[], object], layer_norm: int = 0) -> int:
    """Return the FLOPs of the matrix products and convolutions that ``work()`` dispatches, two for each multiply-add.

    ``layer_norm`` is the FLOPs for each element of a LayerNorm's input in the forward pass.
    """
    return sum(flops_by_operation(work, layer_norm).values())


def flops_by_operation(work: Callable[[], object], layer_norm: int = 0) -> dict[Any, int]:
    """Return the FLOPs of ``count_flops`` by operation, for example ``torch.ops.aten.mm``."""
    layer_norms = {ATEN.native_layer_norm: lambda shape, *_, **__: layer_norm * shape.numel()}
    counter = FlopCounterMode(display=False, custom_mapping={**dict.fromkeys(LEFT_OUT, _product), **layer_norms})
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]
    with counter:
        work()
    return dict(counter.get_flop_counts().get("Global", {}))


class _NoModules(contextlib.AbstractContextManager[None]):
    """Keeps torch's counter from sorting FLOPs by module, whose hooks fail where a forward pass differentiates."""

    parents = ("Global",)

    def __exit__(self, *_: object) -> None:
        """Nothing was hooked."""


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most bytes of tensors that ``work()`` makes and that live at once."""
    with _Peak() as peak:
        work()
    return peak.bytes


class _Peak(TorchDispatchMode):
    """Follows each storage that an operation makes for as long as it lives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._sum = 0
        # A weak reference keeps the storage's address from being given to another one.
        self._given: dict[int, StorageWeakRef] = {}
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for storage in self._new_storages((args, kwargs)):
            self._given[storage._cdata] = StorageWeakRef(storage)
        out = func(*args, **(kwargs or {}))
        for storage in self._new_storages(out):
            self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
            self._sum += storage.nbytes()
        if self._sum > self.bytes:
            for key in [key for key, (made, _) in self._made.items() if made.expired()]:
                self._sum -= self._made.pop(key)[1]
            self.bytes = max(self.bytes, self._sum)
        return out

    def _new_storages(self, tree: object) -> list[torch.UntypedStorage]:
        found = [value.untyped_storage() for value in tree_leaves(tree) if isinstance(value, Tensor)]
        new = {own._cdata: own for own in found if own._cdata not in self._made and own._cdata not in self._given}
        return [*new.values()]


def measure(config: Mapping[str, Any]) -> Cost:
    """Count one forward pass and one training step of a cell, each shape once a process."""
    built = check(config)
    shapes = [(tuple(one.shape), str(one.dtype)) for one in tensors_of(built.data.example_batch())]
    shape = [without_seeds(config["model"]), without_seeds(config["module"]), shapes]
    machine, precision = built.machine, built.training.precision
    known = fingerprint([*shape, machine.implementation, machine.recompute, machine.on_cpu or precision])
    if known not in _COUNTED:
        _COUNTED[known] = _count(built)
    forward, step, peak = _COUNTED[known]
    parameters = num_parameters(built.module)
    return Cost(
        parameters=parameters,
        multiply_adds=forward // 2,
        step_flops=built.training.accumulate * step,
        steps=built.training.steps,
        memory_bytes=BYTES_PER_PARAMETER * parameters + peak,
    )


_COUNTED: dict[str, tuple[int, int, int]] = {}


def _count(built: BuiltCell) -> tuple[int, int, int]:
    """Return FLOPs of a forward pass, FLOPs of the step of one batch, and the most bytes that live in it."""
    module = built.module
    batch = map_tensors(lambda tensor: tensor.to("meta"), built.data.example_batch())
    on_gpu = not built.machine.on_cpu and module.automatic_optimization  # CET's relaxation has thousands of operations
    with prefer(implementation=built.machine.implementation, recompute=built.machine.recompute):
        with torch.no_grad():
            forward = count_flops(lambda: module.counted(batch), layer_norm=2 * LAYER_NORM_PER_ELEMENT)
        with torch.enable_grad():
            if on_gpu:
                return forward, count_flops(lambda: module.counted_step(batch)), _peak_on_gpu(built)
            peaks: list[int] = []
            step = count_flops(lambda: peaks.append(peak_bytes(lambda: module.counted_step(batch))))
    return forward, step, peaks[0]


def _peak_on_gpu(built: BuiltCell) -> int:
    """Return the most bytes that live in a training step on a GPU: under autocast, by the ways that CUDA takes.

    The tensors are a CPU's without storage, because meta tensors know no autocast and hold the scores of attention.
    """
    module, precision = built.module, built.training.precision
    with FakeTensorMode(allow_non_fake_inputs=True), launching_nothing(), _Undropped():
        _without_storage(module)
        batch = map_tensors(lambda tensor: torch.empty_like(tensor, device="cpu"), built.data.example_batch())
        with prefer(device="cuda"), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            return peak_bytes(lambda: module.counted_step(batch))


def _without_storage(module: nn.Module) -> None:
    """Replace parameters and buffers by such of a CPU, within a FakeTensorMode."""
    made: dict[Tensor, Tensor] = {}
    for child in module.modules():
        for name, own in child.named_parameters(recurse=False, remove_duplicate=False):
            if own not in made:
                made[own] = nn.Parameter(torch.empty_like(own, device="cpu"), own.requires_grad)
            setattr(child, name, made[own])
        for name, buffer in child.named_buffers(recurse=False, remove_duplicate=False):
            setattr(child, name, torch.empty_like(buffer, device="cpu"))


class _Undropped(TorchFunctionMode):
    """Attention without dropout: on a GPU its kernel draws again what it dropped, a CPU holds the probabilities."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            kwargs = {**(kwargs or {}), "dropout_p": 0.0}
        return func(*args, **(kwargs or {}))


def check(config: Mapping[str, Any]) -> BuiltCell:
    """Return the cell, built on the meta device; UsageError: a constructor or the optimiser refuses its settings."""
    with torch.device("meta"):
        built = build(Cell("plan", dict(config)))
    try:
        built.module.optimizer(built.module.groups_and_schedules()[0])
    except (ValueError, TypeError) as error:
        raise UsageError(f"optimizer: {error}") from error
    return built


def check_devices(config: Mapping[str, Any]) -> None:
    """Raise UsageError if the cell asks for an accelerator that is not here."""
    _ = Machine.of(config.get("machine") or {}).device

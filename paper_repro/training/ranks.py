"""The processes that train one cell together, one per device: who they are, what they share, how they stop together."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.optim import Optimizer

from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import Report, StopRequestedError
from paper_repro.training.batches import map_tensors, tensors_of
from paper_repro.training.journal import Silent
from paper_repro.training.losses import LossLog
from paper_repro.training.machine import Machine
from paper_repro.training.module import Tree
from paper_repro.training.watch import Watch

PATIENCE = timedelta(days=7)
"""How long a process waits for another: rank 0 may be preparing data; that one has died is seen elsewhere."""
_GO, _SAVE, _END, _STOP = range(4)


@dataclass(frozen=True)
class Rank:
    """One of ``count`` processes."""

    index: int = 0
    count: int = 1
    words: Any = None
    """The process group for messages on the CPU."""

    def share(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        if self.count == 1:
            return value
        box = torch.tensor([value])
        dist.broadcast(box, 0, group=self.words)
        return int(box)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of ``values`` over the ranks; does not wait for the device."""
        if self.count == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total / self.count

    def own(self, of_slots: Mapping[int, Tree]) -> dict[int, Tree]:
        """Return the trees of the slots that this rank computes: slot s is computed by rank s mod W."""
        return {slot: tree for slot, tree in of_slots.items() if slot % self.count == self.index}

    def collect(self, own: Mapping[int, Tree]) -> dict[int, Tree]:
        """Rank 0 receives the trees of all slots, on the CPU; the other ranks keep their own.

        Every rank has to call this, with trees of the same shapes.
        """
        if self.count == 1 or not tensors_of(list(own.values())):
            return dict(own)
        if self.index:
            for tensor in tensors_of([own[slot] for slot in sorted(own)]):
                dist.send(_bytes_of(tensor.cpu()), 0, group=self.words)
            return dict(own)
        found = dict(own)
        for other in range(1, self.count):
            for slot in sorted(own):
                found[slot + other] = map_tensors(partial(self._received, other), own[slot])
        return found

    def _received(self, other: int, like: Tensor) -> Tensor:
        tensor = torch.empty(like.shape, dtype=like.dtype)
        dist.recv(_bytes_of(tensor), other, group=self.words)
        return tensor


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor; gloo does not send every type."""
    return tensor.contiguous().view(-1).view(torch.uint8)


class Ranks(LightningEnvironment):
    """Tells Lightning that the processes are there already, and which of them this one is."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self._rank = rank

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def local_rank(self) -> int:
        return self._rank.index

    def node_rank(self) -> int:
        return 0


class Sharded(DDPStrategy):
    """Each of W devices keeps 1/W of every parameter, gradient and optimiser state (ZeRO, arXiv 1910.02054, stage 3).

    Parameters are cut along their first dimension; those without one stay whole.  All are gathered at once before a
    step's first forward pass and freed after its last backward pass, in which each gradient is averaged and cut as soon
    as it is complete.  With AdamW in float32, N parameters take 16 N / W bytes per device between steps and 4 N more
    within one, where DDP takes 20 N; the largest gradients for a moment, and activations, come on top of either.
    Checkpoints are those of one device.

    Deviation: torch's ``fully_shard`` gathers module by module, before each one's forward; the models here read weights
    of their parts without calling them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shares: dict[nn.Parameter, nn.Parameter] = {}
        self._places: list[tuple[nn.Module, str, nn.Parameter]] = []
        self._hooks: list[Any] = []
        self._gathered = False

    def configure_ddp(self) -> None:
        """Cut the module's parameters, as rank 0 has them, before the optimiser is built."""
        assert self.lightning_module is not None
        assert dist.group.WORLD is not None
        self._mesh = DeviceMesh.from_group(dist.group.WORLD, self.root_device.type)
        for owner in self.lightning_module.modules():
            for name, whole in owner.named_parameters(recurse=False, remove_duplicate=False):
                self._places.append((owner, name, whole))
        for whole in dict.fromkeys(whole for _, _, whole in self._places):
            cut = distribute_tensor(whole.data, self._mesh, [Shard(0) if whole.ndim else Replicate()])
            self._shares[whole] = nn.Parameter(cut, whole.requires_grad)
            whole.data = torch.empty_like(whole.data)
            if whole.requires_grad:
                self._hooks.append(whole.register_post_accumulate_grad_hook(self._reduce))
        self._release()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self._gather()
        return super().training_step(*args, **kwargs)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        def then_release() -> Any:
            result = closure()
            self._release()
            return result

        try:
            return super().optimizer_step(optimizer, then_release, model, **kwargs)
        except RuntimeError as error:  # NotImplementedError is one
            if "sharding" not in str(error).lower():
                raise
            first = str(error).partition("\n")[0]
            raise UsageError(
                f"machine.strategy=fsdp: {type(optimizer).__name__} needs what torch cannot compute on shares of "
                f"parameters ({first}): set machine.strategy=ddp"
            ) from error

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Give the module its whole parameters while the block lasts; every rank has to enter it."""
        self._gather()
        try:
            yield
        finally:
            self._release()

    def on_train_end(self) -> None:
        """Leave the module as it came, with its own parameters, whole and trained."""
        self._gather()
        self._forget()
        super().on_train_end()

    def teardown(self) -> None:
        """Leave the module without parameters after a run that did not come to its end: no rank waits for another any
        more.
        """
        for whole in self._shares:
            whole.data = whole.new_empty(0)
        for owner, name, whole in self._places:
            setattr(owner, name, whole)
        self._forget()
        super().teardown()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the state dict of the whole module on rank 0; on the other ranks, its names."""
        assert self.lightning_module is not None
        state = self.lightning_module.state_dict(keep_vars=True)
        whole = {tensor: self._on_rank_0(tensor) for tensor in state.values()}  # tied parameters are one
        return {name: whole[tensor] for name, tensor in state.items()}

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state as one device has it on rank 0; on the other ranks, without its tensors."""
        state: dict[str, Any] = super().optimizer_state(optimizer)
        of_each = {
            key: {name: self._on_rank_0(value) for name, value in values.items()}
            for key, values in state["state"].items()
        }
        return {**state, "state": of_each}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            keys = [key for group in state["param_groups"] for key in group["params"]]
            shares = [share for group in optimizer.param_groups for share in group["params"]]
            of_each = {
                key: {name: self._cut_like(share, name, value) for name, value in state["state"][key].items()}
                for key, share in zip(keys, shares, strict=True)
                if key in state["state"]
            }
            optimizer.load_state_dict({**state, "state": of_each})

    def _forget(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._shares, self._places, self._hooks = {}, [], []
        self.optimizers = []

    def _gather(self) -> None:
        if self._gathered:
            return
        with torch.no_grad():
            for whole, share in self._shares.items():
                whole.untyped_storage().resize_(whole.nbytes)
                whole.copy_(_dtensor(share).full_tensor())
        for owner, name, whole in self._places:
            setattr(owner, name, whole)
        self._gathered = True

    def _release(self) -> None:
        for owner, name, whole in self._places:
            setattr(owner, name, self._shares[whole])
        for whole in self._shares:
            whole.untyped_storage().resize_(0)
        self._gathered = False

    def _reduce(self, whole: Tensor) -> None:
        assert isinstance(whole, nn.Parameter)
        assert whole.grad is not None
        share = self._shares[whole]
        total = DTensor.from_local(whole.grad, self._mesh, [Partial()], run_check=False)
        mean = total.redistribute(placements=_dtensor(share).placements) / self.world_size
        share.grad = mean if share.grad is None else share.grad + mean
        whole.grad = None

    def _on_rank_0(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        return whole.detach().cpu() if self.is_global_zero else None

    def _cut_like(self, share: nn.Parameter, name: str, value: Any) -> Any:
        if name == "step" or not isinstance(value, Tensor) or value.shape != share.shape:
            return value
        return distribute_tensor(value.to(self.root_device), self._mesh, _dtensor(share).placements)


def _dtensor(share: nn.Parameter) -> DTensor:
    tensor: Tensor = share
    assert isinstance(tensor, DTensor)
    return tensor


def meeting_place(count: int, port: int | None = None) -> Any:
    """Return where ``count`` processes of this computer find one another: opened at a free port, or that of rank 0."""
    opened = port is None
    return dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port or 0, count, is_master=opened, wait_for_workers=not opened, timeout=PATIENCE
    )


def join(index: int, count: int, store: Any, device: torch.device) -> Rank:
    """Meet the other processes at the ``meeting_place``; ``dist.destroy_process_group`` takes leave of them."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=index, world_size=count, timeout=PATIENCE)
    return Rank(index, count, dist.new_group(backend="gloo", timeout=PATIENCE))


class _Leading(Watch):
    """Rank 0's: what it decides by its clock and its user, it tells the others."""

    def __init__(
        self,
        log: LossLog,
        machine: Machine,
        report: Report,
        save: Callable[[int], None],
        say: Callable[[int], int],
        journal: Silent | None = None,
    ) -> None:
        def save_together(step: int) -> None:
            say(_SAVE)
            save(step)

        super().__init__(log, machine, report, save_together, journal)
        self._say = say

    def after_step(self, step: int) -> bool:
        going = super().after_step(step)
        if not going:  # otherwise ``stop_if_requested`` has spoken
            self._say(_END)
        return going

    def stop_if_requested(self, step: int) -> None:
        try:
            super().stop_if_requested(step)
        except StopRequestedError:
            self._say(_STOP)
            raise
        self._say(_GO)


class _Following(Watch):
    """Another rank's: after every step it does what rank 0 says."""

    def __init__(
        self, log: LossLog, machine: Machine, report: Report, save: Callable[[int], None], hear: Callable[[int], int]
    ) -> None:
        super().__init__(log, machine, report, save)
        self._hear = hear

    def after_step(self, step: int) -> bool:
        while (word := self._hear(_GO)) == _SAVE:
            self.save(step)
        if word == _STOP:
            raise StopRequestedError(f"rank 0 stopped after step {step}")
        return word == _GO

    def stop_if_requested(self, step: int) -> None:
        self.after_step(step)


def watch_for(
    rank: Rank,
    log: LossLog,
    machine: Machine,
    report: Report,
    save: Callable[[int], None],
    journal: Silent | None = None,
) -> Watch:
    """Return the watch of a run: alone, leading, or following rank 0."""
    if rank.count == 1:
        return Watch(log, machine, report, save, journal)
    if rank.index:
        return _Following(log, machine, report, save, rank.share)
    return _Leading(log, machine, report, save, rank.share, journal)

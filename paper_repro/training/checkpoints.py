"""Checkpoints and final weights that survive a kill, a full disk and a flipped bit, or say that they did not."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from safetensors import safe_open
from torch import Tensor, nn

from paper_repro.base.errors import UsageError, first_line
from paper_repro.base.files import PART_SUFFIX, CorruptFileError, check_digest, digest_path, stream_with_digest
from paper_repro.cells import tasks

KEEP = 2


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint after ``step`` optimiser steps; its digest is beside it."""
    return folder / f"step-{step:09d}.ckpt"


def save(path: Path, content: dict[str, Any], identity: Sequence[str]) -> None:
    """Write a checkpoint of the cells with the ids ``identity``; once it is on the disk, drop all but the last two."""
    try:
        check_digest(path)
    except (OSError, CorruptFileError):  # otherwise the whole file is there
        wrapped = {"identity": list(identity), "content": content}
        stream_with_digest(path, lambda stream: torch.save(wrapped, stream))
    kept = {checkpoint_path(path.parent, step).name for step in tasks.saved_in(path.parent)[:KEEP]}
    for pattern in ("step-*.ckpt", "step-*.ckpt.sha256", f".step-*{PART_SUFFIX}"):  # the last are left by a kill
        for other in path.parent.glob(pattern):
            if other.name.removesuffix(".sha256") not in kept:
                other.unlink(missing_ok=True)


def newest(folder: Path, identity: Sequence[str]) -> int | None:
    """Return the step of the newest whole checkpoint in ``folder``, or None; damaged ones are set aside."""
    steps = tasks.saved_in(folder)
    for step in steps:
        path = checkpoint_path(folder, step)
        try:
            load(path, identity, mmap=True)
            return step
        except CorruptFileError as error:
            aside = path.replace(path.with_name(f"{path.name}.damaged"))
            digest_path(path).unlink(missing_ok=True)
            warnings.warn(f"{error}; set aside as {aside.name}, going back to the one before", stacklevel=2)
    if steps:
        warnings.warn(f"{folder}: no whole checkpoint is left, training starts anew", stacklevel=2)
    return None


def load(path: Path, identity: Sequence[str], mmap: bool = False) -> dict[str, Any]:
    """Return a checkpoint's content, on the CPU; CorruptFileError: it is damaged; UsageError: it is of other cells."""
    check_digest(path)
    try:
        wrapped = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        found, content = wrapped["identity"], dict(wrapped["content"])
    except MemoryError:
        raise
    except Exception as error:  # forged bytes with a fitting digest: torch's unpickler raises whatever they lead it to
        raise CorruptFileError(f"{path}: not a checkpoint of this project ({first_line(error)})") from error
    if found != list(identity):
        raise UsageError(
            f"{path}: this checkpoint belongs to cell {_listed(found)}, expected {_listed(identity)}: "
            f"use another folder, or delete {path.parent} to start anew"
        )
    return content


class DurableCheckpointIO(TorchCheckpointIO):
    """Our checkpoints through ``save`` and ``load``; Lightning writes and removes those of ModelCheckpoint itself."""

    def __init__(self, identity: Sequence[str]) -> None:
        self.identity = list(identity)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if tasks.CHECKPOINT.fullmatch(Path(path).name):
            save(Path(path), checkpoint, self.identity)
        else:
            super().save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return load(Path(path), self.identity)


def save_weights(path: Path, module: nn.Module, cell_id: str) -> None:
    """Write ``module.state_dict()`` as safetensors, with a digest beside it and the cell's id in the metadata.

    Tied weights are written once, under the first of their names.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in distinct(module).items()}
    content = safetensors.torch.save(tensors, metadata={"cell": cell_id})
    stream_with_digest(path, lambda stream: stream.write(content))


def load_weights(path: Path, module: nn.Module, cell_id: str | None = None) -> None:
    """Copy the weights in ``path`` into ``module``; nothing is copied unless everything fits.

    ``cell_id`` None accepts those of any cell.  FileNotFoundError: there is no such file; UsageError: it is damaged, of
    another cell, or of another model.
    """
    try:
        check_digest(path)
        with safe_open(path, framework="pt") as file:
            found_id = (file.metadata() or {}).get("cell")
        tensors = safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise
    except Exception as error:  # forged bytes with a fitting digest raise more than SafetensorError
        where = "" if str(path) in str(error) else f"{path}: "
        raise UsageError(
            f"{where}{first_line(error)}. "
            f"Delete {path} and {digest_path(path).name} and run the cell again, or copy both files anew"
        ) from error
    if cell_id is not None and found_id != cell_id:
        raise UsageError(
            f"{path}: these are the weights of cell {found_id}, expected cell {cell_id}: "
            "give the folder of that cell, or run it"
        )
    fill(module, tensors, path)


def fill(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy weights, those of ``distinct`` by name, into ``module``; UsageError: they are another model's."""
    own = {name: tuple(tensor.shape) for name, tensor in distinct(module).items()}
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    differ = [
        f"{name} {given.get(name, 'is missing')} (expected {own.get(name, 'none')})"
        for name in sorted(own.keys() | given.keys())
        if own.get(name) != given.get(name)
    ]
    if differ:
        raise UsageError(
            f"{path}: weights of another model than {type(module).__name__}: {_listed(differ)}. "
            "Build the model from the config in the record.json of the cell that wrote them"
        )
    module.load_state_dict(tensors, strict=False)


def distinct(module: nn.Module) -> dict[str, Tensor]:
    """Return the state of ``module`` by name; tied weights under their first name alone."""
    first = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: tensor for name, tensor in module.state_dict().items() if name in first}


def _listed(items: Sequence[object], most: int = 5) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more

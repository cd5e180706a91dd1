"""A model's weights as safetensors with a config beside them, written from a finished cell and read back."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from paper_repro.base import identity
from paper_repro.base.configs import instantiate, require
from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes, write_atomically
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import Cell
from paper_repro.exports import source
from paper_repro.exports.source import FORMAT, HUGGING_FACE
from paper_repro.training import checkpoints
from paper_repro.training.build import rebuild

WEIGHTS, CONFIG = "model.safetensors", "config.json"
VERSION = 1


def load_model(path_or_id: str | Path, runs: str | Path | None = None) -> nn.Module:
    """Return a trained model in evaluation mode on the CPU.

    Args:
        path_or_id: a folder that ``export.py`` wrote, the folder of a finished cell, or a cell's id.
        runs: the runs folder in which an id is looked up; None: $PAPER_REPRO_RUNS, else runs/ here.

    Raises:
        UsageError: there is no such cell or folder, the cell has no weights, or they are damaged or another model's.
    """
    folder = Path(path_or_id).expanduser()
    if (folder / CONFIG).is_file():
        return _read(folder)
    return trained(path_or_id, runs)[0]


def trained(path_or_id: str | Path, runs: str | Path | None = None) -> tuple[nn.Module, Record]:
    """Return the model of a finished cell with its weights, in evaluation mode on the CPU, and the cell's record.

    Raises:
        UsageError: there is no such cell, it did not finish, trains no model, or its weights are not there.
    """
    folder, record = source.find(path_or_id, runs)
    built = rebuild(folder, Cell(record.cell, {**record.config, identity.MACHINE: {"accelerator": "cpu"}}))
    return built.module.model, record


def export(path_or_id: str | Path, to: Path, form: str = FORMAT, runs: str | Path | None = None) -> list[Path]:
    """Write a finished cell's model as ``model.safetensors`` and ``config.json``; return both.

    Args:
        form: "paper-repro", which ``load_model`` reads, or "huggingface", which transformers reads.

    Raises:
        UsageError: as ``trained``, a folder that is not empty or cannot be written to, or a model that Hugging Face's
            classes cannot represent.
    """
    from paper_repro.exports import huggingface

    source.check(path_or_id, to, form, runs)
    model, record = trained(path_or_id, runs)
    if form == HUGGING_FACE:
        tensors, config = huggingface.converted(model)
        metadata = {"format": "pt"}  # transformers asks for it
    else:
        tensors, config = checkpoints.distinct(model), _described(record)
        metadata = {"cell": record.cell}
    content = safetensors.torch.save({name: one.detach().cpu().contiguous() for name, one in tensors.items()}, metadata)
    if form == FORMAT:
        config["weights_sha256"] = sha256_of_bytes(content)
    files = {
        to / WEIGHTS: content,
        to / CONFIG: json.dumps(config, indent=2, ensure_ascii=False).encode() + b"\n",
    }
    try:
        for path, written in files.items():
            write_atomically(path, written)
    except OSError as error:
        raise UsageError(f"--to {to}: cannot be written to ({error.strerror}); give another folder") from error
    return list(files)


def _described(record: Record) -> dict[str, Any]:
    today = identity.today(record.config)
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": today["model"],
        "cell": record.cell,
        "seed": record.seed,
        "training": {key: today[key] for key in ("data", "optimizer", "schedule", "training") if key in today},
        "metrics": record.metrics,
        "commit": record.provenance.get("commit"),
        "data_sha256": record.provenance.get("data") or {},
    }


def _read(folder: Path) -> nn.Module:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); export the cell again") from error
    if not isinstance(config, Mapping) or config.get("format") != FORMAT or "model" not in config:
        shape = " (it is of Hugging Face's format: open it with transformers)" if "architectures" in config else ""
        raise UsageError(f"{path}: not a config that export.py wrote for load_model{shape}; export the cell again")
    if config.get("version") != VERSION:
        raise UsageError(f"{path}: version {config.get('version')!r}, this code reads {VERSION}")
    node = identity.today({"model": config["model"]})["model"]
    require(node, f"{path}: model", nn.Module, "a torch module", nested=True)
    model: nn.Module = instantiate(node)
    weights = folder / WEIGHTS
    try:
        content = weights.read_bytes()
    except OSError as error:
        raise UsageError(f"{weights}: cannot be read ({error.strerror}); export the cell again") from error
    if sha256_of_bytes(content) != config.get("weights_sha256"):
        raise UsageError(f"{weights}: not the weights that {CONFIG} beside it names; export the cell again")
    try:
        tensors = safetensors.torch.load(content)
    except Exception as error:  # forged bytes of a fitting hash raise more than SafetensorError
        raise UsageError(
            f"{weights}: cannot be read ({' '.join(str(error).split())}); export the cell again"
        ) from error
    checkpoints.fill(model, tensors, weights)
    return model.eval()

"""A model's weights as safetensors with a config beside them, written from a finished cell and read back.

Torch is imported where a model is built: a wrong word is refused at once.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_repro.base import identity
from paper_repro.base.configs import instantiate, require
from paper_repro.base.errors import UsageError, default_runs
from paper_repro.base.files import sha256_of_bytes, write_atomically
from paper_repro.cells.records import Record, check_has_weights
from paper_repro.cells.tasks import FINISHED, Cell
from paper_repro.tables import view

if TYPE_CHECKING:
    from torch import nn

FORMAT, HUGGING_FACE = "paper-repro", "huggingface"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
VERSION = 1


def load_model(path_or_id: str | Path, runs: str | Path | None = None) -> "nn.Module":
    """Return a trained model in evaluation mode on the CPU.

    Args:
        path_or_id: a folder that ``export.py`` wrote, the folder of a finished cell, or a cell's id.
        runs: the runs folder in which an id is looked up; None: $PAPER_REPRO_RUNS, else runs/ here.

    Raises:
        UsageError: there is no such cell or folder, the cell has no weights, or they are damaged or another model's.
    """
    folder = Path(path_or_id).expanduser()
    return _read(folder) if (folder / CONFIG).is_file() else _built(*_find(path_or_id, runs))


def export(path_or_id: str | Path, to: Path, form: str = FORMAT, runs: str | Path | None = None) -> list[Path]:
    """Write a finished cell's model as ``model.safetensors`` and ``config.json``; return both.

    Args:
        path_or_id, runs: see ``load_model``.
        to: a new folder, or an empty one.
        form: "paper-repro", which ``load_model`` reads, or "huggingface", which transformers reads.

    Raises:
        UsageError: an unknown format, a folder that is not empty or cannot be written to, a cell without weights, or a
            model that Hugging Face's classes cannot represent.
    """
    if form not in (FORMAT, HUGGING_FACE):
        raise UsageError(f"--format {form}: expected {FORMAT} or {HUGGING_FACE}")
    if to.is_dir() and (found := sorted(path.name for path in to.iterdir())):
        raise UsageError(f"--to {to}: not empty ({found[0]} lies there); give a new folder")
    if not to.is_dir() and (to.exists() or to.is_symlink()):
        raise UsageError(f"--to {to}: found something else there, expected a new folder")
    folder, record = _find(path_or_id, runs)

    import safetensors.torch

    from paper_repro.exports import huggingface
    from paper_repro.training import checkpoints

    model = _built(folder, record)
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


def _find(path_or_id: str | Path, runs: str | Path | None) -> tuple[Path, Record]:
    """Return the folder and the record of a cell that has trained a model.

    Raises:
        UsageError: there is no such cell, it did not finish, trains no model, or its weights are not there.
    """
    folder, record = view.find_record(path_or_id, [default_runs() if runs is None else Path(runs).expanduser()])
    if record.status != FINISHED:
        raise UsageError(f"{folder}: the cell is {record.status} ({record.note}), expected finished: it has no weights")
    if "model" not in record.config or "module" not in record.config:
        raise UsageError(f"{folder}: the cell trains no model, it counts or measures: there are no weights")
    check_has_weights(folder, record)
    return folder, record


def _built(folder: Path, record: Record) -> "nn.Module":
    from paper_repro.training.build import rebuild

    cell = Cell(record.cell, {**record.config, identity.MACHINE: {"accelerator": "cpu"}})
    model: nn.Module = rebuild(folder, cell).module.model
    return model


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


def _read(folder: Path) -> "nn.Module":
    import safetensors.torch
    from torch import nn

    from paper_repro.training import checkpoints

    path, weights = folder / CONFIG, folder / WEIGHTS
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
    try:
        content = weights.read_bytes()
        if sha256_of_bytes(content) != config.get("weights_sha256"):
            raise UsageError(f"{weights}: not the weights that {CONFIG} beside it names; export the cell again")
        tensors = safetensors.torch.load(content)
    except UsageError:
        raise
    except Exception as error:  # forged bytes of a fitting hash raise more than SafetensorError
        raise UsageError(
            f"{weights}: cannot be read ({' '.join(str(error).split())}); export the cell again"
        ) from error
    checkpoints.fill(model, tensors, weights)
    return model.eval()

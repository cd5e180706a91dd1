"""Trained models as safetensors with a config, a vocabulary and a card: written from a cell, read back, shared.

Torch is imported where a model is built: a wrong word is refused at once.
"""

import json
import logging
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_repro.base import configs, identity
from paper_repro.base.configs import CONF, apply, parse, require
from paper_repro.base.errors import RESULTS, UsageError, default_runs, first_line, nearest
from paper_repro.base.files import CorruptFileError, sha256_of_bytes, write_atomically
from paper_repro.cells import measurements, records
from paper_repro.cells.records import Record, record_path
from paper_repro.cells.tasks import FINISHED, Cell, weights_of
from paper_repro.exports import card

if TYPE_CHECKING:
    from torch import nn

    from paper_repro.datamodules.counter_based import CounterBasedDataModule
    from paper_repro.datamodules.tokenizers import Tokenizer
    from paper_repro.training.module import PaperModule

FORMAT = "paper-repro"
WEIGHTS, CONFIG, VOCABULARY, CARD = "model.safetensors", "config.json", "tokenizer.json", "README.md"
VERSION = 2
HUB = "hf://"
SHORTEST = 4  # characters of an id
SHIPPED = card.LIST.parent  # a folder for each model that comes with the package
_log = logging.getLogger(__name__)


def load(source: str | Path, runs: str | Path | None = None) -> "nn.Module":
    """Return a trained model in evaluation mode on the CPU, in float32; ``tokenizer`` is its vocabulary, or None.

    Args:
        source: the name of a model that comes with the package ("ngpt"), "hf://owner/name" or "hf://owner/name@commit"
            of the Hugging Face hub, a folder that ``export`` wrote, the folder of a finished cell, or a cell's id.
        runs: the runs folder in which an id is looked up; None: $PAPER_REPRO_RUNS, else runs/ here.

    Raises:
        UsageError: there is no such model, the hub does not answer, or the weights are absent, damaged, another
            model's or another version's.
    """
    found = opened(source, runs)
    model: Any = found.module.model
    try:
        model.tokenizer = found.tokenizer()
    except UsageError:  # its data are absent, or have no vocabulary
        model.tokenizer = None
    return model


def names() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


@dataclass(frozen=True)
class Opened:
    """A trained model, built, with all that a command asks of it."""

    folder: Path  # where a command puts what it makes of the model, unless it is told
    config: Mapping[str, Any]  # the cell's; of an exported model without machine and probes
    described: dict[str, Any]  # the content of config.json
    module: "PaperModule"
    data: "CounterBasedDataModule | None" = None  # the cell's, of which nothing has been read
    vocabulary: "Tokenizer | None" = None  # what was exported with the model

    @property
    def cell(self) -> str:
        return str(self.described["cell"])

    def tokenizer(self) -> "Tokenizer":
        """Return the vocabulary that the model was trained with; UsageError: there is none, or it is not here."""
        if self.vocabulary is not None:
            return self.vocabulary
        if self.data is None:
            raise UsageError(f"{self.folder.name}: the model came without a vocabulary of text")
        from paper_repro.datamodules.tokenizers import trained_tokenizer

        return trained_tokenizer(self.data, self.described["data_sha256"], self.cell)


def opened(
    source: str | Path, runs: str | Path | None = None, device: str = "cpu", data_root: str | None = None
) -> Opened:
    """Return what ``load`` finds, on a ``device`` "cpu" or "gpu"; arguments and errors are those of ``load``.

    Args:
        data_root: the first folder in which the data of a vocabulary are looked for.
    """
    if (folder := _exported(source)) is not None:
        return _read(folder, device)
    word, root = Path(source).expanduser(), default_runs() if runs is None else Path(runs).expanduser()
    if re.fullmatch(r"[A-Za-z]\w*", str(word)) and not re.fullmatch("[0-9a-f]{4,}", str(word)) and not word.exists():
        near = nearest(str(word), names())
        raise UsageError(f"{word}: no model of that name{near}; give a name, {HUB}owner/name, or a cell's folder or id")
    folder, record = find_record(source, root)
    if record.status != FINISHED:
        raise UsageError(f"{folder}: the cell is {record.status} ({record.note}), expected finished: it has no weights")
    weights_of(folder)

    from paper_repro.training.build import rebuild

    machine = {"accelerator": device, "data_root": data_root}
    parts = rebuild(folder, Cell(record.cell, {**record.config, identity.MACHINE: machine}))
    return Opened(folder, record.config, _described(record), parts.module, parts.data)


def export(source: str | Path, to: Path, runs: str | Path | None = None) -> list[Path]:
    """Write a model as ``model.safetensors`` and ``config.json``, with its vocabulary and card; return the files.

    Args:
        source, runs: see ``load``.
        to: a new folder, or an empty one.

    Raises:
        UsageError: something lies at ``to``, or no such model.
    """
    is_empty = to.is_dir() and not any(to.iterdir())
    if not is_empty and (to.exists() or to.is_symlink()):
        raise UsageError(f"--to {to}: something lies there; give a new folder")
    return _write(opened(source, runs), to, "float32")


def _write(model: Opened, to: Path, dtype: str) -> list[Path]:
    """Write the files of a model, its weights stored as ``dtype``; ``load`` computes in float32."""
    import safetensors.torch
    import torch

    from paper_repro.training import checkpoints

    tensors = checkpoints.distinct(model.module.model)
    kinds = {name: getattr(torch, dtype) if one.is_floating_point() else one.dtype for name, one in tensors.items()}
    stored = {name: one.detach().cpu().to(kinds[name]).contiguous() for name, one in tensors.items()}
    weights = safetensors.torch.save(stored, {"cell": model.cell})
    config = {**model.described, "dtype": dtype, "weights_sha256": sha256_of_bytes(weights)}
    files = {WEIGHTS: weights, CARD: card.written(to.name, config, len(weights)).encode()}
    try:
        files[VOCABULARY] = model.tokenizer().to_bytes()
    except UsageError as error:
        if hasattr(type(model.data), "tokenizer"):
            _log.warning("no %s is written: %s", VOCABULARY, error)
    files[CONFIG] = json.dumps(config, indent=2, ensure_ascii=False).encode() + b"\n"
    try:
        for name, content in files.items():
            write_atomically(to / name, content)
    except OSError as error:
        raise UsageError(f"--to {to}: cannot be written to ({error.strerror}); give another folder") from error
    return [to / name for name in sorted(files)]


def make(name: str, to: Path | None = None, runs: str | Path | None = None) -> list[Path]:
    """Train the cell of a model that comes with the package, where ``runs`` has no result of it, and write it anew.

    Args:
        to: a folder, whose files are replaced; None: that of the model in the package.

    Raises:
        UsageError: no such model, its data are not here, or the training failed.
    """
    from paper_repro.cells.planned import plan_cell
    from paper_repro.cells.runner import run

    if name not in (known := card.listed()["models"]):
        raise UsageError(f"--make {name}: no model of that name{nearest(name, known)}")
    own, root = known[name], default_runs() if runs is None else Path(runs).expanduser()
    record = records.read(record_path(RESULTS, own["cell"]))
    machine = configs.read(CONF / "machine" / "cpu.yaml").plain()
    config = {**identity.today(record.config), "probes": {}, identity.MACHINE: machine}
    for key, value in own.get("set", {}).items():
        apply(config, parse(f"{key}={value}"))
    cell = plan_cell((), record.seed, config)
    if cell.missing:
        raise UsageError(f"--make {name}: {cell.missing}")
    if run([cell], root, roots=[root, RESULTS]).exit_code:
        raise UsageError(f"--make {name}: cell {cell.id} did not finish; the same command goes on from where it was")
    model = opened(cell.id, root)
    model.described["name"] = name
    return _write(model, to or SHIPPED / name, "float16")


def push(source: str | Path, to: str, runs: str | Path | None = None, private: bool = False) -> str:
    """Upload a model to the Hugging Face hub, where ``load`` finds it; return the address of its page.

    Args:
        source, runs: see ``load``.
        to: "hf://owner/name"; it is made where it does not exist.

    Raises:
        UsageError: there is no such model, or the hub refuses or does not answer.
    """
    name = _repository(to)[0]
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, name.partition("/")[2])
        export(source, made, runs)
        try:
            api = HfApi()
            api.create_repo(name, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=name, folder_path=str(made)))
        except Exception as error:  # whatever the network or the hub's client raises
            raise UsageError(
                f"{to}: the hub did not take it ({first_line(error)}); hf auth login, and see that the name is yours"
            ) from error


def _repository(address: str) -> tuple[str, str | None]:
    """Return the name and the commit of "hf://owner/name@commit"."""
    found = re.fullmatch(rf"{HUB}([\w.-]+/[\w.-]+)(?:@([\w.-]+))?", address)
    if found is None:
        raise UsageError(f"{address}: expected {HUB}owner/name, or {HUB}owner/name@commit")
    return found[1], found[2]


def _fetched(address: str) -> Path:
    """Return the folder in the hub's cache with the files of a model."""
    name, commit = _repository(address)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=commit, allow_patterns=[WEIGHTS, CONFIG, VOCABULARY]))
    except Exception as error:  # whatever the network or the hub's client raises
        raise UsageError(
            f"{address}: the hub did not give it ({first_line(error)}); check the name and the network, and give a "
            "private one's token (hf auth login)"
        ) from error


def _exported(source: str | Path) -> Path | None:
    """Return the folder of a model that comes with the package, lies on the hub or was exported; None for a cell."""
    if str(source).startswith(HUB):
        return _fetched(str(source))
    word = Path(source).expanduser()
    if len(word.parts) == 1 and (SHIPPED / word / CONFIG).is_file():
        return SHIPPED / word
    return word if (word / CONFIG).is_file() else None


def find_record(word: str | Path, root: Path) -> tuple[Path, Record]:
    """Return the folder of a cell and its record, with the metrics of probes that measured later.

    Args:
        word: the folder of a cell, a file in it, the cell's id, or at least four characters with which it begins.
        root: the runs folder in which ids are looked up.
    """
    path = Path(word).expanduser()
    folder = path.parent if path.is_file() else path
    if not (folder / "record.json").is_file():
        known = sorted(one.parent.name for one in (root / "cells").glob("*/record.json"))
        begin = [cell for cell in known if cell.startswith(str(word))] if len(str(word)) >= SHORTEST else []
        if len(begin) > 1:
            raise UsageError(f"{word}: {len(begin)} cells begin so, {', '.join(begin[:5])}; give more of the id")
        if not begin:
            raise UsageError(f"{word}: no record.json in it, and it is not the id of a cell in {root / 'cells'}")
        folder = record_path(root, begin[0]).parent
    try:
        record = records.read(folder / "record.json")
    except (OSError, CorruptFileError) as error:
        raise UsageError(str(error)) from error
    inside = folder.parent.name == "cells" and folder.name == record.cell
    return folder, measurements.whole(folder.parent.parent, record) if inside else record


def _described(record: Record) -> dict[str, Any]:
    today = identity.today(record.config)
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": today["model"],
        "module": today["module"],
        "cell": record.cell,
        "seed": record.seed,
        "training": {key: today[key] for key in ("data", "optimizer", "schedule", "training") if key in today},
        "parameters": record.parameters,
        "metrics": record.metrics,
        "seconds": record.seconds,
        **{key: record.provenance.get(key) for key in ("commit", "device")},
        "data_sha256": record.provenance.get("data") or {},
    }


def _tokenizer(path: Path, fingerprint: str | None) -> "Tokenizer | None":
    from paper_repro.datamodules.tokenizers import BytePairTokenizer, CharacterTokenizer

    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        own = CharacterTokenizer(content["characters"]) if "characters" in content else BytePairTokenizer.load(path)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path}: cannot be read ({first_line(error)}); export the cell again") from error
    if fingerprint not in (None, own.fingerprint):
        raise UsageError(f"{path}: not the vocabulary that {CONFIG} beside it names; export the cell again")
    return own


def _read(folder: Path, device: str) -> Opened:
    import safetensors.torch
    import torch
    from torch import nn

    from paper_repro.training import checkpoints
    from paper_repro.training.build import build_module
    from paper_repro.training.machine import Machine
    from paper_repro.training.module import PaperModule

    path, weights = folder / CONFIG, folder / WEIGHTS
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); export the cell again") from error
    if not isinstance(config, Mapping) or config.get("format") != FORMAT or "model" not in config:
        raise UsageError(f"{path}: not a config that export.py wrote; export the cell again")
    if config.get("version") != VERSION:
        raise UsageError(f"{path}: version {config.get('version')!r}, this code reads {VERSION}; export the cell again")
    cell = identity.today({**config["training"], **{key: config[key] for key in ("model", "module", "seed")}})
    require(cell["model"], f"{path}: model", nn.Module, "a torch module", nested=True)
    require(cell["module"], f"{path}: module", PaperModule, "a PaperModule")
    machine = Machine.of({"accelerator": device})
    with torch.random.fork_rng(devices=[]):
        module = build_module(cell)
    try:
        content = weights.read_bytes()
        if sha256_of_bytes(content) != config.get("weights_sha256"):
            raise UsageError(f"{weights}: not the weights that {CONFIG} beside it names; export the cell again")
        tensors = safetensors.torch.load(content)
    except UsageError:
        raise
    except Exception as error:  # forged bytes of a fitting hash raise more than SafetensorError
        raise UsageError(f"{weights}: cannot be read ({first_line(error)}); export the cell again") from error
    checkpoints.fill(module.model, tensors, weights)
    vocabulary = _tokenizer(folder / VOCABULARY, config["data_sha256"].get("tokenizer"))
    module.to(machine.device).eval()
    return Opened(default_runs() / folder.name, cell, dict(config), module, vocabulary=vocabulary)

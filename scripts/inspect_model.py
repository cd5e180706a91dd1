"""Look at the weights of a trained nGPT, or of the GPT that it is held against: figures 4, 5 and 6 of its paper.

    inspect_model.py runs/cells/<cell>                  # prints what is measured, draws into the cell's folder
    inspect_model.py runs/cells/<cell> --to figures --layers 1,2 --json

CHECKPOINT is the folder of a finished cell (record.json and weights.safetensors), the weights in it, or the cell's id.

    --to DIR            where embeddings/, matrices/ and scales/ go, each with figure.png, .svg and .csv
                        (default: inspection/ beside the checkpoint)
    --layers N,N        whose norms and singular values are drawn, counted from 1 (default 3,4 as in the paper, or the
                        last two of a model with fewer)
    --json              print the numbers as JSON
    --device NAME       cpu (default) or gpu

No data are needed.  The files drawn are named on the standard error.  Exit codes as train.py's.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before what another Python lacks is imported
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paper_repro.cells.tasks import Findings


def main(arguments: Sequence[str]) -> int:
    if not arguments or {"--help", "-h"} & set(arguments):
        print(__doc__)
        return 0 if arguments else 2
    words = _words(arguments)
    label, folder, found = _measure(words)
    if words.json:
        print(json.dumps({name: findings.metrics for name, findings in found.items()}, indent=1))
    else:
        for name, findings in found.items():
            print(name)
            for metric, value in findings.metrics.items():
                print(f"  {metric:<32} {value:.6g}")
    for path in _draw(label, words.to or folder / "inspection", found):
        print(path, file=sys.stderr)
    return 0


def _words(arguments: Sequence[str]) -> argparse.Namespace:
    from paper_repro.base.command_line import Options
    from paper_repro.base.errors import UsageError

    parser = Options("inspect_model.py")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--layers")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    words = parser.read(arguments)
    if words.layers is not None:
        parts = words.layers.split(",")
        if not all(part.isdecimal() and int(part) for part in parts):
            raise UsageError(f"--layers {words.layers}: give whole numbers of 1 or more with commas, for example 3,4")
        words.layers = [int(part) for part in parts]
    return words


def _measure(words: argparse.Namespace) -> "tuple[str, Path, dict[str, Findings]]":
    """Return what to call the model, the checkpoint's folder, and what each inspection finds."""
    from paper_repro.tables.view import trained

    folder, record = trained(words.checkpoint)  # a wrong folder is refused before torch is imported

    import torch

    from paper_repro.base.errors import UsageError
    from paper_repro.cells.tasks import Cell
    from paper_repro.probes.inspection.embeddings import Embeddings
    from paper_repro.probes.inspection.matrices import Matrices
    from paper_repro.probes.inspection.scales import Scales
    from paper_repro.probes.inspection.tools import branches, inspected
    from paper_repro.probes.serving import command_for
    from paper_repro.training.finished import rebuild

    parts = rebuild(folder, Cell(record.cell, {**record.config, "machine": {"accelerator": words.device}}))
    try:
        depth = len(branches(inspected(parts.module)))
    except UsageError as error:
        raise UsageError(f"{error}; {command_for(parts.module.model)}") from error
    layers = _layers(words.layers, depth)
    probes: dict[str, Any] = {"embeddings": Embeddings(), "matrices": Matrices(layers), "scales": Scales()}
    with torch.no_grad():
        found = {name: probe.measure(parts.module, parts.data, record.seed) for name, probe in probes.items()}
    return f"{type(parts.module.model).__name__} {record.cell}", folder, found


def _layers(asked: list[int] | None, depth: int) -> list[int]:
    from paper_repro.base.errors import UsageError

    if asked is None:
        return [3, 4] if depth >= 4 else list(range(max(1, depth - 1), depth + 1))
    if max(asked) > depth:
        raise UsageError(f"--layers {','.join(map(str, asked))}: the model has {depth} layers")
    return asked


def _draw(label: str, folder: Path, found: "dict[str, Findings]") -> list[Path]:
    from paper_repro.base.errors import UsageError
    from paper_repro.papers.ngpt.fig4 import Figure4
    from paper_repro.papers.ngpt.fig5 import Figure5
    from paper_repro.papers.ngpt.fig6 import Figure6
    from paper_repro.papers.ngpt.inspection import Series

    kinds: list[Any] = [Figure4, Figure5, Figure6]
    written = []
    for (name, findings), kind in zip(found.items(), kinds, strict=True):
        series = Series(label, json.loads(findings.attachments[kind.attachment]))
        try:
            written += kind([series]).write(folder / name)
        except OSError as error:
            raise UsageError(f"--to {folder}: cannot be written to ({error}); give another folder") from error
    return written


if __name__ == "__main__":
    from paper_repro.base.command_line import run_main

    sys.exit(run_main(main))

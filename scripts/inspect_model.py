"""Look at the weights of a trained nGPT, or of the GPT that it is held against: figures 4, 5 and 6 of its paper.

    inspect_model.py ngpt --to figures                  # a model that comes with the package
    inspect_model.py runs/cells/<cell>                  # prints the numbers, draws into the cell's folder
    inspect_model.py runs/cells/<cell> --to figures --layers 1,2 --json

No data are needed.  The files drawn are named on the standard error.  Exit codes as train.py's.
"""

from __future__ import annotations

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from paper_repro.base.errors import Options, UsageError, counts, run_main
from paper_repro.exports.weights import Opened, opened

if TYPE_CHECKING:
    from paper_repro.cells.tasks import Findings
    from paper_repro.datamodules.counter_based import CounterBasedDataModule


def main(arguments: Sequence[str]) -> int:
    parser = Options("inspect_model.py", __doc__)
    add = parser.add_argument
    add("checkpoint", help="a name as ngpt, hf://owner/name, folder of a finished cell or an export, or a cell's id")
    add("--to", type=Path, help="folder for embeddings/, matrices/ and scales/ (default: inspection/ beside it)")
    add("--layers", type=counts, help="layers that are drawn (default: 3,4 as in the paper, or the last two)")
    add("--json", action="store_true", help="print the numbers as JSON")
    add("--device", choices=("cpu", "gpu"), default="cpu")
    words = parser.read(arguments)
    model = opened(words.checkpoint, device=words.device)
    label, found = _measure(model, words)
    if words.json:
        print(json.dumps({name: findings.metrics for name, findings in found.items()}, indent=1))
    else:
        for name, findings in found.items():
            print(name)
            for metric, value in findings.metrics.items():
                print(f"  {metric:<32} {value:.6g}")
    for path in _draw(label, words.to or model.folder / "inspection", found):
        print(path, file=sys.stderr)
    return 0


def _measure(model: Opened, words: argparse.Namespace) -> tuple[str, dict[str, Findings]]:
    """Return the model's label, and the findings of each inspection."""
    import torch

    from paper_repro.probes.inspection import Embeddings, Matrices, Scales, branches, inspected
    from paper_repro.probes.thoughts import command_for

    module, data = model.module, cast("CounterBasedDataModule", model.data)  # which these probes do not read
    try:
        depth = len(branches(inspected(module)))
    except UsageError as error:
        raise UsageError(f"{error}; {command_for(module.model)}") from error
    layers = words.layers or ([3, 4] if depth >= 4 else list(range(max(1, depth - 1), depth + 1)))
    if max(layers) > depth:
        raise UsageError(f"--layers {','.join(map(str, layers))}: the model has {depth} layers")
    probes: dict[str, Any] = {"embeddings": Embeddings(), "matrices": Matrices(layers), "scales": Scales()}
    with torch.no_grad():
        found = {name: probe.measure(module, data, model.described["seed"]) for name, probe in probes.items()}
    return f"{type(module.model).__name__} {model.cell}", found


def _draw(label: str, folder: Path, found: dict[str, Findings]) -> list[Path]:
    from paper_repro.papers.ngpt.fig4 import Figure4
    from paper_repro.papers.ngpt.fig5 import Figure5
    from paper_repro.papers.ngpt.fig6 import Figure6
    from paper_repro.papers.ngpt.inspection import Series

    kinds: list[Any] = [Figure4, Figure5, Figure6]
    try:
        return [
            path
            for (name, findings), kind in zip(found.items(), kinds, strict=True)
            for path in kind([Series(label, json.loads(findings.attachments[kind.attachment]))]).write(folder / name)
        ]
    except OSError as error:
        raise UsageError(f"--to {folder}: cannot be written to ({error}); give another folder") from error


if __name__ == "__main__":
    sys.exit(run_main(main))

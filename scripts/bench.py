"""Speed as ratios: both sides interleaved in one process, medians beside spread and largest relative error.

    bench.py NAME
    bench.py NAME --device cuda --json FILE

A bench is a function of a device in a file of benches/.  It yields rows, most of them ``Comparison`` objects of
side_by_side.py; others have a ``kind``, a ``line`` and a ``record``, too.  The file names the commit, says whether the
code had uncommitted changes, and is sealed with the hash of its content, as records of cells are.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from paper_repro.base.errors import Options, UsageError, nearest, run_main
from paper_repro.base.files import read_code_state, write_atomically
from paper_repro.cells.records import SEAL, processor_name, seal

BENCHES = {
    **dict.fromkeys(("cem_attn", "cem_memory"), "cem"),
    **dict.fromkeys(("cet_memory", "cet_relax"), "cet"),
    **dict.fromkeys(("attn_hvp", "ebt_step"), "ebt"),
    **dict.fromkeys(("linear_ce", "ngpt_ops", "ngpt_optim", "ngpt_step"), "ngpt"),
    **{"commands": "commands", "ensemble": "ensemble", "nrgpt_block": "nrgpt"},
}
"""Benches, each with the file of benches/ that has it."""
FOLDER = "paper_repro.scripts.benches"


def main(arguments: Sequence[str]) -> int:
    parser = Options("bench.py", f"{__doc__}\nBenches: {', '.join(sorted(BENCHES))}.")
    parser.add_argument("name", help="one of the benches above")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="write everything measured to this file, too")
    options = parser.read(arguments)
    if options.name not in BENCHES:
        raise UsageError(f"unknown bench {options.name!r}{nearest(options.name, BENCHES)}")
    if options.json:  # before anything is measured
        folder = options.json.absolute().parent
        if options.json.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(f"--json {options.json}: cannot be written there; give a file in a folder that exists")

    import torch

    from paper_repro.training.machine import Machine, settings

    code = read_code_state()
    machine = Machine(accelerator=options.device, threads=1)
    with settings(machine):
        name = torch.cuda.get_device_name(machine.device) if options.device == "cuda" else processor_name()
        surroundings = {"device": f"{machine.device.type}: {name}", "threads": torch.get_num_threads()}
        surroundings |= {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
        print(", ".join(f"{key} {value}" for key, value in surroundings.items()))
        bench = getattr(import_module(f"{FOLDER}.{BENCHES[options.name]}"), options.name)
        content: dict[str, Any] = {"bench": options.name, "commit": code.commit, "dirty": code.dirty, **surroundings}
        for row in bench(machine.device):
            content.setdefault(row.kind, []).append(row.record())
            print(row.line(), flush=True)
            if options.json:  # after each: an interrupted bench leaves its rows
                read = json.loads(json.dumps(content))  # sealed over what a reader finds
                write_atomically(options.json, json.dumps({**read, SEAL: seal(read)}, indent=2).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))

"""What the fork server does before it forks workers: it reads git's state, then imports all that cells need."""

import gc
import importlib
import json
import os
import traceback
from pathlib import Path

from paper_repro.base.files import read_code_state

VARIABLE = "PAPER_REPRO_PRELOAD"
"""The environment variable that names the log and the modules; only a fork server has it."""
CODE = read_code_state()
"""Read before the rest of the code is imported."""


def preload(log: str, names: list[str]) -> None:
    """Import modules; a worker finds the error of one that cannot be imported."""
    from paper_repro.base import identity
    from paper_repro.cells.records import versions

    os.setsid()  # the terminal's signals are for the runner
    with Path(log).open("ab") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    versions()
    identity.imported_by(names)  # their hashes are those of the code that is imported now
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            traceback.print_exc()
    gc.freeze()  # workers share this memory as long as no collection writes to it


if VARIABLE in os.environ:
    preload(*json.loads(os.environ.pop(VARIABLE)))

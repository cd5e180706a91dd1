"""Measures in a process of its own whether a kind of cells gains by a compiled loss, and keeps what it found.

The process of the cell itself stays as it was: what a compiler leaves in memory, and a compiler or a kernel that
crashes, belong to the other one (this file, as a program), which ends with it.
"""

import contextlib
import hashlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paper_repro import kernels
from paper_repro.base.configs import without_seeds
from paper_repro.base.errors import UsageError
from paper_repro.base.files import CorruptFileError, read_regular, write_atomically
from paper_repro.base.identity import canonical_json, fingerprint
from paper_repro.cells.tasks import Cell
from paper_repro.training.build import BuiltCell, build
from paper_repro.training.compiled_code import first_line, of_full_disk, processor
from paper_repro.training.machine import Machine, settings
from paper_repro.training.passes import Passes, UntriableError

FORMAT = 1
FOLDER = "trials"
LEAST_PAIRS, MOST_PAIRS = 6, 20
PAIR_SECONDS = 6.0
"""What the timed passes of a trial take together, if that is more than ``LEAST_PAIRS`` of them."""
SHARED_MACHINE = ("threads", "tf32", "implementation", "recompute", "cuda_graph")
"""Keys of ``machine`` that decide how fast a pass is, compiled or not."""
_LIMIT_BYTES = 100_000
_DISK = 3
"""Exit code of a trial whose disk took nothing more."""
_POLL_SECONDS = 0.1
_DTYPES = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}
_AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass(frozen=True)
class Verdict:
    """What a trial found; seconds are the processor's where one thread works, else those of the clock."""

    uncompiled: float = 0.0
    """Seconds of one pass, forward and backward, the median."""
    compiled: float = 0.0
    gain: float = 0.0
    """Seconds that a compiled pass takes less: the median of what pairs of neighbouring passes say."""
    cold: float = 0.0
    """Seconds until the loss was compiled, where nothing of it was kept."""
    warm: float | None = None
    """Seconds until a later process has taken the compiled loss from what is kept, once one has."""
    refused: str = ""
    """Why there is no compiled loss; the numbers are 0 then."""


def kind_of(built: BuiltCell, passes: Passes) -> dict[str, Any]:
    """Return what two cells share if one trial answers for both: all that shapes the computation of a pass.

    Seed, learning rate and number of steps are no part of it.
    """
    config = built.cell.config
    section = config.get("machine") or {}
    on_gpu = passes.device.type == "cuda"
    return {
        "format": FORMAT,
        "model": without_seeds(config["model"]),
        "module": without_seeds(config["module"]),
        "batches": passes.shapes,
        "precision": built.training.precision,
        "machine": {key: section.get(key) for key in SHARED_MACHINE},
        "device": torch.cuda.get_device_name(passes.device) if on_gpu else processor(),
        "torch": torch.__version__,
        "code": _code_of(built),
    }


def place_of(folder: Path, kind: Mapping[str, Any]) -> Path:
    """Return the file of a kind's verdict in the folder of compiled code."""
    return folder / FOLDER / f"{fingerprint(dict(kind))}.json"


def read(path: Path, kind: Mapping[str, Any]) -> Verdict | None:
    """Return the verdict on a kind of cells; None where there is none, or a file that ``write`` did not make."""
    try:
        content = json.loads(read_regular(path, _LIMIT_BYTES))
        found = Verdict(**content["verdict"])
        numbers = [found.uncompiled, found.compiled, found.gain, found.cold, found.warm or 0.0]
        whole = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        return found if whole and isinstance(found.refused, str) and content["kind"] == dict(kind) else None
    except (OSError, CorruptFileError, ValueError, KeyError, TypeError, RecursionError):
        return None


def write(path: Path, kind: Mapping[str, Any], verdict: Verdict) -> None:
    """Keep a verdict, atomically; a disk that takes nothing leaves it to the next cell to measure again."""
    content = {"kind": dict(kind), "verdict": asdict(verdict)}
    with contextlib.suppress(OSError):
        write_atomically(path, canonical_json(content).encode() + b"\n")


def run(built: BuiltCell, limit: float, stopping: Callable[[], bool]) -> Verdict | None:
    """Try the kind of a cell in another process, and return what it found.

    Args:
        limit: seconds after which it is ended, and the kind counts as one that cannot be compiled.
        stopping: whether the user wants to stop: the process is ended at once.

    Returns None if it was stopped, or if the disk took nothing more.
    """
    machine = {**(built.cell.config.get("machine") or {}), "compile": False, "devices": _first_device(built.machine)}
    job = {"cell": built.cell.id, "config": {**built.cell.config, "machine": machine}}
    command = [sys.executable, "-P", "-m", "paper_repro.training.compile_trial"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None and process.stdout is not None
    until = time.monotonic() + limit
    try:
        with contextlib.suppress(BrokenPipeError):  # its exit code says why
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        while process.poll() is None:
            if stopping():
                return None
            if time.monotonic() > until:
                return Verdict(refused=f"it was not compiled within {limit:.0f} s")
            time.sleep(_POLL_SECONDS)
        if process.returncode == _DISK:
            return None
        if process.returncode == 0:
            return Verdict(**json.loads(process.stdout.read()))
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        return Verdict(refused=f"its trial ended with {how}")
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # with the compilers that it has called
            process.wait()
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def measure(built: BuiltCell, passes: Passes) -> Verdict:
    """Compile the loss, and time passes with and without in turn."""
    module = built.module
    with passes.untouched():
        for index in range(len(passes)):
            passes.seconds(index, module.loss_and_carry)
        started = passes.spent()
        try:
            module.compile_loss()
            for index in range(len(passes)):
                passes.seconds(index, module.step_loss)
        except Exception as error:
            if of_full_disk(error):
                raise
            return Verdict(refused=first_line(error))
        cold = passes.spent() - started
        pairs: list[tuple[float, float]] = []
        started = time.monotonic()
        while len(pairs) < LEAST_PAIRS or (len(pairs) < MOST_PAIRS and time.monotonic() - started < PAIR_SECONDS):
            plain = passes.seconds(len(pairs), module.loss_and_carry)
            pairs.append((plain, passes.seconds(len(pairs), module.step_loss)))
    return judged(pairs, cold)


def judged(pairs: list[tuple[float, float]], cold: float) -> Verdict:
    """Return the verdict that pairs of seconds, without and with compiled code, amount to."""
    plain, compiled = (statistics.median(column) for column in zip(*pairs, strict=True))
    gain = statistics.median(one - other for one, other in pairs)
    return Verdict(round(plain, 6), round(compiled, 6), round(gain, 6), round(cold, 2))


def _code_of(built: BuiltCell) -> str:
    """Return a hash of the files that compute a pass: those of the module's classes, and all kernels."""
    classes = {one for part in built.module.modules() for one in type(part).__mro__}
    names = {one.__module__ for one in classes if one.__module__.startswith("paper_repro.")}
    files = {Path(str(sys.modules[name].__file__)) for name in names}
    for folder in kernels.__path__:
        files |= set(Path(folder).rglob("*.py"))
    digest = hashlib.sha256()
    for content in sorted(path.read_bytes() for path in files):
        digest.update(content)
    return digest.hexdigest()[:16]


def _first_device(machine: Machine) -> Any:
    return machine.devices[:1] if isinstance(machine.devices, list) else 1


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.killpg(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Try the kind of the cell on standard input, and write the verdict to standard output."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        verdict = _try(Cell(job["cell"], job["config"]))
    except (UsageError, UntriableError) as error:
        verdict = Verdict(refused=first_line(error))
    except Exception as error:
        if of_full_disk(error):
            print(f"the trial of cell {job['cell']}: {first_line(error)}", file=sys.stderr)
            sys.exit(_DISK)
        raise
    with answer:
        answer.write(json.dumps(asdict(verdict)))


def _try(cell: Cell) -> Verdict:
    with settings(Machine.of(cell.config["machine"])):
        built = build(cell)
        built.data.prepare_data()
        built.data.setup("fit")
        device, precision = built.machine.device, built.training.precision
        built.module.to(device, _DTYPES.get(precision))

        def context() -> contextlib.AbstractContextManager[Any]:
            narrow = _AUTOCAST.get(precision)
            return torch.autocast(device.type, narrow) if narrow else contextlib.nullcontext()

        return measure(built, Passes(built, device, context))


if __name__ == "__main__":
    main()

"""Peak memory of one gradient of CET at the paper's size: Equilibrium Propagation against backpropagation (TBPTE).

On a CPU each measurement starts this file as a child process, ``cet_memory.py ep|tbpte T1 T2``, which prints the
MiB that one gradient adds to the peak of a process that holds model and images.  There a buffer that is given back goes
back to the system at once, so that the peak counts what is needed together and no holes in the heap.
"""

import sys
from collections.abc import Iterator

import torch
from children import measure_in_child
from side_by_side import Comparison, wait
from torch import Tensor

from paper_repro.models.cet import CET, Phases, equilibrium_propagation, truncated_backpropagation
from paper_repro.training.machine import peak_memory_mib

CPU_BATCH, CUDA_BATCH = 8, 64
LEAST_RATIO = 1 / 0.4
SAME = 0.98
"""Where nothing should change: an allocator's pages."""
FEW = (30, 5)
MORE = ((150, 5), (30, 20), (150, 20))
"""T1 and T2; the memory should not depend on them."""
HEAP = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
LEARN = {"ep": equilibrium_propagation, "tbpte": truncated_backpropagation}


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare EP with TBPTE(5), then EP of more steps with EP of few."""
    few = _measured("ep", *FEW, device)
    yield Comparison(
        _case("EP", FEW, device),
        "MiB at the peak",
        [few],
        [_measured("tbpte", *FEW, device)],
        "TBPTE(5)",
        0.0,
        LEAST_RATIO,
    )
    for steps in MORE:
        more, name = _measured("ep", *steps, device), f"EP with T1={FEW[0]}, T2={FEW[1]}"
        yield Comparison(_case("EP", steps, device), "MiB at the peak", [more], [few], name, 0.0, SAME)


def _case(name: str, steps: tuple[int, int], device: torch.device) -> str:
    batch = CPU_BATCH if device.type == "cpu" else CUDA_BATCH
    return f"{name}, the paper's size, batch {batch}, T1={steps[0]}, T2={steps[1]}"


def _measured(method: str, free_steps: int, nudged_steps: int, device: torch.device) -> float:
    if device.type == "cuda":
        return _added(method, free_steps, nudged_steps, CUDA_BATCH, device)
    return measure_in_child(__file__, method, str(free_steps), str(nudged_steps), **HEAP)


def _added(method: str, free_steps: int, nudged_steps: int, batch: int, device: torch.device) -> float:
    """Measure the added MiB, the gradients included; on a GPU after a pass that loads libraries."""
    torch.manual_seed(0)
    model = CET().to(device)
    images = torch.rand(batch, 3, 120, 120, device=device) * 2 - 1
    if device.type == "cuda":
        _learn(model, images, method, 2, 2)
        wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) / 2**20
    else:
        before = peak_memory_mib(device) or 0.0
    _learn(model, images, method, free_steps, nudged_steps)
    wait(device)
    return (peak_memory_mib(device) or 0.0) - before


def _learn(model: CET, images: Tensor, method: str, free_steps: int, nudged_steps: int) -> None:
    masked = images.clone()
    masked[..., :60] = 0
    LEARN[method](model, masked, images, Phases(free_steps, nudged_steps))
    for parameter in model.parameters():
        parameter.grad = None


if __name__ == "__main__":
    print(_added(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), CPU_BATCH, torch.device("cpu")))

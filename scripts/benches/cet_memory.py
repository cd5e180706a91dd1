"""Peak memory of one gradient of CET at the paper's size: Equilibrium Propagation against backpropagation (TBPTE).

On a CPU each measurement has a process of its own.  There a buffer that is given back goes back to the system at once,
so that the peak counts what is needed together and no holes in the heap.
"""

from collections.abc import Iterator
from functools import partial

import torch
from side_by_side import Comparison, added_memory, in_child
from torch import Tensor

from paper_repro.models.cet import CET, Phases, equilibrium_propagation, truncated_backpropagation

BATCHES = {"cpu": 8, "cuda": 64}
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
    few, other = (_measured(method, FEW, device) for method in ("ep", "tbpte"))
    yield Comparison(_case(FEW, device), "MiB at the peak", [few], [other], "TBPTE(5)", goal=LEAST_RATIO)
    for steps in MORE:
        more, name = _measured("ep", steps, device), f"EP with T1={FEW[0]}, T2={FEW[1]}"
        yield Comparison(_case(steps, device), "MiB at the peak", [more], [few], name, goal=SAME)


def _case(steps: tuple[int, int], device: torch.device) -> str:
    return f"EP, the paper's size, batch {BATCHES[device.type]}, T1={steps[0]}, T2={steps[1]}"


def _measured(method: str, steps: tuple[int, int], device: torch.device) -> float:
    on_gpu = device.type == "cuda"
    return _added(method, steps, device) if on_gpu else in_child(_added, method, steps, device, **HEAP)


def _added(method: str, steps: tuple[int, int], device: torch.device) -> float:
    """Measure the added MiB, the gradients included."""
    torch.manual_seed(0)
    model = CET().to(device)
    images = torch.rand(BATCHES[device.type], 3, 120, 120, device=device) * 2 - 1
    learn = partial(_learn, model, images, method)
    return added_memory(partial(learn, *steps), device, warm_up=partial(learn, 2, 2))


def _learn(model: CET, images: Tensor, method: str, free_steps: int, nudged_steps: int) -> None:
    masked = images.clone()
    masked[..., :60] = 0
    LEARN[method](model, masked, images, Phases(free_steps, nudged_steps))
    for parameter in model.parameters():
        parameter.grad = None

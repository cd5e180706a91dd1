"""``machine.workers=auto`` against made-up GPUs: the rate of a sweep as a function of the jobs that run at once."""

from collections.abc import Callable, Sequence

import pytest

from paper_repro.cells.workers import Memory, Workers

GIB = 2**30
AUTO = {"accelerator": "gpu", "devices": 1, "workers": "auto"}
ROOMY = (2 * GIB, 60 * GIB)


def settled(rate: Callable[[int], float], memory: Sequence[Memory | None] = (ROOMY,), steps: bool = True) -> int:
    """Return how many jobs run at once in the end on GPUs where N jobs together do ``rate(N)`` of work a second."""
    workers, work = Workers.of(AUTO), 0.0
    for now in range(3600):
        work += rate(workers.count)
        workers.look(float(now), work, steps, memory)
    return workers.count


@pytest.mark.parametrize(
    ("rate", "memory", "expected"),
    [
        (lambda count: min(count, 6), [ROOMY], 6),  # two GPUs, each full with three
        (lambda count: min(count, 2), [ROOMY], 2),  # one job fills a GPU
        (lambda count: 2 / count, [ROOMY], 2),  # jobs beside each other are in each other's way
        (lambda count: count, [ROOMY], 16),
        (lambda count: count, [ROOMY, (30 * GIB, 20 * GIB)], 2),  # no room for a second job
        (lambda count: count, [None], 2),  # nothing is known of the memory
    ],
)
def test_workers_are_added_while_they_raise_the_rate_and_fit(rate, memory, expected, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert settled(rate, memory) == expected
    assert settled(rate, memory, steps=False) == expected  # jobs so short that they are never all past their first step


def test_a_job_that_begins_again_leaves_its_workers(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    workers = Workers.of(AUTO)
    for now in range(300):
        workers.look(float(now), 1000.0 - now, True, [ROOMY])
    assert workers.count == 2 and workers.grows


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ({"workers": 3, "accelerator": "gpu"}, 3),
        (AUTO, 8),
        (AUTO | {"devices": 2}, 4),
        (AUTO | {"devices": 8}, 1),
        (AUTO | {"devices": [1, 3]}, 1),
        (AUTO | {"accelerator": "cpu"}, 1),
    ],
)
def test_the_first_workers_have_gpus_of_their_own(machine, expected, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    workers = Workers.of(machine)
    assert workers.count == expected and workers.grows == (machine == AUTO)

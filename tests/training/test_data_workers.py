import multiprocessing
import os
from types import SimpleNamespace

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.tests.training.doubles import DOUBLES_NAME as DOUBLES
from paper_repro.tests.training.doubles import NOISY, Waves, assert_same_runs
from paper_repro.training.fit import Fit


class Signed(Waves):
    """Says which process computed a batch."""

    def train_batch(self, step):
        return step, os.getpid()


@pytest.mark.parametrize(("rank", "ranks", "step"), [(0, 1, 0), (0, 1, 5), (1, 2, 3)])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_batch_comes_once_and_in_order_however_many_processes_compute_them(workers, rank, ranks, step):
    data = Signed(0)
    data.workers = workers
    data.trainer = SimpleNamespace(world_size=ranks, global_rank=rank, accumulate_grad_batches=2, global_step=step)
    found = [batch for batch, _ in zip(data.train_dataloader(), range(7), strict=False)]
    assert [number for number, _ in found] == [rank + ranks * (2 * step + index) for index in range(7)]
    assert len({process for _, process in found}) == max(workers, 1)
    assert (os.getpid() in {process for _, process in found}) == (workers == 0)


def test_a_run_with_two_workers_equals_one_without_also_after_stops(cell, run, tmp_path):
    noisy = {**NOISY, "training__accumulate": 2}
    plain, ahead = cell(**noisy), cell(**noisy, machine__data_workers=2)
    expected, found = run([plain], tmp_path / "plain"), run([ahead], tmp_path / "ahead", stops=(1, 5))
    assert_same_runs(found, expected, [plain], (tmp_path / "ahead", tmp_path / "plain"))


def test_what_a_worker_refuses_is_said_in_one_line(cell, recorder, tmp_path):
    damaged = {"_target_": f"{DOUBLES}.Damaged", "seed": 0}
    with pytest.raises(UsageError) as caught:
        Fit().run([cell(data=damaged, machine__data_workers=2)], tmp_path, recorder())
    assert str(caught.value) == "batch 3 is damaged: copy the data anew"
    # The error still refers to the loader; workers that are left would keep this process from ending.
    assert not [child for child in multiprocessing.active_children() if child.is_alive()]

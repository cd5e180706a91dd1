import json
import os
import socket
import subprocess
import sys

import pytest
import torch

from paper_repro.metrics.images import MeanImagePSNR, PooledPSNR
from paper_repro.metrics.likelihood import BitsPerByte, CrossEntropy, Perplexity
from paper_repro.metrics.pooled import Largest, Mean
from paper_repro.metrics.regression import MeanSquaredError, RootMeanSquaredError

PREDS = torch.linspace(0, 1, 60, dtype=torch.float64).reshape(5, 12)
TARGET = PREDS.flip(1)
NLL, COUNTS = torch.tensor([3.0, 90.0, 0.5, 7.0, 11.0], dtype=torch.float64), torch.tensor([2, 50, 1, 3, 4])


def fed(rows):
    metrics = [
        MeanSquaredError(),
        RootMeanSquaredError(),
        PooledPSNR(data_range=1.0),
        MeanImagePSNR(data_range=1.0),
        CrossEntropy(),
        Perplexity(),
        BitsPerByte(),
        Mean(),
        Largest(),
        Mean(),
        Largest(),
    ]
    for metric in metrics[:4]:
        metric.update(PREDS[rows], TARGET[rows])
    for metric in metrics[4:7]:
        metric.update(NLL[rows], COUNTS[rows])
    for metric in metrics[7:9]:
        metric.update(NLL[rows])
    for metric in metrics[9:]:  # the only number of the second process is none
        metric.update(torch.where(NLL[rows] == 11, torch.nan, NLL[rows]))
    return metrics


def answer_as_one_of_two(rank, port):
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    metrics = fed(slice(0, 4) if rank == 0 else slice(4, 5))
    answer = [metric.compute().item() for metric in metrics]
    torch.distributed.destroy_process_group()
    return answer


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_two_processes_with_unequal_shares_agree_with_one():
    port = free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__]
    other = subprocess.Popen([*command, "1", str(port)], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        answers = [answer_as_one_of_two(0, port), json.loads(other.communicate(timeout=120)[0])]
    finally:
        other.kill()
    expected = [metric.compute().item() for metric in fed(slice(0, 5))]
    # sums of at most 60 float64 terms in another order: 60 * 2^-53 = 7e-15; perplexity and decibels amplify it by < 5
    assert answers[0] == pytest.approx(answers[1], rel=0, abs=0, nan_ok=True)
    assert answers[1] == pytest.approx(expected, rel=4e-14, nan_ok=True)


if __name__ == "__main__":
    print(json.dumps(answer_as_one_of_two(int(sys.argv[1]), int(sys.argv[2]))))

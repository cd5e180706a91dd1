import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from paper_repro.base.configs import compose
from paper_repro.base.errors import UsageError
from paper_repro.kernels.preferences import Speed, speed
from paper_repro.training.build import optimizer_of
from paper_repro.training.machine import Machine, settings


def test_threads_denormals_and_preferences_are_set_and_put_back():
    tiny = torch.full((1,), 1e-300, dtype=torch.float64)
    before = torch.get_num_threads()
    with settings(Machine("auto", threads=before + 1, implementation="reference", recompute=True, cuda_graph=True)):
        assert torch.get_num_threads() == before + 1 and float(tiny * 1e-20) == 0.0
        assert speed() == Speed(implementation="reference", recompute=True, cuda_graph=True)
    assert torch.get_num_threads() == before and float(tiny * 1e-20) > 0.0 and speed() == Speed()


@pytest.mark.parametrize(("experiment", "expected"), [("cem/slimpajama", True), ("nrgpt/shakespeare", None)])
def test_an_optimiser_gets_fused_where_the_machine_section_says_so_and_it_takes_it(experiment, expected):
    for override, wanted in (((), expected), (("machine.fused_optimizer=false",), False)):
        config = compose(experiment, override, seed=0)
        optimizer = optimizer_of(config, Machine.of(config["machine"]))([nn.Parameter(torch.ones(2, 2))])
        takes = type(optimizer) is torch.optim.AdamW
        assert optimizer.defaults.get("fused") is (wanted if takes else None)


@pytest.mark.parametrize(
    ("device", "tf32", "inside"), [("cuda", True, "high"), ("cuda", False, "highest"), ("cpu", True, "highest")]
)
def test_tf32_is_for_gpus_that_ask_for_it_and_is_put_back(device, tf32, inside, monkeypatch):
    monkeypatch.setattr(Machine, "device", torch.device(device))
    with settings(Machine(tf32=tf32)):
        assert torch.get_float32_matmul_precision() == inside
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
def test_cells_are_trained_on_a_gpu(tmp_path):
    """In processes that have computed nothing yet, as those of a sweep."""
    script = Path(__file__).parents[2] / "scripts" / "reproduce.py"
    words = ["cem/table3", "scale=smoke", "seeds=0", "machine=gpu", "machine.workers=3", f"runs={tmp_path}"]
    command = [sys.executable, str(script), *words]
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_named():
    for accelerator in ("gpu", "cuda"):
        with pytest.raises(UsageError, match=r"sees no GPU.*machine=cpu"):
            _ = Machine(accelerator=accelerator).device
    assert Machine(accelerator="auto").device.type == "cpu"

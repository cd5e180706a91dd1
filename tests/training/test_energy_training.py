"""One energy model trained alone, stacked and on two processes, stopped, killed and compiled."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
import torch

from paper_repro.cells.tasks import StopRequestedError
from paper_repro.tests.support import sweeps
from paper_repro.tests.support.reports import Recorder
from paper_repro.tests.training.doubles import assert_close_runs, assert_same_runs
from paper_repro.training import checkpoints
from paper_repro.training.build import build
from paper_repro.training.fit import Fit

ENERGY = {
    "module": {"_target_": "paper_repro.tests.training.energy.EnergyRegression"},
    "model": {"_target_": "paper_repro.tests.training.energy.Energy"},
}
EXACT = {**ENERGY, "training__precision": "64-true"}
# Sums of a few float64 numbers in another order, over 12 steps.
RELATIVE = 1e-10


def cells_of(cell, kind, **changes):
    return [cell(seed=seed, lr=lr, **ENERGY, **changes) for seed, lr in ((0, 0.01), (1, 0.03))[: 1 + (kind != "alone")]]


def test_stacked_models_equal_each_trained_alone(cell, run, tmp_path):
    cells = [cell(seed=seed, lr=lr, **EXACT) for seed, lr in ((0, 0.01), (1, 0.01), (1, 0.03))]
    together = run(cells, tmp_path / "together")
    for one, outcome in zip(cells, together, strict=True):
        alone = run([one], tmp_path / one.id)[0]
        assert_close_runs(outcome, alone, one, (tmp_path / "together", tmp_path / one.id), RELATIVE)


@pytest.mark.slow
def test_two_processes_equal_one_and_a_run_goes_from_the_ones_to_the_other(cell, run, tmp_path):
    own = {**EXACT, "training__accumulate": 2}
    one, two = (cell(**own, machine__devices=count) for count in (1, 2))
    before = psutil.Process().children(recursive=True)
    expected = run([one], tmp_path / "one")[0]
    for item, stop in ((two, 3), (one, 6)):
        with pytest.raises(StopRequestedError):
            Fit().run([item], tmp_path / "two", Recorder(stop))
    content = checkpoints.load(checkpoints.checkpoint_path(tmp_path / "two" / "checkpoints", 3), [one.id])
    carries = content["callbacks"]["Watching"]["carries"]
    assert {slot: int(carry["written"]) for slot, carry in carries.items()} == {0: 3 * 8, 1: 3 * 8}
    found = run([two], tmp_path / "two")[0]
    assert_close_runs(found, expected, one, (tmp_path / "two", tmp_path / "one"), RELATIVE)
    _, alive = psutil.wait_procs({*psutil.Process().children(recursive=True)} - {*before}, timeout=20)
    ranks = [item for item in alive if any("spawn_main" in word for word in item.cmdline())]
    assert ranks == [], "on a busy machine the last ones take a moment to end"


@pytest.mark.parametrize(("kind", "precision"), [("alone", "32-true"), ("alone", "64-true"), ("stacked", "32-true")])
def test_a_run_stopped_at_several_steps_equals_an_uninterrupted_one_bit_for_bit(kind, precision, cell, run, tmp_path):
    cells = cells_of(cell, kind, training__precision=precision)
    whole, stopped = run(cells, tmp_path / "whole"), run(cells, tmp_path / "stopped", stops=(1, 2, 7))
    assert_same_runs(stopped, whole, cells, (tmp_path / "stopped", tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alone", "stacked"])
def test_a_killed_process_is_resumed_bit_for_bit(kind, cell, run, tmp_path):
    often = {"steps": 150, "machine__checkpoint_every_steps": 5}
    script = tmp_path / "killed.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import conftest, test_energy_training
        from pathlib import Path
        from paper_repro.training.fit import Fit
        cells = test_energy_training.cells_of(conftest.make_cell, {kind!r}, **{often!r})
        Fit().run(cells, Path({str(tmp_path / "killed")!r}), conftest.Recorder())
        """)
    )
    process = subprocess.Popen([sys.executable, str(script)])
    folder = tmp_path / "killed" / "checkpoints"
    sweeps.wait_for(lambda: len([*folder.glob("step-*.ckpt")]) >= 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    cells = cells_of(cell, kind, **often)
    result, whole = run(cells, tmp_path / "killed"), run(cells, tmp_path / "whole")
    assert_same_runs(result, whole, cells, (tmp_path / "killed", tmp_path / "whole"))


def test_draws_differ_from_step_to_step_and_slot_to_slot(cell):
    parts = build(cell(**ENERGY))
    module, batch = parts.module, parts.data.train_batch(0)
    places = ((3, 1), (4, 1), (3, 0), (3, 2), (0, 31))
    draws, *others = [module.draws_of(batch, step, slot, module.device) for step, slot in places]
    for name in ("start", "noise", "keys"):
        assert all(not torch.equal(draws[name], other[name]) for other in others)
    counts = {int(module.draws_of(batch, step, 0, module.device)["num_steps"]) for step in range(50)}
    assert counts == {1, 2, 3, 4}
    _, carry = module.loss_and_carry(batch, draws, module.initial_carry(batch))
    assert int(carry["written"]) == 8 and not carry["entries"]["y"].requires_grad

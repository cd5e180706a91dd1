"""A rehearsal runs a cell's own step on made-up data, says what it took, and what cannot run."""

import itertools
import json
import os
import signal
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from paper_repro.base.files import write_with_digest
from paper_repro.cells import estimates
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Rehearsal, Task
from paper_repro.scripts import reproduce
from paper_repro.tables import plan, spec
from paper_repro.tests.training.doubles import Small
from paper_repro.training.fit import Fit

KINDS = ("cem/table3", "ngpt/table6", "ebt/fig7", "ebt/table4", "ebt/figB2", "ebt/table3", "cet/table1", "nrgpt/fig2")


def first_cell(name: str) -> PlannedCell:
    return plan.make(spec.load(name), "smoke").cells[-1]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_data_is_made_up_where_none_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPER_REPRO_DATA", "/nowhere")
    found = Fit().rehearse(first_cell(name).config)
    assert not found.trouble and found.micro_batch is None
    assert 0 < found.step_seconds < 10 and 0 < found.evaluation_seconds < 10
    assert found.memory_bytes > 2**20 and found.checkpoint_bytes > 1000


@pytest.fixture
def altered(monkeypatch):
    """Let ``Small`` compute its outputs by a function of them, its inputs, and the number of the call."""

    def alter(function):
        calls, whole = itertools.count(1), Small.forward
        monkeypatch.setattr(Small, "forward", lambda self, x: function(whole(self, x), x, next(calls)))

    return alter


def test_what_a_step_takes_is_measured_after_it_has_been_built(cell, altered):
    altered(lambda found, x, call: (time.sleep(1.0 if call <= 2 else 0.02), found)[1])
    assert 0.02 <= Fit().rehearse(cell(steps=1000).config).step_seconds < 0.5


def test_a_batch_out_of_memory_is_halved_and_one_that_fits_nowhere_is_said(cell, altered):
    def within(most, found, x, call):
        if len(x) > most and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    config = cell(machine__micro_batch="auto").config
    altered(partial(within, 3))
    assert Fit().rehearse(config).micro_batch == 2
    altered(partial(within, 0))
    assert "out of memory" in Fit().rehearse(config).trouble


def test_a_loss_that_is_lost_after_some_steps_is_no_measurement(cell, altered):
    altered(lambda found, x, call: found * (torch.nan if call > 2 else 1.0))
    lost = Fit().rehearse(cell(steps=1000).config)
    assert "not finite" in lost.trouble and not lost.step_seconds


def test_hours_are_those_of_steps_and_evaluations(tmp_path):
    own = first_cell("ngpt/table6")
    config = json.loads(json.dumps(own.config))
    config["training"] |= {"steps": 1000, "evaluate_every": 100, "evaluation_batches": 3}
    config["data"]["num_evaluation_batches"] = 50
    cell = replace(own, config=config)
    found = Rehearsal(step_seconds=0.5, evaluation_seconds=2.0, memory_bytes=123, checkpoint_bytes=1)
    assert estimates.expected_seconds(cell, found) == 1000 * 0.5 + (9 * 3 + 50) * 2.0
    known = estimates.estimate([cell], [tmp_path], kept=tmp_path)[cell.id]
    content = {estimates._key(cell): vars(found)}
    write_with_digest(tmp_path / estimates.REHEARSALS, json.dumps(content).encode())
    rehearsed = estimates.estimate([cell], [tmp_path], kept=tmp_path)[cell.id]
    assert known.cost is not None and rehearsed.cost is not None
    assert rehearsed.seconds == 654 and rehearsed.cost.memory_bytes == 123 != known.cost.memory_bytes


class Killed(Task):
    def rehearse(self, config: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_rehearsal_that_is_killed_is_said(tmp_path) -> None:
    config = {"task": {"_target_": "paper_repro.tests.training.test_rehearsal.Killed"}}
    ((_, found),) = estimates.rehearse([PlannedCell("c", config, (), 0, "c")], tmp_path)
    assert found is not None and "killed by signal 9" in found.trouble


@pytest.mark.slow
def test_the_command_prints_what_each_model_takes_and_plan_uses_it(tmp_path, capsys):
    words = ["cem/table3", "scale=smoke", f"runs={tmp_path}"]
    assert reproduce.main([*words, "--rehearse"]) == 0
    shown = capsys.readouterr().out
    assert "ms a step" in shown and "CEM-T8" in shown and "--plan uses it" in shown
    assert not list(tmp_path.glob("cells/*"))
    assert len(estimates.rehearsals(tmp_path)) == 6

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.configs import compose
from paper_repro.base.errors import UsageError
from paper_repro.cells import estimates, planned
from paper_repro.cells.estimates import UNMEASURED_RATE, estimate
from paper_repro.cells.tasks import Cost
from paper_repro.tables import plan, publish, spec
from paper_repro.training import counting
from paper_repro.training.counting import measure

TABLE3 = {
    "plain": (33_985, 6_758_400),
    "gated": (33_941, 6_732_800),
    "t1": (22_657, 6_732_800),
    "t2": (22_657, 11_084_800),
    "t4": (22_657, 19_788_800),
    "t8": (22_657, 37_196_800),
}
"""Parameters, and multiply-adds of a batch of 200, that round to the digits of CEM's Table 3."""


@pytest.mark.parametrize("model", TABLE3)
def test_parameters_and_flops_of_table_3_are_the_printed_ones(model: str) -> None:
    artifact = spec.load("cem/table3")
    key = (("kernel", "rbf"), ("model", model))
    cost = measure(compose(artifact.experiment, artifact.overrides(key, artifact.scales["paper"])))
    assert (cost.parameters, cost.multiply_adds) == TABLE3[model]
    for name, found in (("parameters", cost.parameters), ("multiply_adds", cost.multiply_adds)):
        column, printed = artifact.columns[name], artifact.printed(key, name)
        assert printed is not None
        assert column.text(found) == f"{printed.mean:.{column.digits}f}{column.unit}"


def test_memory_grows_with_inner_steps_and_batch() -> None:
    def memory(*overrides: str) -> int:
        return measure(compose("cem/gaussian_process", overrides)).memory_bytes

    one = memory("model.block.num_steps=1")
    hidden_bytes = 200 * 170 * 4
    assert memory("model.block.num_steps=8") >= one + 7 * hidden_bytes
    assert memory("model.block.num_steps=1", "data.batch_size=2000") > 5 * one


@pytest.mark.slow
def test_recomputed_steps_cost_more_flops_and_less_memory() -> None:
    kept, again = (
        measure(compose("nrgpt/shakespeare", ["model.num_steps=8", f"machine.recompute={recompute}"]))
        for recompute in ("false", "true")
    )
    assert again.parameters == kept.parameters and again.multiply_adds == kept.multiply_adds
    assert again.step_flops > 1.2 * kept.step_flops and again.memory_bytes < 0.6 * kept.memory_bytes


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=-0.1", "learning rate"),
        ("optimizer.betas=[0.9,1.5]", "beta"),
        ("+optimizer.momentum=0.9", "unknown key 'momentum'"),
        ("+training.stpes=3", "did you mean 'steps'"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_name(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=r"(?i).*" + message.replace("(", r"\(")):
        measure(compose("cem/gaussian_process", [override]))


def test_a_model_that_differentiates_twice_is_planned_with_its_own_flops(cell: Any, tmp_path: Path) -> None:
    """The numbers of ``test_counting``, for batches of 8 with 10 inputs and 6 hidden numbers."""
    product, energy = 8 * 10 * 6, 8 * 6
    config = cell(model={"_target_": "paper_repro.tests.training.doubles.Energetic"}, training__accumulate=3).config
    found = measure(config)
    assert found.multiply_adds == 2 * (product + energy)
    assert found.step_flops == 3 * 2 * (5 * product + 3 * energy)
    assert found.parameters == 10 * 6 + 6
    made = plan.make(spec.load("cem/table3"), "smoke")
    cells = tuple(dataclasses.replace(own, config=config) for own in made.cells)
    text = publish.plan_table(dataclasses.replace(made, cells=cells), [tmp_path])
    assert "FLOPs of a training step" in text and f"  {found.step_flops:,}  " in text


def test_the_time_of_a_cell_without_a_record_follows_from_its_flops() -> None:
    cell = planned.single("cem/gaussian_process", ["training.steps=7"], 0)
    found = estimate([cell], [])[cell.id]
    assert found.cost is not None
    assert found.seconds == pytest.approx(7 * found.cost.step_flops / UNMEASURED_RATE)


def test_seeds_rates_and_steps_are_counted_once_and_models_and_batches_each(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    monkeypatch.setattr(counting, "_COUNTED", {})
    monkeypatch.setattr(counting, "_count", lambda built: counted.append(built) or (2, 3, 5))

    def parts(*overrides: str, seed: int = 0) -> Cost:
        return measure(compose("cem/gaussian_process", overrides, seed))

    first = parts()
    assert parts(seed=1) == parts("optimizer.lr=0.1") == first and len(counted) == 1
    assert parts("training.steps=9") == dataclasses.replace(first, steps=9) and len(counted) == 1
    assert parts("+training.accumulate=4").step_flops == 4 * first.step_flops and len(counted) == 1
    for number, other in enumerate(("model.width=8", "data.batch_size=9", "machine.implementation=reference"), start=2):
        parts(other)
        assert len(counted) == number


def test_seeds_share_an_estimate(tmp_path: Path) -> None:
    cells = [planned.single("ngpt/speedup", [], seed) for seed in (0, 1)]
    assert cells[0].config["data"]["seed"] != cells[1].config["data"]["seed"]
    assert estimates.shape(cells[0]) == estimates.shape(cells[1])

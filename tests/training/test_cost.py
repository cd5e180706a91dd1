import dataclasses

import pytest

from paper_repro.base.configs import compose
from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import Cost
from paper_repro.tables import spec
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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=-0.1", "learning rate"),
        ("+training.stpes=3", "did you mean 'steps'"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_name(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=r"(?i).*" + message.replace("(", r"\(")):
        measure(compose("cem/gaussian_process", [override]))


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

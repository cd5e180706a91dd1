from pathlib import Path

import pytest

from paper_repro.base import configs
from paper_repro.tests.support import synthetic
from paper_repro.tests.support.prepared import said_of

HEAD = """\
title: Mine
source: {paper: A paper, where: Table 1}
experiment: ebt/training_cost
metrics: {loss: {title: Loss, unit: nats, direction: lower}}
"""
SMOKE = "about: tiny"


def configs_of(folder: Path, axes: str, scale: str = SMOKE, more: str = "") -> list[dict[str, object]]:
    text = f"{HEAD}axes: {{{axes}}}\nscales: {{smoke: {{{scale}}}}}\n{more}"
    artifact = synthetic.load(folder, text)
    spec = artifact.scales["smoke"]
    return [configs.compose(artifact.experiment, artifact.overrides(key, spec)) for key in artifact.points(spec)]


def found(folder: Path, key: str, axes: str, scale: str = SMOKE, more: str = "") -> list[object]:
    return [configs.lookup(config, key) for config in configs_of(folder, axes, scale, more)]


def refusal(folder: Path, axes: str, scale: str = SMOKE, more: str = "") -> str:
    return said_of(lambda: configs_of(folder, axes, scale, more))


TASK = ", task: {title: Task, values: [easy, hard]}"
WIDTH = "width: {title: Width, values: {narrow: {overrides: {trunk.width: 8}}}}"


@pytest.mark.parametrize(
    ("axes", "scale", "wins"),
    [
        (WIDTH, "about: tiny, over_axes: {trunk.width: 4}", 4),
        (WIDTH, "about: tiny, overrides: {trunk.layers: 1}", 8),
        (WIDTH.replace("{overrides:", "{at_scale: {smoke: {trunk.width: 16}}, overrides:"), SMOKE, 16),
        (
            "width: {title: W, values: {a: {at_scale: {smoke: {trunk.width: 16}}}}}",
            "about: t, overrides: {trunk.width: 4}",
            16,
        ),
        (
            WIDTH.replace("overrides:", "at_scale: {smoke: {trunk.width: 3}}, overrides:"),
            "about: t, over_axes: {trunk.width: 4}",
            3,
        ),
        (WIDTH.replace("overrides:", "beside: {task: {hard: {trunk.width: 32}}}, overrides:") + TASK, SMOKE, 32),
        (WIDTH.replace("overrides:", "beside: {task: {easy: {trunk.width: 32}}}, overrides:") + TASK, SMOKE, 8),
    ],
)
def test_what_says_that_it_wins_wins(tmp_path: Path, axes: str, scale: str, wins: int) -> None:
    assert found(tmp_path, "trunk.width", axes, scale)[-1] == wins


def test_an_axis_that_sets_one_key_lists_values(tmp_path: Path) -> None:
    listed = "width: {title: Width, sets: trunk.width, values: [8, 16]}"
    named = "width: {title: Width, sets: trunk.width, values: {a: 8, b: {label: wide, value: 16}, c: {label: plain}}}"
    assert found(tmp_path, "trunk.width", listed) == [8, 16]
    default = configs.lookup(configs.compose("ebt/training_cost"), "trunk.width")
    assert found(tmp_path, "trunk.width", named) == [8, 16, default]
    labels = (
        synthetic.load(tmp_path, f"{HEAD}axes: {{{named}}}\nscales: {{smoke: {{about: t}}}}\n").axes["width"].values
    )
    assert [(name, value.label, value.number) for name, value in labels.items()] == [
        ("a", "8", 8),
        ("b", "wide", None),
        ("c", "plain", None),
    ]
    assert "lists a value twice" in refusal(tmp_path, listed.replace("16", "8"))
    assert "give the axis 'sets'" in refusal(tmp_path, named.replace("sets: trunk.width, ", ""))


def test_a_value_may_be_a_multiple_of_the_one_below(tmp_path: Path) -> None:
    double = "rate: {title: Rate, values: {one: {}, two: {overrides: {trunk.width: {times: 2}}}}}"
    assert found(tmp_path, "trunk.width", double, "about: t, overrides: {trunk.width: 12}") == [12, 24]
    model = "model: {title: Model, values: {a: {at_scale: {smoke: {trunk.width: 20}}}}}"
    assert found(tmp_path, "trunk.width", f"{double}, {model}") == [20, 40]  # a factor comes after every value
    half = double.replace("times: 2", "times: 0.5")
    assert found(tmp_path, "trunk.width", half, "about: t, overrides: {trunk.width: 12}") == [12, 6]
    assert "13 times 0.5 is 6.5" in refusal(tmp_path, half, "about: t, overrides: {trunk.width: 13}")
    assert "times takes a number, not 'x'" in refusal(tmp_path, double.replace("times: 2", "times: x"))
    assert "times multiplies a number, and the value below is {" in refusal(tmp_path, double.replace(".width", ""))


def test_a_value_may_be_the_number_of_an_axis(tmp_path: Path) -> None:
    steps = "steps: {title: Steps, values: {s3: 3, s6: 6}}"
    model = "model: {title: Model, values: {a: {overrides: {trunk.layers: {axis: steps}}}}}"
    assert found(tmp_path, "trunk.layers", f"{model}, {steps}") == [3, 6]
    assert "did you mean 'steps'" in refusal(tmp_path, f"{model}, {steps}".replace("axis: steps", "axis: step"))
    assert "the label 'x' of axis 'steps' is no number" in refusal(
        tmp_path, f"{model}, {steps}".replace("s3: 3", "s3: x")
    )


def test_what_all_scales_run_is_given_once(tmp_path: Path) -> None:
    axes = (
        "width: {title: W, sets: trunk.width, values: [8, 16]}, depth: {title: D, sets: trunk.layers, values: [1, 2]}"
    )
    assert len(found(tmp_path, "trunk.width", axes)) == 4
    assert found(tmp_path, "trunk.width", axes, 'about: t, only: {width: ["16"]}') == [16, 16]
    runs = 'runs: {any_of: [{width: ["8"]}, {depth: ["2"]}]}\n'
    assert found(tmp_path, "trunk.width", axes, more=runs) == [8, 8, 16]
    assert found(tmp_path, "trunk.width", axes, 'about: t, only: {depth: ["1"]}', runs) == [8]
    assert "unknown value '9' of axis 'width'" in refusal(tmp_path, axes, more=runs.replace('"8"', '"9"'))
    beside = WIDTH.replace("overrides:", "beside: {task: {hrd: {trunk.width: 32}}}, overrides:") + TASK
    assert "unknown value 'hrd' of axis 'task' (did you mean 'hard'?)" in refusal(tmp_path, beside)

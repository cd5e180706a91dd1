from pathlib import Path

import pytest

from paper_repro.base import configs
from paper_repro.base.configs import compose, experiments, explained
from paper_repro.base.errors import UsageError
from paper_repro.tables import spec
from paper_repro.tables.publish import explain


def line_of(text: str, key: str) -> str:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{key}: "))
    return line


@pytest.mark.parametrize("experiment", experiments())
def test_every_value_of_an_experiment_has_an_origin_and_reads_back(experiment: str, tmp_path: Path) -> None:
    try:
        config = compose(experiment, seed=3)
    except UsageError as error:
        pytest.skip(f"needs an override: {error}")
    text = explained(experiment, [], 3)
    assert "not found in any layer" not in text
    (tmp_path / "config.yaml").write_text(text)
    assert configs.read(tmp_path / "config.yaml").plain() == config


def test_each_layer_is_named() -> None:
    text = explained(
        "nrgpt/listops", ["model=nrgpt/ff1", "optimizer.lr=0.3", "machine.stack=null", "+data.task.more={a:1}"], 2
    )
    assert line_of(text, "hidden_factor").endswith("conf/model/nrgpt/ff1.yaml:8, chosen by the command line")
    assert line_of(text, "lr").split() == ["lr:", "0.3", "#", "the", "command", "line"]
    assert line_of(text, "stack").split() == ["stack:", "null", "#", "the", "command", "line"]
    assert line_of(text, "a").startswith("      a: 1 ") and text.splitlines()[-1].startswith("seed: 2")
    assert "${data.window}, paper_repro/conf/experiment/nrgpt/listops.yaml:" in line_of(text, "block_length")
    assert "paper_repro/conf/machine/cpu.yaml:" in line_of(text, "accelerator")


def test_a_cell_of_an_artifact_names_axis_scale_and_factor() -> None:
    artifact = spec.load("nrgpt/fig4")
    text = explain(artifact, "cpu", ["model=ff1,width=w64", "heads=h1", "optimizer.lr=0.3"], 1)
    assert text.startswith(
        "# nrgpt/fig4 at scale cpu: model=ff1, width=w64, heads=h1, steps=s3, setting=lr5e-3, seed 1 "
    )
    base = artifact.path.parent / "bases" / "shakespeare.yaml"
    values = next(n for n, line in enumerate(base.read_text().splitlines(), start=1) if "w64: 64" in line)
    assert line_of(text, "width").endswith(f"papers/nrgpt/bases/shakespeare.yaml:{values} (axis width=w64)")
    assert line_of(text, "steps").rstrip().endswith("(scale cpu)") and "2000" in line_of(text, "steps")
    assert line_of(text, "lr").endswith("# the command line")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=ff3"], "nrgpt/fig4: model=ff3: unknown value 'ff3' of axis 'model' (did you mean 'ff1'?)"),
        (["model=ff1,widht=w64"], "unknown axis 'widht' (did you mean 'width'?)"),
        (["width=w768"], "nrgpt/fig4 runs no cell with width=w768 at scale cpu"),
    ],
)
def test_a_cell_that_is_not_there_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        explain(spec.load("nrgpt/fig4"), "cpu", words)
    assert message in str(caught.value)

"""What a plan refuses of the cells that an artifact compares."""

import re
from pathlib import Path

import pytest

from paper_repro.base.errors import ROOT, UsageError
from paper_repro.tables import plan as plans
from paper_repro.tables import spec
from paper_repro.tests.support import synthetic
from paper_repro.tests.support.synthetic import ARTIFACT


def refusal(folder: Path, text: str, overrides: tuple[str, ...] = ()) -> str:
    with pytest.raises(UsageError) as caught:
        synthetic.plan(folder, text, overrides=overrides)
    return str(caught.value)


def test_what_follows_from_two_axes_stands_beside_one_of_them(tmp_path: Path) -> None:
    beside = "overrides: {trunk.width: 16}\n        beside: {task: {hard: {trunk.width: 32}}}"
    artifact = synthetic.load(tmp_path, ARTIFACT.replace("overrides: {trunk.width: 16}", beside))
    scale = artifact.scales["paper"]
    hard, easy = ((("task", task), ("model", "new")) for task in ("hard", "easy"))
    assert artifact.overrides(hard, scale) == [
        synthetic.override("trunk.layers", 2),
        synthetic.override("trunk.width", 16),
        synthetic.override("trunk.width", 32),
    ]
    assert artifact.overrides(easy, scale) == [
        synthetic.override("trunk.layers", 1),
        synthetic.override("trunk.width", 16),
    ]
    wrong = ARTIFACT.replace("overrides: {trunk.width: 16}", beside.replace("hard:", "hrd:"))
    assert "'beside': unknown value 'hrd' of axis 'task' (did you mean 'hard'?)" in refusal(tmp_path, wrong)


def planned_with(folder: Path, old: str, new: str, overrides: tuple[str, ...] = ()) -> str:
    """Return what is said of the ablation that docs/add/ablation.md shows, with one text in the place of another; its
    file is named HERE.
    """
    page = (ROOT / "docs" / "add" / "ablation.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"<!-- example: cem/activation -->\n```yaml\n(.*?)```", page, re.DOTALL)
    assert text.count(old) == 1
    path = folder / "cem" / "activation.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as caught:
        plans.make(spec.load_file(path), "smoke", overrides=overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "HERE")


SMOKE, GELU = "training.steps: 20", "value: gelu"


@pytest.mark.parametrize(
    ("old", "new", "refusal"),
    [
        (SMOKE, "training.steps: 0", "training.steps must be a whole number"),
        (SMOKE, f"{SMOKE}, machine.workers: 0", "machine.workers=0: expected"),
        (GELU, "overrides: {model._target_: os.system}", "model: _target_ 'os.system' is refused"),
        (GELU, "overrides: {model: cem/gp_gatd}", "model=cem/gp_gatd: there is no such model config"),
        (
            GELU,
            "overrides: {model.block.activation: '${oc.env:HOME}'}",
            "experiment cem/gaussian_process: model.block.activation: '${oc.env:HOME}' is refused",
        ),
    ],
)
def test_a_refused_config_names_the_file(tmp_path: Path, old: str, new: str, refusal: str) -> None:
    said = planned_with(tmp_path, old, new)
    assert said.startswith("HERE:") and refusal in said


@pytest.mark.parametrize(
    ("name", "word", "alters"),
    [
        ("ngpt/steptime", "machine=gpu", True),
        ("ngpt/steptime", "machine.tf32=true", True),
        ("ebt/tableD5", "machine.threads=2", True),
        ("ngpt/steptime", "machine.workers=1", False),
        ("cem/table3", "machine=gpu", False),
        ("cem/table3", "machine.tf32=true", False),
    ],
)
def test_a_word_of_the_machine_alters_what_measures_time_alone(name: str, word: str, alters: bool) -> None:
    usual, other = (plans.make(spec.load(name), "cpu", [0], words) for words in ([], [word]))
    assert other.altered == alters
    assert {cell.id for cell in usual.cells}.isdisjoint(cell.id for cell in other.cells) == alters
    assert (other.folder == usual.folder) != alters

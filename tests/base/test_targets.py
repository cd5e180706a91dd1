"""What a config's targets may build: named as an attacker or a tired user would name them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.configs import PACKAGES, built_by, compose, own_packages, require
from paper_repro.base.errors import ROOT, UsageError
from paper_repro.cells.tasks import FINISHED, Cell, Task
from paper_repro.tests.support import sweeps

GP = "cem/gaussian_process"
PLANTED = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\nraise ImportError('planted')\n"


def refused(folder: Path, *words: str) -> str:
    """Run ``reproduce.py --plan`` in ``folder``; what it says, which must be one line."""
    command = [sys.executable, str(ROOT / "scripts" / "reproduce.py"), "--plan", *words, f"runs={folder / 'runs'}"]
    found = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=120)
    assert found.returncode == 2, found.stdout + found.stderr
    assert found.stderr.startswith("error: ") and len(found.stderr.splitlines()) == 1, found.stderr
    return found.stderr


def test_a_plan_runs_no_function_that_a_target_names(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    probe = f"{{_target_:paper_repro.base.files.write_atomically,path:'{precious}',content:gone}}"
    assert "probes.x: _target_" in refused(tmp_path, "cem/table3", "scale=smoke", f"+probes={{x:{probe}}}")
    assert precious.read_text() == "mine" and sorted(tmp_path.iterdir()) == [precious]


def test_a_plan_imports_nothing_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    task = "{_target_:paper_repro.cells.preload.preload,log:x}"
    assert "task: _target_" in refused(tmp_path, "ebt/tableD1", f"task={task}")
    for target in ("planted", "planted.Task", "paper_repro.planted.Task"):
        assert "is refused" in refused(tmp_path, "ebt/tableD1", f"task._target_={target}")
    assert [path.name for path in tmp_path.iterdir()] == ["planted.py"]


def test_a_worker_imports_nothing_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paper_repro.cells import runner

    for name in ("filelock", "omegaconf", "hydra", "queue"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])))
    result = runner.run(sweeps.cells(1, steps=2), tmp_path / "runs")
    assert result.by_status == {FINISHED: 1}
    assert not (tmp_path / "imported").exists()


SECTIONS = {
    "task._target_=paper_repro.training.schedules.Cosine": "not a task, a class that has run()",
    "module._target_=torch.optim.AdamW": "not a PaperModule",
    "model._target_=paper_repro.training.schedules.Cosine": "not an nn.Module",
    "model.block._target_=paper_repro.training.schedules.Cosine": "model.block._target_",
    "data._target_=paper_repro.training.schedules.Cosine": "not a CounterBasedDataModule",
    "optimizer._target_=paper_repro.training.schedules.Cosine": "not an Optimizer",
    "schedule._target_=torch.optim.AdamW": "not a Schedule",
    "+probes={one:{}}": "probes.one: found no _target_",
    "model=null": "model: found no _target_",
    "+model.extra={_target_:paper_repro.models.llama.rotary_attention}": "unknown key 'extra'",
    "+model.extra={_target_:torch.optim.AdamW}": "model.extra._target_ torch.optim.AdamW: not an nn.Module",
}


@pytest.mark.parametrize("override", SECTIONS)
def test_each_section_is_checked_before_anything_is_built(override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from paper_repro.training import build

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("built before the whole config was checked")

    if "unknown key" not in SECTIONS[override]:  # that check belongs to the building of the node itself
        monkeypatch.setattr(build, "instantiate", forbidden)
    config = compose(GP, [override] if override != "model=null" else [])
    config = {**config, "model": None} if override == "model=null" else config
    with pytest.raises(UsageError) as caught:
        build.build(Cell("c", config))
    assert SECTIONS[override] in str(caught.value)


def test_a_factory_counts_as_what_its_annotation_says() -> None:
    from torch import nn

    node = {"_target_": "paper_repro.models.llama.gated_feed_forward"}
    assert issubclass(built_by(node["_target_"]), nn.Module)
    require(node, "feed_forward", nn.Module, "an nn.Module")
    with pytest.raises(UsageError, match=r"gated_feed_forward, which is PreNorm: not a task"):
        require(node, "task", Task, "a task")


def test_a_link_gives_a_package_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "lab-2.1").mkdir()
    (link := tmp_path / "linked_lab").symlink_to(folder)
    monkeypatch.setenv(PACKAGES, f"{link}/")
    assert own_packages()["linked_lab"] == folder.resolve()

"""A logger whose package is not installed is refused before anything is trained."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import run_main
from paper_repro.cells import runner
from paper_repro.cells.planned import check_loggers
from paper_repro.scripts import reproduce, train

TRAIN = ("cem/gaussian_process", "training.steps=30", "data.num_train=400", "data.num_features=64")


@pytest.mark.parametrize("logger", ["tensorboard", "wandb"])
@pytest.mark.parametrize(("main", "words"), [(train.main, TRAIN), (reproduce.main, ("cem/table3", "scale=smoke"))])
def test_a_missing_package_is_named_with_its_command_before_anything_is_trained(
    main: Any, words: tuple[str, ...], logger: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == logger else known(name, *rest))
    monkeypatch.setattr(runner, "ForkServer", lambda *_: pytest.fail("processes were started"))
    assert run_main(main, [*words, f"runs={tmp_path}", f"machine.logger={logger}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: machine.logger={logger}: the package {logger} is not installed")
    assert f"pip install 'paper-repro[{logger}]'" in line
    check_loggers([{"machine": {"logger": None}}, {"machine": {"logger": "csv"}}, {}, {"machine": None}])

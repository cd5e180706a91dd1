"""A logger whose package or key is missing is refused before anything is trained."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import UsageError, run_main
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


def test_a_key_is_found_where_weights_and_biases_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: name == "wandb" or known(name, *rest))
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    configs = [{"machine": {"logger": "wandb"}}]
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    with pytest.raises(UsageError, match=r"no key.*`wandb login`.*WANDB_MODE=offline"):  # another server's is none
        check_loggers(configs)
    (tmp_path / "netrc").write_text("machine wandb.example.org login user password secret\n")
    check_loggers(configs)
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_loggers(configs)

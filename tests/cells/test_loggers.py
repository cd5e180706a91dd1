"""What ``machine.logger`` needs is checked before anything is trained, and it changes nothing but what is told."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import UsageError, run_main
from paper_repro.cells import runner
from paper_repro.cells.planned import check_loggers
from paper_repro.scripts import reproduce, train

TINY = ["training.steps=30", "data.num_train=400", "data.num_test=40", "data.num_features=64", "machine.workers=1"]
KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "NETRC")


def config(logger: str | None) -> dict[str, Any]:
    return {"machine": {"logger": logger}}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[str]:
    """The packages that are there; nothing of the user's own settings is."""
    found = {"tensorboard", "wandb"}
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: (
            (object() if name in found else None) if name in ("tensorboard", "wandb") else known(name, *rest)
        ),
    )
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return found


@pytest.mark.parametrize("logger", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_with_its_command(
    logger: str, installed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_loggers([config(logger)])
    installed.remove(logger)
    with pytest.raises(UsageError) as caught:
        check_loggers([config(None), config(logger)])
    assert f"pip install 'paper-repro[{logger}]'" in str(caught.value) and "\n" not in str(caught.value)
    check_loggers([config(None), config("csv"), {}, {"machine": None}])


def test_a_key_is_found_where_weights_and_biases_looks(
    installed: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"`wandb login`.*WANDB_MODE=offline"):
        check_loggers([config("wandb")])
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    check_loggers([config("wandb")])
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    with pytest.raises(UsageError, match="no key"):  # a key for another server is none
        check_loggers([config("wandb")])
    (tmp_path / "netrc").write_text("machine wandb.example.org login user password secret\n")
    check_loggers([config("wandb")])


@pytest.mark.parametrize(
    ("main", "words"),
    [(train.main, ("cem/gaussian_process", *TINY)), (reproduce.main, ("cem/table3", "scale=smoke"))],
)
def test_the_commands_refuse_before_anything_is_trained(
    main: Any, words: tuple[str, ...], installed: set[str], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.clear()
    monkeypatch.setattr(runner, "ForkServer", lambda *_: pytest.fail("processes were started"))
    assert run_main(main, [*words, f"runs={tmp_path}", "machine.logger=tensorboard"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: machine.logger=tensorboard: the package tensorboard is not installed")
    assert not list(tmp_path.rglob("record.json"))

"""What ``machine.logger`` needs is checked before anything is trained, and it changes nothing but what is told."""

import importlib.util
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import UsageError, run_main
from paper_repro.cells import planned, records, runner
from paper_repro.cells.planned import check_loggers
from paper_repro.cells.records import record_path
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


def test_weights_and_biases_without_a_key_says_how_to_go_on(installed: set[str]) -> None:
    with pytest.raises(UsageError) as caught:
        check_loggers([config("wandb")])
    text = str(caught.value)
    assert "`wandb login`" in text and "WANDB_MODE=offline" in text and "\n" not in text


def test_a_key_is_found_where_weights_and_biases_looks(
    installed: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    check_loggers([config("wandb")])
    monkeypatch.delenv("WANDB_API_KEY")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    check_loggers([config("wandb")])
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")  # a key for another server is none
    with pytest.raises(UsageError, match="no key"):
        check_loggers([config("wandb")])
    (tmp_path / "netrc").write_text("machine wandb.example.org login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    check_loggers([config("wandb")])


@pytest.mark.parametrize(
    "words", [("train", "cem/gaussian_process", *TINY), ("reproduce", "cem/table3", "scale=smoke")]
)
def test_the_commands_refuse_before_anything_is_trained(
    words: tuple[str, ...], installed: set[str], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.clear()
    monkeypatch.setattr(runner, "ForkServer", lambda *_: pytest.fail("processes were started"))
    name, *rest = words
    main = {"train": train.main, "reproduce": reproduce.main}[name]
    given = [*rest, f"runs={tmp_path}", "machine.logger=tensorboard"]
    assert run_main(main, given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: machine.logger=tensorboard: the package tensorboard is not installed")
    assert not list(tmp_path.rglob("record.json"))
    assert run_main(main, [*given[:-1], "machine.logger=tensorbord"]) == 2
    assert "machine.logger='tensorbord': expected null, csv, tensorboard or wandb" in capsys.readouterr().err


def whole(runs: Path, cell: str) -> dict[str, Any]:
    """A record but for what a clock and the system say."""
    found = asdict(records.read(record_path(runs, cell)))
    return {key: value for key, value in found.items() if key not in ("seconds", "peak_memory_mib")}


@pytest.mark.slow
def test_record_and_weights_are_the_same_with_and_without_a_logger(tmp_path: Path) -> None:
    """Train two of three cells together and one alone."""
    given = [*TINY, "machine.stack={over: [seed, data.seed], most: 2}"]
    more = ["machine.logger=csv", "machine.log_every_steps=10"]
    without = [planned.single("cem/gaussian_process", given, seed) for seed in range(3)]
    with_logger = [planned.single("cem/gaussian_process", [*given, *more], seed) for seed in range(3)]
    assert [cell.id for cell in without] == [cell.id for cell in with_logger]
    for cells, name in ((without, "without"), (with_logger, "with")):
        assert runner.run(cells, tmp_path / name, io.StringIO()).exit_code == 0
    for cell in without:
        assert whole(tmp_path / "with", cell.id) == whole(tmp_path / "without", cell.id)
        folders = [tmp_path / name / "cells" / cell.id for name in ("with", "without")]
        weights = [(folder / "weights.safetensors").read_bytes() for folder in folders]
        assert weights[0] == weights[1]
        steps = [line.split(",")[0] for line in (folders[0] / "logs" / "metrics.csv").read_text().splitlines()]
        assert sorted(path.name for path in (folders[0] / "logs").iterdir()) == ["metrics.csv"]
        assert steps == ["step", "10", "20", "30", "30"]
        assert not (folders[1] / "logs").exists()
        assert "step 30 of 30, " in (folders[1] / "log.txt").read_text()

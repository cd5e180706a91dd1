from typing import Any

import pytest

from paper_repro.base.configs import CONF, compose
from paper_repro.base.errors import UsageError
from paper_repro.cells import planned
from paper_repro.cells.planned import MachineSettings
from paper_repro.kernels import preferences

NUMBERS = ("workers", "threads", "devices", "checkpoint_every_steps")
WRONG: list[tuple[str, Any]] = [
    *((key, value) for key in NUMBERS for value in (0, -1, 1.5, True, "two", float("nan"))),
    *(("checkpoint_every_seconds", value) for value in (0, float("inf"), float("nan"), True, "soon")),
    *(("progress_every_seconds", value) for value in (-1, float("nan"), None)),
    *(("devices", value) for value in (None, [], [0, 0], [-1], [1.5])),
    *(("stack", {"over": over, "most": 2}) for over in (None, "seed", [1])),
    *(("stack", {"over": ["seed"], "most": most}) for most in (0, -1, 1.5, True, "two", None)),
    *(("compile", value) for value in (None, 1, "always")),
    *(("logger", value) for value in ("tensorbord", True)),
    *(("data_workers", value) for value in (-1, 1.5, None)),
    *((key, None) for key in ("workers", "log_every_steps", "tf32", "cuda_graph")),
    *((key, value) for key in ("implementation", "accelerator") for value in ("foo", None, ["ddp"])),
    *((key, 5) for key in ("stack", "cache", "data_root", "recompute", "fused_optimizer")),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_what_no_machine_can_give_is_refused_with_key_and_value(key: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        MachineSettings.of({"workers": 1, key: value})
    assert f"machine.{key}={value!r}: expected" in str(caught.value) and "\n" not in str(caught.value)


def test_implementations_are_those_of_the_kernels() -> None:
    assert planned.IMPLEMENTATIONS == preferences.IMPLEMENTATIONS


@pytest.mark.parametrize("choice", sorted(path.stem for path in (CONF / "machine").glob("*.yaml")))
def test_what_is_shipped_is_accepted_and_null_where_it_has_a_meaning(choice: str) -> None:
    config = compose("cem/gaussian_process", [f"machine={choice}", "machine.threads=null"])
    other = {"compile": "auto", "checkpoint_every_seconds": None, "devices": [0, 2], "progress_every_seconds": 0}
    for section in (config["machine"], config["machine"] | other, None):
        MachineSettings.of(section)

"""Where a run may send its losses while it trains, checked before anything is trained."""

import importlib.util
import netrc
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import MACHINE

CSV, TENSORBOARD, WANDB = "csv", "tensorboard", "wandb"
LOGGERS = (CSV, TENSORBOARD, WANDB)
PACKAGES = {TENSORBOARD: "tensorboard", WANDB: "wandb"}
"""The package that a logger needs, which is also the name of the extra that brings it."""
FOLDER = "logs"
"""Where a cell's points lie, in the cell's own folder."""
_SENDS_NOTHING = ("offline", "dryrun", "disabled")


def check_loggers(configs: Iterable[Mapping[str, Any]]) -> None:
    """Check that what the cells' ``machine.logger`` needs is here.

    Raises:
        UsageError: a package is not installed, or Weights & Biases has no key and was not told to stay offline.
    """
    wanted = {(config.get(MACHINE) or {}).get("logger") for config in configs}
    for logger in [name for name in PACKAGES if name in wanted]:
        if importlib.util.find_spec(PACKAGES[logger]) is None:
            raise UsageError(
                f"machine.logger={logger}: the package {PACKAGES[logger]} is not installed; "
                f"pip install 'paper-repro[{logger}]' brings it, machine.logger=csv needs none"
            )
        if logger == WANDB and os.environ.get("WANDB_MODE") not in _SENDS_NOTHING and not _has_key():
            raise UsageError(
                f"machine.logger={logger}: no key of Weights & Biases was found; run `wandb login` (or set "
                "WANDB_API_KEY), or set WANDB_MODE=offline to keep the runs on this machine for `wandb sync`"
            )


def _has_key() -> bool:
    """Return whether Weights & Biases will find a key where it looks for one: in the environment or in netrc."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    given = os.environ.get("NETRC")
    for path in [Path(given).expanduser()] if given else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        try:
            if netrc.netrc(path).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False

"""What a command does before its cells are run: reads ``launcher`` words, prepares data, joins other nodes."""

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from paper_repro.base import identity
from paper_repro.base.errors import ROOT, UsageError, at_least, first_line, place
from paper_repro.cells.planned import PlannedCell

PREFIX = "launcher"
KIND = f"{PREFIX}=slurm"
PREPARE = "--prepare"
_SCRIPT = ["python", "scripts/prepare_data.py"]
_LARGE = ("--download", "--from")
_DOCUMENTATION = "documentation"


# Where cells are run.


@dataclass(frozen=True)
class Slurm:
    """What a sweep asks SLURM for (docs/cluster.md); each job is one task on one node."""

    partition: str | None = None
    jobs: int = 1
    minutes: int = 60
    grace: int = 90
    cpus: int | None = None
    memory_gb: int | None = None
    gpus: int | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), int):
                at_least(field.name, value)
        if self.grace >= 60 * self.minutes:
            raise UsageError(
                f"{PREFIX}.grace={self.grace} s leaves nothing of {PREFIX}.minutes={self.minutes}: give fewer seconds "
                "of grace, or more minutes"
            )


def take(arguments: Sequence[str]) -> tuple[Slurm | None, list[str]]:
    """Return what the words that begin with ``launcher`` ask for (None: this computer), and the other words."""
    given = [word for word in arguments if word.partition("=")[0].partition(".")[0] == PREFIX]
    rest = [word for word in arguments if word not in given]
    if not given:
        return None, rest
    if KIND not in given:
        raise UsageError(f"{given[0]}: give {KIND}, or no word of {PREFIX}, and the cells are run on this computer")
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    words = OmegaConf.from_dotlist([word.removeprefix(f"{PREFIX}.") for word in given if word != KIND])
    try:
        found: Slurm = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Slurm), words))  # type: ignore[assignment]
    except (OmegaConfBaseException, ValueError) as error:
        raise UsageError(f"{PREFIX}: {first_line(error)}; docs/cluster.md lists the words") from error
    return found, rest


# Data that cells lack, where their preparation needs no files and no download but the documentation's.


def commands(cells: Iterable[PlannedCell]) -> list[list[str]]:
    """Return the commands that prepare what cells lack, each once: without a download, or the documentation."""
    texts = dict.fromkeys(identity.reader_of(cell.config).get("prepare") or "" for cell in cells if cell.missing)
    found = [shlex.split(str(text)) for text in texts]
    return [
        words for words in found if words[:2] == _SCRIPT and (words[2] == _DOCUMENTATION or not {*words} & {*_LARGE})
    ]


def prepare(found: Sequence[list[str]]) -> None:
    lines = "\n".join(f"    {shlex.join(words)}" for words in found)
    print(f"data are missing; this prepares them:\n{lines}", file=sys.stderr)
    for words in found:
        command = [sys.executable, str(ROOT / words[1]), *words[2:]]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            raise UsageError(f"{shlex.join(words)} failed: mend what it says above, or prepare the data by hand")


# One command on several nodes: rank 0 runs it, the others train what it gives them.


def followed() -> int | None:
    """Train with rank 0, if this process is another rank, until rank 0 is done; returns the exit code, or None."""
    own = place()
    if own is None or own.rank == 0:
        return None
    from paper_repro.training.launch import follow, group

    return follow(group(own))


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """Keep the other ranks, if there are any, until the block ends."""
    own = place()
    if own is None:
        yield
        return
    from paper_repro.training import launch

    group = launch.group(own)
    store = group.connect(opened=True)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # they have ended already
            launch.end(group, store)

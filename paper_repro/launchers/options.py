"""Words of a command that say where cells are run: ``launcher=slurm launcher.partition=gpu launcher.jobs=8``."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from paper_repro.base.errors import UsageError, nearest

PREFIX = "launcher"
SLURM = "slurm"


@dataclass(frozen=True)
class Slurm:
    """What a sweep asks SLURM for; each job is one task on one node."""

    partition: str | None = None
    """None: the cluster's default."""
    jobs: int = 1
    """Array tasks, which share the cells among them."""
    minutes: int = 60
    """Time limit of a job; one that reaches it goes on where it was."""
    grace: int = 90
    """Seconds before the limit at which a job begins to save; a minute more than a checkpoint takes."""
    cpus: int | None = None
    """CPU cores of a job; None: as many as the workers of the machine section compute with."""
    memory_gb: int | None = None
    """None: what the cluster gives."""
    gpus: int | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    """What the nodes must have, for example "h100"."""

    def __post_init__(self) -> None:
        for name in ("jobs", "minutes", "grace", "cpus", "memory_gb", "gpus"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{PREFIX}.{name}={value}: expected a whole number of 1 or more")
        if self.grace >= 60 * self.minutes:
            raise UsageError(
                f"{PREFIX}.grace={self.grace} s leaves nothing of {PREFIX}.minutes={self.minutes}: give fewer seconds "
                "of grace, or more minutes"
            )


def take(arguments: Sequence[str]) -> tuple[Slurm | None, list[str]]:
    """Return what the words that begin with ``launcher`` ask for, and the other words; None: this computer.

    Raises:
        UsageError: an unknown launcher or key, a value out of range, or keys without ``launcher=slurm``.
    """
    given: dict[str, str] = {}
    rest = []
    for word in arguments:
        key, equals, value = word.partition("=")
        if equals and (key == PREFIX or key.startswith(f"{PREFIX}.")):
            if key in given:
                raise UsageError(f"{key} is given twice: {key}={given[key]} and {word}; give it once")
            given[key] = value
        else:
            rest.append(word)
    if not given:
        return None, rest
    kind = given.pop(PREFIX, None)
    if kind is None:
        raise UsageError(f"{next(iter(given))} goes with {PREFIX}={SLURM}; give both, or neither")
    if kind != SLURM:
        raise UsageError(f"{PREFIX}={kind}: expected {SLURM}; without {PREFIX} the cells are run on this computer")
    known = {f"{PREFIX}.{field.name}": field for field in fields(Slurm)}
    values: dict[str, str | int] = {}
    for key, text in given.items():
        if key not in known:
            raise UsageError(f"unknown key {key}{nearest(key, known)}")
        field = known[key]
        values[field.name] = (_whole if "int" in str(field.type) else _word)(key, text)
    return Slurm(**values), rest  # type: ignore[arg-type]


def _whole(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{key}={text}: expected a whole number of 1 or more") from error


def _word(key: str, text: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise UsageError(f"{key}={text}: expected a word")
    return text

"""Looks: at how many seeds claims are judged, planned before any of them is taken.

Whoever adds seeds until a claim is decided decides wrongly more often than one time in twenty.  So the numbers of seeds
are written down beforehand (``looks`` of a scale), each look gets a share of the level, and a claim keeps the verdict
of the first look that decides it.  A wrong verdict at any look is then at most as likely as at one look with the whole
level, because the shares add up to it (Bonferroni's bound; it needs nothing of how looks depend on one another, which
spending functions such as O'Brien and Fleming's do, and which is not known for t intervals of three seeds).

Half of the level is spent at the first look and the rest in equal parts at the others.  The first look is the only one
that most claims ever get, and its quantile of Student's t is the one that grows most where a share is small: with three
seeds, O'Brien and Fleming's share would leave it unable to decide anything.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paper_repro.artifacts.judgements import LEVEL
from paper_repro.base.errors import UsageError
from paper_repro.base.files import write_atomically

FILE = "looks.json"


def levels(looks: Sequence[int], whole: float = LEVEL) -> list[float]:
    """Return the share of the level that each look spends."""
    if len(looks) < 2:
        return [whole] * len(looks)
    return [whole / 2] + [whole / 2 / (len(looks) - 1)] * (len(looks) - 1)


def seeds_of(first: Sequence[int], count: int) -> list[int]:
    """Return the seeds of a look: those of the scale, and then the whole numbers above them."""
    further = range(max(first) + 1, max(first) + 1 + max(0, count - len(first)))
    return [*first, *further][:count]


def finished(planned: Sequence[int], first: Sequence[int], have: Collection[int]) -> list[int]:
    """Return the seeds of the last look of which none is lacking; those of the scale where that is true of none.

    Seeds of a look that was begun and stopped say nothing yet: whoever reads them chooses when to look.
    """
    for count in reversed(planned):
        if set(seeds := seeds_of(first, count)) <= set(have):
            return seeds
    return [*first]


@dataclass(frozen=True)
class Taken:
    """The looks of one artifact at one scale that were planned when the first was taken, and what was run for them."""

    looks: list[int]
    seeds: dict[str, int] = field(default_factory=dict)
    """How many seeds a point has, by its place, where these are more than the scale's."""

    def write(self, folder: Path) -> None:
        """Keep them in a folder of tables."""
        text = json.dumps({"looks": self.looks, "seeds": dict(sorted(self.seeds.items()))}, indent=1) + "\n"
        write_atomically(folder / FILE, text.encode())


def taken(folder: Path, planned: Sequence[int]) -> Taken | None:
    """Read what is kept in a folder of tables; None if no look was taken beyond the scale's own seeds.

    Raises:
        UsageError: the file is damaged, or other looks are planned now than when the first was taken.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        found = Taken([int(look) for look in content["looks"]], {str(k): int(n) for k, n in content["seeds"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not understood ({error}); restore it, it says which looks were planned") from error
    if found.looks != [*planned]:
        raise UsageError(
            f"{path}: looks were planned at {_listed(found.looks)} seeds, and now at {_listed(planned)}: a look that "
            "was not planned beforehand is not taken; set 'looks' of the scale back"
        )
    return found


def place_text(place: Mapping[str, str]) -> str:
    """Return a place as one word, by which ``Taken`` knows it."""
    return ",".join(f"{axis}={value}" for axis, value in place.items())


def refuse_unplanned(planned: Sequence[int], first: Sequence[int], chosen: Sequence[int]) -> str:
    """Return why claims are not judged at the chosen seeds; empty if they are those of a planned look, or none are."""
    if not planned or (list(chosen) == seeds_of(first, len(chosen)) and len(chosen) in planned):
        return ""
    own = f"{len(chosen)} seed{'' if len(chosen) == 1 else 's'} ({_listed(chosen)})"
    return f"not judged: looks are planned at {_listed(planned)} seeds from {min(first)} on, {own} are none of them"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers) or "none"

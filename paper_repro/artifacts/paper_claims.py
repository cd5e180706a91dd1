"""Reads the list of what the papers claim, ``papers/claims.yaml``; claims of artifacts refer to its entries by id."""

import functools
from dataclasses import dataclass
from pathlib import Path

from paper_repro.base import typed_yaml

LIST = Path(__file__).parents[1] / "papers" / "claims.yaml"


@dataclass(frozen=True)
class PaperClaim:
    """One sentence of a paper, in our words."""

    id: str
    paper: str
    says: str
    where: str


@functools.cache
def known(path: Path = LIST) -> dict[str, PaperClaim]:
    """Return every claim of every paper by its id.

    Raises:
        UsageError: an entry without its two texts, an unknown key, or an id given twice, with file and line.
    """
    found: dict[str, PaperClaim] = {}
    for paper, claims in typed_yaml.read(path).items().items():
        for name, node in claims.items().items():
            if name in found:
                raise node.error(f"duplicate claim id '{name}' (also of {found[name].paper})")
            texts = typed_yaml.convert(dict[str, str], node)
            if texts.keys() != {"says", "where"}:
                raise node.error(f"claim '{name}' has the keys says and where, not {', '.join(texts)}")
            found[name] = PaperClaim(name, paper, texts["says"], texts["where"])
    return found

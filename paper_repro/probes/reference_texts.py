"""Quality metrics of given texts (NRGPT, table 3): a task that generates and trains nothing."""

import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from paper_repro.base.configs import instantiate
from paper_repro.base.errors import UsageError
from paper_repro.base.files import absent, find_data, sha256_of_bytes
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task

CORPUS = "text"
"""The role of the corpus among ``data.files``."""


class ReferenceTexts(Task):
    """Scores each cell's text; where a text is too short, or this machine lacks something, the reason stands in the
    score's place.
    """

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        outcomes = []
        with closing(instantiate(cells[0].config["scorer"])) as score:
            for cell in cells:
                text, hashes = reference_text(cell.config)
                scores = score(text)
                refused = {name: f"too short: {reason}" for name, reason in scores.refused.items()}
                outcomes.append(
                    Outcome(
                        FINISHED,
                        metrics=scores.values,
                        unavailable=refused | score.unavailable,
                        data_hashes=hashes,
                    )
                )
        return outcomes


def reference_text(config: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the text of a cell, and the SHA-256 of the corpus that it is a piece of.

    Raises:
        UsageError: a corpus that is absent, not UTF-8, or has no ``text.characters``.
    """
    spec, seed, hashes = config["text"], config["seed"], {}
    text = spec["content"]
    if text is None:
        content = _read(config)
        hashes[CORPUS] = sha256_of_bytes(content.encode())
        text = _piece(content, spec["characters"], random.Random(mix(seed, "piece")))
    if spec["shuffle_words"]:
        text = _shuffled(text, random.Random(mix(seed, "words")))
    return "\n".join([text] * spec["repeat"]), hashes


def _read(config: Mapping[str, Any]) -> str:
    name = config["data"]["files"].get(CORPUS)
    if name is None:
        raise UsageError(f"text.content is null and data.files has no '{CORPUS}': give one of them")
    root = config.get("machine", {}).get("data_root")
    path = find_data(name, root)
    if path is None:
        raise UsageError(absent(name, root))
    try:
        content = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}, expected plain text: convert it") from error
    needed = config["text"]["characters"]
    if len(content) < 2 * needed:
        raise UsageError(f"{path}: {len(content)} characters, expected at least {2 * needed}, for pieces of {needed}")
    return content


def _piece(content: str, characters: int, draw: random.Random) -> str:
    """Cut whole lines, at most ``characters`` long, from the first line start behind a random place."""
    place = draw.randrange(len(content) - characters)
    start = content.find("\n", place) + 1
    whole = content[start : start + characters]
    return whole[: whole.rfind("\n") + 1].strip("\n") or whole


def _shuffled(text: str, draw: random.Random) -> str:
    words = text.split()
    draw.shuffle(words)
    rest = iter(words)
    return "\n".join(" ".join(next(rest) for _ in line.split()) for line in text.split("\n"))

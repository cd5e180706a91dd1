"""The line with which a run ends: how many cells, how long, which claims hold, and where to look."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from paper_repro.artifacts.judgements import HOLDS, VERDICTS
from paper_repro.base.durations import duration
from paper_repro.cells.tasks import FINISHED


def closing(artifact: str, by_status: Mapping[str, int], seconds: float, folder: Path) -> str:
    """Return the line.

    Args:
        artifact: its id.
        by_status: how many cells have which status after the run.
        seconds: how long the command took for this artifact.
        folder: where the table was written.
    """
    total = sum(by_status.values())
    others = [f"{count} {status}" for status, count in by_status.items() if status != FINISHED]
    cells = f"{total} cell{'' if total == 1 else 's'}" + (f" ({', '.join(others)})" if others else "")
    claims = Counter(claim["verdict"] for claim in json.loads((folder / "table.json").read_text())["claims"])
    rest = [word for word in (*VERDICTS, *sorted(claims.keys() - {*VERDICTS})) if word != HOLDS and claims[word]]
    held = f", {claims[HOLDS]} of {claims.total()} claims hold" if claims else ""
    further = f" ({', '.join(f'{claims[word]} {word}' for word in rest)})" if rest else ""
    return f"{artifact}: {cells}, {duration(seconds)}{held}{further}; look at {folder / 'table.md'}"

"""A small folder of results with one table, three cells and words that would be tags if nobody escaped them."""

import json
from pathlib import Path
from typing import Any

from paper_repro.cells import records
from paper_repro.cells.records import Record

BAD = "<script>alert(\"x\")</script> & <b onclick=alert(1)>'note'"
ONE, TWO, ABSENT = "0" * 15 + "1", "0" * 15 + "2", "f" * 16
SVG = b"""<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"
  viewBox="0 0 100 100" onload="alert(2)">
<script>alert(3)</script><style>body {display: none}</style><foreignObject><p>x</p></foreignObject>
<defs><path id="m" d="M 0 0 L 1 1"/></defs><image xlink:href="https://example.org/a.png"/>
<g id="axes_1"><g id="patch_1"><path d="M 0 0 L 100 0 L 100 100 L 0 100 z"/></g>
<g id="matplotlib.axis_1"><g id="xtick_1"><use xlink:href="#m" x="0" y="100"/><text>0</text></g>
<g id="xtick_2"><use xlink:href="#m" x="100" y="100"/><text>10</text></g><g id="text_1"><text>step</text></g></g>
<g id="matplotlib.axis_2"><g id="ytick_1"><use xlink:href="#m" x="0" y="100"/><text>1</text></g>
<g id="ytick_2"><use xlink:href="#m" x="0" y="50"/><text>10</text></g>
<g id="ytick_3"><use xlink:href="#m" x="0" y="0"/><text>100</text></g></g>
<g id="line2d_9"><use xlink:href="#m" x="50" y="50"/></g>
<g id="text_9"><text y="-3">&lt;script&gt;</text></g></g></svg>
"""


def record(cell: str, seed: int, **changes: Any) -> Record:
    """Return a finished record with words that must be escaped."""
    curves = {"train<loss>": {"step": [1, 2, 3], "value": [3.0, 2.0, 1.0]}}
    config = {"seed": seed, "model": {"_target_": BAD, "width": 8}}
    origin = {"commit": "a" * 40, "dirty": False, "versions": {"torch": "2"}, "device": "a & b"}
    given: dict[str, Any] = {
        "cell": cell,
        "status": "finished",
        "seed": seed,
        "config": config,
        "metrics": {"loss": 1.0 + seed},
        "curves": curves,
        "parameters": 12,
        "multiply_adds": None,
        "seconds": 1.0,
        "peak_memory_mib": None,
        "note": BAD,
        "provenance": origin,
    }
    return Record(**{**given, **changes})


def table() -> dict[str, Any]:
    """Return the content of a table.json of an artifact that the catalogue does not know."""
    numbers = {"paper_mean": 1.0, "paper_std": None, "own_std": 0.5, "own_seeds": 2, "verdict": "reduced scale"}
    claim = {"id": "a<b", "catalogue": None, "whose": "paper", "where": BAD, "says": BAD, "verdict": "holds"}
    judged = {"size": "", "exact": False, "because": BAD, "remark": "", "more_seeds": 1, "more_seconds": 5}
    part = {"at": BAD, "verdict": "fails", **judged, "parts": []}
    return {
        "artifact": "own/one",
        "title": BAD,
        "source": BAD,
        "scale": "cpu",
        "made_of": BAD,
        "comparable": False,
        "seeds": [0, 1],
        "overrides": [],
        "rows": [
            {"model": BAD, "quantity": "loss", "own_mean": 1.5, **numbers},
            {"model": "absent", "quantity": "loss", "own_mean": 2.5, **numbers},
        ],
        "summary": {"gain<": {"paper": None, "ours": 1.25, "verdict": ""}},
        "total": "",
        "claims": [{**claim, **judged, "parts": [part]}],
        "notes": [BAD],
        "cells": {
            ONE: {"model": BAD, "seed": 0},
            TWO: {"model": BAD, "seed": 1},
            ABSENT: {"model": "absent", "seed": 0},
        },
    }


def write(root: Path, **changes: Any) -> Path:
    """Write the folder; ``changes`` replace keys of the table."""
    folder = root / "own" / "one" / "cpu"
    folder.mkdir(parents=True)
    (folder / "table.json").write_text(json.dumps({**table(), **changes}))
    (folder / "figure.svg").write_bytes(SVG)
    (folder / "figure.csv").write_text("model,step,loss\n<i>,5,10\nother,5,20\n")
    records.write(records.record_path(root, ONE), record(ONE, 0))
    records.write(records.record_path(root, TWO), record(TWO, 1, curves={}))
    return root

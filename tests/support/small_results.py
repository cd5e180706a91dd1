"""A small folder of results with one table, three cells and words that would be tags if nobody escaped them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from paper_repro.cells import records
from paper_repro.cells.records import Record

BAD = "<script>alert(\"x\")</script> & <b onclick=alert(1)>'note'"
ONE, TWO, ABSENT = "0" * 15 + "1", "0" * 15 + "2", "f" * 16
MARKS = {"width": 100, "height": 100, "marks": [[50, 40, BAD, "5", "10"]]}
SVG = """<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="100pt" viewBox="0 0 100 100">
<metadata><dc:description xmlns:dc="http://purl.org/dc/elements/1.1/">MARKS</dc:description></metadata>
<style>body {display: none}</style><path d="M 0 0 L 100 0 L 100 100 L 0 100 z" style="fill: #ffffff"/>
<path d="M 0 0 L 50 40" style="stroke: #222222; fill: none"/><path d="M 0 9 L 9 9" style="stroke: #123456"/>
<text y="-3">&lt;script&gt;</text></svg>
"""


def record(cell: str, seed: int) -> Record:
    """Return a finished record with words that must be escaped."""
    config = {
        "seed": seed,
        "model": {"_target_": BAD},
        "training": {"steps": 6},
        "data": {"batch_size": 2, "window": 4},
    }
    curves = {"train<loss>": {"step": [1.0, 2.0, 3.0], "value": [3.0, 2.0, 1.0]}}
    provenance = {"commit": "a" * 40, "dirty": False, "versions": {"torch": "2"}, "device": "a & b"}
    return Record(cell, "finished", seed, config, {"loss": 1.0 + seed}, curves, 12, None, 1.0, None, BAD, provenance)


def claim(name: str = "a<b", p: float | None = 0.01, **changes: Any) -> dict[str, Any]:
    """Return a claim of a table.json."""
    ends = {"value": 0.5, "low": 0.4, "high": 0.6}
    named = {"of": "A", "to": "B", "kind": "ratio", "seeds": 2, "items": "seeds only", "text": f"A / B = 0.5 {BAD}"}
    found = {"id": name, "whose": "paper", "where": BAD, "says": BAD, "verdict": "seen here", "word": "seen here"}
    judged = {"estimate": {**ends, **named}, "claimed": "below 1", "p": p, "because": BAD}
    return {**found, **judged, "parts": [{"label": BAD, "text": "0.5", **ends}], **changes}


def table() -> dict[str, Any]:
    """Return the content of a table.json of an artifact that no YAML file describes."""
    named = {"artifact": "own/one", "title": BAD, "source": BAD, "scale": "cpu", "made_of": BAD}
    cells = {ONE: {"model": BAD, "seed": 0}, TWO: {"model": BAD, "seed": 1}, ABSENT: {"model": "absent", "seed": 0}}
    return {**named, "headline": f"A / B = 0.5 {BAD}", "claims": [claim()], "cells": cells}


def write(root: Path, **changes: Any) -> Path:
    """Write the folder; ``changes`` replace keys of the table."""
    folder = root / "own" / "one" / "cpu"
    folder.mkdir(parents=True)
    (folder / "table.json").write_text(json.dumps({**table(), **changes}))
    (folder / "table.md").write_text(
        f"# own/one: {BAD}\n\n{BAD}\n\n| model | loss |\n|---|---|\n| {BAD} | 1.5 ± 0.5 ‡ |\n"
    )
    marks = json.dumps(MARKS).replace("&", "&amp;").replace("<", "&lt;")
    (folder / "figure.svg").write_text(SVG.replace("MARKS", marks))
    (folder / "figure.csv").write_text("model,step,loss\n<i>,5,10\nother,5,20\n")
    records.write(records.record_path(root, ONE), record(ONE, 0))
    records.write(records.record_path(root, TWO), replace(record(TWO, 1), curves={}))
    return root

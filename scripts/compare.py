"""Compare two runs: which keys of their configs differ, their metrics side by side, where their curves end.

    compare.py 95071d22 runs/cells/b8497c8947d73191       two cells: ids, the beginnings of ids, or folders
    compare.py results/cem/table3/cpu runs/cem/table3/cpu+1a2b3c
                                                          two folders of tables, cell by cell at the same place and seed
    compare.py results runs cem/table3 scale=cpu          what two runs folders hold of one artifact

Ids are looked up in runs=DIR (default: $PAPER_REPRO_RUNS, else runs/) and among the committed results.  Nothing is run.
Exit codes: 0, or 2 for wrong usage.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from paper_repro.base import identity
from paper_repro.base.configs import leaves
from paper_repro.base.errors import RESULTS, UsageError, parse, run_main
from paper_repro.cells.records import Record
from paper_repro.tables import plan as plans
from paper_repro.tables import spec, view
from paper_repro.tables.plan import Plan
from paper_repro.tables.view import placed, with_seeds_of_table

ABSENT = "-"
TABLE = "table.json"
FIELDS = ("status", "seed", "parameters", "multiply_adds", "seconds", "peak_memory_mib")
COMPARED = ("difference", "ratio")
Row = list[Any]
Folder = tuple[Path, Plan]
"""A runs folder, and an artifact whose cells lie in it."""
Side = dict[tuple[tuple[str, Any], ...], dict[int, Record]]
"""The records of a folder, by place and seed."""


def main(arguments: Sequence[str]) -> int:
    words = parse(arguments, ("--help", "-h"), ("scale", "runs"))
    if words.flags or not arguments:
        print(__doc__)
        return 0 if arguments else 2
    if words.overrides:
        raise UsageError(f"{words.overrides[0]}: nothing is run here; altered runs are compared by their folders")
    if len(words.names) not in (2, 3):
        raise UsageError(f"{len(words.names)} names: give two runs, and for two runs folders the artifact")
    names, artifact = words.names[:2], next(iter(words.names[2:]), None)
    folders = [found for name in names if (found := _folder(name, artifact, words.settings.get("scale"))) is not None]
    if len(folders) == 1:
        raise UsageError(f"{' and '.join(names)}: one is a cell, the other a folder of many; give two of a kind")
    if folders:
        print(_of_folders(names, folders))
    else:
        print(_of_cells([view.find_record(name, [words.runs, RESULTS])[1] for name in names]))
    return 0


def _folder(word: str, artifact: str | None, scale: str | None) -> Folder | None:
    """Return the folder of tables or of runs that a word names; None where it may be a cell."""
    path = Path(word).expanduser()
    if (path / TABLE).is_file():
        try:
            table = json.loads((path / TABLE).read_text(encoding="utf-8"))
            name, own, overrides = table["artifact"], table["scale"], table["overrides"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path / TABLE}: not the table of an artifact ({error}); render it again") from error
        if artifact is not None or scale is not None:
            raise UsageError(f"{word}: it says itself that it is {name} at scale {own}; give the two folders alone")
        root = path.resolve().parents[2]
        return root, with_seeds_of_table(plans.make(spec.load(name), own, None, overrides), root)
    if (path / "cells").is_dir():
        if artifact is None:
            raise UsageError(f"{word}: a runs folder; say which artifact of it, for example cem/table3 scale=cpu")
        return path, with_seeds_of_table(plans.make(spec.load(artifact), scale or "cpu"), path)
    if artifact is not None:
        raise UsageError(f"{word}: no runs folder, which has cells/; {artifact} goes with two runs folders, not cells")
    return None


def _of_cells(records: Sequence[Record]) -> str:
    first, second = records
    names = [first.cell, second.cell] if first.cell != second.cell else [f"{first.cell} A", f"{second.cell} B"]
    about = [[name, *(_text(getattr(one, name)) for one in records)] for name in FIELDS]
    about += [[name, *(_text(one.provenance.get(name)) for one in records)] for name in ("commit", "device")]
    about.append(["torch", *(_text((one.provenance.get("versions") or {}).get("torch")) for one in records)])
    rows = [_numbers(name, *(one.metrics.get(name) for one in records)) for name in {**first.metrics, **second.metrics}]
    curves = []
    for name in {**first.curves, **second.curves}:
        own = [one.curves.get(name) or {} for one in records]
        steps = [f"{curve['step'][-1]:g}" if curve.get("step") else ABSENT for curve in own]
        _, *values = _numbers(name, *(curve["value"][-1] if curve.get("step") else None for curve in own))
        curves.append([name, " and ".join(dict.fromkeys(steps)), *values])
    parts = [_table(["", *names], about), _differing([(first, second)], names)]
    parts.append(_table(["metric", *names, *COMPARED], rows) if rows else "metrics: none")
    parts.append(_table(["curve", "last step", *names, *COMPARED], curves) if curves else "curves: none")
    return "\n\n".join(parts)


def _of_folders(words: Sequence[str], folders: Sequence[Folder]) -> str:
    first, second = (plan.artifact for _, plan in folders)
    if first.id != second.id:
        raise UsageError(f"{first.id} and {second.id}: two artifacts have no cells to pair")
    sides: list[Side] = []
    for word, (root, plan) in zip(words, folders, strict=True):
        side: Side = {}
        for one in placed(plan, root):
            side.setdefault(tuple(one.place.items()), {})[one.record.seed] = one.record
        if not side:
            raise UsageError(f"{word}: no record of {first.id} in it; run reproduce.py with runs={word}")
        sides.append(side)
    rows, pairs = [], []
    for place in {**sides[0], **sides[1]}:
        left, right = (side.get(place, {}) for side in sides)
        pairs += [(record, right[seed]) for seed, record in left.items() if seed in right]
        for name in (name for name, metric in first.metrics.items() if metric.measured):
            values = [[one.metrics[name] for one in own.values() if name in one.metrics] for own in (left, right)]
            if any(values):
                means = [statistics.fmean(found) if found else None for found in values]
                seeds = " and ".join(str(len(found)) for found in values)
                rows.append([*(value for _, value in place), *_numbers(name, *means), seeds])
    header = [*first.axes, "metric", "A", "B", *COMPARED, "seeds"]
    return "\n\n".join([f"A: {words[0]}\nB: {words[1]}", _differing(pairs, ("A", "B")), _table(header, rows)])


def _differing(pairs: Sequence[tuple[Record, Record]], names: Sequence[str]) -> str:
    """Return a table of the config keys that differ within pairs, each pair of values once, with how often it is so."""
    found = Counter[tuple[str, str, str]]()
    for pair in pairs:
        left, right = (dict(leaves(identity.today(record.config))) for record in pair)
        for key in {**left, **right}:
            values = _text(left.get(key)), _text(right.get(key))
            if values[0] != values[1]:
                found[key, *values] += 1
    if not pairs:
        return "no cell of the one is at the place and seed of one of the other"
    if not found:
        return "configs: the same" if len(pairs) == 1 else f"configs: the same in all {len(pairs)} pairs of cells"
    header = ["config key", *names, f"pairs of {len(pairs)}"][: 3 + (len(pairs) > 1)]
    return _table(header, [[*row, count][: len(header)] for row, count in found.items()])


def _numbers(name: str, first: float | None, second: float | None) -> Row:
    if first is None or second is None:
        return [name, _text(first), _text(second), ABSENT, ABSENT]
    ratio = f"{second / first:.4g}" if first else ABSENT
    return [name, _text(first), _text(second), f"{second - first:+.4g}", ratio]


def _text(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)


def _table(header: Sequence[str], rows: Sequence[Row]) -> str:
    return tabulate(rows, headers=list(header), tablefmt="github", disable_numparse=True)


if __name__ == "__main__":
    sys.exit(run_main(main))

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
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from paper_repro.base import identity
from paper_repro.base.errors import RESULTS, UsageError, parse, run_main
from paper_repro.cells.records import Record
from paper_repro.tables import plan as plans
from paper_repro.tables import spec, view
from paper_repro.tables.plan import Plan
from paper_repro.tables.view import Placed, placed, with_seeds_of_table

ABSENT = "-"
TABLE = "table.json"
NO_RUNS_FOLDER = "no runs folder, which has the records of cells in cells/ (runs/, or what runs=DIR named)"
ID = re.compile("[0-9a-f]{4,16}")
"""An id, or how one begins, which a folder may be called, too."""
Row = list[Any]


@dataclass(frozen=True)
class Folder:
    """A folder with the cells of an artifact."""

    root: Path
    """The runs folder."""
    plan: Plan


def compare(words: Sequence[str], roots: Sequence[Path], artifact: str | None = None, scale: str | None = None) -> str:
    """Return what differs between two runs, as text.

    Args:
        words: two cells (see ``view.find_record``), two folders of tables (runs/<paper>/<artifact>/<scale>), or with
            ``artifact`` two runs folders.
        roots: runs folders in which ids are looked up.
        artifact: what of the two runs folders is compared.
        scale: of the artifact in two runs folders; None: cpu.

    Raises:
        UsageError: a word that is none of these, a cell beside a folder, or folders of two artifacts.
    """
    sides = [_folder(word, artifact, scale) for word in words]
    folders = [side for side in sides if side is not None]
    if len(folders) == 1:
        raise UsageError(f"{' and '.join(words)}: one is a cell, the other a folder of many; give two of a kind")
    if folders:
        return _of_folders(words, *folders)
    first, second = (view.find_record(word, roots)[1] for word in words)
    return _of_cells(first, second)


def _folder(word: str, artifact: str | None, scale: str | None) -> Folder | None:
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
        return Folder(root, with_seeds_of_table(plans.make(spec.load(name), own, None, overrides), root))
    if not (path / "cells").is_dir():
        if artifact is not None:
            raise UsageError(f"{word}: {NO_RUNS_FOLDER}; {artifact} goes with two runs folders, not with cells")
        if path.is_dir() and not (path / "record.json").is_file() and not ID.fullmatch(word):
            raise UsageError(
                f"{word}: no record.json in it, so no cell's folder, no {TABLE}, so none of tables, and "
                f"{NO_RUNS_FOLDER}; give two of one kind"
            )
        return None
    if artifact is None:
        raise UsageError(f"{word}: a runs folder; say which artifact of it, for example cem/table3 scale=cpu")
    return Folder(path, with_seeds_of_table(plans.make(spec.load(artifact), scale or "cpu"), path))


def _of_cells(first: Record, second: Record) -> str:
    names = (first.cell, second.cell) if first.cell != second.cell else (f"{first.cell} A", f"{second.cell} B")
    about = [
        [name, getattr(first, name), getattr(second, name)]
        for name in ("status", "seed", "parameters", "multiply_adds", "seconds", "peak_memory_mib")
    ]
    origins = [_origin(record) for record in (first, second)]
    about += [[name, *(origin.get(name) for origin in origins)] for name in origins[0]]
    metrics = {**first.metrics, **second.metrics}
    rows = [_numbers(name, first.metrics.get(name), second.metrics.get(name)) for name in metrics]
    curves = []
    for name in {**first.curves, **second.curves}:
        ends = [_end(record, name) for record in (first, second)]
        steps = " and ".join(dict.fromkeys(step for step, _ in ends))
        _, *values = _numbers(name, *(value for _, value in ends))
        curves.append([name, steps, *values])
    numbers = [*names, "difference", "ratio"]
    parts = [
        _table(["", *names], [[name, *map(_text, values)] for name, *values in about]),
        _differing([(first, second)], names),
        _table(["metric", *numbers], rows) if rows else "metrics: none",
        _table(["curve", "last step", *numbers], curves) if curves else "curves: none",
    ]
    return "\n\n".join(parts)


def _of_folders(words: Sequence[str], first: Folder, second: Folder) -> str:
    if first.plan.artifact.id != second.plan.artifact.id:
        raise UsageError(f"{first.plan.artifact.id} and {second.plan.artifact.id}: two artifacts have no cells to pair")
    sides = [_by_place(placed(folder.plan, folder.root)) for folder in (first, second)]
    for word, side in zip(words, sides, strict=True):
        if not side:
            raise UsageError(f"{word}: no record of {first.plan.artifact.id} in it; run reproduce.py with runs={word}")
    places = dict.fromkeys([*sides[0], *sides[1]])
    metrics = [name for name, metric in first.plan.artifact.metrics.items() if metric.measured]
    rows = []
    for place in places:
        own = [side.get(place, {}) for side in sides]
        for name in metrics:
            values = [[record.metrics[name] for record in found.values() if name in record.metrics] for found in own]
            means = [statistics.fmean(found) if found else None for found in values]
            if any(mean is not None for mean in means):
                seeds = " and ".join(str(len(found)) for found in values)
                rows.append([*(value for _, value in place), *_numbers(name, *means), seeds])
    pairs = [
        (record, sides[1][place][seed])
        for place, own in sides[0].items()
        for seed, record in own.items()
        if seed in sides[1].get(place, {})
    ]
    axes = list(first.plan.artifact.axes)
    return "\n\n".join(
        [
            f"A: {words[0]}\nB: {words[1]}",
            _differing(pairs, ("A", "B")),
            _table([*axes, "metric", "A", "B", "difference", "ratio", "seeds"], rows),
        ]
    )


def _by_place(found: Sequence[Placed]) -> dict[tuple[tuple[str, Any], ...], dict[int, Record]]:
    sides: dict[tuple[tuple[str, Any], ...], dict[int, Record]] = {}
    for one in found:
        sides.setdefault(tuple(one.place.items()), {})[one.record.seed] = one.record
    return sides


def _differing(pairs: Sequence[tuple[Record, Record]], names: tuple[str, str]) -> str:
    """Return a table of the config keys that differ within pairs, each pair of values once, with how often it is so."""
    found: dict[tuple[str, str, str], int] = {}
    for one, two in pairs:
        left, right = (dict(_flat(identity.today(record.config), "")) for record in (one, two))
        for key in {**left, **right}:
            values = (_text(left.get(key, ABSENT)), _text(right.get(key, ABSENT)))
            if values[0] != values[1]:
                found[key, *values] = found.get((key, *values), 0) + 1
    if not pairs:
        return "no cell of the one is at the place and seed of one of the other"
    if not found:
        return "configs: the same" if len(pairs) == 1 else f"configs: the same in all {len(pairs)} pairs of cells"
    if len(pairs) == 1:
        return _table(["config key", *names], [list(row) for row in found])
    return _table(["config key", *names, f"pairs of {len(pairs)}"], [[*row, count] for row, count in found.items()])


def _flat(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(node, Mapping) or not node:
        yield path, node
        return
    for key, value in node.items():
        yield from _flat(value, f"{path}.{key}" if path else str(key))


def _numbers(name: str, first: float | None, second: float | None) -> Row:
    if first is None or second is None:
        return [name, _text(first), _text(second), ABSENT, ABSENT]
    ratio = f"{second / first:.4g}" if first else ABSENT
    return [name, _text(first), _text(second), f"{second - first:+.4g}", ratio]


def _end(record: Record, name: str) -> tuple[str, float | None]:
    """Return the last step and value of a curve."""
    curve = record.curves.get(name) or {}
    if not curve.get("step"):
        return ABSENT, None
    return f"{curve['step'][-1]:g}", curve["value"][-1]


def _origin(record: Record) -> dict[str, Any]:
    origin = record.provenance
    versions = origin.get("versions") or {}
    return {"commit": origin.get("commit"), "device": origin.get("device"), "torch": versions.get("torch")}


def _text(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)


def _table(header: Sequence[str], rows: Sequence[Row]) -> str:
    return tabulate(rows, headers=list(header), tablefmt="github", disable_numparse=True)


def main(arguments: Sequence[str]) -> int:
    words = parse(arguments, ("--help", "-h"), ("scale", "runs"))
    if words.flags or not arguments:
        print(__doc__)
        return 0 if arguments else 2
    if words.overrides:
        raise UsageError(f"{words.overrides[0]}: nothing is run here; altered runs are compared by their folders")
    if len(words.names) not in (2, 3):
        raise UsageError(f"{len(words.names)} names: give two runs, and for two runs folders the artifact")
    *artifact, scale = [*words.names[2:], words.settings.get("scale")]
    print(compare(words.names[:2], [words.runs, RESULTS], artifact[0] if artifact else None, scale))
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))

"""Compare two runs: which keys of their configs differ, their metrics side by side, where their curves end.

    compare.py 95071d22 runs/cells/b8497c8947d73191       two cells: ids, the beginnings of ids, or folders
    compare.py results runs cem/table3 scale=cpu          an artifact in two runs folders: means over seeds

Ids are looked up in runs=DIR (default: $PAPER_REPRO_RUNS, else runs/) and among the committed results.  Nothing is run.
Exit codes: 0, or 2 for wrong usage.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pandas

from paper_repro.base import identity
from paper_repro.base.configs import leaves
from paper_repro.base.errors import RESULTS, UsageError, parse, run_main
from paper_repro.cells.records import Record
from paper_repro.tables.view import find_record, frame

FIELDS = ("status", "seed", "parameters", "multiply_adds", "seconds", "peak_memory_mib")
PLACE_ENDS = ("seed", "value", "unit", "status", "cell", "num_parameters", "seconds", "device", "commit")


def main(arguments: Sequence[str]) -> int:
    words = parse(arguments, ("--help", "-h"), ("scale", "runs"))
    if words.flags or not arguments:
        print(__doc__)
        return 0 if arguments else 2
    if words.overrides:
        raise UsageError(f"{words.overrides[0]}: nothing is run here; altered runs are compared cell by cell")
    if len(words.names) not in (2, 3):
        raise UsageError(f"{len(words.names)} names: give two cells, or two runs folders and the artifact")
    first, second, *artifact = words.names
    if artifact:
        print(_of_folders((first, second), artifact[0], words.settings.get("scale", "cpu")))
    elif folder := next((name for name in (first, second) if (Path(name) / "cells").is_dir()), None):
        raise UsageError(f"{folder}: a runs folder; say which artifact of both, for example cem/table3 scale=cpu")
    else:
        print(_of_cells([find_record(name, [words.runs, RESULTS])[1] for name in (first, second)]))
    return 0


def _of_cells(records: Sequence[Record]) -> str:
    names = [f"{record.cell} {side}" for record, side in zip(records, "AB", strict=True)]
    names = [record.cell for record in records] if records[0].cell != records[1].cell else names

    def side_by_side(values: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
        return pandas.DataFrame(dict(zip(names, map(pandas.Series, values), strict=True)), dtype=object)

    about = [
        {name: getattr(one, name) for name in FIELDS} | {key: one.provenance.get(key) for key in ("commit", "device")}
        for one in records
    ]
    configs = [{key: str(value) for key, value in leaves(identity.today(one.config))} for one in records]
    config = side_by_side(configs).fillna("-")
    differing = config[config[names[0]] != config[names[1]]]
    metrics = side_by_side([one.metrics for one in records])
    ends = [{f"{name}, last": own["value"][-1] for name, own in one.curves.items() if own["value"]} for one in records]
    parts = [side_by_side(about), differing, _compared(metrics), _compared(side_by_side(ends))]
    titles = ["cell", "config key", "metric", "curve"]
    return "\n\n".join(_text(part, title) for part, title in zip(parts, titles, strict=True))


def _of_folders(roots: tuple[str, str], artifact: str, scale: str) -> str:
    sides = []
    for root in roots:
        found = frame(artifact, scale=scale, runs=root)
        if found.empty:
            raise UsageError(f"{root}: no record of {artifact} in it; run reproduce.py with runs={root}")
        place = [name for name in found.columns if name not in PLACE_ENDS]
        sides.append(found.groupby(place, sort=False)["value"].agg(["mean", "count"]))
    both = pandas.concat(sides, axis=1, keys=["A", "B"])
    means = _compared(both.xs("mean", axis=1, level=1))
    counts = both.xs("count", axis=1, level=1).fillna(0).astype(int).astype(str)
    table = means.assign(seeds=counts["A"] + " and " + counts["B"]).reset_index(["artifact", "scale"], drop=True)
    return f"A: {roots[0]}\nB: {roots[1]}\n\n{_text(table.reset_index())}"


def _compared(table: pandas.DataFrame) -> pandas.DataFrame:
    """Append the difference and the ratio of the second column to the first."""
    first, second = (table.iloc[:, side].astype(float) for side in (0, 1))
    return table.assign(difference=second - first, ratio=second / first)


def _text(table: pandas.DataFrame, title: str = "") -> str:
    if table.empty:
        return f"{title}: none differ" if title == "config key" else f"{title}: none"
    options: dict[str, Any] = {"floatfmt": ".6g", "missingval": "-", "tablefmt": "github"}
    shown = table.astype(object).where(table.notna(), None)
    return str(shown.rename_axis(title).to_markdown(index=bool(title), **options))


if __name__ == "__main__":
    sys.exit(run_main(main))

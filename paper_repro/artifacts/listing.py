"""Lists the artifacts that can be rerun, and shows what a plan would cost."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from paper_repro.artifacts import catalogue
from paper_repro.artifacts.artifact import Artifact, DataNeed
from paper_repro.artifacts.axes import EXACT, SCALES
from paper_repro.artifacts.judgements import VERDICTS
from paper_repro.artifacts.layouts import laid_out
from paper_repro.artifacts.plan import Plan
from paper_repro.artifacts.typesetting import Grid
from paper_repro.base.data_files import find_data
from paper_repro.base.durations import duration
from paper_repro.base.errors import UsageError
from paper_repro.base.identity import MACHINE
from paper_repro.cells import changes, measurements
from paper_repro.cells.estimates import estimate, processor_flags, slow_products, unmeasured_rate
from paper_repro.cells.leases import holder, lease_path
from paper_repro.cells.machine_section import count_devices, on_gpu
from paper_repro.cells.measurements import is_done
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import Record, record_path
from paper_repro.cells.saved import saved_steps

NOT_RUN = "not run"
LEFT_OUT = ("scales", "reference", "made from", "yours")
"""Columns of the list that a terminal is not shown."""


def listing(runs: Path, results: Path, names: Sequence[str] = (), columns: int | None = None) -> str:
    """List every artifact, or those of the ids: title, scales, whether data is present, and the scales that have
    results.

    An artifact whose file has an error is listed as faulty; the error's one line stands below the table.

    Args:
        runs: the user's records.
        results: the committed reference.
        names: ids; none: all.
        columns: of the terminal, which is shown fewer columns of the table, wrapped; None: it is not for a terminal.
    """
    rows, missing, faults = list[list[str]](), dict[str, str](), catalogue.misplaced()
    duplicates = catalogue.duplicates()
    for name, path in catalogue.find().items():
        if names and name not in names:
            continue
        try:
            if name in duplicates:
                raise UsageError(duplicates[name])
            artifact = catalogue.load_file(path)
            folder = _judged_folder(artifact, results)
            ground = "-" if folder is None else str(_document(folder).get("made_of", "-"))
            claims = [_judged_claims(artifact, results, whose) for whose in ("paper", "ours")]
        except UsageError as error:
            rows.append([name, "faulty, see below"])
            faults.append(f"{name} is faulty: {error}")
            continue
        absent = [need for need in artifact.needs if find_data(need.path) is None]
        missing |= {f"{_folder(need.path)} ({need.title})": need.command for need in absent}
        data = _data(artifact, absent)
        scales = ", ".join(artifact.scales)
        reference = _scales_with_results(artifact, results)
        yours = _scales_with_results(artifact, runs)
        rows.append([name, artifact.title, scales, data, reference, ground, *claims, yours])
    headers = ["artifact", "title (the paper's)", "scales", "data", "reference", "made from", "the paper's claims"]
    headers += ["questions of ours", "yours"]
    legend = [*(f"{title}: {command}" for title, command in missing.items()), *faults]
    table = _written(headers, rows, columns)
    return "\n".join([table, "", *legend] if legend else [table])


def _data(artifact: Artifact, absent: Sequence[DataNeed]) -> str:
    """Say which scales are ready, and what the others lack."""
    if not absent:
        return "present" if artifact.needs else "generated"
    lacking = {word for need in absent for word in need.scales or artifact.scales}
    ready = [word for word in artifact.scales if word not in lacking]
    wanted: dict[str, list[str]] = {}
    for need in absent:
        words = wanted.setdefault(_folder(need.path), [])
        words += [word for word in need.scales or artifact.scales if word not in words]
    missing = ", ".join(f"{name} ({', '.join(words)})" for name, words in wanted.items())
    return f"{'ready: ' + ', '.join(ready) + '; ' if ready else ''}missing {missing}"


def _folder(path: str) -> str:
    """Return the folder below the data's that a path begins with."""
    return path.split("/", maxsplit=1)[0]


def _written(headers: list[str], rows: Sequence[list[str]], columns: int | None) -> str:
    """Write the list, in lines of so many columns where it is for a terminal."""
    if columns is None:
        return tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
    kept = [place for place, name in enumerate(headers) if name not in LEFT_OUT]
    whole = [row + [""] * (len(headers) - len(row)) for row in rows]
    return laid_out(
        Grid([headers[place] for place in kept], [[row[place] for place in kept] for row in whole]), columns
    )


def published_listing(results: Path) -> str:
    """List every artifact of the committed reference as a Markdown table; each id links to its published table."""
    rows = []
    for name, path in catalogue.find().items():
        artifact = catalogue.load_file(path)
        folder = _judged_folder(artifact, results)
        title = name if folder is None else f"[{name}]({folder.relative_to(results).as_posix()}/table.md)"
        scale, ground = ("-", "-") if folder is None else (folder.name, _document(folder)["made_of"])
        claims = [_judged_claims(artifact, results, whose) for whose in ("paper", "ours")]
        rows.append([title, artifact.title, scale, ground, *claims])
    headers = ["artifact", "title (the paper's)", "scale", "made from", "the paper's claims", "questions of ours"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def plan_table(plan: Plan, roots: Sequence[Path]) -> str:
    """Show each point of a plan: how many of its cells are done, its counts, and the expected time of the rest."""
    estimates = estimate(plan.cells, roots, kept=roots[0])
    rows: list[list[str]] = []
    reasons: list[str] = []
    total = 0.0
    for key in plan.artifact.points(plan.scale):
        cells = [cell for cell in plan.cells if cell.key == key]
        done = [cell for cell in cells if is_done(roots[0], cell)]
        left = sum(estimates[cell.id].seconds for cell in cells if cell not in done)
        total += left
        labels = [plan.artifact.axes[axis].values[value].label for axis, value in key]
        cost = estimates[cells[0].id].cost
        counts = ["", "", ""]
        if cost is not None:
            counts = [f"{cost.parameters:,}", _flops(cost.step_flops), _memory(cost.memory_bytes)]
        state = f"{len(done)} of {len(cells)} done"
        if reason := cells[0].missing:
            reasons += [reason] if reason not in reasons else []
            state = f"no data [{reasons.index(reason) + 1}]"
        rows.append([*labels, state, *counts, duration(left)])
    rows += _floor_rows(plan, roots[0])
    headers = [axis.title for axis in plan.artifact.axes.values()]
    headers += ["cells", "parameters", "FLOPs of a training step", "memory a cell", "time left"]
    workers = int(plan.cells[0].config.get("machine", {}).get("workers", 1))
    lines = [
        f"{plan.artifact.id} at scale {plan.scale_name}: {plan.scale.about}",
        tabulate(rows, headers, tablefmt="simple", disable_numparse=True),
        *(f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1)),
        f"{len(plan.all_cells)} cells, about {duration(total / workers)} left with {workers} worker(s), each on "
        f"{_machine_of(plan)}; estimated from records where there are any, else from "
        f"{unmeasured_rate(plan.cells[0].config):.2g} FLOPs a second; FLOPs are those of the matrix products, forward "
        "and backward",
    ]
    if slow := slow_products(plan.cells[0].config, processor_flags()):
        lines.append(slow)
    return "\n".join(lines)


def _floor_rows(plan: Plan, runs: Path) -> list[list[str]]:
    """Return a line for each floor, whose cells train nothing."""
    found = []
    for name, floor in plan.artifact.floors.items():
        cells = {cell.id: cell for one in plan.floors if one.name == name for cell in one.cells.values()}
        if cells:
            done = sum(is_done(runs, cell) for cell in cells.values())
            others = [""] * (len(plan.artifact.axes) - 1)
            found.append([f"Floor: {floor.label}", *others, f"{done} of {len(cells)} done", "", "", "", ""])
    return found


def _flops(count: int) -> str:
    """Write a number of FLOPs: 12,345,678, or 1.23 PFLOP."""
    for unit, size in (("PFLOP", 10**15), ("TFLOP", 10**12)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:,}"


def _memory(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def cells_table(plan: Plan, runs: Path, reference: Path) -> str:
    """Show each cell of a plan, those of its floors too: id, setting, seed, status, whether code and data are those of
    now, and the path of its record.

    The status is that of the user's own cell, with the last saved step if it was begun; where there is none, that of
    the committed reference, said so.
    """
    saved = saved_steps(runs, {cell.id for cell in plan.all_cells})
    rows, absent = list[list[str]](), dict[str, None]()
    under = {cell.id: floor.common() for floor in plan.floors for cell in floor.cells.values()}
    for cell in plan.all_cells:
        place = [*cell.key, *under.get(cell.id, {}).items()]
        setting = ", ".join(f"{axis}={value}" for axis, value in place) or "-"
        status, code, path = _unfinished(runs, cell, saved), "-", "-"
        for root in (runs, reference) if status == NOT_RUN else (runs,):
            if (found := measurements.find(root, cell)) is not None:
                lacking = f", to measure: {', '.join(found.lacking)}" if found.lacking else ""
                whose = " (reference)" if root == reference else ""
                status, path = f"{found.record.status}{lacking}{whose}", _shown(record_path(root, cell.id))
                code = _code(root, found.record)
                break
        if cell.missing:
            status = "no data" if path == "-" else status
            absent[cell.missing] = None
        rows.append([cell.id, setting, str(cell.seed), status, code, path])
    headers = ["cell", "setting", "seed", "status", "code and data", "record"]
    table = tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
    return "\n".join([table, *absent])


def _code(root: Path, record: Record) -> str:
    """Return whether the files that a result depends on are those of now."""
    files = changes.changed_files(root, record)
    return "not recorded" if files is None else f"other: {', '.join(files)}" if files else "as now"


def _unfinished(runs: Path, cell: PlannedCell, saved: Mapping[str, int]) -> str:
    """Say how far a cell without a record is."""
    running = holder(lease_path(runs, cell.id)) is not None
    if cell.id not in saved:
        return "running, no step saved" if running else NOT_RUN
    return f"{'running' if running else 'begun'}: step {saved[cell.id]:,} of {cell.config['training']['steps']:,}"


def _shown(path: Path) -> str:
    """Return a path as seen from the working folder, where it lies in there."""
    here = Path.cwd()
    return str(path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else path)


def _machine_of(plan: Plan) -> str:
    machine = plan.cells[0].config.get(MACHINE) or {}
    if not on_gpu(machine):
        return f"{machine.get('threads', 1) or 'all'} thread(s) of a CPU"
    return f"{count_devices(machine.get('devices', 1))} GPU(s)"


def _judged_claims(artifact: Artifact, root: Path, whose: str) -> str:
    """Count the verdicts on the claims of the paper, or on ours, in the results of the largest scale that has any."""
    folder = _judged_folder(artifact, root)
    if folder is None:
        return "-"
    claims = _document(folder)["claims"]
    counts = Counter(claim["verdict"] for claim in claims if claim.get("whose", "paper") == whose)
    known = [verdict for verdict in VERDICTS if verdict in counts]
    others = sorted(counts.keys() - {*known})
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in [*known, *others]) or "-"


def _document(folder: Path) -> dict[str, Any]:
    path = folder / "table.json"
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document["claims"], list):
            raise TypeError("its claims are no list")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not the table of an artifact ({error}); render or publish it again") from error
    return document


def counted(tables: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the tables whose verdicts are counted: of each artifact its largest scale's, none that is altered."""
    found: dict[str, Mapping[str, Any]] = {}
    for table in tables:
        known = found.get(table["artifact"])
        if not table.get("overrides") and (known is None or _size(known) < _size(table)):
            found[table["artifact"]] = table
    return list(found.values())


def _size(table: Mapping[str, Any]) -> int:
    words = (*SCALES, EXACT)
    return words.index(table["scale"]) if table["scale"] in words else -1


def _judged_folder(artifact: Artifact, root: Path) -> Path | None:
    """Return the folder of the results of the largest scale that has any."""
    folders = [root / artifact.id / word for word in (*SCALES, EXACT) if word in artifact.scales]
    return next((folder for folder in reversed(folders) if (folder / "table.json").is_file()), None)


def _scales_with_results(artifact: Artifact, root: Path) -> str:
    scales = [scale for scale in artifact.scales if (root / artifact.id / scale / "table.json").is_file()]
    return ", ".join("yes" if scale == EXACT else scale for scale in scales) or "-"

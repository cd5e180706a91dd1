"""From records to files and lists: rendering, publishing, the list of artifacts, plans and cells."""

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from paper_repro.base import identity
from paper_repro.base.configs import TARGET, explained, file_of, leaves
from paper_repro.base.errors import UsageError, duration
from paper_repro.base.files import CorruptFileError, find_data, write_atomically
from paper_repro.base.identity import MACHINE
from paper_repro.cells import estimates, measurements, records
from paper_repro.cells.leases import holder, lease_path
from paper_repro.cells.measurements import is_done
from paper_repro.cells.planned import PlannedCell, count_devices, on_gpu
from paper_repro.cells.records import Record, open_runs_folder, record_path, saved_steps
from paper_repro.cells.tasks import FINISHED
from paper_repro.cells.verify import Verification
from paper_repro.cells.workers import first_count
from paper_repro.tables import plan as plans
from paper_repro.tables import spec
from paper_repro.tables.claims import VERDICTS
from paper_repro.tables.plan import Plan
from paper_repro.tables.spec import EXACT, PAPERS, SCALES, Artifact, DataNeed, place_problems
from paper_repro.tables.table import Grid, render
from paper_repro.tables.view import NOT_RUN


def closing(artifact: str, by_status: Mapping[str, int], seconds: float, folder: Path) -> str:
    total = sum(by_status.values())
    others = [f"{count} {status}" for status, count in by_status.items() if status != FINISHED]
    cells = f"{total} cell{'' if total == 1 else 's'}" + (f" ({', '.join(others)})" if others else "")
    claims = f"; claims: {words}" if (words := verdicts(_document(folder)["claims"])) else ""
    return f"{artifact}: {cells}, {duration(seconds)}{claims}; look at {folder / 'table.md'}"


def verdicts(found: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{count} {word}" for word, count in tally(claim["verdict"] for claim in found))


def tally(words: Iterable[str]) -> list[tuple[str, int]]:
    """Count the words of claims, in the order of ``VERDICTS``."""
    counts = Counter(words)
    return [(word, counts[word]) for word in VERDICTS if counts[word]]


def publish(plan: Plan, runs: Path, results: Path) -> list[Path]:
    """Copy the records of a plan's cells into ``results`` and render the artifact there; see ``content``."""
    whole, beside = content(plan, runs, results)
    try:
        for path, attached in beside.items():
            write_atomically(path, attached)
        for record in whole:
            records.write(record_path(results, record.cell), record)
    except OSError as error:
        raise UsageError(
            f"{results}: cannot write there ({error.strerror}); {runs} still has every record: free some space and "
            "publish again"
        ) from error
    return render(plan, results, None)[1]


def content(plan: Plan, runs: Path, results: Path) -> tuple[list[Record], dict[Path, bytes]]:
    """Return the records to publish of a plan, and the other files with their places.

    Raises:
        UsageError: the plan is altered, a cell has no result, its code is not committed, or a file is damaged.
    """
    homes = (PAPERS, results.resolve().parent)
    if not any(plan.artifact.path.resolve().is_relative_to(home) for home in homes):
        raise UsageError(
            f"{plan.artifact.path} lies outside of the repository, so {results.name}/ could not be made again from it: "
            f"move it, with the Python file beside it, to {PAPERS / plan.artifact.id}.yaml and commit it"
        )
    if plan.altering:
        raise UsageError(f"{' '.join(plan.altering)}: an altered run is no reference; publish without overrides")
    results_of = {cell.id: measurements.find(runs, cell) for cell in plan.all_cells}
    found = [one.record for one in results_of.values() if one is not None and one.done]
    done = {record.cell for record in found}
    if lacking := [cell for cell in plan.all_cells if cell.id not in done and not is_done(results, cell)]:
        first = f"run reproduce.py {plan.artifact.id} scale={plan.scale_name} runs={runs} first"
        absent = f"a cell is named after its data, and here they are absent: {lacking[0].missing}"
        raise UsageError(
            f"{len(lacking)} of {len(plan.all_cells)} cells have no result in {runs} (the first: {lacking[0].id}); "
            + (absent if lacking[0].missing else first)
        )
    code = {record.cell: measurements.code_of(record) for record in found}
    clean = {cell for cell, parts in code.items() if all(one["commit"] and one["dirty"] is False for one in parts)}
    if wrong := [cell for cell in code if cell not in clean]:
        raise UsageError(
            f"{len(wrong)} records come from uncommitted code, or name no commit (the first: {wrong[0]}); commit, "
            "delete them and run again"
        )
    beside: dict[Path, bytes] = {}
    try:
        for record in found:
            for name in record.attachments:
                beside[record_path(results, record.cell).parent / name] = records.attachment(runs, record, name) or b""
    except CorruptFileError as error:
        raise UsageError(str(error)) from error
    listed = {
        str(each[measurements.LISTED]) for parts in code.values() for each in parts if each.get(measurements.LISTED)
    }
    for path in (Path(identity.CODE, f"{name}.json") for name in sorted(listed)):
        if (runs / path).is_file():
            beside[results / path] = (runs / path).read_bytes()
    # what other probes of a published record have measured on the same weights stays
    pairs = [(records.find(results, record.cell), record) for record in found]
    joined = [(old, record if old is None else measurements.joined(record, old)) for old, record in pairs]
    return [whole for old, whole in joined if whole != old], beside


def adopt(plan: Plan, runs: Path, results: Path) -> int:
    """Copy the published cells of a plan that have no result below ``runs`` into it, and return how many."""
    wanted = [
        cell for cell in plan.all_cells if not cell.missing and not is_done(runs, cell) and is_done(results, cell)
    ]
    pairs = [[record_path(root, cell.id).parent for root in (results, runs)] for cell in wanted]
    fresh = [(source, target) for source, target in pairs if not target.exists()]
    for source, target in fresh:
        shutil.copytree(source, target)
    return len(fresh)


def listing(runs: Path, results: Path, names: Sequence[str] = (), columns: int | None = None) -> str:
    """List every artifact, or those of the ids: title, scales, data, claims, and the scales that have results.

    The error of a faulty file stands below the table, whose columns are wrapped on a terminal of so many columns.
    """
    headers = ["artifact", "title (the paper's)", "scales", "data", "reference", "yours", "the paper's claims", "ours"]
    rows, missing, faults, found = list[list[str]](), dict[str, str](), list[str](), spec.scan()
    for name in (one for one in found if not names or one in names):
        try:
            artifact = spec.load(name, found)
            *_, paper, ours = _judged(artifact, results)
        except UsageError as error:
            rows.append([name, "faulty, see below", *[""] * (len(headers) - 2)])
            faults.append(f"{name} is faulty: {error}")
            continue
        absent = [need for need in artifact.needs.values() if find_data(need.path) is None]
        missing |= {f"{_folder(need.path)} ({need.title})": need.command for need in absent}
        done = [
            ", ".join(word for word in artifact.scales if (root / name / word / "table.json").is_file()) or "-"
            for root in (results, runs)
        ]
        scales = ", ".join(artifact.scales)
        rows.append([name, artifact.title, scales, _data(artifact, absent), *done, paper, ours])
    table = _tabulated(rows, headers) if columns is None else Grid(headers, rows).within(columns)
    legend = [*(f"{title}: {command}" for title, command in missing.items()), *faults]
    return "\n".join([table, "", *legend] if legend else [table])


def _data(artifact: Artifact, absent: Sequence[DataNeed]) -> str:
    if not absent:
        return "present" if artifact.needs else "generated"
    wanted: dict[str, dict[str, None]] = {}
    for need in absent:
        wanted.setdefault(_folder(need.path), {}).update(dict.fromkeys(need.scales or artifact.scales))
    ready = [word for word in artifact.scales if not any(word in words for words in wanted.values())]
    missing = ", ".join(f"{name} ({', '.join(words)})" for name, words in wanted.items())
    return f"{'ready: ' + ', '.join(ready) + '; ' if ready else ''}missing {missing}"


def _folder(path: str) -> str:
    return path.partition("/")[0]


def _tabulated(rows: Sequence[Sequence[str]], headers: Sequence[str], kind: str = "simple") -> str:
    return tabulate(rows, headers, tablefmt=kind, disable_numparse=True)


def published_listing(results: Path, below: Path) -> str:
    """List the published artifacts below a folder as a Markdown table, with links from that folder."""
    rows = []
    found = spec.scan()
    for name in (one for one in found if (results / one).is_relative_to(below)):
        artifact = spec.load(name, found)
        folder, *judged = _judged(artifact, results)
        title = name if folder is None else f"[{name}]({folder.relative_to(below).as_posix()}/table.md)"
        rows.append([title, artifact.title, "-" if folder is None else folder.name, *judged])
    headers = ["artifact", "title (the paper's)", "scale", "made from", "the paper's claims", "questions of ours"]
    return _tabulated(rows, headers, "github")


def _judged(artifact: Artifact, root: Path) -> tuple[Path | None, str, str, str]:
    """Return the folder of the largest scale, what it is made from, and the words of the paper's claims and of ours."""
    folders = [root / artifact.id / word for word in (*SCALES, EXACT) if word in artifact.scales]
    folder = next((folder for folder in reversed(folders) if (folder / "table.json").is_file()), None)
    if folder is None:
        return None, "-", "-", "-"
    document = _document(folder)
    paper, ours = (
        verdicts(one for one in document["claims"] if one.get("whose", "paper") == whose) or "-"
        for whose in ("paper", "ours")
    )
    return folder, str(document.get("made_of", "-")), paper, ours


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
    found, sizes = dict[str, Mapping[str, Any]](), (*SCALES, EXACT)
    for table in tables:
        known = found.get(table["artifact"])
        if not table.get("overrides") and (not known or sizes.index(table["scale"]) > sizes.index(known["scale"])):
            found[table["artifact"]] = table
    return list(found.values())


def plan_table(plan: Plan, roots: Sequence[Path]) -> str:
    """Show each point of a plan: its done cells, its counts, and the expected time of the rest.

    ``roots`` are the user's records and the reference.
    """
    expected = estimates.estimate(plan.cells, roots, roots[0])
    rows, reasons, total = list[list[str]](), _Footnotes(), 0.0
    for key in plan.artifact.points(plan.scale):
        cells = [cell for cell in plan.cells if cell.key == key]
        done = {cell.id for cell in cells if is_done(roots[0], cell)}
        left = sum(expected[cell.id].seconds for cell in cells if cell.id not in done)
        total += left
        labels = [plan.artifact.axes[axis].values[value].label for axis, value in key]
        cost = expected[cells[0].id].cost
        counts = ["", "", ""]
        if cost is not None:
            counts = [f"{cost.parameters:,}", _flops(cost.step_flops), _memory(cost.memory_bytes)]
        state = f"{len(done)} of {len(cells)} done"
        if published := sum(is_done(roots[-1], cell) for cell in cells):
            state += f", {published} published"
        if reason := cells[0].missing:
            state = f"no data {reasons.mark(reason)}"
        rows.append([*labels, state, *counts, duration(left)])
    for name, baseline in plan.artifact.baselines.items():
        own = {cell.id: cell for one in plan.baselines if one.name == name for cell in one.cells.values()}
        if own:
            label = [f"Baseline: {baseline.label}", *[""] * (len(plan.artifact.axes) - 1)]
            state = f"{sum(is_done(roots[0], cell) for cell in own.values())} of {len(own)} done"
            rows.append([*label, state, "", "", "", ""])
    headers = [axis.title for axis in plan.artifact.axes.values()]
    headers += ["cells", "parameters", "FLOPs of a training step", "memory a cell", "time left"]
    config = plan.cells[0].config
    workers, rate = first_count(config.get("machine") or {}), estimates.unmeasured_rate(config)
    lines = [
        f"{plan.artifact.id} at scale {plan.scale_name}: {plan.scale.about}",
        _tabulated(rows, headers),
        *reasons.lines,
        f"{len(plan.all_cells)} cells, about {duration(total / workers)} left with {workers} worker(s), each on "
        f"{_machine_of(plan)}; estimated from records where there are any, else from {rate:.2g} "
        "FLOPs a second; FLOPs are those of the matrix products, forward and backward",
    ]
    return "\n".join(filter(None, [*lines, estimates.slow_products(config)]))


def rehearsal_table(plan: Plan, runs: Path) -> tuple[str, bool]:
    """Rehearse the plan's cells, and return what each shape takes on this machine, and whether all can run."""
    rows, troubles, hours = list[list[str]](), _Footnotes(), 0.0
    open_runs_folder(runs)
    counts = Counter(estimates.shape(cell) for cell in plan.cells)
    for cell, found in estimates.rehearse(plan.cells, runs):
        labels = [plan.artifact.axes[axis].values[value].label for axis, value in cell.key]
        count, shown = counts[estimates.shape(cell)], ["trains nothing", *[""] * 5]
        if found is not None and found.trouble:
            shown = [f"cannot run {troubles.mark(found.trouble)}", *[""] * 5]
        elif found is not None:
            seconds = estimates.expected_seconds(cell, found)
            hours += count * seconds
            shown = [f"{1000 * found.step_seconds:.1f}", f"{1000 * found.evaluation_seconds:.1f}"]
            shown += [_memory(found.memory_bytes), _memory(found.checkpoint_bytes), duration(seconds)]
            shown += [str(found.micro_batch or "")]
        rows.append([*labels, str(count), *shown])
    headers = [axis.title for axis in plan.artifact.axes.values()]
    headers += ["cells", "ms a step", "ms an evaluation batch", "memory", "checkpoint", "time a cell", "micro-batch"]
    lines = [
        f"{plan.artifact.id} at scale {plan.scale_name}, rehearsed on made-up data on {_machine_of(plan)}:",
        _tabulated(rows, headers),
        *troubles.lines,
        f"{duration(hours)} for all cells one after another: their steps, and evaluations of one split; --plan uses it",
    ]
    return "\n".join(lines), not troubles


class _Footnotes(dict[str, int]):
    """Long reasons, each once, below a table that has their numbers."""

    def mark(self, reason: str) -> str:
        return f"[{self.setdefault(reason, len(self) + 1)}]"

    @property
    def lines(self) -> list[str]:
        return [f"[{number}] {reason}" for reason, number in self.items()]


def _flops(count: int) -> str:
    for unit, size in (("PFLOP", 10**15), ("TFLOP", 10**12)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:,}"


def _memory(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _machine_of(plan: Plan) -> str:
    machine = plan.cells[0].config.get(MACHINE) or {}
    if not on_gpu(machine):
        return f"{machine.get('threads', 1) or 'all'} thread(s) of a CPU"
    return f"{count_devices(machine.get('devices', 1))} GPU(s)"


def cells_table(plan: Plan, runs: Path, reference: Path) -> str:
    """Show each cell of a plan and of its baselines, of the user or, where there is none, of the reference."""
    saved = saved_steps(runs, {cell.id for cell in plan.all_cells})
    rows, absent = list[list[str]](), dict[str, None]()
    under = {cell.id: one.common() for one in plan.baselines for cell in one.cells.values()}
    for cell in plan.all_cells:
        place = [*cell.key, *under.get(cell.id, {}).items()]
        setting = ", ".join(f"{axis}={value}" for axis, value in place) or "-"
        status, code, path = _unfinished(runs, cell, saved), "-", "-"
        for root in (runs, reference) if status == NOT_RUN else (runs,):
            if (found := measurements.find(root, cell)) is not None:
                lacking = f", to measure: {', '.join(found.lacking)}" if found.lacking else ""
                whose = " (reference)" if root == reference else ""
                status, path = f"{found.record.status}{lacking}{whose}", _shown(record_path(root, cell.id))
                files = measurements.changed_files(root, found.record)
                code = "not recorded" if files is None else f"other: {', '.join(files)}" if files else "as now"
                break
        if cell.missing:
            status = "no data" if path == "-" else status
            absent[cell.missing] = None
        rows.append([cell.id, setting, str(cell.seed), status, code, path])
    headers = ["cell", "setting", "seed", "status", "code and data", "record"]
    return "\n".join([_tabulated(rows, headers), *absent])


def _unfinished(runs: Path, cell: PlannedCell, saved: Mapping[str, int]) -> str:
    running = holder(lease_path(runs, cell.id)) is not None
    if cell.id not in saved:
        return "running, no step saved" if running else NOT_RUN
    return f"{'running' if running else 'begun'}: step {saved[cell.id]:,} of {cell.config['training']['steps']:,}"


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else path)


def explain(artifact: Artifact, scale: str, words: Sequence[str], seed: int | None = None) -> str:
    """Return one cell's config as YAML, with a comment behind each value that says where it comes from.

    ``words`` are ``axis=value`` for the cell's place, several with commas; any other word is an override.  Of the axes
    left open, the first point that the scale runs is taken; without a seed, the scale's first.
    """
    word, spec = artifact.scale(scale)
    places = {text: _place(artifact, text) for text in words}
    place = {axis: value for found in places.values() for axis, value in found.items()}
    overrides = [text for text, found in places.items() if not found]
    keys = [key for key in artifact.points(spec) if place.items() <= dict(key).items()]
    if not keys:
        given = ", ".join(f"{axis}={value}" for axis, value in place.items())
        raise UsageError(f"{artifact.id} runs no cell with {given} at scale {word}; --plan shows its cells")
    chosen = spec.seeds[0] if seed is None else seed
    at = ", ".join(f"{axis}={value}" for axis, value in keys[0])
    others = f" (the first of {len(keys)} with what was given)" if len(keys) > 1 else ""
    title = f"# {artifact.id} at scale {word}: {at}, seed {chosen}{others}"
    return f"{title}\n{explained(artifact.experiment, [*artifact.overrides(keys[0], spec), *overrides], chosen)}"


def _place(artifact: Artifact, text: str) -> dict[str, str]:
    """Return the axis values that a word gives; nothing for an override."""
    key, _, value = text.partition("=")
    if key not in artifact.axes or file_of(f"{key}/{value}") is not None:
        return {}
    pairs = (part.strip().partition("=") for part in text.split(","))
    found = {axis: one for axis, _, one in pairs}
    for problem in place_problems(artifact.axes, found):
        raise UsageError(f"{artifact.id}: {text}: {problem}")
    return found


def choose(names: Sequence[str], scale: str | None, published: Path) -> list[tuple[Artifact, PlannedCell]]:
    """Choose the published cells to verify, each with an artifact that shows it.

    Of each experiment and class of models it is the one that took the least time.

    Args:
        names: the artifacts, each of which shows all its kinds; none for every kind that was published, once.
        scale: the scale word; None for all that are published.
        published: the folder of the published results.
    """
    best: dict[Any, tuple[float, tuple[Artifact, PlannedCell]]] = {}
    for name in names or spec.find():
        artifact = spec.load(name)
        words = artifact.scales if scale is None else [artifact.scale(scale)[0]]
        done = [word for word in words if (published / name / word / "table.json").is_file()]
        found = [cell for word in done for cell in plans.make(artifact, word).cells]
        if names and not found:
            at = f" at scale {scale}" if scale else ""
            raise UsageError(f"{name}: {published} has no results{at}; --list shows which scales are published")
        for cell in found:
            record = records.find(published, cell.id)
            classes = [str(value) for key, value in leaves(cell.config.get("model")) if key.endswith(TARGET)]
            kind = (name if names else "", artifact.experiment, *sorted({*classes}))
            seconds = math.inf if record is None else record.seconds
            if kind not in best or seconds < best[kind][0]:
                best[kind] = seconds, (artifact, cell)
    return [one for _, one in best.values()]


def verified(rows: Iterable[tuple[tuple[Artifact, PlannedCell], Verification]]) -> str:
    """Show one line for each verified cell; long reasons stand below the table."""
    lines, reasons = list[list[str]](), _Footnotes()
    for (artifact, cell), found in rows:
        verdict = f"{found.verdict} {reasons.mark(found.why)}" if found.why else found.verdict
        difference = "" if found.difference is None else f"{found.difference:.1e}"
        lines.append([artifact.id, cell.place, str(cell.seed), found.compared, difference, verdict])
    headers = ["artifact", "cell", "seed", "compared", "largest relative difference", "verdict"]
    return "\n".join([_tabulated(lines, headers), *reasons.lines])

"""The words of reproduce.py about cells: a plan, what it costs, each cell with its record, a config and its origins."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paper_repro.base.configs import TARGET, explained, file_of, leaves
from paper_repro.base.errors import UsageError, duration
from paper_repro.base.identity import MACHINE
from paper_repro.cells import estimates, measurements, records
from paper_repro.cells.leases import holder, lease_path
from paper_repro.cells.measurements import is_done
from paper_repro.cells.planned import PlannedCell, count_devices, on_gpu
from paper_repro.cells.records import open_runs_folder, record_path, saved_steps
from paper_repro.cells.workers import first_count
from paper_repro.tables import plan as plans
from paper_repro.tables import spec
from paper_repro.tables.plan import Plan
from paper_repro.tables.publish import tabulated
from paper_repro.tables.spec import Artifact
from paper_repro.tables.view import NOT_RUN


def plan_table(plan: Plan, roots: Sequence[Path]) -> str:
    """Show each point of a plan: its done cells, its counts, and the expected time of the rest.

    ``roots`` are the user's records and the reference.
    """
    expected = estimates.estimate(plan.cells, roots, roots[0])
    rows, reasons, total = list[list[str]](), Footnotes(), 0.0
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
        tabulated(rows, headers),
        *reasons.lines,
        f"{len(plan.all_cells)} cells, about {duration(total / workers)} left with {workers} worker(s), each on "
        f"{_machine_of(plan)}; estimated from records where there are any, else from {rate:.2g} "
        "FLOPs a second; FLOPs are those of the matrix products, forward and backward",
    ]
    return "\n".join(filter(None, [*lines, estimates.slow_products(config)]))


def rehearsal_table(plan: Plan, runs: Path) -> tuple[str, bool]:
    """Rehearse the plan's cells, and return what each shape takes on this machine, and whether all can run."""
    rows, troubles, hours = list[list[str]](), Footnotes(), 0.0
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
        tabulated(rows, headers),
        *troubles.lines,
        f"{duration(hours)} for all cells one after another: their steps, and evaluations of one split; --plan uses it",
    ]
    return "\n".join(lines), not troubles


class Footnotes(dict[str, int]):
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
    return "\n".join([f"{plan.artifact.id} at scale {plan.scale_name}", tabulated(rows, headers), *absent])


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
    word, chosen = artifact.scale(scale)
    places = {text: _place(artifact, text) for text in words}
    place = {axis: value for found in places.values() for axis, value in found.items()}
    overrides = [text for text, found in places.items() if not found]
    keys = [key for key in artifact.points(chosen) if place.items() <= dict(key).items()]
    if not keys:
        given = ", ".join(f"{axis}={value}" for axis, value in place.items())
        raise UsageError(f"{artifact.id} runs no cell with {given} at scale {word}; --plan shows its cells")
    seed = chosen.seeds[0] if seed is None else seed
    at = ", ".join(f"{axis}={value}" for axis, value in keys[0])
    others = f" (the first of {len(keys)} with what was given)" if len(keys) > 1 else ""
    title = f"# {artifact.id} at scale {word}: {at}, seed {seed}{others}"
    return f"{title}\n{explained(artifact.experiment, [*artifact.overrides(keys[0], chosen), *overrides], seed)}"


def _place(artifact: Artifact, text: str) -> dict[str, str]:
    """Return the axis values that a word gives; nothing for an override."""
    key, _, value = text.partition("=")
    if key not in artifact.axes or file_of(f"{key}/{value}") is not None:
        return {}
    pairs = (part.strip().partition("=") for part in text.split(","))
    found = {axis: one for axis, _, one in pairs}
    for problem in spec.place_problems(artifact.axes, found):
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

"""The floors of an artifact as rows of its table."""

from collections.abc import Mapping, Sequence
from typing import Any

from paper_repro.artifacts import intervals
from paper_repro.artifacts.artifact import Metric
from paper_repro.artifacts.floors import MeasuredFloor, whose
from paper_repro.artifacts.layouts import AS_REFERENCE, VERDICT
from paper_repro.artifacts.verdicts import NOT_RUN
from paper_repro.artifacts.views import View


def floor_lines(view: View, columns: int, kinds: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return a line for each floor, below those of the models.

    The first axis on which its models differ carries its name; axes on which they agree carry their value.

    Args:
        columns: how many counted columns stand between axes and metrics; a floor has none of them.
        kinds: the headers of each metric that is shown.
    """
    lines = []
    places = [list(_place(view, floor).values()) for floor in view.floors]
    for floor, place in zip(view.floors, places, strict=True):
        line = place + [""] * columns
        if places.count(place) > 1:
            at = place.index(_name(floor))
            line[at] = f"{_name(floor)}, {whose(view, floor.plan)}"
        for name, headers in kinds.items():
            line += [_cell(view, floor, name, header) for header in headers]
        lines.append(line)
    return lines


def _place(view: View, floor: MeasuredFloor) -> dict[str, str]:
    common, axes = floor.plan.common(), view.artifact.axes
    several = [axis for axis in axes if len({dict(key)[axis] for key in view.points}) > 1]
    labels = {axis: axes[axis].values[common[axis]].label if axis in common else "" for axis in axes}
    differ = [axis for axis in axes if axis not in common] or [axis for axis in axes if axis not in several]
    return labels | {next(iter(differ or axes)): _name(floor)}


def _name(floor: MeasuredFloor) -> str:
    return f"Floor: {floor.spec.label}"


def _cell(view: View, floor: MeasuredFloor, name: str, header: str) -> str:
    metric: Metric = view.artifact.metrics[name]
    if not metric.measured or header.endswith(": paper") or header in (VERDICT, AS_REFERENCE):
        return ""
    if header.endswith(": reference"):
        return _text(floor, metric, name, floor.samples(name, floor.reference))
    if view.has_reference and header.endswith(": yours"):
        return _text(floor, metric, name, floor.samples(name, floor.own))
    return _text(floor, metric, name, floor.samples(name))


def _text(floor: MeasuredFloor, metric: Metric, name: str, found: Mapping[int, float]) -> str:
    if not found:
        return NOT_RUN if name in floor.spec.metrics else ""
    scaled = [value / metric.factor for value in found.values()]
    spread = intervals.sample_std(scaled)
    text = metric.text(intervals.rounded(intervals.mean(scaled)))
    if not spread or metric.text(spread) == metric.text(0.0):
        return text
    return f"{text} ± {metric.text(intervals.rounded(spread))}"


def floor_document(view: View) -> list[dict[str, Any]]:
    """Return a row for each number of a floor, as ``Table.long_rows`` does for the models."""
    rows = []
    for floor in view.floors:
        place = {axis: floor.plan.common().get(axis, "") for axis in view.artifact.axes}
        for name, metric in view.artifact.metrics.items():
            found = floor.samples(name) if metric.measured else {}
            if not found:
                continue
            if view.own_root_is_reference:
                numbers = {**_numbers("own", metric, found), "verdict": ""}
            else:
                numbers = {**_numbers("own", metric, floor.samples(name, floor.own)), "verdict": ""}
                numbers |= _numbers("reference", metric, floor.samples(name, floor.reference))
            rows.append({**place, "quantity": name, "paper_mean": None, "paper_std": None, **numbers})
            rows[-1]["floor"] = floor.plan.name
    return rows


def _numbers(whose: str, metric: Metric, found: Mapping[int, float]) -> dict[str, Any]:
    return intervals.columns(whose, [value / metric.factor for value in found.values()])


def floor_cells(view: View) -> dict[str, Any]:
    """Return the cells of the floors by id, with the floor's name and the seed."""
    found = {}
    for floor in view.floors:
        for seed, cell in floor.plan.cells.items():
            record = floor.found.get(seed)
            found[cell.id if record is None else record.cell] = {"floor": floor.plan.name, "seed": seed}
    return found

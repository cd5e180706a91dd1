"""Adds seeds at the planned looks until claims are decided or time is over; the claim that costs least comes first."""

import dataclasses
import math
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paper_repro.artifacts import decisions, looks, views
from paper_repro.artifacts.axes import EXACT
from paper_repro.artifacts.decisions import Decision
from paper_repro.artifacts.looks import Taken, place_text, seeds_of
from paper_repro.artifacts.plan import Plan, with_looks, with_seeds
from paper_repro.artifacts.render import table_of
from paper_repro.artifacts.views import View
from paper_repro.base.durations import duration
from paper_repro.base.errors import UsageError
from paper_repro.cells.measurements import is_done
from paper_repro.cells.planned import Key, PlannedCell
from paper_repro.cells.records import record_path
from paper_repro.cells.runner import Result

Run = Callable[[Plan], Result]
Clock = Callable[[], float]


def hours(text: str | None) -> float:
    """Return the hours that were asked for.

    Raises:
        UsageError: none, or no positive number.
    """
    try:
        found = float(text or "")
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        fault = "--decide needs --hours" if text is None else f"--hours is a number of hours above 0, not {text!r}"
        raise UsageError(f"{fault}: for example --decide --hours 2")
    return found


@dataclass(frozen=True)
class Next:
    """A claim that a further look may decide, and what its next look takes."""

    claim: str
    count: int
    """Seeds of that look."""
    keys: frozenset[Key]
    cells: tuple[PlannedCell, ...]
    """Those that have no result yet."""
    seconds: float
    """Expected, of one worker after the other."""
    to_decide: float
    """Seconds until it is decided, if means and spreads stay as they are; infinite where nobody can say."""


def decide(plan: Plan, runs: Path, results: Path, limit: float, run: Run, clock: Clock = time.monotonic) -> int:
    """Take one look after the other at the claims of a plan that more seeds may decide.

    What is published counts as run: its records are copied into ``runs``.  The planned looks are kept in
    ``looks.json`` beside the tables before the first one is taken.

    Args:
        plan: without overrides, at a scale with looks.
        runs: the user's records.
        results: the committed reference.
        limit: hours; a look that is expected to take longer than what is left is not begun.
        run: runs the cells of a plan that have no result; called once where all of them lack their data.
        clock: seconds.

    Returns:
        The exit code: 0, or that of a run that failed or was interrupted.

    Raises:
        UsageError: the scale plans no looks, the plan is altered, or other looks are kept.
    """
    _check(plan)
    if all(cell.missing for cell in plan.cells):
        return run(plan).exit_code
    folder, start, code, tried = runs / plan.folder, clock(), 0, set[tuple[str, int]]()
    looks.taken(results / plan.folder, plan.scale.looks)
    kept = looks.taken(folder, plan.scale.looks) or Taken(plan.scale.looks)
    kept.write(folder)
    while True:
        view = _view(plan, runs, results)
        open_claims = [one for one in _open(view, (runs, results)) if (one.claim, one.count) not in tried]
        workers = int(plan.cells[0].config.get("machine", {}).get("workers", 1))
        left = max(0.0, 3600 * limit - (clock() - start))
        fitting = [one for one in open_claims if one.seconds / workers <= left]
        if not fitting or left <= 0:
            _say(_end(view, len(open_claims), left))
            return code
        chosen = min(fitting, key=lambda one: (one.to_decide, one.seconds, one.claim))
        tried.add((chosen.claim, chosen.count))
        _say(
            f"{chosen.claim}: to {chosen.count} seeds, {len(chosen.cells)} cells, about "
            f"{duration(chosen.seconds / workers)}"
        )
        counts = {place_text(dict(key)): chosen.count for key in chosen.keys if chosen.count > len(plan.seeds)}
        counts = {place: max(count, kept.seeds.get(place, 0)) for place, count in counts.items()}
        kept = Taken(kept.looks, kept.seeds | counts)
        kept.write(folder)
        if not chosen.cells:  # another artifact has run them
            continue
        result = run(dataclasses.replace(plan, cells=chosen.cells))
        code = max(code, result.exit_code)
        if result.fatal or result.interrupted:
            return code


def _check(plan: Plan) -> None:
    """Refuse a plan without looks, and one with overrides."""
    if plan.scale_name == EXACT:
        raise UsageError(
            f"{plan.artifact.id} at scale {EXACT} is arithmetic: its claims are decided, and no seed is left"
        )
    if not plan.scale.looks:
        raise UsageError(
            f"{plan.artifact.path}: scale {plan.scale_name} plans no looks: write, for example, 'looks: "
            f"[{len(plan.scale.seeds)}, {2 * len(plan.scale.seeds)}]' into it and commit that before the first look"
        )
    if plan.altered:
        raise UsageError(f"{' '.join(plan.altering)}: an altered run decides no claim; use --decide without overrides")


def _end(view: View, waiting: int, left: float) -> str:
    """Say why no further look is taken.

    Args:
        waiting: how many claims have a look that could be taken.
        left: seconds.
    """
    if waiting:
        return f"no further look fits into {duration(left)}; open claims that would have one: {waiting}"
    lacking = sum(1 for cell in view.plan.cells if cell.missing)
    undecided = sum(judgement.is_open for _, judgement in table_of(view).judgements())
    data = f"; {lacking} of {len(view.plan.cells)} cells lack their data" if lacking else ""
    return f"no further look can be taken; claims still open: {undecided}{data}"


def _view(plan: Plan, runs: Path, results: Path) -> View:
    """Return the view of all that was run, in which published records are the user's, too."""
    whole = with_looks(plan, [runs / plan.folder, results / plan.folder])
    for cell in whole.cells:
        source, target = (record_path(root, cell.id).parent for root in (results, runs))
        if not cell.missing and not is_done(runs, cell) and is_done(results, cell) and not target.exists():
            shutil.copytree(source, target)
    return views.build(whole, runs, results)


def _open(view: View, roots: Sequence[Path]) -> list[Next]:
    """Return the claims that a further look may decide."""
    view = table_of(view).view
    found = []
    for claim in view.artifact.claims:
        decision = decisions.decide(claim, view)
        judgement = decision.judgement
        estimated = any(leaf.tested is not None or leaf.may_pass for leaf in judgement.leaves())
        if not judgement.is_open or decision.following is None or not (estimated or decision.look is None):
            continue
        if (following := _next(view, claim.id, decision, roots)) is not None:
            found.append(following)
    return found


def _next(view: View, name: str, decision: Decision, roots: Sequence[Path]) -> Next | None:
    """Return what a claim's next look takes beyond the records in ``roots``; None where it cannot be taken."""
    assert decision.following is not None
    keys, count = decision.read & view.points.keys(), decision.following
    plan = with_seeds(view.plan, {place_text(dict(key)): count for key in keys})
    wanted = set(seeds_of(plan.scale.seeds, count))
    whole = [cell for cell in plan.cells if cell.key in keys and cell.seed in wanted]
    cells = [cell for cell in whole if not any(is_done(root, cell) for root in roots)]
    if not whole or any(cell.missing for cell in cells):
        return None
    further = [cell for cell in whole if cell.seed not in view.judged(view.points[cell.key])]
    seconds, of_all = (
        math.fsum(decisions.seconds_of_a_seed(view, frozenset({cell.key})) for cell in some)
        for some in (cells, further)
    )
    price = decision.judgement.price
    to_decide = math.inf if price is None else price * (seconds / of_all if of_all else 1.0)  # others ran the rest
    return Next(name, count, frozenset(keys), tuple(cells), seconds, to_decide)


def _say(text: str) -> None:
    print(text, file=sys.stderr)

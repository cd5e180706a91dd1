"""Rerun a table or figure of a paper and print it beside the paper's numbers.

    reproduce.py cem/table3                      run what has no result yet, then render
    reproduce.py cem/table3 scale=smoke          another scale: smoke, cpu (default), gpu, paper
    reproduce.py cem/table3 seeds=0,1            other seeds
    reproduce.py cem/table3 optimizer.lr=0.003   an altered run: own folder, not judged against the paper
    reproduce.py cem/table3 runs=DIR             another folder for records, tables and figures
    reproduce.py cem/table3 ebt/table2           several, one after another; cem, or cem/*, is all of that paper
    reproduce.py --list                          every artifact, its scales, its data and the results there are;
                                                 --list cem, those of one paper
    reproduce.py cem/table3 --plan               the settings and what their cells cost; runs nothing
    reproduce.py nrgpt/table4 scale=paper --rehearse
                                                 a few steps, an evaluation and a checkpoint of each model on made-up
                                                 data: what time, memory and disk a run takes on this machine
    reproduce.py cem/table3 --cells              each cell: id, setting, seed, status, and the path of its record
    reproduce.py cem/table3 --config model=t2,kernel=rbf scale=cpu seed=0
                                                 the resolved config of one cell, with the origin of each value
    reproduce.py cem/table3 --render             tables and figures from the records there are; runs nothing
    reproduce.py cem/table3 --publish            make the user's records and tables the committed reference
    reproduce.py cem/table3 scale=paper --published
                                                 take published cells as done, and run only the others
    reproduce.py ngpt/table5 --prepare           prepare first what is missing (at most 650 MB of documentation)
    reproduce.py nrgpt/table4 --fill             measure what was n/a, on the weights that are kept, and run what has
                                                 no result yet
    reproduce.py cem/table3 --again              run anew what comes from other code or data than there is now
    reproduce.py cem/table3 launcher=slurm launcher.partition=gpu launcher.jobs=8
                                                 the cells in jobs of a SLURM cluster, watched from here
    reproduce.py cem/table3 --verify             train the first steps of one published cell of each kind anew and
                                                 compare them with its record; without a name, of every experiment
    reproduce.py --check-contribution FOLDER     check somebody's records: seal, config, code and numbers

Exit codes: 0 all done, 1 some cells failed, diverged, lack their data or differ from their record, 2 wrong usage or
config, 130 interrupted.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import gc
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.base.errors import INTERRUPTED, MISUSE, RESULTS, ROOT, UsageError, Words, kept, parse, run_main
from paper_repro.launchers import start
from paper_repro.tables import spec

if TYPE_CHECKING:
    from paper_repro.base.errors import Later
    from paper_repro.tables.plan import Plan
    from paper_repro.tables.spec import Artifact

PUBLISHED = "--published"
ACTIONS = [f"--{one}" for one in ("list", "plan", "rehearse", "cells", "config", "render", "publish", "fill")]
ACTIONS += ["--verify", "--again"]
CONTRIBUTION = "--check-contribution"
SETTINGS = ("scale", "seeds", "seed", "runs")


def main(arguments: Sequence[str]) -> int:
    slurm, arguments = start.take(arguments)
    words = parse(arguments, ("--help", "-h", *ACTIONS, CONTRIBUTION, start.PREPARE, PUBLISHED), SETTINGS)
    _check_launcher(words, slurm)
    if words.flags & {"--help", "-h"} or not arguments:
        print(__doc__)
        return 0 if arguments else 2
    actions = sorted(words.flags - {start.PREPARE, PUBLISHED})
    if len(actions) > 1:
        raise UsageError(f"{' and '.join(actions)} exclude each other; give one")
    if "--list" in words.flags:
        from paper_repro.tables.publish import listing

        print(listing(words.runs, RESULTS, spec.artifacts(words.names), _columns()))
        return 0
    if PUBLISHED in words.flags and actions:
        raise UsageError(f"{PUBLISHED} goes with a run, not with {actions[0]}; --plan shows how many are published")
    action = actions[0] if actions else ""
    if action in ("--verify", CONTRIBUTION):
        return _verify(words) if action == "--verify" else _check_contribution(words)
    if not words.names:
        raise UsageError("which artifact? --list shows them all")
    if action == "--render":
        gc.set_threshold(50_000)  # objects: plans, tables and figures make little garbage
    artifacts = [spec.load(name) for name in spec.artifacts(words.names)]
    if action == "--render" and "runs" in words.settings and not words.runs.is_dir():
        raise UsageError(f"runs={words.settings['runs']}: there is no such folder, so --render has nothing to read")
    if action in ("", "--fill", "--again", "--render", "--publish"):
        _ = [_plan(artifact, words) for artifact in artifacts[1:]]  # what is wrong is found before the first is run
    if (code := start.followed()) is not None:
        return code
    codes = []
    with start.leading():
        for artifact in artifacts:
            with kept("paper_repro.cells", "paper_repro.tables") as warnings:  # of damaged records
                codes.append(_one(artifact, words, action, warnings, slurm))
            if codes[-1] == INTERRUPTED:
                break
    return max(codes)


def _columns() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _check_launcher(words: Words, slurm: start.Slurm | None) -> None:
    if slurm and (own := words.flags - {"--fill", "--again", start.PREPARE}):
        raise UsageError(f"launcher=slurm runs cells; leave it out with {min(own)}")


def _plan(artifact: "Artifact", words: Words) -> "Plan":
    """Return a plan whose Python code, too, can be used once its cells are done."""
    from paper_repro.tables import plan as plans
    from paper_repro.tables import table

    if "seed" in words.settings:
        raise UsageError("seed= goes with --config; the seeds to run are given as seeds=0,1,2")
    plan = plans.make(artifact, words.settings.get("scale", "cpu"), words.seeds(), words.overrides)
    table.check(plan.artifact)
    return plan


def _one(artifact: "Artifact", words: Words, action: str, warnings: "Later", slurm: start.Slurm | None = None) -> int:
    from paper_repro.scripts import planned_cells
    from paper_repro.tables import publish

    if action == "--config":
        print(planned_cells.explain(artifact, words.settings.get("scale", "cpu"), words.overrides, words.seed()))
        return 0
    plan = _plan(artifact, words)
    if action == "--render":
        return _show(plan, words.runs, warnings)
    if action == "--cells":
        print(planned_cells.cells_table(plan, words.runs, RESULTS))
        return 0
    if action == "--plan":
        print(planned_cells.plan_table(plan, [words.runs, RESULTS]))
        return 0
    if action == "--rehearse":
        text, fits = planned_cells.rehearsal_table(plan, words.runs)
        print(text)
        return int(not fits)
    if action == "--publish":
        from paper_repro.cells import measurements

        print(*publish.publish(plan, words.runs, RESULTS), sep="\n")
        if changed := measurements.told(measurements.changed(words.runs, plan.all_cells)):
            warnings.add(changed)
        return 0
    if PUBLISHED in words.flags:
        publish.adopt(plan, words.runs, RESULTS)
    commands = start.commands(plan.all_cells)
    if commands and start.PREPARE in words.flags:
        start.prepare(commands)
        plan = _plan(artifact, words)
    elif commands:
        warnings.add(f"{start.PREPARE} prepares first what is missing: {shlex.join(commands[0])}")
    return _cells(plan, words, action, warnings, slurm)


def _cells(plan: "Plan", words: Words, action: str, warnings: "Later", slurm: start.Slurm | None) -> int:
    """Run the cells of a plan, here or on a cluster, and show what they have come to."""
    from paper_repro.cells import measurements, runner
    from paper_repro.tables.publish import closing

    started, fill, again = time.monotonic(), action == "--fill", action == "--again"
    if slurm:
        from paper_repro.launchers import slurm as cluster
        from paper_repro.launchers.drain import Order

        name, runs = plan.artifact.id, str(words.runs.resolve())
        order = Order(name, plan.scale_name, words.seeds(), words.overrides, runs, str(RESULTS), fill)
        sweep = cluster.Sweep(plan.all_cells, order)
        if again:
            measurements.set_aside(words.runs, measurements.changed(words.runs, plan.all_cells))
        result = cluster.run(sweep, slurm)
    else:
        result = runner.run(plan.all_cells, words.runs, roots=[words.runs, RESULTS], fill=fill, again=again)
    for reason in result.missing:
        warnings.add(f"not run: {reason}")
    if result.fatal:  # what stopped the run, a full disk for example, would stop the tables, too
        print(f"error: {result.fatal}", file=sys.stderr)
        return result.exit_code
    if all(cell.missing for cell in plan.cells):
        warnings.print()
        instead = "--render shows the committed results where there are any"
        print(f"{plan.artifact.id}: no cell could be run, so no table is written; {instead}", file=sys.stderr)
        return result.exit_code

    code = result.exit_code
    if not result.interrupted or result.by_status.keys() - {"not run"}:
        code = max(code, _show(plan, words.runs, warnings))
        taken = time.monotonic() - started
        print(closing(plan.artifact.id, result.by_status, taken, words.runs / plan.folder), file=sys.stderr)
    if result.interrupted:
        done, total = result.by_status.get("finished", 0), sum(result.by_status.values())
        print(f"interrupted after {done} of {total} cells; the same command goes on from here", file=sys.stderr)
    return code


def _verify(words: Words) -> int:
    from paper_repro.cells.verify import DIFFERS, verify
    from paper_repro.scripts import planned_cells
    from paper_repro.tables.publish import tabulated

    if given := [*words.overrides, *(f"{key}=" for key in words.settings if key not in ("scale", "runs"))]:
        raise UsageError(f"--verify takes artifacts and scale=, not {given[0]}: it compares what is published")
    chosen = planned_cells.choose(spec.artifacts(words.names), words.settings.get("scale"), RESULTS)
    rows, reasons, code = list[list[str]](), planned_cells.Footnotes(), 0
    for number, (artifact, cell) in enumerate(chosen, start=1):
        print(f"{number} of {len(chosen)}: {artifact.id} {cell.place} seed {cell.seed}", file=sys.stderr)
        found = verify(cell, RESULTS)
        code = max(code, int(found.verdict == DIFFERS))
        verdict = f"{found.verdict} {reasons.mark(found.why)}" if found.why else found.verdict
        difference = "" if found.difference is None else f"{found.difference:.1e}"
        rows.append([artifact.id, cell.place, str(cell.seed), found.compared, difference, verdict])
    headers = ["artifact", "cell", "seed", "compared", "largest relative difference", "verdict"]
    print(tabulated(rows, headers), *reasons.lines, sep="\n")
    return code


def _check_contribution(words: Words) -> int:
    """Print a table of the checks of somebody's records; return 1 where one is refused."""
    from tabulate import tabulate

    from paper_repro.cells import contribution, records
    from paper_repro.tables import plan as plans

    if len(words.names) != 1 or words.flags != {CONTRIBUTION} or words.settings or words.overrides:
        raise UsageError(f"give one folder of records: {CONTRIBUTION} runs")
    planned: dict[str, str] = {}
    for name in spec.find():
        artifact = spec.load(name)
        for scale in artifact.scales:
            planned |= {cell.settings: f"{name} {scale}" for cell in plans.make(artifact, scale).all_cells}
    found = contribution.check(Path(words.names[0]), records.every(RESULTS), planned, ROOT)
    print(tabulate([vars(one) for one in found], headers="keys", tablefmt="github"))
    refused = sum(bool(one.refused) for one in found)
    names = " ".join(sorted({one.artifact.split()[0] for one in found if not one.refused}))
    verify = f"; next: reproduce.py --verify {names} trains their first steps anew" if names else ""
    print(f"{len(found) - refused} of {len(found)} records accepted{verify}", file=sys.stderr)
    return int(refused > 0)


def _show(plan: "Plan", runs: Path, warnings: "Later") -> int:
    """Write table and figure, and print the table with the warnings below it.

    The exit code is that of a wrong config where the YAML names metrics that no cell has.
    """
    from paper_repro.cells import measurements
    from paper_repro.tables.table import render

    table, written = render(plan, runs, RESULTS)
    print(table.markdown(_columns()), flush=True)  # before what goes to stderr, where both go to one file
    print("\n".join(str(path) for path in written), file=sys.stderr)
    if changed := measurements.told(table.view.changed):
        warnings.add(changed)
    warnings.print()
    wrong = {} if plan.altering else table.view.unnamed  # an altered run may measure less
    for name, why in wrong.items():
        place = spec.where(plan.artifact, "metrics", name)
        print(f"error: {place}: '{name}': the finished cells have {why}; correct it and --render", file=sys.stderr)
    return MISUSE if wrong else 0


if __name__ == "__main__":
    sys.exit(run_main(main))

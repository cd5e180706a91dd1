"""Train one cell: an experiment, overrides and a seed.

    train.py cem/gaussian_process model=cem/gp_recursive model.block.num_steps=2 data.kernel=matern seed=1
    train.py cem/gaussian_process training.steps=200 runs=DIR
    train.py cem/gaussian_process training.steps=200 --config      the resolved config with the origin of each value
    train.py cem/gaussian_process training.steps=200 --again       anew, if code or data have changed since
    train.py --list                                                every experiment, with what it is in one line

The record goes to runs/cells/<cell>/record.json, the weights beside it; the same command again finds it done, and after
an interruption goes on from the last checkpoint.  Exit codes as reproduce.py's.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before what another Python lacks is imported
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import sys
from collections.abc import Sequence

from paper_repro.base.command_line import RESULTS, parse, run_main
from paper_repro.base.errors import UsageError

SETTINGS = ("seed", "runs", "experiment")


def main(arguments: Sequence[str]) -> int:
    words = parse(arguments, ("--config", "--again", "--list", "--help", "-h"), SETTINGS)
    if words.flags & {"--help", "-h"} or not arguments:
        print(__doc__)
        return 0 if arguments else 2
    if "--list" in words.flags:
        from paper_repro.base.config import experiment_titles

        titles = experiment_titles()
        width = max(map(len, titles))
        print("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()))
        return 0
    from paper_repro.base.config import experiment_named

    experiment = experiment_named([*words.names, *filter(None, [words.settings.get("experiment")])])
    if any(word.startswith("launcher") for word in words.overrides):
        raise UsageError("launcher goes with reproduce.py; one cell runs on SLURM under srun (docs/cluster.md)")
    _refuse_artifact(experiment)
    seed = words.seed() or 0
    if "--config" in words.flags:
        from paper_repro.base.origins import explained

        print(explained(experiment, words.overrides, seed))
        return 0

    from paper_repro.cells import changes, measurements, planned, records, runner
    from paper_repro.cells.saved import saved_steps
    from paper_repro.launchers import group

    cell = planned.single(experiment, words.overrides, seed)
    if (code := group.followed()) is not None:
        return code
    with group.leading():
        result = runner.run_cells([cell], words.runs, [words.runs, RESULTS], again="--again" in words.flags)
    for reason in [*result.missing, *([result.fatal] if result.fatal else [])]:
        print(f"not run: {reason}", file=sys.stderr)
    if (found := measurements.find(words.runs, cell)) is not None:
        record = found.record
        print(f"{record.status} {record.note}".strip())
        for name, value in record.metrics.items():
            print(f"{name} {value:.6g}")
        print(records.record_path(words.runs, cell.id))
    if changed := changes.told(changes.changed(words.runs, [cell])):
        print(changed, file=sys.stderr)
    if result.interrupted:
        step = saved_steps(words.runs, [cell.id]).get(cell.id)
        how = f"step {step:,} is saved; the same command goes on from it" if step else "the same command begins anew"
        print(f"interrupted: {how}", file=sys.stderr)
    return result.exit_code


def _refuse_artifact(name: str) -> None:
    """Refuse the name of a table or figure, which is no experiment.

    Raises:
        UsageError: with the command that runs it.
    """
    from paper_repro.base.config import is_experiment
    from paper_repro.tables import spec

    if not is_experiment(name) and name in spec.find():
        raise UsageError(
            f"{name} is an artifact, not an experiment: run scripts/reproduce.py {name}; --list shows the experiments"
        )


if __name__ == "__main__":
    sys.exit(run_main(main))

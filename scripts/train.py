"""Train one cell, or with -m several: an experiment, Hydra's overrides and a seed.

    train.py experiment=nrgpt/listops model=nrgpt/gpt training.steps=200 seed=1
    train.py nrgpt/listops training.steps=200 runs=DIR             the same experiment, its record below DIR
    train.py -m nrgpt/listops optimizer.lr=1e-3,3e-4 seed=0,1      every combination, side by side
    train.py nrgpt/listops training.steps=200 --config             the resolved config with the origin of each value
    train.py nrgpt/listops --cfg job                               the composed config, as Hydra prints it
    train.py nrgpt/listops --info defaults                         the files that Hydra composes
    train.py nrgpt/listops training.steps=200 --again              anew, if code or data have changed since
    train.py --list                                                every experiment, with its title

Groups: experiment, model, optimizer (adamw, adam, unit_adamw), schedule (cosine, exponential), logger (csv,
tensorboard, wandb, none), machine (cpu, gpu), probes; --hydra-help explains Hydra's own options.

The record goes to runs/cells/<cell>/record.json, the weights beside it; the same command again finds it done, and after
an interruption goes on from the last checkpoint.  Exit codes as reproduce.py's.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from paper_repro.base.configs import (
    CONF,
    compose,
    experiment_named,
    experiment_titles,
    explained,
    file_of,
    quoted,
    search_path,
)
from paper_repro.base.errors import RESULTS, UsageError, nearest, run_main, runs_folder, whole

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from paper_repro.cells.planned import PlannedCell

OWN = ("--config", "--again", "--list")
NOT_OF_THE_CONFIG = ("experiment", "seed", "runs")


def main(arguments: Sequence[str]) -> int:
    options, words = _words(arguments)
    if "--help" in options or "-h" in options or not arguments:
        print(__doc__)
        return 0 if arguments else 2
    if "--list" in options:
        titles = experiment_titles()
        width = max(map(len, titles))
        print("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()))
        return 0
    experiment, overrides, runs = _sorted(words)
    if "--config" in options:
        seeds = [word.partition("=")[2] for word in overrides if word.startswith("seed=")]
        rest = [word for word in overrides if not word.startswith("seed=")]
        print(explained(experiment, rest, whole("seed", seeds[-1]) if seeds else 0))
        return 0
    cells = _planned([word for word in options if word not in OWN], experiment, overrides, runs)
    return _run(cells, runs, "--again" in options) if cells else 0


def _words(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options, with their values, and the other words."""
    from hydra._internal.utils import get_args_parser

    def refuse(message: str) -> NoReturn:
        raise UsageError(message)

    parser: argparse.ArgumentParser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    for option in OWN:
        parser.add_argument(option, action="store_true")
    found, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        word = unknown[0].lstrip("-").partition("=")[0]
        known = [*OWN, "--help", "--multirun", "--cfg", "--info"]
        hint = f": write {word}=..." if word in ("seed", "runs") else nearest(unknown[0], known)
        raise UsageError(f"unknown option {unknown[0]}{hint}")
    return [word for word in arguments if word not in found.overrides], found.overrides


def _sorted(words: Sequence[str]) -> tuple[str, list[str], Path]:
    """Return the experiment, the overrides as Hydra's grammar takes them, and the folder of runs."""
    names, overrides, runs = [], [], runs_folder()
    for word in words:
        key, equals, value = word.partition("=")
        if key == "experiment" or not (equals or word.startswith("~")):
            names.append(value or word)
        elif key in ("runs", "hydra.run.dir", "hydra.sweep.dir"):
            runs = runs_folder(value)
        elif key.startswith("launcher"):
            raise UsageError("launcher goes with reproduce.py; one cell runs on SLURM under srun (docs/cluster.md)")
        else:
            overrides.append(quoted(word))
    experiment = experiment_named(names)
    if file_of(f"experiment/{experiment}") is None:
        from paper_repro.tables import spec

        if experiment in spec.find():
            raise UsageError(f"{experiment} is an artifact, not an experiment: run scripts/reproduce.py {experiment}")
    return experiment, overrides, runs


def _planned(options: Sequence[str], experiment: str, overrides: Sequence[str], runs: Path) -> "list[PlannedCell]":
    """Return the cells that Hydra composes; none where it only prints something."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    jobs: list[tuple[list[str], int]] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
    def collect(config: "DictConfig") -> None:
        given = HydraConfig.get().overrides.task
        jobs.append(([word for word in given if word.partition("=")[0] not in NOT_OF_THE_CONFIG], config.seed))

    if any(word.startswith("--info") for word in options):
        logging.getLogger().handlers.clear()  # Hydra prints by a logger of its own
    before, os.environ["HYDRA_FULL_ERROR"] = sys.argv, "1"  # Hydra raises its errors instead of printing them
    sys.argv = [__file__, *options, search_path(), f"experiment={experiment}", *overrides, quoted(f"runs={runs}")]
    try:
        collect()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        compose(experiment, [_first(word) for word in overrides if not word.startswith("seed=")])  # names what is near
        raise UsageError("; ".join(str(error).splitlines())) from error
    finally:
        sys.argv = before
        del os.environ["HYDRA_FULL_ERROR"]

    from paper_repro.cells import planned

    return [planned.single(experiment, given, seed) for given, seed in jobs]


def _first(word: str) -> str:
    """Return an override, with the first of several values."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_override(word)
    if not parsed.is_sweep_override():
        return word
    return f"{word.partition('=')[0]}={next(iter(parsed.sweep_string_iterator()))}"


def _run(cells: "Sequence[PlannedCell]", runs: Path, again: bool) -> int:
    from paper_repro.cells import measurements, records, runner
    from paper_repro.launchers import start

    if (code := start.followed()) is not None:
        return code
    with start.leading():
        result = runner.run(cells, runs, roots=[runs, RESULTS], again=again)
    for reason in [*result.missing, *([result.fatal] if result.fatal else [])]:
        print(f"not run: {reason}", file=sys.stderr)
    for cell in cells:
        if (found := measurements.find(runs, cell)) is not None:
            print(f"{found.record.status} {found.record.note}".strip())
            for name, value in found.record.metrics.items():
                print(f"{name} {value:.6g}")
            print(records.record_path(runs, cell.id))
    if changed := measurements.told(measurements.changed(runs, cells)):
        print(changed, file=sys.stderr)
    if result.interrupted:
        step = max(records.saved_steps(runs, [cell.id for cell in cells]).values(), default=0)
        how = f"step {step:,} is saved; the same command goes on from it" if step else "the same command begins anew"
        print(f"interrupted: {how}", file=sys.stderr)
    return result.exit_code


if __name__ == "__main__":
    sys.exit(run_main(main))

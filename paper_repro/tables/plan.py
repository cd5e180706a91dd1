"""The cells of an artifact: every point of its axes times every seed, with the identity of each."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from paper_repro.base import configs, identity
from paper_repro.base.configs import Override, parse
from paper_repro.base.errors import UsageError
from paper_repro.base.identity import MACHINE
from paper_repro.cells.planned import TRAINING, Key, PlannedCell, plan_cell
from paper_repro.tables import spec
from paper_repro.tables.spec import Artifact, Baseline, Scale, seed_problems


@dataclass(frozen=True)
class PlannedBaseline:
    """A baseline of the models at some places, which have the same data."""

    name: str
    spec: Baseline
    keys: frozenset[Key]
    cells: dict[int, PlannedCell]

    def common(self) -> dict[str, str]:
        first, *others = map(dict, sorted(self.keys))
        return {axis: value for axis, value in first.items() if all(other[axis] == value for other in others)}


@dataclass(frozen=True)
class Plan:
    """An artifact at one scale, with the seeds and overrides that the user asked for."""

    artifact: Artifact
    scale_name: str
    scale: Scale
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]
    """The user's own, on top of the scale's; a plan that they alter is never judged."""
    cells: tuple[PlannedCell, ...]
    baselines: tuple[PlannedBaseline, ...] = ()

    @property
    def all_cells(self) -> tuple[PlannedCell, ...]:
        """The artifact's own cells and those of its baselines, each once."""
        found = {cell.id: cell for one in self.baselines for cell in one.cells.values()}
        return (*self.cells, *found.values())

    @property
    def altering(self) -> list[str]:
        """The overrides that change results: of the machine's only those that count in the ids of timed cells."""
        timed = {key for cell in self.cells for key in identity.timed_keys(cell.config)}
        return [text for text in self.overrides if _alters(parse(text).key, timed)]

    @property
    def folder(self) -> Path:
        """Where its tables and figures go, below runs/ or results/."""
        suffix = f"+{identity.fingerprint(self.altering)[:6]}" if self.altering else ""
        return Path(self.artifact.id) / f"{self.scale_name}{suffix}"


def make(
    artifact: Artifact, scale: str = "cpu", seeds: Sequence[int] | None = None, overrides: Sequence[str] = ()
) -> Plan:
    """Return the plan of an artifact; raises UsageError where cells that are compared are the same or disagree."""
    name, scale_spec = artifact.scale(scale)
    artifact = artifact.at_scale(name)
    chosen = list(scale_spec.seeds if seeds is None else seeds)
    for problem in seed_problems(chosen):
        raise UsageError(f"seeds: {problem}")
    as_planned = seeds is None and not any(_alters(parse(text).key, set()) for text in overrides)
    cells: list[PlannedCell] = []
    for key in artifact.points(scale_spec):
        layers = configs.parse_all([*artifact.overrides(key, scale_spec), *overrides])
        own = scale_spec.seeds_at(key) if as_planned else chosen
        try:
            composed = configs.compose_seeds(artifact.experiment, layers, own)
            cells += (plan_cell(key, seed, config) for seed, config in zip(own, composed, strict=True))
        except UsageError as error:
            raise error if overrides else spec.named_first(artifact.path, error) from error
    _refuse_twins(artifact, cells, overrides)
    trivial = tuple(_baselines(artifact, name, scale_spec, [cell for cell in cells if cell.seed in chosen], overrides))
    return Plan(artifact, name, scale_spec, tuple(chosen), tuple(overrides), tuple(cells), trivial)


def _alters(key: str, timed: Set[str]) -> bool:
    section, _, rest = key.partition(".")
    return section != MACHINE or (rest in timed if rest else bool(timed))


def _baselines(
    artifact: Artifact, word: str, scale: Scale, cells: Sequence[PlannedCell], overrides: Sequence[str]
) -> Iterator[PlannedBaseline]:
    """Yield each baseline once for each different data of the models."""
    trained: dict[Key, dict[int, PlannedCell]] = {}
    for cell in cells:
        if cell.config["task"][configs.TARGET] == TRAINING:
            trained.setdefault(cell.key, {})[cell.seed] = cell
    seeds = sorted({seed for own in trained.values() for seed in own})
    for name, baseline in artifact.baselines.items() if trained else ():
        if baseline.metrics and baseline.metrics.keys().isdisjoint(artifact.metrics):
            continue  # the scale measures nothing that it bounds
        if baseline.values:
            yield PlannedBaseline(name, baseline, frozenset(trained), {})
            continue
        given: list[Override | str] = [*scale.overrides, *scale.over_axes, *overrides]
        given += [*baseline.task, *baseline.at_scale.get(word, ())]
        layers = [item for item in configs.parse_all(given) if item.key.split(".")[0] != identity.PROBES]
        by_data: dict[str, list[Key]] = {}
        moved = {key: tuple((axis, baseline.at.get(axis, value)) for axis, value in key) for key in trained}
        measured = {key: trained.get(moved[key], own) for key, own in trained.items()}
        for key, own in measured.items():
            by_data.setdefault(identity.canonical_json(own[min(own)].config["data"]), []).append(key)
        for keys in by_data.values():
            below = dict(zip(seeds, configs.compose_seeds(artifact.experiment, layers, seeds), strict=True))
            models = max((measured[key] for key in keys), key=len)  # some keys have fewer seeds
            planned = {
                seed: {**below[seed], "data": cell.config["data"], identity.PROBES: {}} for seed, cell in models.items()
            }
            key = (("baseline", name),)
            own = {seed: plan_cell(key, seed, config) for seed, config in planned.items()}
            yield PlannedBaseline(name, baseline, frozenset(keys), own)


def _refuse_twins(artifact: Artifact, cells: Sequence[PlannedCell], overrides: Sequence[str]) -> None:
    places: dict[str, PlannedCell] = {}
    for cell in cells:
        twin = places.setdefault(cell.id, cell)
        if twin is not cell:
            words = " ".join(overrides)
            why = f"with {words}; train.py {artifact.experiment} {words} runs one cell" if words else "nothing differs"
            both = f"{dict(twin.key)} and {dict(cell.key)} at seed {cell.seed}"
            raise UsageError(f"{artifact.path}: {both} are the same experiment: {why}")

"""Finds every artifact by scanning, types it on loading and checks it whole.

``papers/<paper>/<name>.yaml`` has the id ``<paper>/<name>``; ``$PAPER_REPRO_PAPERS`` and ``papers`` of a user's package
are laid out alike.  What figures of a paper have in common (sizes, scales, data) stands in
``papers/<paper>/bases/<name>.yaml``; what has ``like: <paper>/<name>`` lies over it (``typed_yaml.over``).
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paper_repro.artifacts import axes, floors, paper_claims
from paper_repro.artifacts.artifact import Artifact, Column, Metric, Tolerance
from paper_repro.artifacts.axes import EXACT, SCALES, Restriction
from paper_repro.artifacts.claims import Claim
from paper_repro.artifacts.derived import derivation_problem
from paper_repro.artifacts.names import Names, place_problems
from paper_repro.base import typed_yaml
from paper_repro.base.config import experiments, is_experiment
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.packages import own_packages
from paper_repro.base.typed_yaml import Node
from paper_repro.cells.planned import Key

PAPERS = Path(__file__).parents[1] / "papers"
EXTRA_PAPERS = "PAPER_REPRO_PAPERS"
MORE = LIKE, CHANGE = "like", "overrides"
"""Keys that are no field: the base, and, in the place of axes, overrides that are compared with none."""
FOUND = ("id", "path", "bases")
"""The fields of an artifact that its file does not give."""
PRINTED = ("published", "tolerances")  # they describe a printed table, which an ablation of ours does not have
DEFAULT = "default"
"""Under ``tolerances``: the one for every published number that has none of its own."""


def find() -> dict[str, Path]:
    """Return every artifact's id and file, found by scanning; of two files with one id the first.

    Raises:
        UsageError: $PAPER_REPRO_PAPERS names no folder.
    """
    return {name: paths[0] for name, paths in _scan("*/*.yaml").items()}


def duplicates() -> dict[str, str]:
    """Return the ids that two files have, each with what is wrong; raises as ``find``."""
    found = _scan("*/*.yaml").items()
    return {name: _duplicate("artifact", name, paths) for name, paths in found if len(paths) > 1}


def misplaced() -> list[str]:
    """Return what is wrong with YAML files that lie beside the artifacts and are not read; raises as ``find``."""
    return [
        f"{path} is not read: an artifact is a file PAPER/NAME.yaml in {folder}"
        for folder in folders()
        for path in sorted([*folder.glob("*/*.yml"), *folder.glob("*.yml"), *folder.glob("*.yaml")])
        if path not in (paper_claims.LIST, floors.LIST)
    ]


def known_bases() -> dict[str, Path]:
    """Return every file that ``like`` can name.

    Raises:
        UsageError: two files have one name, or as ``find``.
    """
    found = _scan("*/bases/*.yaml")
    for name, paths in found.items():
        if len(paths) > 1:
            raise UsageError(_duplicate("base", name, paths))
    return {name: paths[0] for name, paths in found.items()}


def _duplicate(what: str, name: str, paths: Sequence[Path]) -> str:
    return f"duplicate {what} id '{name}': {' and '.join(map(str, paths))}"


def folders() -> list[Path]:
    """Return the folders of papers: ours, $PAPER_REPRO_PAPERS and those of the user's packages; raises as ``find``."""
    extra = os.environ.get(EXTRA_PAPERS)
    if extra and not Path(extra).is_dir():
        raise UsageError(f"${EXTRA_PAPERS} is {extra!r}, which is no folder")
    own = (folder / "papers" for folder in own_packages().values())
    return [PAPERS, *([Path(extra)] if extra else []), *(folder for folder in own if folder.is_dir())]


def _scan(pattern: str) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for folder in folders():
        for path in sorted(folder.glob(pattern)):
            found.setdefault(f"{path.relative_to(folder).parts[0]}/{path.stem}", []).append(path)
    return found


def load(name: str) -> Artifact:
    """Return the artifact of that id.

    Raises:
        UsageError: unknown id (with the nearest), or an error in its file, with file and line.
    """
    found = _scan("*/*.yaml")
    if name not in found:
        raise UsageError(unknown(name, list(found)))
    if len(found[name]) > 1:
        raise UsageError(_duplicate("artifact", name, found[name]))
    return load_file(found[name][0])


def unknown(word: str, known: Sequence[str]) -> str:
    """Return the error of a word that names no artifact, with the nearest one, of the same paper where it is known."""
    beside, paper = "".join(f"; {fault}" for fault in misplaced()), word.partition("/")[0].casefold()
    own = [name for name in known if name.startswith(f"{paper}/")]
    return f"unknown artifact {word!r}{nearest(word, own or known)}; --list shows them all{beside}"


def load_file(path: Path) -> Artifact:
    """Return the artifact that a file describes, checked whole.

    Raises:
        UsageError: with the file and the line; an error that lies in a base names the user's file first.
    """
    try:
        return _load(path)
    except UsageError as error:
        raise named_first(path, error) from error


def named_first(path: Path, error: UsageError) -> UsageError:
    """Return an error that begins with the user's file; where it names another one, with the line of ``like``."""
    if str(error).startswith(f"{path}:"):
        return error
    with contextlib.suppress(UsageError):
        if (like := typed_yaml.read(path).items().get(LIKE)) is not None:
            return UsageError(f"{like.where}: {error}")
    return UsageError(f"{path}: {error}")


def where(artifact: Artifact, section: str, name: str) -> str:
    """Return the file and line in which an artifact, or a base of it, writes a key of a section."""
    root, _ = _read(artifact.path)
    node = root.items()[section].items()[name]
    return f"{node.path}:{node.key_line}"


def _read(path: Path) -> tuple[Node, list[Node]]:
    """Return a file laid over its bases, and the bases, the nearest first."""
    root = typed_yaml.read(path)
    below = _bases_of(root)
    return functools.reduce(typed_yaml.over, [*reversed(below), root]), below


def _load(path: Path) -> Artifact:
    root, below = _read(path)
    entries = {key: child for key, child in root.items().items() if key != LIKE}
    change, published = entries.pop(CHANGE, None), entries.get("published")
    if published and published.path != path and "rows" not in published.items():
        entries = {key: node for key, node in entries.items() if node.path == path or key not in PRINTED}
    allowed = {name: hint for name, hint in Artifact.__annotations__.items() if name not in FOUND}
    for key, child in entries.items():
        if key not in allowed:
            raise UsageError(f"{child.path}:{child.key_line}: unknown key '{key}'{nearest(key, [*allowed, *MORE])}")
    values: dict[str, Any] = {
        key: typed_yaml.convert(allowed[key], child) for key, child in entries.items() if key != "tolerances"
    }
    if change is not None:
        values["axes"] = axes.with_change(values.get("axes", {}), change, list(values.get("scales", ())))
    for required in ("title", "source", "experiment", "metrics", "axes", "scales"):
        if required not in values:
            raise root.error(f"missing '{required}'" + (f", or '{CHANGE}'" if required == "axes" else ""))
    values["source"] = values["source"].placed(entries["source"], bool(below) and "published" not in entries)
    _fill(values, entries)
    bases = tuple(base.path for base in below)
    artifact = Artifact(id=f"{path.parent.name}/{path.stem}", path=path, bases=bases, **values)
    _check(artifact, entries)
    return artifact


def _fill(values: dict[str, Any], entries: Mapping[str, Node]) -> None:
    """Put in what an artifact leaves to defaults: what is published, shared tolerances, and the smallest effect that
    matters."""
    prints = values.get("published") is not None
    for kind in ("columns", "metrics"):
        values[kind] = {
            name: spec if spec.published is not None else dataclasses.replace(spec, published=prints)
            for name, spec in values.get(kind, {}).items()
        }
    shared = values.get("smallest")
    values["claims"] = [
        claim if claim.smallest else dataclasses.replace(claim, smallest=shared) for claim in values.get("claims", [])
    ]
    quantities = {**values["columns"], **values["metrics"]}
    values["tolerances"] = tolerances = {}
    nodes = entries["tolerances"].items() if "tolerances" in entries else {}
    default = nodes[DEFAULT].items() if DEFAULT in nodes else {}
    for name, node in nodes.items():
        if name != DEFAULT:
            tolerances[name] = _tolerance(nodes, node)
        elif default.keys() != {"reason"}:
            without = [name for name, spec in quantities.items() if _judged(spec) and name not in nodes]
            tolerances.update(dict.fromkeys(without, _tolerance(nodes, node)))
    for name, item in values.get("summary", {}).items():
        if item.published is not None and item.tolerance is None and default:
            values["summary"][name] = dataclasses.replace(item, tolerance=_tolerance(nodes, nodes[DEFAULT]))


def _tolerance(nodes: Mapping[str, Node], node: Node) -> Tolerance:
    """Return the tolerance that a node gives, or that of the quantity which it names; its reason may be the
    default's.
    """
    if not node.is_mapping:
        if (name := node.text()) not in nodes or not nodes[name].is_mapping:
            raise node.error(f"there is no tolerance of '{name}' to take{nearest(name, nodes)}")
        node = nodes[name]
    found: Tolerance = typed_yaml.convert(Tolerance, node)
    shared = nodes[DEFAULT].items().get("reason") if DEFAULT in nodes else None
    if not found.reason and shared is None:
        raise node.error(f"missing 'reason' in '{node.name}'")
    return found if found.reason or shared is None else dataclasses.replace(found, reason=shared.text())


def _judged(spec: Metric | Column) -> bool:
    return bool(spec.published) and (isinstance(spec, Column) or spec.measured)


def _bases_of(own: Node) -> list[Node]:
    """Return the files below one, the nearest first."""
    found, names, known = list[Node](), list[str](), None
    while LIKE in (entries := own.items()):
        name, known = str(entries[LIKE].plain()), known or known_bases()
        if name not in known:
            raise entries[LIKE].error(f"unknown base '{name}'{nearest(name, known)}")
        if name in names:
            raise entries[LIKE].error(f"'{name}' is like itself")
        own = _read_once(known[name], known[name].stat().st_mtime_ns)
        names.append(name)
        found.append(own)
    return found


@functools.lru_cache(maxsize=256)
def _read_once(path: Path, changed: int) -> Node:
    """Read a base, on which many artifacts lie; ``changed`` is the time of its last change."""
    return typed_yaml.read(path)


def _check(artifact: Artifact, entries: Mapping[str, Node]) -> None:
    """Check an artifact against itself.

    Args:
        artifact: as built from its file.
        entries: the file's top-level nodes, for the lines.

    Raises:
        UsageError: with file and line.
    """
    _check_scales(artifact, entries)
    names = artifact.quantities
    for name, tolerance in entries["tolerances"].items().items() if "tolerances" in entries else ():
        if name not in names and name != DEFAULT:
            raise UsageError(f"{tolerance.path}:{tolerance.key_line}: unknown metric '{name}'{nearest(name, names)}")
    for name, spec in names.items():
        if artifact.published is not None and _judged(spec) and name not in artifact.tolerances:
            raise entries.get("tolerances", entries["title"]).error(f"no tolerance for the published '{name}'")
    for axis in artifact.best_within:
        if axis not in artifact.axes:
            raise entries["best_within"].error(f"unknown axis '{axis}'{nearest(axis, artifact.axes)}")
    for name, metric in artifact.metrics.items():
        if (problem := derivation_problem(name, metric)) is not None:
            raise entries["metrics"].items()[name].error(problem)
        for problem in scale_problems(artifact, metric.scales):
            raise entries["metrics"].items()[name].error(problem)
    _check_columns(artifact, entries)
    if not is_experiment(artifact.experiment):
        hint = nearest(artifact.experiment, experiments())
        raise entries["experiment"].error(f"unknown experiment '{artifact.experiment}'{hint}")
    for name, problem in floors.problems(artifact.floors, artifact.axes, artifact.metrics, list(artifact.scales)):
        raise entries["floors"].items()[name].error(problem)
    _check_summary(artifact, entries)
    _check_published(artifact, entries)
    _check_claims(artifact, entries)


def _check_columns(artifact: Artifact, entries: Mapping[str, Node]) -> None:
    for name, column in artifact.columns.items():
        if name in artifact.metrics:
            raise entries["columns"].error(f"'{name}' is both a metric and a column")
        if column.only:
            _check_restriction(artifact, Restriction(column.only), entries["columns"].items()[name])


def _check_scales(artifact: Artifact, entries: Mapping[str, Node]) -> None:
    for word, child in entries["scales"].items().items():
        if word not in (*SCALES, EXACT):
            raise UsageError(f"{child.path}:{child.key_line}: unknown scale '{word}'{nearest(word, (*SCALES, EXACT))}")
        _check_restriction(artifact, artifact.scales[word], child)
    if "runs" in entries:
        _check_restriction(artifact, artifact.runs, entries["runs"])
    if EXACT in artifact.scales and len(artifact.scales) > 1:
        raise entries["scales"].error("an exact artifact has the scale 'exact' alone")
    for axis, spec in artifact.axes.items():
        for value, item in spec.values.items():
            for word in item.at_scale:
                if word not in artifact.scales:
                    node = entries["axes"].items()[axis].items()["values"].items()[value].items()["at_scale"]
                    raise node.error(f"unknown scale '{word}'{nearest(word, artifact.scales)}")
    for word, scale in artifact.scales.items():
        for problem in axes.clashes(artifact.axes, word, scale, artifact.points(scale)):
            raise UsageError(problem)


def _check_restriction(artifact: Artifact, restriction: Restriction, node: Node) -> None:
    for word, place in restriction.places():
        for problem in place_problems(artifact.axes, place):
            raise node.items()[word].error(problem)


def _check_summary(artifact: Artifact, entries: Mapping[str, Node]) -> None:
    nodes = entries["summary"].items() if "summary" in entries else {}
    for name, item in artifact.summary.items():
        if (item.published is None) != (item.tolerance is None):
            raise nodes[name].error(f"'{name}': a published number and a tolerance go together")
        if item.tolerance is not None and item.tolerance.published_stds is not None:
            raise nodes[name].error(f"'{name}': a published summary has no standard deviation to count a tolerance in")


def _check_published(artifact: Artifact, entries: Mapping[str, Node]) -> None:
    if artifact.published is None:
        return
    names = [name for name, spec in artifact.quantities.items() if spec.published]
    seen: dict[tuple[str, Key], str] = {}
    for row in artifact.published.rows:
        for problem in place_problems(artifact.axes, row.at):
            raise UsageError(f"{row.where}: {problem}")
        for name in row.values:
            if name not in names:
                raise UsageError(f"{row.where}: unknown metric or column '{name}'{nearest(name, names)}")
            tolerance = artifact.tolerances.get(name)
            number = row.values[name]
            if tolerance is not None and tolerance.published_stds is not None and number and number.std is None:
                raise UsageError(
                    f"{row.where}: '{name}' is judged by published_stds and is given without one: [mean, std]"
                )
            for key in artifact.points():
                if row.at.items() <= dict(key).items():
                    if (name, key) in seen:
                        raise UsageError(f"{row.where}: '{name}' was already given at {seen[name, key]}")
                    seen[name, key] = row.where
    for key in artifact.points():
        for name in names:
            if (name, key) not in seen:
                place = ", ".join(f"{axis}: {value}" for axis, value in key)
                raise entries["published"].error(f"no published '{name}' for {{{place}}}")


def _check_claims(artifact: Artifact, entries: Mapping[str, Node]) -> None:
    seen: dict[str, str] = {}
    nodes = entries["claims"].elements() if "claims" in entries else []
    measured = [name for name, metric in artifact.metrics.items() if metric.measured]
    for claim, node in zip(artifact.claims, nodes, strict=True):
        if claim.id in seen:
            raise node.error(f"duplicate claim id '{claim.id}' (first at {seen[claim.id]})")
        seen[claim.id] = node.where
        for problem in _claim_problems(artifact, claim):
            raise node.error(problem)
        names = Names(artifact.axes, measured, list(artifact.columns), claim.over, claim.smallest)
        for problem in claim.predicate.problems(names):
            raise node.error(problem)


def _claim_problems(artifact: Artifact, claim: Claim) -> Iterator[str]:
    if claim.catalogue is not None and claim.catalogue not in (known := paper_claims.known()):
        yield f"unknown claim '{claim.catalogue}' of papers/claims.yaml{nearest(claim.catalogue, known)}"
    if claim.ours and claim.catalogue is not None:
        yield f"'catalogue' says that the claim '{claim.catalogue}' is a paper's, and 'ours' that it is not: give one"
    for axis in claim.over:
        if axis not in artifact.axes:
            yield f"unknown axis '{axis}'{nearest(axis, artifact.axes)}"
    if len(set(claim.over)) != len(claim.over):
        yield "'over' lists an axis twice"
    for axis, chosen in claim.only.items():
        if axis not in claim.over:
            yield f"'only' restricts axis '{axis}', which is not under 'over'"
        for value in chosen:
            yield from place_problems(artifact.axes, {axis: value})
        if not chosen or len(set(chosen)) != len(chosen):
            yield f"'only' lists no value of axis '{axis}', or one twice"
    if claim.somewhere and not claim.over:
        yield "'somewhere' needs axes under 'over' to look along"
    yield from scale_problems(artifact, claim.scales)


def scale_problems(artifact: Artifact, words: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the scales that a claim or a metric names."""
    for word in words:
        if word not in artifact.scales:
            yield f"unknown scale '{word}'{nearest(word, artifact.scales)}"

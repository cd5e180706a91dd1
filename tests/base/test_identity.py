"""What enters an id, and what does not: a published cell keeps its id whatever is added beside its weights."""

import copy
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from paper_repro.base import configs, identity
from paper_repro.base.configs import CONF, compose, locate
from paper_repro.base.errors import RESULTS
from paper_repro.cells import records
from paper_repro.cells.planned import TrainingSettings

MACHINE_ARGUMENTS = {"cache", "data_root"}
PROBE = {"_target_": "paper_repro.probes.parameter_count.ParameterCount", "model": {"_target_": "x"}}


def published() -> dict[str, dict[str, Any]]:
    """One published record's config for each experiment and model class."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((RESULTS / "cells").glob("*/record.json")):
        record = records.read(path)
        model = (record.config.get("model") or {}).get("_target_", "")
        task = record.config["task"]["_target_"]
        own = {"id": record.cell, "config": record.config, "data": record.provenance["data"]}
        found.setdefault(f"{task} {model}", own)
    return found


PUBLISHED = published()
id_of = identity.of_record


@pytest.mark.parametrize("kind", PUBLISHED)
def test_what_is_added_beside_the_weights_leaves_their_id(kind: str) -> None:
    own = PUBLISHED[kind]
    config, data = own["config"], own["data"]
    assert id_of(config, data) == own["id"]
    probed = {**config, "probes": {**(config.get("probes") or {}), "one_more": PROBE}}
    assert id_of(probed, data) == own["id"]
    if not identity.is_timed(config):
        assert id_of({**config, "machine": {"implementation": "reference", "recompute": True}}, data) == own["id"]
    if "model" in config:
        slow = {**config, "model": {**config["model"], "implementation": "reference", "cuda_graph": True}}
        assert id_of(slow, data) == own["id"]


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_key_at_its_neutral_value_leaves_the_id_and_another_value_does_not(kind: str) -> None:
    own = PUBLISHED[kind]
    changed = 0
    for path, name, values in nodes_with_neutral_values(own["config"]):
        for key, neutral in values.items():
            spelled, other = copy.deepcopy(own["config"]), copy.deepcopy(own["config"])
            node = at(spelled, path)
            if key in node and node[key] != neutral:
                continue
            node[key] = neutral
            assert id_of(spelled, own["data"]) == own["id"], (name, key)
            at(other, path)[key] = "another value"
            assert id_of(other, own["data"]) != own["id"], (name, key)
            changed += 1
    assert changed or "model" not in own["config"] or task_of(own["config"]) in identity.rules().reads


@pytest.mark.parametrize("kind", [kind for kind in PUBLISHED if kind.split()[0] in identity.rules().reads])
def test_the_id_of_a_task_that_reads_a_part_follows_from_that_part(kind: str) -> None:
    own = PUBLISHED[kind]
    read = {key.partition(".")[0]: "." not in key for key in identity.rules().reads[task_of(own["config"])]}
    for section in own["config"].keys() - {"task", "probes", "machine"}:
        other = {**own["config"], section: "another value"}
        assert (id_of(other, own["data"]) != own["id"]) == (section in read or section == "seed"), section


def task_of(config: dict[str, Any]) -> str:
    name: str = identity.today(config)["task"]["_target_"]
    return name


def nodes_with_neutral_values(config: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
    """The nodes that enter the id, each with its path, its class or section, and its neutral values."""
    rules = identity.rules()
    if task_of(config) in rules.reads:
        return
    for path, node in walk({key: value for key, value in config.items() if key not in ("probes", "machine")}, ()):
        target = node.get("_target_")
        name = rules.moved.get(target, target) if target else path[-1] if path else ""
        if name in rules.neutral:
            yield path, name, rules.neutral[name]


def walk(node: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    yield path, node
    for key, value in node.items():
        if isinstance(value, dict):
            yield from walk(value, (*path, key))


def at(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for key in path:
        config = config[key]
    return config


def defaults(name: str) -> dict[str, Any]:
    """The defaults of the constructor that a target or section names."""
    found = TrainingSettings if name == "training" else locate(name)
    parameters = inspect.signature(found).parameters.values()
    return {item.name: item.default for item in parameters if item.default is not inspect.Parameter.empty}


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", identity.rules().neutral)
def test_neutral_values_are_the_constructors_defaults(name: str) -> None:
    own = defaults(name)
    for key, value in identity.rules().neutral[name].items():
        assert key in own, f"{name} has no argument {key} with a default: remove it from base/identity.yaml"
        assert plain(own[key]) == value and type(plain(own[key])) is type(value), f"{name}: {key}"


def targets_of_conf() -> set[str]:
    found: set[str] = set()
    for path in CONF.rglob("*.yaml"):
        for _, node in walk({"": yaml.safe_load(path.read_text()) or {}}, ()):
            if str(node.get("_target_", "")).startswith("paper_repro."):
                found.add(node["_target_"])
    return found


def test_every_default_of_a_configured_class_is_listed_as_neutral() -> None:
    missing = []
    skipped = identity.rules().speed | identity.rules().hints | MACHINE_ARGUMENTS
    for name in sorted(targets_of_conf()):
        listed = identity.rules().neutral.get(name, {})
        for key, value in defaults(name).items():
            if key not in listed and key not in skipped and is_plain(value):
                missing.append(f"{name}: {{{key}: {json.dumps(plain(value))}}}")
    assert not missing, "add to the neutral values of base/identity.yaml: " + "; ".join(missing)


def is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and "\n" not in value)


def test_a_class_that_moved_exists_where_it_lies_now_and_counts_under_its_first_name() -> None:
    rules = identity.rules()
    for now, first in rules.renamed.items():
        assert locate(now) is not None
        old, new = ({"model": {"_target_": name, "width": 8}, "seed": 0} for name in (first, now))
        assert identity.settings(old) == identity.settings(new)
        assert identity.today(old) == new


def test_a_key_that_no_code_reads_any_more_leaves_the_id() -> None:
    config = compose("ebt/language", [])
    older = {**config, "num_layers": 3, "module": {**config["module"], "arms": {}}}
    assert identity.settings(older) == identity.settings(config)
    elsewhere = {**config, "model": {**config["model"], "arms": {}}}
    assert identity.settings(elsewhere) != identity.settings(config)


TRUE = dict.fromkeys(("tf32", "recompute", "cuda_graph"), True)
OTHER_MACHINE = {"accelerator": "gpu", "threads": 2, "fused_optimizer": False, **TRUE}


@pytest.mark.parametrize("task", sorted(identity.rules().timed))
def test_a_task_that_measures_time_has_the_speed_in_its_id(task: str) -> None:
    auto = {"task": {"_target_": task}, "seed": 0, "machine": {"implementation": "auto"}}
    reference = {**auto, "machine": {"implementation": "reference"}}
    assert identity.settings(auto) != identity.settings(reference)
    for key, value in OTHER_MACHINE.items():
        other = {**auto, "machine": {**auto["machine"], key: value}}
        assert identity.settings(other) != identity.settings(auto), key
        assert identity.settings(identity.recorded(other)) == identity.settings(other)
    for key, values in identity.rules().timed[task]["unless"].items():
        for value in values:
            assert identity.settings({**auto, "machine": {**auto["machine"], key: value}}) == identity.settings(auto)
    assert identity.settings(identity.recorded(auto)) == identity.settings(auto)
    old = {"task": {"_target_": task}, "seed": 0, "implementation": "reference"}
    assert identity.settings(old) == identity.settings(reference)


SOURCES = {
    "__init__.py": "",
    "a.py": "if TYPE_CHECKING:\n    from ours.types_only import T\n\nfrom ours import b\n",
    "b.py": "import os, ours.c as c\n\n\ndef late():\n    from .d import (\n        one,\n        two,\n    )\n",
    "c.py": "from . import e as other, \\\n    h; import ours.i\nfrom . import(  # (a)\n    j,  # b\n    k,\n)\n",
    "d.py": "one = two = 1\n",
    "e/__init__.py": "from .f import g\n",
    "e/f.py": "g = 1\n",
    **dict.fromkeys(("h.py", "i.py", "j.py", "k.py"), ""),
    "types_only.py": "T = int\n",
    "unused.py": "",
}


def test_every_import_counts_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in SOURCES.items():
        path = tmp_path / "ours" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv(configs.PACKAGES, str(tmp_path / "ours"))
    found = identity.imported_by(["ours.a"])
    assert {name.removeprefix("ours.") for name in found} == {"ours", "a", "b", "c", "d", "e", "e.f", *"hijk"}


def test_an_experiment_counts_its_model_its_kernels_and_how_it_is_trained() -> None:
    found = identity.code_of(compose("ngpt/speedup", ["model=ngpt/ngpt"]))
    named = ("models.ngpt", "kernels.sphere_step.triton", "training.single", "datamodules.text", "base.identity")
    assert {f"paper_repro.{name}" for name in named} <= found.keys()
    others = ("paper_repro.models.cet", "paper_repro.tables", "paper_repro.papers", "paper_repro.launchers")
    assert not [name for name in found if name.startswith(others)]


def test_a_list_is_known_by_its_content_alone(tmp_path: Path) -> None:
    code = identity.imported_by(["paper_repro.base.configs"])
    name = identity.keep_code(tmp_path, code)
    assert identity.read_code(tmp_path, name) == code and identity.other_code(tmp_path, name) == ()
    path = tmp_path / "code" / f"{name}.json"
    path.write_text(path.read_text().replace("errors", "sudoku"))
    assert identity.read_code(tmp_path, name) is None


def test_a_folder_is_read_again_only_where_one_of_its_files_was_written(tmp_path, monkeypatch):
    (folder := tmp_path / "texts [1]").mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text(name)
    files = {"role": str(tmp_path / "other.txt")}
    config = {"data": {"path": str(folder), "files": files, "between": "/", "after": "...", "kernel": "rbf"}}
    known = identity.data_files(config)
    assert [*known] == [str(folder)]
    read, whole = list[Path](), identity.sha256_of_file
    monkeypatch.setattr(identity, "sha256_of_file", lambda path: read.append(path) or whole(path))
    assert identity.other_data(config, known) == [] and not read
    (folder / "a.txt").touch()
    assert identity.other_data(config, known) == [] and len(read) == 2
    (folder / "a.txt").write_text("c")
    assert identity.other_data(config, known) == [str(folder)]
    (folder / "a.txt").write_text("a")
    (folder / "c.txt").touch()
    assert identity.other_data(config, known) == [str(folder)]


def test_a_run_that_has_read_two_files_of_one_name_comes_from_neither(tmp_path: Path) -> None:
    path = tmp_path / "points.txt"
    config, states = {"data": {"path": str(path)}}, []
    for text in "aba":
        path.write_text(text)
        states.append(identity.data_files(config))
    first, second, again = states
    assert identity.other_data(config, identity.joined(first, again)) == []
    assert identity.other_data(config, identity.joined(first, second)) == [str(path)]
    assert identity.other_data(config, identity.joined(identity.joined(first, second), again)) == [str(path)]
    assert identity.joined({"m": "1", "gone": "2"}, {"m": "1", "n": "3"}).items() >= {"m": "1", "n": "3"}.items()

import copy
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from paper_repro.base import configs, files, identity
from paper_repro.base.configs import check_targets, compose, compose_seeds, experiments, explained, instantiate, locate
from paper_repro.base.errors import ROOT, UsageError
from paper_repro.base.files import DATA_VARIABLE, find_data
from paper_repro.base.identity import settings
from paper_repro.cells import planned
from paper_repro.cells.tasks import FINISHED, Cell, Task
from paper_repro.scripts.planned_cells import explain
from paper_repro.tables import spec
from paper_repro.tests.support import sweeps

GP, COST = "cem/gaussian_process", "ebt/training_cost"


def refusal(function: Callable[..., object], *given: Any) -> str:
    with pytest.raises(UsageError) as caught:
        function(*given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.block.num_stesp=2", "unknown key 'model.block.num_stesp' (did you mean 'model.block.num_steps'?)"),
        ("+trainer={max_steps: 3}", "unknown key 'trainer' (did you mean training?)"),
        ("optimizer.lr.value=1", "optimizer.lr is a value, not a section"),
        ("machine.tf32=1", "machine.tf32 takes true or false (default False), not a whole number"),
        ("optimizer.lr=nan", "a value must be finite"),
        ("model=cem/gp_gatd", "there is no such model config (did you mean 'cem/gp_gated'?)"),
        ("model=[cem/gp_gated]", "model takes a section"),
        ("data=openwebtext", "use +data=openwebtext"),
        ("model@other=cem/gp_gated", "packages are not supported"),
        ("~optimizer.lr", "deleting"),
        ("optimizer.lr=1,2", "several values are for train.py -m"),
        ("optimizer.lr", "not of the form key=value"),
        ("=1", "not of the form key=value"),
        ("optimizer.lr=${training.stepz}", "training.stepz"),
        ("+x={1:a,b:c}", "keys in braces all words"),
        ("seed=3", "seeds are given apart"),
    ],
)
def test_an_override_that_does_not_fit_is_refused(override: str, message: str) -> None:
    assert message in refusal(compose, GP, [override])


def test_an_unknown_experiment_is_answered_with_the_nearest() -> None:
    assert "did you mean 'cem/gaussian_process'" in refusal(compose, "cem/gausian_process")
    assert "unknown experiment" in refusal(compose, "../model/cem/gp_gated")


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "torch.hub.load",
        "",
        "paper_repro...os.system",
        "paper_repro.models.llama.__builtins__.eval",
        "paper_repro.models.llama._Hidden",
        "paper_repro.models.llama.at_least",
        "paper_repro.base.files.write_atomically",
        "paper_repro.cells.worker.Worker",
        "paper_repro.training.machine.sys.exit",
        "paper_repro.training.build.UsageError.with_traceback",
        "torch.optim.lr_scheduler.LambdaLR",
        "torch.optim.optimizer.torch.load",
    ],
)
def test_a_target_that_may_not_be_named_is_refused(target: str) -> None:
    for refuse in (lambda: locate(target), lambda: instantiate({"_target_": target})):
        with pytest.raises(UsageError, match="is refused"):
            refuse()


@pytest.mark.parametrize(
    ("node", "place"),
    [
        ({"x": [1, {"y": [{"_target_": "os.system"}]}]}, r"x\[1\]\.y\[0\]"),
        ({"x": {"_target_": "torch.optim.Adam", "lr": {"_target_": "os.system"}}}, r"x\.lr"),
        ({"x": {"_target_": None}}, "x"),
        ({"x": {"_target_": ["os.system"]}}, "x"),
    ],
)
def test_a_nested_target_is_refused_with_its_place(node: Any, place: str) -> None:
    with pytest.raises(UsageError, match=f"^{place}: .* is refused"):
        check_targets(node)
    with pytest.raises(UsageError, match="is refused"):
        instantiate({"_target_": "paper_repro.training.schedules.Cosine", "final_factor": node})


@pytest.mark.parametrize(
    "overrides",
    [
        ["task._target_=os.system"],
        ["+task.x={_target_:os.system}"],
        ["+name=os.system", "task._target_=${name}"],
        ["+name=os.system", "task._target_=paper_repro.base.files.${name}x.__class__"],
        ["+other={_target_:os.system}", "task=${other}"],
        ["""+task.x='${oc.decode:"{_target_: os.system}"}'"""],
        ["+task.x='${oc.create:{_target_:os.system}}'"],
        ["optimisation_steps='${oc.create:{_target_:os.system}}'"],
    ],
)
def test_no_override_or_interpolation_smuggles_a_target_in(overrides: list[str]) -> None:
    assert "is refused" in refusal(compose, COST, overrides)


@pytest.mark.parametrize("expression", ["x ${seed} ${oc.env:A_SECRET}", "${oc.${name}:A_SECRET}", "${${name}}"])
@pytest.mark.parametrize("key", ["+data.deep.er", "machine.cache"])
def test_no_resolver_puts_what_is_elsewhere_into_a_config(key, expression, monkeypatch):
    monkeypatch.setenv("A_SECRET", "d0nt-r3c0rd-m3")
    overrides = ["+name=env", "+data.deep={}", f"{key}='{expression}'"]
    found = refusal(compose, GP, overrides)
    assert f"{key.removeprefix('+')}: " in found and "is refused: only plain references" in found
    assert "d0nt-r3c0rd-m3" not in found and "\n" not in found


def test_an_interpolation_that_is_still_open_is_never_resolved_while_building(tmp_path: Path) -> None:
    trap = "${oc.create:{_target_: pathlib.Path.touch, _args_: ['" + str(tmp_path / "trap") + "']}}"
    with pytest.raises(UsageError, match=r"final_factor: .* is not resolved"):
        instantiate({"_target_": "paper_repro.training.schedules.Cosine", "final_factor": trap})
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"_target_": "paper_repro.training.schedules.Cosin"}, "did you mean 'Cosine'"),
        ({"_target_": "torch.optim.AdamV"}, "did you mean 'Adam"),
        ({"_target_": "paper_repro.training.schedules.Cosine", "final_fctor": 0}, "did you mean 'final_factor'"),
        ({"_target_": "paper_repro.training.schedules.Cosine", "final_factor": 2}, "must lie in [0, 1], got 2"),
    ],
)
def test_a_node_that_cannot_be_built_says_why(node: dict[str, Any], message: str) -> None:
    assert message in refusal(instantiate, node)


def test_a_module_with_a_fault_of_its_own_is_not_called_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import paper_repro.papers as room

    (tmp_path / "broken.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.setattr(room, "__path__", [*room.__path__, str(tmp_path)])
    with pytest.raises(UsageError, match="cannot be imported: No module named 'a_package_that_nobody_has'"):
        locate("paper_repro.papers.broken.Thing")


def cell_id(*overrides: str, experiment: str = GP, seed: int = 0) -> str:
    return planned.single(experiment, overrides, seed).id


def test_the_id_changes_with_every_single_value_that_is_not_the_machines() -> None:
    base = compose(GP)
    changed: dict[str, str] = {}

    def vary(node: Any, place: str, config: dict[str, Any]) -> None:
        for key, value in list(node.items()):
            where = f"{place}.{key}" if place else str(key)
            if isinstance(value, dict) and value:
                vary(value, where, config)
                continue
            node[key] = f"not {value!r}"
            changed[where] = settings(config)
            node[key] = value

    vary(config := copy.deepcopy(base), "", config)
    assert config == base
    machine = {where for where in changed if where.startswith("machine.")}
    assert {"optimizer.lr", "seed", "data.seed", "task._target_", "model.block.num_steps"} <= changed.keys()
    assert {changed[where] for where in machine} == {settings(base)}
    others = [changed[where] for where in changed.keys() - machine]
    assert len(set(others)) == len(others) and settings(base) not in others


MACHINE = ("machine=gpu", "machine.stack=null", "machine.compile=true", "machine.cache=/elsewhere", "+machine.new=1")
DEFAULTS = ("optimizer.lr=5e-3", "model=cem/gp_recursive", "data.lengthscale=null", "data.seed=${seed}")


@pytest.mark.parametrize("override", [*MACHINE, *DEFAULTS, "++training.steps=3000"])
def test_the_machine_and_a_spelled_out_default_stay_out_of_the_id(override: str) -> None:
    assert cell_id(override) == cell_id()


def test_the_order_of_commuting_overrides_does_not_matter() -> None:
    words = ["model=cem/gp_recursive", "model.block.num_steps=4", "data.kernel=matern", "optimizer.lr=0.1"]
    assert cell_id(*words) == cell_id(*reversed(words)) != cell_id()
    assert cell_id("optimizer.lr=0.1", "optimizer.lr=0.2") == cell_id("optimizer.lr=0.2") != cell_id("optimizer.lr=0.1")


def test_values_that_python_calls_equal_but_configs_do_not_have_ids_of_their_own() -> None:
    assert len({settings({"x": value}) for value in (1, 1.0, True, "1", None, [1], {"1": 1})}) == 7
    assert settings({"a": 1, "b": {"c": 2, "d": 3}}) == settings({"b": {"d": 3, "c": 2}, "a": 1})
    assert settings({"x": [1, 2]}) != settings({"x": [2, 1]})
    text = '{"a":[1,2.5,null,true],"b":"ü"}'
    assert identity.fingerprint({"b": "ü", "a": [1, 2.5, None, True]}) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_the_seed_reaches_every_interpolation_and_nothing_else() -> None:
    first, second = compose_seeds(GP, [], [3, 8])
    assert (first["seed"], first["data"]["seed"], second["seed"], second["data"]["seed"]) == (3, 3, 8, 8)
    assert configs.without(first, ["seed", "data.seed"]) == configs.without(second, ["seed", "data.seed"])
    assert settings(first) != settings(second)
    fixed = compose_seeds(GP, ["data.seed=5"], [3, 8])
    assert [config["data"]["seed"] for config in fixed] == [5, 5]


def test_composing_does_not_leak_from_one_call_into_the_next() -> None:
    before = compose(GP)
    changed = compose(GP, ["model.block.num_steps=8", "+data.extra=[1]", "+deep={}", "+deep.er=1"])
    changed["optimizer"]["betas"].append(0.1)
    assert compose(GP) == before and compose(GP, ["+deep={}"])["deep"] == {}


def with_file(name: str) -> planned.PlannedCell:
    return planned.single(COST, [f"+data={{files:{{corpus:{name}}}}}"], 0)


def test_the_content_of_a_file_enters_the_id_but_not_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        (folder / "texts").mkdir(parents=True)
        (folder / "texts" / "corpus.txt").write_bytes(b"some text")
    monkeypatch.setenv(DATA_VARIABLE, str(here))
    first = with_file("texts/corpus.txt")
    assert not first.missing and first.id != first.settings
    monkeypatch.setenv(DATA_VARIABLE, str(there))
    assert with_file("texts/corpus.txt").id == with_file(str(there / "texts" / "corpus.txt")).id == first.id
    (there / "texts" / "corpus.txt").write_bytes(b"some texT")
    os.utime(there / "texts" / "corpus.txt", ns=(1, 1))
    changed = with_file("texts/corpus.txt")
    assert changed.id != first.id and changed.settings == first.settings


def test_the_configured_folder_comes_before_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "corpus.txt").write_text(name)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "two"))
    rooted = planned.single(COST, ["+data={files:{corpus:corpus.txt}}", f"machine.data_root={tmp_path / 'one'}"], 0)
    assert rooted.id != with_file("corpus.txt").id and not rooted.missing
    monkeypatch.setattr(files, "DATA", tmp_path / "one")
    assert find_data("corpus.txt", str(tmp_path / "nowhere")) == tmp_path / "two" / "corpus.txt"
    monkeypatch.delenv(DATA_VARIABLE)
    assert find_data("corpus.txt") == tmp_path / "one" / "corpus.txt"
    assert find_data("other.txt") is None


def test_absent_data_says_what_is_needed_and_every_place_that_was_looked_in(tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
    overrides = ["+data={files:{corpus:sub/corpus.txt}}", f"machine.data_root={tmp_path / 'root'}"]
    cell = planned.single(COST, overrides, 0)
    assert "needs sub/corpus.txt" in cell.missing and cell.id == cell.settings
    for folder in (tmp_path / "root", tmp_path / "data", files.DATA):
        assert str(folder / "sub" / "corpus.txt") in cell.missing
    source = ["+data={source:{files:{manifest:some.json}}}", "+data.source.prepare=python prepare.py some"]
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    absent = planned.single(COST, source, 0)
    assert "needs some.json" in absent.missing and absent.missing.endswith("or run: python prepare.py some")
    (tmp_path / "some.json").write_text("{}")
    found = planned.single(COST, source, 0)
    assert not found.missing and found.id != found.settings == absent.id


def test_references_are_resolved_as_omegaconf_resolves_them() -> None:
    for experiment in experiments():
        written = configs.unresolved(experiment, [])
        with_omegaconf = OmegaConf.to_container(OmegaConf.create(written), resolve=True)
        assert repr(configs.resolve(written)) == repr(with_omegaconf), experiment


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${absent}", "value: ${absent}: there is no key 'absent'"),
        ("${value}", "leads back to itself"),
        ("???", "value has no value"),
        ("${.a}", "is refused: only plain references"),
    ],
)
def test_a_reference_that_gives_no_value_says_so(value: str, message: str) -> None:
    assert message in refusal(configs.resolve, {"value": value})


def line_of(text: str, key: str) -> str:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{key}: "))
    return line


@pytest.mark.parametrize("experiment", experiments())
def test_every_value_of_an_experiment_has_an_origin_and_reads_back(experiment: str, tmp_path: Path) -> None:
    try:
        config = compose(experiment, seed=3)
    except UsageError as error:
        pytest.skip(f"needs an override: {error}")
    text = explained(experiment, [], 3)
    assert "not found in any layer" not in text
    (tmp_path / "config.yaml").write_text(text)
    assert configs.read(tmp_path / "config.yaml").plain() == config


def test_each_layer_is_named() -> None:
    text = explained(
        "nrgpt/listops", ["model=nrgpt/ff1", "optimizer.lr=0.3", "machine.stack=null", "+data.task.more={a:1}"], 2
    )
    assert line_of(text, "hidden_factor").endswith("conf/model/nrgpt/ff1.yaml:8, chosen by the command line")
    assert line_of(text, "lr").split() == ["lr:", "0.3", "#", "the", "command", "line"]
    assert line_of(text, "stack").split() == ["stack:", "null", "#", "the", "command", "line"]
    assert line_of(text, "a").startswith("      a: 1 ") and text.splitlines()[-1].startswith("seed: 2")
    assert "${data.window}, paper_repro/conf/experiment/nrgpt/listops.yaml:" in line_of(text, "block_length")
    assert "paper_repro/conf/machine/cpu.yaml:" in line_of(text, "accelerator")


def test_a_cell_of_an_artifact_names_axis_scale_and_factor() -> None:
    artifact = spec.load("nrgpt/fig4")
    text = explain(artifact, "cpu", ["model=ff1,width=w64", "heads=h1", "optimizer.lr=0.3"], 1)
    assert text.startswith(
        "# nrgpt/fig4 at scale cpu: model=ff1, width=w64, heads=h1, steps=s3, setting=lr5e-3, seed 1 "
    )
    base = artifact.path.parent / "bases" / "shakespeare.yaml"
    values = next(n for n, line in enumerate(base.read_text().splitlines(), start=1) if "w64: 64" in line)
    assert line_of(text, "width").endswith(f"papers/nrgpt/bases/shakespeare.yaml:{values} (axis width=w64)")
    assert line_of(text, "steps").rstrip().endswith("(scale cpu)") and "5000" in line_of(text, "steps")
    assert line_of(text, "lr").endswith("# the command line")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=ff3"], "nrgpt/fig4: model=ff3: unknown value 'ff3' of axis 'model' (did you mean 'ff1'?)"),
        (["model=ff1,widht=w64"], "unknown axis 'widht' (did you mean 'width'?)"),
        (["width=w768"], "nrgpt/fig4 runs no cell with width=w768 at scale cpu"),
    ],
)
def test_a_cell_that_is_not_there_is_refused(words: list[str], message: str) -> None:
    assert message in refusal(explain, spec.load("nrgpt/fig4"), "cpu", words)


PLANTED = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\nraise ImportError('planted')\n"


def refused(folder: Path, *words: str) -> str:
    """Run ``reproduce.py --plan`` in ``folder``; what it says, which must be one line."""
    command = [sys.executable, str(ROOT / "scripts" / "reproduce.py"), "--plan", *words, f"runs={folder / 'runs'}"]
    found = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=120)
    assert found.returncode == 2, found.stdout + found.stderr
    assert found.stderr.startswith("error: ") and len(found.stderr.splitlines()) == 1, found.stderr
    return found.stderr


def test_a_plan_runs_no_function_that_a_target_names_and_imports_nothing_of_the_working_folder(tmp_path: Path) -> None:
    (planted := tmp_path / "planted.py").write_text(PLANTED)
    probe = f"{{_target_:paper_repro.base.files.write_atomically,path:'{planted}',content:gone}}"
    assert "probes.x: _target_" in refused(tmp_path, "cem/table3", "scale=smoke", f"+probes={{x:{probe}}}")
    for target in ("planted.Task", "paper_repro.planted.Task"):
        assert "is refused" in refused(tmp_path, "ebt/tableD1", f"task._target_={target}")
    assert planted.read_text() == PLANTED and [*tmp_path.iterdir()] == [planted]


def test_a_worker_imports_nothing_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paper_repro.cells import runner

    for name in ("filelock", "omegaconf", "hydra", "queue"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])))
    result = runner.run(sweeps.cells(1, steps=2), tmp_path / "runs")
    assert result.by_status == {FINISHED: 1}
    assert not (tmp_path / "imported").exists()


SECTIONS = {
    "task._target_=paper_repro.training.schedules.Cosine": "not a task, a class that has run()",
    "module._target_=torch.optim.AdamW": "not a PaperModule",
    "model._target_=paper_repro.training.schedules.Cosine": "not an nn.Module",
    "model.block._target_=paper_repro.training.schedules.Cosine": "model.block._target_",
    "data._target_=paper_repro.training.schedules.Cosine": "not a CounterBasedDataModule",
    "optimizer._target_=paper_repro.training.schedules.Cosine": "not an Optimizer",
    "schedule._target_=torch.optim.AdamW": "not a Schedule",
    "+probes={one:{}}": "probes.one: found no _target_",
    "+model.extra={_target_:paper_repro.models.llama.rotary_attention}": "unknown key 'extra'",
    "+model.extra={_target_:torch.optim.AdamW}": "model.extra._target_ torch.optim.AdamW: not an nn.Module",
}


@pytest.mark.parametrize("override", SECTIONS)
def test_each_section_is_checked_before_anything_is_built(override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from paper_repro.training import build

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("built before the whole config was checked")

    if "unknown key" not in SECTIONS[override]:  # that check belongs to the building of the node itself
        monkeypatch.setattr(build, "instantiate", forbidden)
    assert SECTIONS[override] in refusal(build.build, Cell("c", compose(GP, [override])))


def test_a_factory_counts_as_what_its_annotation_says() -> None:
    from torch import nn

    node = {"_target_": "paper_repro.models.llama.gated_feed_forward"}
    configs.require(node, "feed_forward", nn.Module, "an nn.Module")
    with pytest.raises(UsageError, match=r"gated_feed_forward, which is PreNorm: not a task"):
        configs.require(node, "task", Task, "a task")


def test_a_link_gives_a_package_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "lab-2.1").mkdir()
    (link := tmp_path / "linked_lab").symlink_to(folder)
    monkeypatch.setenv(configs.PACKAGES, f"{link}/")
    assert configs.own_packages()["linked_lab"] == folder.resolve()

import copy
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from paper_repro.base import configs, files, identity
from paper_repro.base.configs import check_targets, compose, compose_seeds, experiments, instantiate, locate
from paper_repro.base.errors import UsageError
from paper_repro.base.files import DATA_VARIABLE, find_data
from paper_repro.base.identity import settings
from paper_repro.cells import planned

GP, COST = "cem/gaussian_process", "ebt/training_cost"


def refusal(experiment: str, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        compose(experiment, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("optimizer.lrr=0.1", ["unknown key 'optimizer.lrr'", "did you mean 'optimizer.lr'"]),
        ("model.block.num_stesp=2", ["did you mean 'model.block.num_steps'"]),
        ("taks=1", ["did you mean 'task'"]),
        ("experiment=ebt/training_cost", ["unknown key 'experiment'"]),
        ("+trainer={max_steps: 3}", ["unknown key 'trainer'", "did you mean training?"]),
        ("optimizer.lr.value=1", ["optimizer.lr is a value, not a section"]),
        ("machine.tf32=1", ["takes true or false", "not a whole number"]),
        ("optimizer=adma", ["there is no such optimizer config", "did you mean 'adam'"]),
        ("training.steps=2.5", ["takes a whole number", "not a number"]),
        ("optimizer.lr=nan", ["a value must be finite"]),
        ("model=cem/gp_gatd", ["model=cem/gp_gatd", "did you mean 'cem/gp_gated'"]),
        ("model=[cem/gp_gated]", ["model takes a section", "not a list"]),
        ("data=openwebtext", ["To add a group that it does not have: +data=openwebtext"]),
        ("model@other=cem/gp_gated", ["packages are not supported"]),
        ("~optimizer.lr", ["deleting"]),
        ("optimizer.lr=1,2", ["several values are for train.py -m"]),
        ("optimizer.lr", ["not of the form key=value"]),
        ("=1", ["not of the form key=value"]),
        ("optimizer.lr=${training.stepz}", ["training.stepz"]),
        ("+x={1:a,b:c}", ["keys in braces all words"]),
        ("seed=3", ["seeds are given apart"]),
    ],
)
def test_an_override_that_does_not_fit_is_refused(override: str, parts: list[str]) -> None:
    found = refusal(GP, override)
    assert [part for part in parts if part not in found] == []


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_no_record_can_hold_is_refused(seed: int) -> None:
    with pytest.raises(UsageError, match=f"seed {seed} is"):
        compose_seeds(COST, [], [seed])


def test_an_unknown_experiment_is_answered_with_the_nearest() -> None:
    assert "did you mean 'cem/gaussian_process'" in refusal("cem/gausian_process")
    assert "unknown experiment" in refusal("../model/cem/gp_gated")


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
    assert "is refused" in refusal(COST, *overrides)


@pytest.mark.parametrize("expression", ["x ${seed} ${oc.env:A_SECRET}", "${oc.${name}:A_SECRET}", "${${name}}"])
@pytest.mark.parametrize("key", ["+data.deep.er", "machine.cache"])
def test_no_resolver_puts_what_is_elsewhere_into_a_config(
    key: str, expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "d0nt-r3c0rd-m3")
    overrides = ["+name=env", "+data.deep={}", f"{key}='{expression}'"]
    found = refusal(GP, *overrides)
    assert f"{key.removeprefix('+')}: " in found and "is refused: only plain references" in found
    assert "d0nt-r3c0rd-m3" not in found and "\n" not in found


def test_an_interpolation_that_is_still_open_is_never_resolved_while_building(tmp_path: Path) -> None:
    trap = "${oc.create:{_target_: pathlib.Path.touch, _args_: ['" + str(tmp_path / "trap") + "']}}"
    with pytest.raises(UsageError, match=r"final_factor: .* is not resolved"):
        instantiate({"_target_": "paper_repro.training.schedules.Cosine", "final_factor": trap})
    assert not (tmp_path / "trap").exists()


def test_allowed_targets_are_built() -> None:
    assert instantiate({"_target_": "paper_repro.training.schedules.Cosine", "final_factor": 0.5}).final_factor == 0.5
    partial = instantiate({"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.1})
    assert partial.func.__name__ == "AdamW" and partial.keywords == {"lr": 0.1}
    part = instantiate({"_target_": "paper_repro.models.llama.rotary_attention", "_partial_": True, "num_passes": 2})
    assert type(part(width=8, num_heads=2)).__name__ == "PreNorm"


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
    with pytest.raises(UsageError) as caught:
        instantiate(node)
    assert message in str(caught.value)


def test_a_module_with_a_fault_of_its_own_is_not_called_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import paper_repro.papers as room

    (tmp_path / "broken.py").write_text("import a_package_that_nobody_has\n")
    (tmp_path / "garbled.py").write_text("def f(:\n")
    monkeypatch.setattr(room, "__path__", [*room.__path__, str(tmp_path)])
    with pytest.raises(UsageError, match="cannot be imported: No module named 'a_package_that_nobody_has'"):
        locate("paper_repro.papers.broken.Thing")
    with pytest.raises(UsageError, match="cannot be imported: SyntaxError"):
        locate("paper_repro.papers.garbled.Thing")


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
    for folder, content in ((here, b"some text"), (there, b"some text")):
        folder.mkdir()
        (folder / "corpus.txt").write_bytes(content)
    monkeypatch.setenv(DATA_VARIABLE, str(here))
    first = with_file("corpus.txt")
    assert not first.missing and first.id != first.settings
    monkeypatch.setenv(DATA_VARIABLE, str(there))
    assert with_file("corpus.txt").id == first.id
    (there / "corpus.txt").write_bytes(b"some texT")
    os.utime(there / "corpus.txt", ns=(1, 1))
    changed = with_file("corpus.txt")
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


def test_absent_data_says_what_is_needed_and_every_place_that_was_looked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
    overrides = ["+data={files:{corpus:sub/corpus.txt}}", f"machine.data_root={tmp_path / 'root'}"]
    cell = planned.single(COST, overrides, 0)
    assert "needs sub/corpus.txt" in cell.missing and cell.id == cell.settings
    for folder in (tmp_path / "root", tmp_path / "data", files.DATA):
        assert str(folder / "sub" / "corpus.txt") in cell.missing
    monkeypatch.delenv(DATA_VARIABLE)
    unset = with_file("corpus.txt").missing
    assert unset.count("(not set)") == 2 and unset.endswith("put it there")
    told = planned.single(COST, [*overrides, "+data.prepare=python prepare.py corpus"], 0).missing
    assert told.endswith("or run: python prepare.py corpus")
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
    with pytest.raises(UsageError) as caught:
        configs.resolve({"value": value})
    assert message in str(caught.value)

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue, command_names, paper_claims, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.catalogue import EXTRA_PAPERS
from paper_repro.artifacts.claims import Computed
from paper_repro.artifacts.companions import named
from paper_repro.artifacts.figures import Figure
from paper_repro.artifacts.listing import counted, listing
from paper_repro.artifacts.render import figure_of, table_of
from paper_repro.artifacts.tables import Table
from paper_repro.base import data_files
from paper_repro.base.errors import UsageError
from paper_repro.tests.support import synthetic
from paper_repro.tests.support.synthetic import ARTIFACT


def message_of(load: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        load()
    return str(caught.value)


def test_an_unknown_artifact_is_answered_with_the_nearest() -> None:
    assert "(did you mean 'cem/table3'?)" in message_of(lambda: catalogue.load("cem/tabel3"))


def test_a_further_folder_is_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = synthetic.write_artifact(tmp_path)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    assert catalogue.find()["made/up"] == path
    assert catalogue.load("made/up").title == "Old against new"
    assert "cem/table3" in catalogue.find()


def test_a_duplicate_id_names_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = tmp_path / "cem" / "table3.yaml"
    twin.parent.mkdir()
    twin.write_text(ARTIFACT)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    found = message_of(lambda: catalogue.load("cem/table3"))
    assert "duplicate artifact id 'cem/table3'" in found
    assert str(twin) in found and str(catalogue.PAPERS / "cem" / "table3.yaml") in found
    assert catalogue.load("cem/fig2a").id == "cem/fig2a", "the others stand"
    told = listing(tmp_path / "runs", tmp_path / "results", ["cem/table3", "cem/fig2a"])
    assert f"cem/table3 is faulty: {found}" in told and told.count("faulty, see below") == 1


def test_files_in_the_wrong_place_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    paths = [tmp_path / "mine" / "one.yml", tmp_path / "two.yaml"]
    for path in paths:
        path.write_text(ARTIFACT)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    for told in (message_of(lambda: catalogue.load("mine/one")), message_of(lambda: command_names.matching("two"))):
        for path in paths:
            assert f"{path} is not read: an artifact is a file PAPER/NAME.yaml in {tmp_path}" in told
    assert str(paths[0]) in listing(tmp_path / "runs", tmp_path / "results", ["cem/fig2a"])


def test_a_further_folder_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path / "absent"))
    assert "absent', which is no folder" in message_of(catalogue.find)


@pytest.mark.parametrize("name", sorted(catalogue.find()))
def test_every_shipped_artifact_loads_and_its_computed_claims_exist(name: str) -> None:
    artifact = catalogue.load(name)
    assert artifact.source.where and artifact.points()
    for claim in artifact.claims:
        if isinstance(claim.predicate, Computed):
            assert callable(claim.predicate.function(artifact.companions())), claim.id
    for kind, base in ((artifact.table, Table), (artifact.figure, Figure)):
        assert kind is None or issubclass(named(kind, name), base)


def test_no_target_hides_in_a_string_of_the_papers() -> None:
    files = [*catalogue.find().values(), *catalogue.known_bases().values()]
    strings = {path: re.findall(r"""(["'])(.*?_target_.*?)\1""", path.read_text()) for path in files}
    assert {path: found for path, found in strings.items() if found} == {}


LIKE = """\
like: made/plain
title: Like another
scales:
  smoke:
    seeds: [0]
notes: !more
  - Its own note.
"""


def write_like(folder: Path, own: str = LIKE, base: str = ARTIFACT) -> Path:
    (folder / "made" / "bases").mkdir(parents=True)
    (folder / "made" / "bases" / "plain.yaml").write_text(base)
    return synthetic.write_artifact(folder, own)


def test_an_artifact_like_a_base_says_only_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_like(tmp_path)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    assert [name for name in catalogue.find() if name.startswith("made/")] == ["made/up"]
    base, own = synthetic.load(tmp_path / "alone"), catalogue.load_file(path)
    assert own.title == "Like another" and own.axes == base.axes and own.claims == base.claims
    assert own.scales["smoke"].seeds == [0] and own.scales["smoke"].about == base.scales["smoke"].about
    assert own.scales["paper"] == base.scales["paper"]
    assert own.notes == [*base.notes, "Its own note."]


def test_a_base_of_the_repository_serves_a_further_folder(tmp_path: Path) -> None:
    axes = "axes: {model: {title: M, values: {llama: {label: L}}}}"
    text = f"like: cem/one_rate\ntitle: Mine\nsource: {{where: a test}}\n{axes}\n"
    mine = catalogue.load_file(synthetic.write_artifact(tmp_path, text))
    others = {name: replace(scale, notes=[]) for name, scale in catalogue.load("cem/fig3c").scales.items()}
    assert mine.experiment == "cem/slimpajama" and mine.scales == others
    assert [dict(key) for key in mine.points(mine.scales["cpu"])] == [{"size": "reduced", "model": "llama"}]


@pytest.mark.parametrize(
    ("own", "base", "message"),
    [
        (LIKE.replace("plain", "plane"), ARTIFACT, "up.yaml:1: unknown base 'made/plane' (did you mean 'made/plain'?)"),
        (LIKE, LIKE, "plain.yaml:1: 'made/plain' is like itself"),
        (LIKE.replace("like:", "lke:"), ARTIFACT, "up.yaml:1: unknown key 'lke' (did you mean 'like'?)"),
        (LIKE, ARTIFACT.replace("notes:", "nots:"), "unknown key 'nots' (did you mean 'notes'?)"),
        (LIKE.replace("seeds: [0]", "seeds: [0, 0]"), ARTIFACT, "up.yaml:5: "),
    ],
)
def test_wrong_bases_are_refused(
    own: str, base: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_like(tmp_path, own, base)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    found = message_of(lambda: catalogue.load_file(path))
    assert message in found
    assert found.startswith(str(tmp_path / "made"))


def test_a_base_s_python_file_serves_all_that_are_like_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_like(tmp_path)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    below = path.parent / "bases" / "plain.py"
    below.write_text("def judge_one(view):\n    return 1\n")
    (base,) = catalogue.load_file(path).companions()
    assert base.__name__ == "paper_repro.papers.made.bases.plain" and base.judge_one(None) == 1
    path.with_suffix(".py").write_text("def judge_one(view):\n    return 2\n")
    assert [found.judge_one(None) for found in catalogue.load_file(path).companions()] == [2, 1]


def test_a_base_of_one_name_in_another_paper_keeps_its_own_python_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = LIKE.replace("made/plain", "made/rates").replace("scales:\n  smoke:\n    seeds: [0]\n", "")
    axes = "axes: {model: {title: M, values: {llama: {label: L}}}}"
    path = write_like(tmp_path, mine, "")
    path.parent.joinpath("bases", "rates.yaml").write_text(f"like: cem/rates\nsource: {{where: a test}}\n{axes}\n")
    path.parent.joinpath("bases", "rates.py").write_text("")
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    modules = [companion.__name__ for companion in catalogue.load_file(path).companions()]
    assert modules == ["paper_repro.papers.made.bases.rates", "paper_repro.papers.cem.bases.rates"]


def test_an_unknown_claim_of_a_paper_is_refused_with_file_line_and_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "papers" / "made" / "up.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(ARTIFACT.replace("  - id: old_above_new\n", "  - id: old_above_new\n    catalogue: gp_ordre\n"))
    line = path.read_text().splitlines().index("  - id: old_above_new") + 1
    message = message_of(lambda: catalogue.load_file(path))
    assert message.startswith(
        f"{path}:{line}: unknown claim 'gp_ordre' of papers/claims.yaml (did you mean 'gp_order'?)"
    )


def test_the_list_of_claims_refuses_a_second_entry_and_an_unknown_key(tmp_path: Path) -> None:
    assert paper_claims.known()["gp_order"].paper == "cem"
    path = tmp_path / "claims.yaml"
    path.write_text("one:\n  same: {where: Table 1, says: Yes}\ntwo:\n  same: {where: Table 2, says: No}\n")
    assert "duplicate claim id 'same' (also of one)" in message_of(lambda: paper_claims.known(path))
    other = tmp_path / "other.yaml"
    other.write_text("one:\n  claim: {where: Table 1, artifact: fig2}\n")
    assert "has the keys says and where, not where, artifact" in message_of(lambda: paper_claims.known(other))


def test_a_faulty_file_is_listed_as_faulty_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = synthetic.write_artifact(tmp_path, ARTIFACT.replace("title: Old against new", "title: &it [*it]"))
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    found = listing(tmp_path / "runs", tmp_path / "results")
    assert f"made/up is faulty: {path}:1: &it: anchors and aliases are not read" in found
    row = next(line for line in found.splitlines() if line.startswith("made/up "))
    assert "faulty, see below" in row and "cem/table3 " in found
    narrow = listing(tmp_path / "runs", tmp_path / "results", columns=100)
    assert max(len(line) for line in narrow.splitlines() if line.startswith("|")) <= 100
    assert "made from" not in narrow and "faulty" in narrow and narrow.count("| cem/table3 ") == 1


def test_a_damaged_table_is_told_in_a_line_beside_the_others(tmp_path: Path) -> None:
    path = tmp_path / "results" / "cem/table3/cpu/table.json"
    path.parent.mkdir(parents=True)
    for content in ("{", '{"claims": 1}', "[]"):
        path.write_text(content)
        found = listing(tmp_path / "runs", tmp_path / "results", ["cem/table3", "cem/fig2a"])
        assert f"cem/table3 is faulty: {path}: not the table of an artifact" in found and "\ncem/fig2a " in found


def test_verdicts_are_counted_once_for_each_artifact() -> None:
    tables = [
        {"artifact": "cem/table3", "scale": "smoke", "overrides": []},
        {"artifact": "cem/table3", "scale": "cpu", "overrides": []},
        {"artifact": "cem/table3", "scale": "gpu", "overrides": ["optimizer.lr=1"]},
        {"artifact": "ebt/tableD1", "scale": "exact"},
        {"artifact": "mine/one", "scale": "smoke", "overrides": []},
    ]
    for order in (tables, tables[::-1]):
        found = {(table["artifact"], table["scale"]) for table in counted(order)}
        assert found == {("cem/table3", "cpu"), ("ebt/tableD1", "exact"), ("mine/one", "smoke")}


def test_data_that_are_missing_are_called_by_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPER_REPRO_DATA", str(tmp_path))
    found = listing(tmp_path / "runs", tmp_path / "results", ["cem/fig2c"])
    assert "missing docstrings-512 (smoke, cpu), docstrings-2048 (gpu), slimpajama-llama (paper)" in found
    assert "docstrings-512 (docstrings): python scripts/prepare_data.py docstrings" in found


def test_the_list_says_which_scales_are_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "DATA", tmp_path)
    monkeypatch.setenv("PAPER_REPRO_DATA", str(tmp_path))
    (tmp_path / "docstrings-512").mkdir()
    (tmp_path / "docstrings-512" / "manifest.json").touch()
    found = listing(tmp_path / "runs", tmp_path / "results", ["cem/fig2c", "cet/table1"])
    assert "ready: smoke, cpu; missing docstrings-2048 (gpu), slimpajama-llama (paper)" in found
    assert "ready: smoke, cpu, gpu; missing celeba (paper)" in found


def test_one_preparation_serves_smoke_and_cpu() -> None:
    for name in ("ngpt/table5", "cem/fig2c", "nrgpt/fig5", "nrgpt/table5", "cem/fig5"):
        artifact = catalogue.load(name)
        read = [
            {cell.config["data"]["prepare"] for cell in plans.make(artifact, scale).cells} for scale in ("smoke", "cpu")
        ]
        assert read[0] == read[1], name
        needed = {need.command for need in artifact.needs if "smoke" in need.scales}
        assert read[0] <= needed, name


def test_an_error_in_a_base_names_the_file_of_the_user_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_like(tmp_path, base=ARTIFACT.replace("direction: lower", "direction: down"))
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    message = message_of(lambda: catalogue.load_file(path))
    assert message.startswith(f"{path}:1: {tmp_path / 'made/bases/plain.yaml'}:")


def test_an_ablation_is_a_base_a_title_and_one_override(tmp_path: Path) -> None:
    text = "like: ngpt/ablation\ntitle: Mine\noverrides: {optimizer.weight_decay: 0.1}\n"
    artifact = catalogue.load_file(synthetic.write_artifact(tmp_path, text))
    assert artifact.published is None and not artifact.tolerances
    for scale in artifact.scales:
        cells = {dict(cell.key)["setting"]: cell for cell in plans.make(artifact, scale, [0]).cells}
        assert cells["changed"].config["optimizer"]["weight_decay"] == 0.1
        assert cells["default"].id in {cell.id for cell in plans.make(catalogue.load("ngpt/table6"), scale, [0]).cells}
    wins = synthetic.write_artifact(tmp_path, text.replace("optimizer.weight_decay: 0.1", "training.steps: 3"))
    plan = plans.make(catalogue.load_file(wins), "smoke", [0])
    assert sorted(cell.config["training"]["steps"] for cell in plan.cells) == [3, 4]


@pytest.mark.parametrize(
    ("own", "line", "message"),
    [
        ("overrides: {optimizer.lrr: 1}", 3, "override 'optimizer.lrr': unknown key 'optimizer.lrr' (did you mean"),
        ("overrides: {}", 3, "'overrides': it is empty"),
        ("axes: {setting: {title: T, values: [a]}}\noverrides: {a: 1}", 4, "they make an axis 'setting', and there is"),
        ("", 1, "missing 'axes', or 'overrides'"),
        ("axes: {a: {title: A, values: [x]}}\nscales: {cpu: {overrides: {model.widht: 3}}}", 4, "unknown key"),
    ],
)
def test_an_error_of_an_ablation_begins_with_its_own_file_and_line(
    own: str, line: int, message: str, tmp_path: Path
) -> None:
    path = synthetic.write_artifact(tmp_path, f"like: ngpt/ablation\ntitle: Mine\n{own}\n")
    found = message_of(lambda: plans.make(catalogue.load_file(path), "cpu"))
    assert found.startswith(f"{path}:{line}: ") and message in found


def test_a_plan_that_a_base_makes_impossible_names_the_line_of_the_user_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ARTIFACT.replace("overrides: {trunk.width: 16}", "overrides: {trunk.widht: 16}")
    path = write_like(tmp_path, base=base)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    found = message_of(lambda: plans.make(catalogue.load_file(path), "smoke"))
    assert found.startswith(f"{path}:1: {tmp_path / 'made/bases/plain.yaml'}:")


def test_a_metric_is_published_only_where_a_table_is(tmp_path: Path) -> None:
    text = "metrics: {mine: {title: Mine, unit: x, direction: none}}\naxes: {a: {title: A, values: [x]}}\n"
    head = "title: T\nsource: {paper: P, where: W}\nexperiment: ebt/training_cost\nscales: {smoke: {about: t}}\n"
    assert catalogue.load_file(synthetic.write_artifact(tmp_path, head + text)).metrics["mine"].published is False
    printed = (
        "published: {repeats: one, rows: [{at: {a: x}, mine: 1}]}\ntolerances: {default: {absolute: 1, reason: r}}\n"
    )
    artifact = catalogue.load_file(synthetic.write_artifact(tmp_path, head + text + printed))
    assert artifact.metrics["mine"].published is True and artifact.tolerances["mine"].absolute == 1.0


def test_tolerances_are_shared_by_name_and_by_default(tmp_path: Path) -> None:
    head = "title: T\nsource: {paper: P, where: W}\nexperiment: ebt/training_cost\nscales: {smoke: {about: t}}\n"
    metric = "{title: M, unit: x, direction: none}"
    text = f"{head}axes: {{a: {{title: A, values: [x]}}}}\nmetrics: {{m1: {metric}, m2: {metric}, m3: {metric}}}\n"
    text += "published: {repeats: one, rows: [{at: {a: x}, m1: 1, m2: 2, m3: 3}]}\n"

    def tolerances(given: str) -> dict[str, tuple[float | None, float | None, str]]:
        path = synthetic.write_artifact(tmp_path, f"{text}tolerances: {{{given}}}\n")
        found = catalogue.load_file(path).tolerances
        return {name: (item.absolute, item.relative, item.reason) for name, item in found.items()}

    by_name = tolerances("m1: {absolute: 1, reason: r}, default: {relative: 2, reason: s}, m3: m1")
    assert by_name == {"m1": (1.0, None, "r"), "m2": (None, 2.0, "s"), "m3": (1.0, None, "r")}
    reasons = tolerances("default: {reason: r}, m1: {absolute: 1}, m2: {absolute: 2}, m3: {absolute: 3, reason: s}")
    assert [reason for _, _, reason in reasons.values()] == ["r", "r", "s"]
    assert "missing 'reason' in 'm1'" in message_of(lambda: tolerances("m1: {absolute: 1}, m2: m1, m3: m1"))
    assert "no tolerance of 'm4' to take" in message_of(lambda: tolerances("m1: {absolute: 1, reason: r}, m2: m4"))


def test_a_kind_of_figure_that_is_not_there_is_named_with_the_file(tmp_path: Path) -> None:
    text = ARTIFACT + "figure: paper_repro.papers.cem.recursion.StepFigure\n"
    plan = synthetic.plan(tmp_path, text)
    view = views.build(plan, tmp_path, None)
    assert "did you mean 'StepsFigure'" in message_of(lambda: figure_of(view))
    outside = synthetic.plan(tmp_path, ARTIFACT + "figure: os.system\n")
    assert "is not below paper_repro.papers" in message_of(lambda: figure_of(views.build(outside, tmp_path, None)))
    wrong = synthetic.plan(tmp_path, ARTIFACT + "table: paper_repro.papers.cem.recursion.StepsFigure\n")
    assert "is no Table" in message_of(lambda: table_of(views.build(wrong, tmp_path, None)))

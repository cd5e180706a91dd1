"""Artifacts in YAML: what is read, what is refused with file and line, bases, and what a plan refuses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.tables import plan as plans
from paper_repro.tables import publish, spec, table, view
from paper_repro.tables.figure import figure_of
from paper_repro.tables.spec import EXTRA_PAPERS
from paper_repro.tests.support import synthetic
from paper_repro.tests.support.prepared import said_of as message_of
from paper_repro.tests.support.synthetic import ARTIFACT

EXACT = ARTIFACT[: ARTIFACT.index("scales:")] + 'scales: {exact: {comparable: true, seeds: [0], about: "counted."}}\n'

PAPER = "seeds: [0, 1, 2]\n    about: as"
MISTAKES = {
    # the old text, the new one, a text on the line that is named, a part of the message
    "key at the top": ("best_within:", "best_wthin:", "best_wthin", "(did you mean 'best_within'?)"),
    "no title": ("title: Old against new\n", "", "source:", "missing 'title'"),
    "published text": ("size: 2.00", "size: 2 K", "size: 2 K", "not '2 K'"),
    "number without a place": ("{at: {model: old}, size: 1.00}", "{size: 1.00}", "size: 1.00", "missing 'at'"),
    "axis of a row": ("at: {model: new}", "at: {modle: new}", "modle", "(did you mean 'model'?)"),
    "number given twice": ("at: {model: new}", "at: {}", "at: {}", "'size' was already given at"),
    "tolerance without reason": ("    reason: it is counted\n", "", "printed_digits", "missing 'reason'"),
    "axis of the best": ("best_within: [task]", "best_within: [tusk]", "best_within", "(did you mean 'task'?)"),
    "scale": ("  smoke:", "  smok:", "smok:", "(did you mean 'smoke'?)"),
    "a seed twice": (PAPER, "seeds: [0, 1, 1]\n    about: as", "[0, 1, 1]", "given twice"),
    "experiment": ("ebt/training_cost", "ebt/training_cots", "training_cots", "(did you mean 'ebt/training_cost'?)"),
    "place of a scale": (
        "about: as in the paper.",
        "about: as in the paper.\n    any_of: [{task: [easy]}, {model: [odl]}]",
        "any_of:",
        "(did you mean 'old'?)",
    ),
}


@pytest.mark.parametrize(("old", "new", "at", "message"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_is_named_with_file_and_line(tmp_path: Path, old: str, new: str, at: str, message: str) -> None:
    assert ARTIFACT.count(old) == 1, "the mistake must be made in one place"
    text = ARTIFACT.replace(old, new)
    assert text.count(at) == 1, "one line must be meant"
    found = message_of(lambda: synthetic.load(tmp_path, text))
    assert found.startswith(f"{tmp_path / 'made' / 'up.yaml'}:{text[: text.index(at)].count(chr(10)) + 1}: ")
    assert message in found


def test_two_points_that_nothing_distinguishes_are_refused(tmp_path: Path) -> None:
    text = ARTIFACT.replace("{trunk.width: 16}", "{trunk.width: 8}")
    found = message_of(lambda: synthetic.plan(tmp_path, text))
    assert "are the same experiment" in found and "'new'" in found and "'old'" in found


def test_every_scale_word_means_exact_where_nothing_is_trained(tmp_path: Path) -> None:
    exact, usual = synthetic.load(tmp_path, EXACT), synthetic.load(tmp_path / "usual")
    assert {exact.scale(word)[0] for word in ("smoke", "cpu", "gpu", "paper", "exact")} == {"exact"}
    assert "no scale 'cpuu'" in message_of(lambda: exact.scale("cpuu"))
    assert "did you mean 'paper'" in message_of(lambda: usual.scale("papr"))


def test_some_places_may_have_more_seeds(tmp_path: Path) -> None:
    more = "    more_seeds:\n      - {at: {model: [new]}, seeds: 5}\n      - {at: {task: [hard]}, seeds: 4}\n"
    plan = synthetic.plan(tmp_path, ARTIFACT.replace("    about: as in the paper.\n", f"    about: as.\n{more}"))
    found = {" ".join(value for _, value in key): set[int]() for key in plan.artifact.points(plan.scale)}
    for cell in plan.cells:
        found[" ".join(value for _, value in cell.key)].add(cell.seed)
    assert found == {"easy old": {0, 1, 2}, "easy new": {*range(5)}, "hard old": {*range(4)}, "hard new": {*range(4)}}


def test_a_further_folder_is_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = synthetic.write_artifact(tmp_path)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    assert spec.find()["made/up"] == path and "cem/table3" in spec.find()
    assert spec.load("made/up").title == "Old against new"
    assert "(did you mean 'cem/table3'?)" in message_of(lambda: spec.load("cem/tabel3"))
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path / "absent"))
    assert "absent', which is no folder" in message_of(spec.find)


def test_a_duplicate_id_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = tmp_path / "cem" / "table3.yaml"
    twin.parent.mkdir()
    twin.write_text(ARTIFACT)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    found = message_of(lambda: spec.load("cem/table3"))
    assert str(twin) in found and str(spec.PAPERS / "cem" / "table3.yaml") in found
    assert spec.load("cem/fig2a").id == "cem/fig2a", "the others stand"
    told = publish.listing(tmp_path / "runs", tmp_path / "results", ["cem/table3", "cem/fig2a"])
    assert f"cem/table3 is faulty: {found}" in told and "\ncem/fig2a " in told


LIKE = "like: made/plain\ntitle: Like another\nscales: {smoke: {seeds: [0]}}\nnotes: !more [Its own note.]\n"


def write_like(folder: Path, own: str = LIKE, base: str = ARTIFACT) -> Path:
    (folder / "made" / "bases").mkdir(parents=True)
    (folder / "made" / "bases" / "plain.yaml").write_text(base)
    return synthetic.write_artifact(folder, own)


def test_an_artifact_like_a_base_says_only_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_like(tmp_path)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    assert [name for name in spec.find() if name.startswith("made/")] == ["made/up"]
    base, own = synthetic.load(tmp_path / "alone"), spec.load_file(path)
    assert own.title == "Like another" and own.axes == base.axes and own.claims == base.claims
    assert own.scales["smoke"] == replace(base.scales["smoke"], seeds=[0]) and own.notes[1:] == ["Its own note."]
    assert own.scales["paper"] == base.scales["paper"]


@pytest.mark.parametrize(
    ("own", "base", "message"),
    [
        (LIKE.replace("plain", "plane"), ARTIFACT, "up.yaml:1: unknown base 'made/plane' (did you mean 'made/plain'?)"),
        (LIKE, LIKE, "plain.yaml:1: 'made/plain' is like itself"),
        (LIKE, ARTIFACT.replace("notes:", "nots:"), "unknown key 'nots' (did you mean 'notes'?)"),
        (LIKE.replace("seeds: [0]", "seeds: [0, 0]"), ARTIFACT, "up.yaml:3: "),
        (LIKE, ARTIFACT.replace("direction: lower", "direction: down"), "plain.yaml:"),
    ],
)
def test_wrong_bases_are_refused_and_the_users_file_is_named_first(own, base, message, tmp_path, monkeypatch):
    path = write_like(tmp_path, own, base)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    found = message_of(lambda: spec.load_file(path))
    assert message in found and found.startswith(f"{path}:")


def test_a_bases_python_file_serves_all_that_are_like_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_like(tmp_path)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    (path.parent / "bases" / "plain.py").write_text("def estimate_one(view):\n    return 1\n")
    found = spec.load_file(path).function("one", "here")
    assert found(None) == 1
    path.with_suffix(".py").write_text("def estimate_one(view):\n    return 2\n")
    found = spec.load_file(path).function("one", "here")
    assert found(None) == 2
    with pytest.raises(UsageError, match=r"here: .*estimate_two"):
        spec.load_file(path).function("two", "here")


def test_an_ablation_is_a_base_a_title_and_one_override(tmp_path: Path) -> None:
    text = "like: ngpt/ablation\ntitle: Mine\noverrides: {optimizer.weight_decay: 0.1}\n"
    artifact = spec.load_file(synthetic.write_artifact(tmp_path, text))
    assert artifact.published is None and not artifact.tolerances
    for scale in artifact.scales:
        cells = {dict(cell.key)["setting"]: cell for cell in plans.make(artifact, scale, [0]).cells}
        assert cells["changed"].config["optimizer"]["weight_decay"] == 0.1
        assert cells["default"].id in {cell.id for cell in plans.make(spec.load("ngpt/table6"), scale, [0]).cells}
    wrong = synthetic.write_artifact(tmp_path, text.replace("weight_decay", "wieght_decay"))
    assert message_of(lambda: plans.make(spec.load_file(wrong), "cpu")).startswith(
        f"{wrong}:3 (axis setting=changed at scale cpu): override "
    )


def test_tolerances_are_shared_by_name_and_by_default(tmp_path: Path) -> None:
    head = "title: T\nsource: {paper: P, where: W}\nexperiment: ebt/training_cost\nscales: {smoke: {about: t}}\n"
    metric = "{title: M, unit: x, direction: none}"
    text = f"{head}axes: {{a: {{title: A, values: [x]}}}}\nmetrics: {{m1: {metric}, m2: {metric}, m3: {metric}}}\n"
    text += "published: {repeats: one, rows: [{at: {a: x}, m1: 1, m2: 2, m3: 3}]}\n"

    def tolerances(given: str) -> dict[str, tuple[float | None, float | None, str]]:
        path = synthetic.write_artifact(tmp_path, f"{text}tolerances: {{{given}}}\n")
        found = spec.load_file(path).tolerances
        return {name: (item.absolute, item.relative, item.reason) for name, item in found.items()}

    by_name = tolerances("m1: {absolute: 1, reason: r}, default: {relative: 2, reason: s}, m3: m1")
    assert by_name == {"m1": (1.0, None, "r"), "m2": (None, 2.0, "s"), "m3": (1.0, None, "r")}
    reasons = tolerances("default: {reason: r}, m1: {absolute: 1}, m2: {absolute: 2}, m3: {absolute: 3, reason: s}")
    assert [reason for _, _, reason in reasons.values()] == ["r", "r", "s"]
    assert "missing 'reason' in 'm1'" in message_of(lambda: tolerances("m1: {absolute: 1}, m2: m1, m3: m1"))
    assert "no tolerance of 'm4' to take" in message_of(lambda: tolerances("m1: {absolute: 1, reason: r}, m2: m4"))


def test_a_kind_of_table_or_figure_that_is_not_there_is_named(tmp_path: Path) -> None:
    def message(line: str, make: Callable[[view.View], object]) -> str:
        plan = synthetic.plan(tmp_path, f"{ARTIFACT}{line}\n")
        return message_of(lambda: make(view.build(plan, tmp_path, None)))

    plain = "paper_repro.papers.cem.text.EffectFigure"
    assert "did you mean 'EffectFigure'" in message(f"figure: {plain[:-1]}", figure_of)
    assert "'os.system' is refused" in message("figure: os.system", figure_of)
    assert "is not a Table" in message(f"table: {plain}", table.table_of)
    assert "'paper_repro.papers.nowhere.X' is refused" in message("table: paper_repro.papers.nowhere.X", table.table_of)


@pytest.mark.parametrize(
    ("override", "refusal"),
    [
        ("training.steps: 0", "expected a whole number of 1 or more"),
        ("machine.workers: 0", "machine.workers=0: expected"),
        ("model._target_: os.system", "model: _target_ 'os.system' is refused"),
        ("model: cem/gp_gatd", "model=cem/gp_gatd: there is no such model config"),
        ("data.batch_size: '${oc.env:HOME}'", "data.batch_size: '${oc.env:HOME}' is refused"),
    ],
)
def test_a_refused_config_names_the_file(tmp_path: Path, override: str, refusal: str) -> None:
    text = f"like: ngpt/ablation\ntitle: Mine\noverrides: {{{override}}}\n"
    path = synthetic.write_artifact(tmp_path, text)
    said = message_of(lambda: plans.make(spec.load_file(path), "smoke"))
    assert said.startswith(f"{path}:") and refusal in said


@pytest.mark.parametrize(
    ("name", "word", "alters"),
    [
        ("ngpt/steptime", "machine=gpu", True),
        ("ngpt/steptime", "machine.tf32=true", True),
        ("ebt/tableD5", "machine.threads=2", True),
        ("ngpt/steptime", "machine.workers=1", False),
        ("cem/table3", "machine=gpu", False),
        ("cem/table3", "machine.tf32=true", False),
    ],
)
def test_a_word_of_the_machine_alters_what_measures_time_alone(name: str, word: str, alters: bool) -> None:
    usual, other = (plans.make(spec.load(name), "cpu", [0], words) for words in ([], [word]))
    assert bool(other.altering) == alters
    assert {cell.id for cell in usual.cells}.isdisjoint(cell.id for cell in other.cells) == alters
    assert (other.folder == usual.folder) != alters

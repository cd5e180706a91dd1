from collections.abc import Callable
from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.artifact import Number
from paper_repro.base.errors import UsageError
from paper_repro.tests.support import synthetic
from paper_repro.tests.support.synthetic import ARTIFACT

EXACT = ARTIFACT[: ARTIFACT.index("scales:")] + 'scales: {exact: {comparable: true, seeds: [0], about: "counted."}}\n'


def message_of(load: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        load()
    return str(caught.value)


def test_the_made_up_artifact_is_read_whole(tmp_path: Path) -> None:
    artifact = synthetic.load(tmp_path)
    assert artifact.id == "made/up"
    assert len(artifact.points()) == 4
    easy_new = (("task", "easy"), ("model", "new"))
    assert artifact.printed(easy_new, "error") == Number(0.4, 0.05)
    assert artifact.printed(easy_new, "size") == Number(2.0)
    assert artifact.printed(easy_new, "score") is None
    silent = synthetic.load(tmp_path, ARTIFACT.replace("error: [0.40, 0.05]", 'error: "-"'))
    assert silent.printed(easy_new, "error") is None
    assert artifact.overrides(easy_new, artifact.scales["paper"]) == [
        synthetic.override("trunk.layers", 1),
        synthetic.override("trunk.width", 16),
    ]


MISTAKES = {
    "unknown key at the top": ("best_within:", "best_wthin:", "best_wthin", "unknown key 'best_wthin'", "best_within"),
    "unknown key in an axis value": ("label: Easy", "lable: Easy", "lable", "unknown key 'lable'", "label"),
    "unknown key in a column": ("    unit: K", "    unti: K", "unti", "unknown key 'unti'", "unit"),
    "a column's inner name": (
        "    from: trunk",
        "    source: trunk",
        "source: t",
        "unknown key 'source' (valid: digits",
        "",
    ),
    "unknown key in a metric": (
        "direction: lower",
        "drection: lower",
        "drection",
        "unknown key 'drection'",
        "direction",
    ),
    "unknown key in a tolerance": (
        "published_stds: 1",
        "publishd_stds: 1",
        "publishd",
        "unknown key",
        "published_stds",
    ),
    "unknown key in a scale": ("about: a small", "abuot: a small", "abuot", "unknown key 'abuot'", "about"),
    "unknown key in a claim": ("says: Old", "sayss: Old", "sayss", "unknown key 'sayss'", "says"),
    "unknown predicate": ("      close: {", "      clsoe: {", "clsoe", "a predicate has one of the keys order", ""),
    "unknown key in a predicate": ("within: 0.05", "wihtin: 0.05", "wihtin", "unknown key 'wihtin'", "within"),
    "missing title": ("title: Old against new\n", "", "source:", "missing 'title'", ""),
    "missing source": ("  where: Table 1\nexp", "exp", "paper: A", "missing 'where' in 'source'", ""),
    "missing column source": ("    from: trunk.layers\n", "", "title: Layers", "missing 'from' in 'layers'", ""),
    "missing claim text": ("    says: Old is above new, on every task\n", "", "id: old_a", "missing 'says'", ""),
    "missing side": (", lesser: {model: new}", "", "order:", "missing 'lesser' in 'order'", ""),
    "missing metric of a claim": ("{metric: error, gr", "{gr", "order:", "missing 'metric'", ""),
    "a boolean of YAML 1.1": (
        "comparable: true",
        "comparable: yes",
        "comparable: yes",
        "must be true or false, not 'yes'",
        "",
    ),
    "a sexagesimal number of YAML 1.1": (
        "    seeds: [0, 1, 2]\n    about: as",
        "    seeds: [1:30]\n    about: as",
        "seeds: [1:30]",
        "'seeds' must be a whole number, not '1:30'",
        "",
    ),
    "missing published row": (
        "    - at: {task: hard, model: new}\n      error: [0.90, 0.10]\n",
        "",
        "repeats:",
        "no published 'error' for {task: hard, model: new}",
        "",
    ),
    "missing published value": ("size: 2.00", "size:", "size:\n    - at: {task", "'size' is a number", ""),
    "published value that is no number": ("size: 2.00", "size: 2 K", "size: 2 K", "not '2 K'", ""),
    "published value that is not finite": ("size: 2.00", "size: .nan", "size: .nan", "'size' is a number", ""),
    "published value that is true": ("size: 2.00", "size: true", "size: true", "'size' is a number", ""),
    "published value of three numbers": ("[0.40, 0.05]", "[0.4, 0.1, 0.1]", "[0.4, 0.1, 0.1]", "[mean, std]", ""),
    "published mean that is true": ("[0.40, 0.05]", "[true, 0.05]", "[true", "[mean, std]", ""),
    "negative spread": ("[0.40, 0.05]", "[0.4, -0.1]", "[0.4, -0.1]", "[mean, std]", ""),
    "no published seeds": ("[0.40, 0.05]", "{seeds: {}}", "{seeds: {}}", "{seeds: {seed: value}}", ""),
    "published seeds that are no numbers": ("[0.40, 0.05]", "{seeds: {a: 1}}", "{seeds: {a", "whole numbers", ""),
    "published seed without value": ("[0.40, 0.05]", "{seeds: {1: null}}", "{seeds: {1", "not 1 to None", ""),
    "row without place": ("    - at: {model: old}\n      size", "    - size", "- size: 1.00", "missing 'at'", ""),
    "bad axis in at": ("at: {model: new}", "at: {modle: new}", "modle", "unknown axis 'modle'", "model"),
    "bad value in at": ("at: {model: new}", "at: {model: nww}", "nww", "unknown value 'nww' of axis 'model'", "new"),
    "at that is no mapping": ("at: {model: new}", "at: new", "at: new", "at must be a mapping", ""),
    "value given twice": ("at: {model: new}", "at: {}", "at: {}", "'size' was already given at", ""),
    "value for nothing known": (
        "size: 2.00",
        "sise: 2.00",
        "at: {model: new}",
        "unknown metric or column 'sise'",
        "size",
    ),
    "value of an unpublished metric": (
        "size: 2.00",
        "score: 2.00",
        "at: {model: new}",
        "column 'score' (valid: error, size)",
        "",
    ),
    "no spread to judge by": ("[0.40, 0.05]", "0.4", "task: easy, model: new}\n      e", "given without one", ""),
    "tolerance of nothing": ("  size:\n    printed", "  sze:\n    printed", "sze:", "unknown metric 'sze'", "size"),
    "no tolerance": (
        "  size:\n    printed_digits: true\n    reason: it is counted\n",
        "",
        "  error:\n    published_stds",
        "no tolerance for the published 'size'",
        "",
    ),
    "tolerance without reason": ("    reason: it is counted\n", "", "printed_digits", "missing 'reason'", ""),
    "tolerance with two rules": (
        "stds: 1.0",
        "stds: 1.0\n    relative: 0.1",
        "published_stds",
        "a tolerance is one of",
        "",
    ),
    "tolerance without rule": ("    published_stds: 1.0\n", "", "reason: spread", "a tolerance is one of", ""),
    "tolerance that denies its rule": ("digits: true", "digits: false", "digits: false", "printed_digits is true", ""),
    "negative tolerance": ("stds: 1.0", "stds: -1.0", "published_stds", "not negative", ""),
    "wrong direction": ("direction: lower", "direction: down", "title: Error", "lower, higher or none, not 'down'", ""),
    "wrong format": ("    unit: nats", "    unit: nats\n    format: q", "title: Error", "format is f, e or g", ""),
    "digits that are no number": ("digits: 1", "digits: one", "digits: one", "'digits' must be a whole number", ""),
    "column digits that are no number": ("factor: 1000.0", "factor: K", "factor: K", "'factor' must be a number", ""),
    "factor of zero": ("factor: 1000.0", "factor: 0", "title: Size", "a factor is above 0", ""),
    "negative digits": ("digits: 1", "digits: -1", "title: Score", "digits are 0 or more", ""),
    "overrides that are no mapping": (
        "{trunk.layers: 1}",
        "[trunk.layers=1]",
        "[trunk.layers=1]",
        "'overrides' is a mapping of keys to values",
        "",
    ),
    "comparable that is a word": ("comparable: true", "comparable: maybe", "maybe", "must be true or false", ""),
    "bold along no axis": ("best_within: [task]", "best_within: [tusk]", "best_within", "unknown axis 'tusk'", "task"),
    "unknown scale": ("  smoke:", "  smok:", "smok:", "unknown scale 'smok'", "smoke"),
    "exact beside others": ("  smoke:", "  exact:", "exact:", "has the scale 'exact' alone", ""),
    "repeated seed": (
        "seeds: [0, 1, 2]\n    about: as",
        "seeds: [0, 1, 1]\n    about: as",
        "comparable: true",
        "given twice",
        "",
    ),
    "no seed": (
        "seeds: [0, 1, 2]\n    about: as",
        "seeds: []\n    about: as",
        "comparable: true",
        "at least one seed",
        "",
    ),
    "negative seed": (
        "seeds: [0, 1, 2]\n    about: as",
        "seeds: [-1]\n    about: as",
        "comparable: true",
        "is negative",
        "",
    ),
    "half a seed": (
        "seeds: [0, 1, 2]\n    about: as",
        "seeds: [0.5]\n    about: as",
        "[0.5]",
        "must be a whole number",
        "",
    ),
    "axis without values": (
        "      old:\n        label: Old & known\n        overrides: {trunk.width: 8}\n"
        "      new:\n        label: New_{50%}\n        overrides: {trunk.width: 16}\n",
        "      {}\n",
        "title: Model",
        "an axis needs at least one value",
        "",
    ),
    "duplicate key": (
        "    label: Hard",
        "    label: Hard\n        label: Harder",
        "label: Harder",
        "duplicate key 'label'",
        "",
    ),
    "duplicate axis value": (
        "      hard:",
        "      easy:",
        "      easy:\n        label: Hard",
        "duplicate key 'easy'",
        "",
    ),
    "duplicate claim": (
        "id: scores_close",
        "id: old_above_new",
        "id: old_above_new\n    says: On",
        "duplicate claim id",
        "",
    ),
    "one name for metric and column": (
        "  layers:\n    t",
        "  score:\n    t",
        "size:\n    title",
        "both a metric and a column",
        "",
    ),
    "unknown experiment": (
        "ebt/training_cost",
        "ebt/training_cots",
        "training_cots",
        "unknown experiment",
        "ebt/training_cost",
    ),
    "metric of a claim": ("metric: score", "metric: scroe", "id: scores", "unknown metric 'scroe'", "score"),
    "counted column as a metric": (
        "metric: score",
        "metric: size",
        "id: scores",
        "unknown metric 'size' (valid: error, score)",
        "",
    ),
    "open axis": ("left: {task: easy, ", "left: {", "id: scores", "axis 'task' is left open", ""),
    "axis fixed and run over": ("greater: {", "greater: {task: easy, ", "id: old", "both fixed and under 'over'", ""),
    "unknown axis in a claim": ("greater: {model:", "greater: {mdel:", "id: old", "unknown axis 'mdel'", "model"),
    "unknown value in a claim": (
        "greater: {model: old",
        "greater: {model: odl",
        "id: old",
        "unknown value 'odl'",
        "old",
    ),
    "unknown axis under over": ("over: [task]", "over: [tsk]", "id: old", "unknown axis 'tsk'", "task"),
    "axis twice under over": ("over: [task]", "over: [task, task]", "id: old", "lists an axis twice", ""),
    "a scale's only of an unknown axis": (
        "about: as in the paper.",
        "about: as in the paper.\n    only: {tsk: [easy]}",
        "only:",
        "unknown axis 'tsk'",
        "",
    ),
    "a scale's only of no value": (
        "about: as in the paper.",
        "about: as in the paper.\n    only: {task: []}",
        "only:",
        "unknown value ''",
        "",
    ),
    "a scale's any_of of an unknown value": (
        "about: as in the paper.",
        "about: as in the paper.\n    any_of: [{task: [easy]}, {model: [odl]}]",
        "any_of:",
        "unknown value 'odl'",
        "old",
    ),
    "overrides at an unknown scale": (
        "overrides: {trunk.layers: 1}",
        "overrides: {trunk.layers: 1}\n        at_scale: {smoky: {trunk.width: 4}}",
        "at_scale:",
        "unknown scale 'smoky'",
        "smoke",
    ),
    "only outside over": ("over: [task]", "over: [task]\n    only: {model: [old]}", "id: old", "not under 'over'", ""),
    "only of no value": ("over: [task]", "over: [task]\n    only: {task: []}", "id: old", "lists no value", ""),
    "only of a value twice": (
        "over: [task]",
        "over: [task]\n    only: {task: [easy, easy]}",
        "id: old",
        "one twice",
        "",
    ),
    "only of an unknown value": (
        "over: [task]",
        "over: [task]\n    only: {task: [esy]}",
        "id: old",
        "value 'esy'",
        "easy",
    ),
    "somewhere along nothing": ("over: [task]", "somewhere: true", "id: old", "'somewhere' needs axes", ""),
    "scale of a claim": (
        "over: [task]",
        "over: [task]\n    scales: [papr]",
        "id: old",
        "unknown scale 'papr'",
        "paper",
    ),
    "closeness of nothing": ("within: 0.05", "within: 0.0", "close:", "'within' is above 0", ""),
    "relative margin below zero": (
        "{model: new}}",
        "{model: new}, compare: ratio, margin: -1}",
        "order:",
        "above -1",
        "",
    ),
    "unknown comparison": ("{model: new}}", "{model: new}, compare: quotient}", "order:", "not 'quotient'", ""),
    "empty conjunction": (
        "order: {metric: error, greater: {model: old}, lesser: {model: new}}",
        "all: []",
        "all:",
        "no predicate",
        "",
    ),
    "equality of a metric": (
        "order: {metric: error, greater: {model: old}, lesser: {model: new}}",
        "equal: {column: error, at: {model: old}, value: 3}",
        "id: old",
        "unknown column 'error' (valid: layers, size)",
        "",
    ),
    "equality with two values": (
        "order: {metric: error, greater: {model: old}, lesser: {model: new}}",
        "equal: {column: size, at: {model: old}, value: 3, same_as: {model: new}}",
        "equal:",
        "one of 'value' and 'same_as'",
        "",
    ),
    "two predicates in one": (
        "      close:",
        "      computed: x\n      close:",
        "computed: x",
        "a predicate has one of",
        "",
    ),
    "published summary without tolerance": (
        "notes:",
        "summary: {gap: {title: Gap, digits: 1, published: 2.0}}\nnotes:",
        "summary:",
        "a published number and a tolerance go together",
        "",
    ),
    "summary judged by a spread": (
        "notes:",
        "summary: {gap: {title: Gap, digits: 1, published: 2.0, tolerance: {published_stds: 1, reason: r}}}\nnotes:",
        "summary:",
        "no standard deviation",
        "",
    ),
}


@pytest.mark.parametrize(("old", "new", "at", "message", "hint"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_is_named_with_file_line_and_nearest_name(
    tmp_path: Path, old: str, new: str, at: str, message: str, hint: str
) -> None:
    assert ARTIFACT.count(old) == 1, "the mistake must be made in one place"
    text = ARTIFACT.replace(old, new)
    assert text.count(at) == 1, "one line must be meant"
    found = message_of(lambda: synthetic.load(tmp_path, text))
    assert found.startswith(f"{tmp_path / 'made' / 'up.yaml'}:{text[: text.index(at)].count(chr(10)) + 1}: ")
    assert message in found
    assert not hint or f"(did you mean '{hint}'?)" in found


@pytest.mark.parametrize("text", ["", "# nothing\n", "[1, 2]\n", "title: [\n", "title: 'unclosed\n"])
def test_a_file_that_holds_no_artifact_is_named(tmp_path: Path, text: str) -> None:
    assert message_of(lambda: synthetic.load(tmp_path, text)).startswith(str(tmp_path / "made" / "up.yaml"))


@pytest.mark.parametrize("key", ["title", "source", "experiment", "metrics", "axes", "scales"])
def test_every_required_section_is_asked_for(tmp_path: Path, key: str) -> None:
    lines = ARTIFACT.splitlines()
    start = lines.index(next(line for line in lines if line.startswith(f"{key}:")))
    end = next(index for index in range(start + 1, len(lines)) if not lines[index].startswith(" "))
    text = "\n".join(lines[:start] + lines[end:])
    assert f"missing '{key}'" in message_of(lambda: synthetic.load(tmp_path, text))


def test_two_points_that_nothing_distinguishes_are_refused(tmp_path: Path) -> None:
    text = ARTIFACT.replace("{trunk.width: 16}", "{trunk.width: 8}")
    found = message_of(lambda: synthetic.plan(tmp_path, text))
    assert "are the same experiment" in found and "'new'" in found and "'old'" in found
    with_override = message_of(lambda: synthetic.plan(tmp_path, text, overrides=("training.steps=9",)))
    assert with_override == found


def test_an_override_of_what_an_axis_sets_is_told_from_a_faulty_file() -> None:
    found = message_of(lambda: plans.make(catalogue.load("cem/table3"), "smoke", overrides=["data.kernel=matern"]))
    assert found.startswith("data.kernel=matern: this sets what the values of kernel differ in")
    assert "train.py cem/gaussian_process data.kernel=matern" in found and "table3.yaml" not in found


def test_an_axis_override_that_does_not_fit_is_named(tmp_path: Path) -> None:
    text = ARTIFACT.replace("{trunk.width: 16}", "{trunk.widht: 16}")
    assert "did you mean 'trunk.width'" in message_of(lambda: synthetic.plan(tmp_path, text))


def test_a_scale_that_is_not_there_is_named(tmp_path: Path) -> None:
    artifact = synthetic.load(tmp_path)
    assert "did you mean 'paper'" in message_of(lambda: artifact.scale("papr"))
    assert "made/up has no scale 'gpu'" in message_of(lambda: artifact.scale("gpu"))


@pytest.mark.parametrize("word", ["smoke", "cpu", "gpu", "paper", "exact"])
def test_every_scale_word_means_exact_where_nothing_is_trained(tmp_path: Path, word: str) -> None:
    assert synthetic.load(tmp_path, EXACT).scale(word)[0] == "exact"


def test_exact_is_no_word_for_other_scales(tmp_path: Path) -> None:
    artifact = synthetic.load(tmp_path, EXACT)
    assert "no scale 'cpuu'" in message_of(lambda: artifact.scale("cpuu"))


def test_published_seeds_give_mean_and_sample_spread(tmp_path: Path) -> None:
    text = ARTIFACT.replace("[0.40, 0.05]", "{seeds: {33: 1.0, 34: 2.0, 35: 6.0}}")
    printed = synthetic.load(tmp_path, text).printed((("task", "easy"), ("model", "new")), "error")
    assert printed is not None
    assert printed.mean == pytest.approx(3.0, rel=1e-15)
    assert printed.std == pytest.approx(7.0**0.5, rel=1e-15)  # squares 4, 1 and 9 over two degrees of freedom
    assert printed.per_seed == ((33, 1.0), (34, 2.0), (35, 6.0))


@pytest.mark.parametrize(
    ("restrictions", "expected"),
    [
        ("", "easy old, easy new, hard old, hard new"),
        ("only: {task: [hard]}", "hard old, hard new"),
        ("any_of: [{task: [hard]}, {model: [old]}]", "easy old, hard old, hard new"),
        ("any_of: [{task: [hard], model: [new]}, {task: [easy], model: [old]}]", "easy old, hard new"),
        ("only: {task: [hard]}\n    any_of: [{task: [easy]}, {model: [new]}]", "hard new"),
    ],
)
def test_a_scale_runs_the_points_that_it_is_restricted_to(tmp_path: Path, restrictions: str, expected: str) -> None:
    text = ARTIFACT.replace("about: as in the paper.", f"about: as in the paper.\n    {restrictions}")
    artifact = synthetic.load(tmp_path, text)
    found = [" ".join(value for _, value in key) for key in artifact.points(artifact.scales["paper"])]
    assert ", ".join(found) == expected

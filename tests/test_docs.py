"""Tests that README and the pages of docs/ are true: links and names exist, numbers are current, examples run."""

import importlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from paper_repro.tables import spec
from paper_repro.tables import plan as plans
from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.artifacts.judgements import OTHER_SCALE
from paper_repro.base.command_line import RESULTS, ROOT
from paper_repro.datamodules.preparation import usage

README = (ROOT / "README.md").read_text(encoding="utf-8")
ABLATIONS = (ROOT / "docs" / "add" / "ablation.md").read_text(encoding="utf-8")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), RESULTS / "README.md", RESULTS / "bench" / "README.md"]
)
EXAMPLES = re.findall(r"<!-- example: (\S+) -->\n```yaml\n(.*?)```", ABLATIONS, re.DOTALL)


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_generated_indexes_are_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "results_index.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run scripts/results_index.py"


def test_readme_is_one_page() -> None:
    assert len(README.encode()) <= 12_000


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_to_a_file(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith(("https://", "#")):
            assert (page.parent / link.partition("#")[0]).exists(), link


def test_the_excerpt_in_readme_is_the_published_table() -> None:
    """Each row of the excerpt stands in the published table, and no row of the kernel is left out."""
    published = (RESULTS / "cem/table3/cpu/table.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in published if line.startswith("| RBF  ")]
    wanted = [[row[1], *row[-3:]] for row in rows]
    after = README.partition("<!-- excerpt: cem/table3 rbf test_rmse -->")[2].lstrip()
    excerpt = after.partition("\n\n")[0].splitlines()[2:]
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in excerpt] == wanted


def test_the_counts_in_readme_are_those_of_the_results() -> None:
    tables = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*/*/*/table.json")]
    claims = [claim for table in tables for claim in table["claims"]]
    verdicts = [claim["verdict"] for claim in claims]
    counts = [
        verdicts.count(word) for word in ("holds", "fails", "no difference", "undecided", NOT_JUDGED, OTHER_SCALE)
    ]
    text = " ".join(README.split())
    said = "Of {} claims, {} hold, {} fail, {} show no difference that matters, {} are undecided and {} are not judged"
    assert sum(counts) == len(verdicts) and said.format(len(verdicts), *counts) in text
    assert f"; {counts[-1]} more are made of larger scales." in text
    papers = [claim for claim in claims if claim["whose"] == "paper"]
    words = [[claim["verdict"] for claim in of] for of in (papers, [claim for claim in papers if claim["exact"]])]
    numbers = [word.count(verdict) for word in words for verdict in ("holds", "fails")]
    said = "{} of the claims are the papers', of which {} hold and {} fail, {} and {} of these [exactly]"
    assert said.format(len(papers), *numbers) in text
    rows = json.loads((RESULTS / "cem/table3/cpu/table.json").read_text(encoding="utf-8"))["rows"]
    measured = [row["verdict"] for row in rows if row["quantity"].endswith("_rmse") and not row.get("floor")]
    within = sum(verdict == "fitted" for verdict in measured)
    assert f"{within} of the {len(measured)} errors lie within one published standard deviation" in text


def test_the_headline_of_ngpts_figure_2_is_the_published_one() -> None:
    document = json.loads((RESULTS / "ngpt/fig2/cpu/table.json").read_text(encoding="utf-8"))
    (claim,) = [claim for claim in document["claims"] if claim["id"] == "speedup_1k"]
    (part,) = [part for part in claim["parts"] if part["at"].startswith("1,048,576 tokens")]
    ratio, low, high = map(float, re.findall(r"[\d.]+", part["because"]))
    text = " ".join(README.split())
    assert f"claim is [{claim['verdict']}](results/ngpt/fig2/cpu/table.md): {ratio:.2f} times, " in text
    assert f"with an interval of {low:.2f} to {high:.2f}, at a million tokens" in text
    least, most = (document["summary"][name]["paper"] for name in ("speedup_1k", "speedup_8k"))
    assert f"report {least:g} to {most:g} times fewer training tokens than GPT" in text


def test_the_share_that_the_papers_own_settings_would_have_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean of ten seeds within one published standard deviation: of five repeats of the paper's, or very many."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    few, many = importlib.import_module("results_index").within_one_deviation()
    draws = random.Random(0)
    means = [(statistics.fmean(draws.gauss() for _ in range(5)), draws.gauss(0, 10**-0.5)) for _ in range(20000)]
    assert few == pytest.approx(statistics.fmean(abs(one - other) < 1 for one, other in means), abs=0.01)
    assert many == pytest.approx(statistics.fmean(abs(other) < 1 for _, other in means), abs=0.01)
    said = f"{100 * few:.0f} to {100 * many:.0f} %"
    for page in (ROOT / "README.md", RESULTS / "README.md", spec.PAPERS / "cem/table3.yaml"):
        assert said in " ".join(page.read_text(encoding="utf-8").split()), page


def test_readme_says_what_is_missing() -> None:
    """The table of papers and the sentences on absent references agree with what is there."""
    found = spec.find()
    of_ebt = [name.removeprefix("ebt/") for name in found if name.startswith("ebt/")]
    figures = ["fig4", "fig5", "fig6", "fig7", "fig8", "figB1", "figB2", "figB3", "figB4", "figB6", "figC1"]
    tables = ["table2", "table3", "table4", "table5", "tableD1", "tableD2", "tableD3", "tableD5"]
    assert of_ebt == ["denoising_rates", *figures, "rates", "sudoku_rates", *tables, "video_rates"]
    ours = [name for name in found if "(ours)" in spec.load(name).title or name == "ngpt/initial_weights"]
    assert ours == ["cem/inner_steps", "cem/own_rates", "cem/training_length", "ngpt/initial_weights"]
    checks = {name for name in found if spec.load(name).source.where.startswith("a check of ours")}
    said = " ".join(README.split()).partition("nine check our settings: ")[2].partition(".")[0]
    assert set(re.findall(r"\w+/\w+", said)) == checks and len(checks) == 9
    without = [name for name in found if not list((RESULTS / name).glob("*/table.json"))]
    assert without == []
    scales = {path.parent.name for path in RESULTS.glob("*/*/*/table.json")}
    assert scales == {"cpu", "exact"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_name_scripts_options_and_artifacts_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, words in re.findall(r"python (scripts/\w+\.py)([^\n`#|]*)", text):
        script = ROOT / name
        assert script.is_file(), name
        known = script.read_text(encoding="utf-8") + (usage() if script.stem == "prepare_data" else "")
        for flag in re.findall(r"--[a-z][a-z-]*", words):
            assert flag in known, f"{name} has no {flag}"
    meant = "\n".join(line for line in text.splitlines() if "`, an argument that is refused " not in line)
    for artifact in re.findall(r"reproduce\.py (\w+/\w+)", meant):
        file = f"paper_repro/papers/{artifact}.yaml"
        own = f"<!-- own: {artifact.partition('/')[0]}/papers/{artifact}.yaml -->"
        example = {f"<!-- example: {artifact} -->", f"<!-- file: {file} -->", own}
        assert (ROOT / file).is_file() or any(mark in text for mark in example), artifact
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in re.findall(r"(?:^    |`)make ([\w-]+)", text, re.MULTILINE):
        assert target in targets, f"make {target}"


def run_example(name: str, folder: Path, **variables: str) -> str:
    path = folder / "papers" / f"{name}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(dict(EXAMPLES)[name])
    for figure in re.findall(rf"<!-- figure: {name} -->\n```python\n(.*?)```", ABLATIONS, re.DOTALL):
        path.with_suffix(".py").write_text(figure)
    environment = {**os.environ, "PAPER_REPRO_PAPERS": str(folder / "papers"), **variables}
    command = [sys.executable, "scripts/reproduce.py", name, "scale=smoke", f"runs={folder / 'runs'}"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_ablation_example_runs_as_it_stands(tmp_path: Path) -> None:
    assert "python scripts/reproduce.py cem/activation scale=smoke" in ABLATIONS
    printed = run_example("cem/activation", tmp_path)
    axes = yaml.safe_load(dict(EXAMPLES)["cem/activation"])["axes"]
    labels = {axis: [value["label"] for value in spec["values"].values()] for axis, spec in axes.items()}
    for activation in labels["activation"]:
        for steps in labels["steps"]:
            row = rf"\| {activation} +\| {steps} +\| \**\d\.\d+ ± \d\.\d+"
            assert re.search(row, printed), printed
    assert re.search(r"\| Activation +\| Steps +\| Test RMSE +\|\n", printed) and "reference" not in printed, printed
    assert "silu_gains_from_recursion" in printed
    drawn = tmp_path / "runs" / "cem" / "activation" / "smoke"
    (claim,) = json.loads((drawn / "table.json").read_text())["claims"]
    assert (claim["id"], claim["whose"]) == ("silu_gains_from_recursion", "ours")
    assert (drawn / "figure.png").stat().st_size > 5000
    assert len((drawn / "figure.csv").read_text().splitlines()) == 1 + 2 * 2 * 2


def test_the_example_over_a_base_is_planned_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, text = "cem/from_identity", dict(EXAMPLES)["cem/from_identity"]
    path = tmp_path / f"{name}.yaml"
    path.parent.mkdir()
    path.write_text(text)
    monkeypatch.setenv("PAPER_REPRO_PAPERS", str(tmp_path))
    plan = plans.make(spec.load(name), "cpu")
    (claim,) = plan.artifact.claims
    assert claim.ours
    starts = [cell.config["model"]["feed_forward"]["preconditioner_diagonal"] for cell in plan.cells]
    assert starts == [None] * 5 + [0.5413] * 5


def test_the_example_over_a_base_runs_and_its_model_is_loaded_as_the_page_of_records_says(tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = ["docstrings", "--vocabulary", "512", "--max-documents", "800", "--to", str(data)]
    output_of("scripts/prepare_data.py", *words)
    assert EXAMPLES[0][0] == "ngpt/with_decay"
    shortest = run_example("ngpt/with_decay", tmp_path / "shortest", PAPER_REPRO_DATA=str(data))
    assert "Reproduced" not in shortest
    for label in ("unchanged", "optimizer.weight_decay=0.1"):
        assert re.search(rf"\| {label} +\| \d\.\d+ +\| ", shortest), shortest
    printed = run_example("cem/from_identity", tmp_path, PAPER_REPRO_DATA=str(data))
    assert re.search(r"\| CEM MLP +\| 1\.31 +\|", printed), printed
    record = next((tmp_path / "runs" / "cells").glob("*/weights.safetensors"))
    page = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(from paper_repro import load_model\n[^`]*)```", page)
    assert "runs/cells/<cell>" in example
    output_of("-c", example.replace("runs/cells/<cell>", str(record.parent)) + "\nassert not model.training\n")


def test_the_citation_file_names_the_five_papers_as_readme_does() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "license"} <= set(citation)
    assert len(citation["references"]) == 5
    for paper in citation["references"]:
        assert {"type", "title", "authors", "year", "url"} <= set(paper)
        assert paper["title"] in README
        assert paper["url"] in README


def test_the_page_of_records_shows_what_its_examples_print() -> None:
    """But for spaces at both ends of lines."""
    page = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
    ((example, shown),) = re.findall(r"```python\n(from paper_repro.results[^`]*)```\n\n((?: {4}[^\n]*\n)+)", page)
    assert lines_of(output_of("-c", example)) == lines_of(shown)
    (cells,) = re.findall(r"compare\.py (\w{8}) (\w{8}) ", page)
    table = [line for line in lines_of(page) if line.startswith("| ") and "rmse" in line]
    assert len(table) == 2
    assert set(table) <= set(lines_of(output_of("scripts/compare.py", *cells)))


def output_of(*words: str) -> str:
    """Return what Python prints, called with these words in the root of the repository."""
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


NAMES = [ROOT / "docs" / "glossary.md", ROOT / "docs" / "path.md"]


@pytest.mark.parametrize("page", NAMES, ids=named)
def test_every_code_name_exists(page: Path) -> None:
    """Each `a/path` is a file or folder, and each `paper_repro.dotted.name` can be imported."""
    found = re.findall(r"`([^`\s]+)`", page.read_text(encoding="utf-8"))
    paths = [name for name in found if re.fullmatch(r"(?:[\w.-]+/)+[\w.-]*", name)]
    dotted = [name for name in found if re.fullmatch(r"paper_repro(?:\.\w+)+", name)]
    assert paths
    assert dotted
    for name in paths:
        if not name.startswith("runs/"):
            assert (ROOT / name).exists(), name
    for name in dotted:
        resolve(name)


def resolve(name: str) -> object:
    """Return what a dotted name stands for: a module, or something inside one."""
    first, *rest = name.split(".")
    found: object = importlib.import_module(first)
    for count, part in enumerate(rest, start=1):
        inside = isinstance(found, ModuleType) and not hasattr(found, part)
        found = importlib.import_module(".".join([first, *rest[:count]])) if inside else getattr(found, part)
    return found


def test_the_glossary_has_each_word_once_and_in_order() -> None:
    words = re.findall(r"^\*\*(.+?)\.\*\*", NAMES[0].read_text(encoding="utf-8"), re.MULTILINE)
    assert len(words) > 40
    assert words == sorted(set(words), key=str.lower)


def test_the_path_of_one_number_has_the_real_values() -> None:
    text = NAMES[1].read_text(encoding="utf-8")
    plan = plans.make(spec.load("cem/table3"), "cpu")
    document = json.loads((RESULTS / "cem/table3/cpu/table.json").read_text(encoding="utf-8"))
    place = {"kernel": "rbf", "model": "t2"}
    cells = [name for name, cell in document["cells"].items() if place.items() <= cell.items()]
    found = [json.loads((RESULTS / "cells" / cell / "record.json").read_text(encoding="utf-8")) for cell in cells]
    errors = [record["metrics"]["test_rmse"] for record in found]
    assert f"{len(plan.cells)} cells" in text
    assert f"`{cells[0]}`" in text
    assert f'"test_rmse": {errors[0]}' in text
    assert f'"sha256": "{found[0]["sha256"]}"' in text
    assert ", ".join(f"{error:.5f}" for error in errors) in " ".join(text.split())
    row = f"{statistics.mean(errors):.4f} ± {statistics.stdev(errors):.4f}"
    assert f"{row} | off by +14 %" in text
    published = (RESULTS / "cem/table3/cpu/table.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| RBF +\| CEM-T2 .*\| {row} +\| off by \+14 % +\|$", published, re.MULTILINE)

"""Tests that README and the pages of docs/ are true: links and names exist, numbers are current, examples run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from paper_repro.base.configs import check_targets, compose
from paper_repro.base.errors import RESULTS, ROOT
from paper_repro.tests.support.prepared import documentation

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
ABLATIONS = (DOCS / "add" / "ablation.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), RESULTS / "README.md", RESULTS / "bench" / "README.md"])
EXAMPLES = re.findall(r"<!-- example: (\S+) -->\n```yaml\n(.*?)```", ABLATIONS, re.DOTALL)

LOADED = re.compile(r"""<(?:script|link|img|iframe|source)\s[^>]*?(?:src|href)\s*=\s*["']?(?:https?:)?//[^>]*>""", re.I)
"""A tag that loads a file from elsewhere."""


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.slow
def test_generated_indexes_are_current() -> None:
    output_of("scripts/results_index.py", "--check")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_to_a_file(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith(("https://", "#")):
            assert (page.parent / link.partition("#")[0]).exists(), link


def test_the_excerpt_in_readme_is_the_published_table() -> None:
    """Each row of the excerpt is in the published table, and no row of the kernel is left out."""
    published = cells_of((RESULTS / "cem/table3/cpu/table.md").read_text(encoding="utf-8"))
    headers = next(row for row in published if row[0] == "Kernel")
    first = headers.index("Test RMSE: paper")
    rows = [row for row in published if row[0] == "RBF" and len(row) == len(headers)]
    wanted = [[row[1].removesuffix(", RBF"), *row[first : first + 3]] for row in rows]
    after = README.partition("<!-- excerpt: cem/table3 rbf test_rmse -->")[2].lstrip()
    assert cells_of(after.partition("\n\n")[0])[2:] == wanted


def cells_of(text: str) -> list[list[str]]:
    """Return the cells of the Markdown rows of a text."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in rows]


def test_the_headlines_in_readme_are_the_published_ones() -> None:
    """Estimate, interval and word are those of an artifact's first claim, in all digits of its table."""
    table = README.partition("<!-- headlines -->")[2].lstrip().partition("\n\n")[0]
    rows = cells_of(table)[2:]
    assert len(rows) == 5
    for claim, estimate, word in rows:
        (link,) = re.findall(r"\]\((\S+)/table\.md\)", claim)
        first = json.loads((ROOT / link / "table.json").read_text(encoding="utf-8"))["claims"][0]
        numbers = re.findall(r"(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]", first["estimate"]["text"])
        assert re.findall(r"(-?[\d.]+) (?:times )?\[(-?[\d.]+), (-?[\d.]+)\]", estimate) == numbers, link
        assert word == first["word"], link


def run_example(name: str, folder: Path, **variables: str) -> str:
    path = folder / "papers" / f"{name}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(dict(EXAMPLES)[name])
    for figure in re.findall(rf"<!-- figure: {name} -->\n```python\n(.*?)```", ABLATIONS, re.DOTALL):
        path.with_suffix(".py").write_text(figure)
    variables["PAPER_REPRO_PAPERS"] = str(folder / "papers")
    return output_of("scripts/reproduce.py", name, "scale=smoke", f"runs={folder / 'runs'}", **variables)


@pytest.mark.slow
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
    drawn = tmp_path / "runs" / "cem" / "activation" / "smoke"
    claims = json.loads((drawn / "table.json").read_text())["claims"]
    assert [claim["id"] for claim in claims] == ["recursion_helps_both", "gains_alike"]
    assert all(claim["estimate"]["value"] > 0 for claim in claims)
    assert (drawn / "figure.png").stat().st_size > 5000
    assert len((drawn / "figure.csv").read_text().splitlines()) == 1 + 2 * 2 * 2


@pytest.mark.slow
def test_an_example_over_a_base_runs_and_a_model_is_loaded_as_the_page_of_weights_says(tmp_path: Path) -> None:
    data = documentation(tmp_path / "data", 512).parent
    assert EXAMPLES[0][0] == "ngpt/with_decay"
    shortest = run_example("ngpt/with_decay", tmp_path, PAPER_REPRO_DATA=str(data))
    assert "Reproduced" not in shortest
    for label in ("unchanged", "optimizer.weight_decay=0.1"):
        assert re.search(rf"\| {label} +\| \d\.\d+ ‡ +\| ", shortest), shortest
    record = next((tmp_path / "runs" / "cells").glob("*/weights.safetensors"))
    page = (DOCS / "weights.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(from paper_repro import load\n[^`]*<cell>[^`]*)```", page)
    assert "runs/cells/<cell>" in example
    output_of("-c", example.replace("runs/cells/<cell>", str(record.parent)) + "\nassert not model.training\n")


def test_the_page_of_records_shows_what_its_examples_print() -> None:
    """But for spaces at both ends of lines."""
    page = (DOCS / "records.md").read_text(encoding="utf-8")
    ((example, shown),) = re.findall(r"```python\n(from paper_repro.exports[^`]*)```\n\n((?: {4}[^\n]*\n)+)", page)
    assert lines_of(output_of("-c", example)) == lines_of(shown)


def output_of(*words: str, folder: Path = ROOT, **variables: str) -> str:
    """Return what Python prints, called with these words in a folder."""
    command, environment = [sys.executable, *words], {**os.environ, **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.slow
def test_the_pages_are_built_as_a_site_that_asks_for_nothing_outside(tmp_path: Path) -> None:
    assert output_of("-m", "mkdocs", "build", "-q", "--strict", "-d", str(tmp_path), NO_MKDOCS_2_WARNING="1") == ""
    pages = sorted(tmp_path.rglob("*.html"))
    written = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}
    assert {page.relative_to(tmp_path).as_posix() for page in pages} == {*written, "404.html"}
    for page in pages:
        assert [tag for tag in LOADED.findall(page.read_text(encoding="utf-8")) if "canonical" not in tag] == [], page


def test_the_other_readings_of_papers_can_be_asked_for() -> None:
    """Each setting of the page resolves to a config that differs from the default's."""
    text = (DOCS / "disagreements.md").read_text(encoding="utf-8")
    sections = re.findall(r"<!-- settings of: (\S+) -->\n\n(.*?)\n\n", text, re.DOTALL)
    assert len(sections) == 5
    for experiment, table in sections:
        default = compose(experiment, [])
        for row in table.splitlines()[2:]:
            *_, cell = row.strip("| ").split(" | ")
            if cell != "-":
                other = compose(experiment, shlex.split(cell.strip("`")))
                check_targets(other)
                assert other != default, row


ADDED = [ROOT / "docs" / "add" / f"{name}.md" for name in ("dataset", "model", "kernel", "paper")]
"""They build on one another: the model uses the kernel of the page behind it, the paper all of them."""
COPIED = ("paper_repro", "kernels", "lightning_modules", "datamodules", "scripts", "pyproject.toml", "tests/support")
COPIED_TESTS = ("tests/conftest.py", "tests/kernels/conftest.py")
FILES = re.compile(r"<!-- file: (\S+) -->\n```(?:python|yaml)\n(.*?)```", re.DOTALL)
RUNS = re.compile(r"<!-- run -->\n    (python .*)\n")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "checkout"
    for name in (*COPIED, *COPIED_TESTS):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copy(source, target)
    written = [found for page in ADDED for found in FILES.findall(page.read_text(encoding="utf-8"))]
    assert len(written) == 7
    for name, content in written:
        assert not (ROOT / name).exists(), f"{name} is no example: it is there"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("page", "printed"), [
    ("dataset", r"test_rmse"),
    ("model", r"test_rmse"),
    ("kernel", r"2 passed"),
    ("paper", r"\| Squared ReLU .*\| \**\d\.\d+ ± \d\.\d+"),
])  # fmt: skip
def test_the_example_runs_as_it_stands(copy: Path, page: str, printed: str) -> None:
    (command,) = RUNS.findall((ROOT / "docs" / "add" / f"{page}.md").read_text(encoding="utf-8"))
    own = {"PYTHONPATH": str(copy), "PAPER_REPRO_RUNS": str(copy / "runs")}
    said = output_of(*shlex.split(command)[1:], folder=copy, **own)
    assert re.search(printed, said), said
    if page == "paper":
        assert ": reference" not in said and "as reference" not in said
        assert "squared_is_better" in said and "Baseline: Mean of the targets" in said
        assert (copy / "runs" / "waves" / "table1" / "smoke" / "figure.png").stat().st_size > 5000


NOTEBOOKS = {
    "see_a_model_think": "energies[-1].mean() < energies[0].mean() and all(w[-1] < w[0] / 5 for w in wrong.values())",
    "change_one_setting": "(change < -0.05).all() and abs(errors.default / row.value[:3].values - 1).max() < 0.1",
    "put_an_attention_into_a_table": "same and '| fading average' in table and list(losses) == ['fading', 'llama']",
}
"""Names, and what holds of the variables after the last cell."""
RUN = """
import json, sys
names = {"__name__": "__main__"}
for number, cell in enumerate(json.load(open(sys.argv[1], encoding="utf-8"))["cells"]):
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
assert eval(sys.argv[2], names), sys.argv[2]
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in (ROOT / "notebooks").glob("*.ipynb")])
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    """Its cells one after the other in a process of their own, without Jupyter."""
    words = ["-c", RUN, str(ROOT / "notebooks" / f"{name}.ipynb"), NOTEBOOKS[name]]
    output_of(*words, folder=tmp_path, PYTHONPATH=str(ROOT), MPLBACKEND="Agg", TMPDIR=str(tmp_path))

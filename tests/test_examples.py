"""The examples of docs/add run in a copy of the repository that gets their files; the notebooks run as they stand."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paper_repro.base.errors import ROOT

PAGES = [ROOT / "docs" / "add" / f"{name}.md" for name in ("dataset", "model", "kernel", "paper")]
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
    written = [found for page in PAGES for found in FILES.findall(page.read_text(encoding="utf-8"))]
    assert len(written) == 7
    for name, content in written:
        assert not (ROOT / name).exists(), f"{name} is no example: it is there"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


def call(copy: Path, page: Path) -> str:
    """Run the one command of a page in the copy and return what it prints."""
    (command,) = RUNS.findall(page.read_text(encoding="utf-8"))
    _, *words = shlex.split(command)
    own = {"PYTHONPATH": str(copy), "PAPER_REPRO_RUNS": str(copy / "runs"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {**os.environ, **own}
    done = subprocess.run(
        [sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("page", "printed"), [
    ("dataset", r"test_rmse"),
    ("model", r"test_rmse"),
    ("kernel", r"2 passed"),
    ("paper", r"\| Squared ReLU .*\| \**\d\.\d+ ± \d\.\d+"),
])  # fmt: skip
def test_the_example_runs_as_it_stands(copy: Path, page: str, printed: str) -> None:
    said = call(copy, ROOT / "docs" / "add" / f"{page}.md")
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


def run(path: Path, holds: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run the cells of a notebook one after the other in a process of its own, without Jupyter."""
    own = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "TMPDIR": str(folder)}
    command = [sys.executable, "-c", RUN, str(path), holds]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, timeout=1800, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    done = run(ROOT / "notebooks" / f"{name}.ipynb", NOTEBOOKS[name], tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_notebook_is_run_and_has_outputs_without_errors() -> None:
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == NOTEBOOKS.keys()
    for name in NOTEBOOKS:
        text = (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
        outputs = [one for cell in json.loads(text)["cells"] for one in cell.get("outputs", [])]
        assert outputs and all(one["output_type"] != "error" for one in outputs)

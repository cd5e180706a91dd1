"""The examples of docs/add: a copy of the repository gets their files, and their commands run there."""

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

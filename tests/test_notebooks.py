"""The notebooks run as they stand, from the first cell to the last, and what they say of their results is so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paper_repro.base.errors import ROOT

NOTEBOOKS = {
    "see_a_model_think": "energies[-1].mean() < energies[0].mean() and all(w[-1] < w[0] / 5 for w in wrong.values())",
    "change_one_setting": "(change < -0.05).all() and abs(errors.default / row.value[:3].values - 1).max() < 0.1",
    "put_an_attention_into_a_table": "same and '| fading average' in table and list(perplexity) == ['fading', 'llama']",
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

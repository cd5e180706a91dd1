"""README says what is true: its generated parts are current, its example runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from paper_repro.artifacts import catalogue
from paper_repro.artifacts import plan as plans
from paper_repro.base.command_line import ROOT

README = (ROOT / "README.md").read_text()


def test_generated_parts_are_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "readme.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run scripts/readme.py"


def test_every_path_that_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


EXAMPLES = re.findall(r"<!-- example: (\S+) -->\n```yaml\n(.*?)```", README, re.DOTALL)


def run_example(name: str, folder: Path) -> str:
    path = folder / "papers" / f"{name}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(dict(EXAMPLES)[name])
    environment = {**os.environ, "PAPER_REPRO_PAPERS": str(folder / "papers")}
    command = [sys.executable, "scripts/reproduce.py", name, "scale=smoke", f"runs={folder / 'runs'}"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_ablation_example_runs_as_it_stands(tmp_path: Path) -> None:
    assert "python scripts/reproduce.py cem/activation scale=smoke" in README
    printed = run_example("cem/activation", tmp_path)
    axes = yaml.safe_load(dict(EXAMPLES)["cem/activation"])["axes"]
    labels = {axis: [value["label"] for value in spec["values"].values()] for axis, spec in axes.items()}
    for activation in labels["activation"]:
        for steps in labels["steps"]:
            row = rf"\| {activation} +\| {steps} +\| not run +\| \**\d\.\d+ ± \d\.\d+"
            assert re.search(row, printed), printed
    assert "silu_gains_from_recursion" in printed


def test_the_example_over_a_base_is_planned_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, text),) = [example for example in EXAMPLES if "like:" in example[1]]
    path = tmp_path / f"{name}.yaml"
    path.parent.mkdir()
    path.write_text(text)
    monkeypatch.setenv("PAPER_REPRO_PAPERS", str(tmp_path))
    plan = plans.make(catalogue.load(name), "cpu")
    starts = [cell.config["model"]["feed_forward"]["preconditioner_diagonal"] for cell in plan.cells]
    assert starts == [None] * 3 + [0.5413] * 3


def test_commands_in_readme_name_existing_scripts_and_artifacts() -> None:
    for script in re.findall(r"python (scripts/\w+\.py)", README):
        assert (ROOT / script).is_file(), script
    for artifact in re.findall(r"reproduce\.py (\w+/\w+)", README):
        known = (ROOT / "paper_repro" / "papers" / f"{artifact}.yaml").is_file()
        assert known or f"<!-- example: {artifact} -->" in README, artifact

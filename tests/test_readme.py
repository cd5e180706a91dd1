"""README says what is true: its generated parts are current, its example runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from paper_repro.command_line import ROOT

README = (ROOT / "README.md").read_text()


def test_generated_parts_are_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "readme.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run scripts/readme.py"


def test_every_path_that_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_ablation_example_runs_as_it_stands(tmp_path: Path) -> None:
    found = re.search(r"<!-- example: (\S+) -->\n```yaml\n(.*?)```", README, re.DOTALL)
    assert found is not None
    name, text = found[1], found[2]
    path = tmp_path / "papers" / f"{name}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    environment = {**os.environ, "PAPER_REPRO_PAPERS": str(tmp_path / "papers")}
    command = [sys.executable, "scripts/reproduce.py", name, "scale=smoke", f"runs={tmp_path / 'runs'}"]
    assert f"python scripts/reproduce.py {name} scale=smoke" in README
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    labels = {axis: list(spec["values"].values()) for axis, spec in yaml.safe_load(text)["axes"].items()}
    for activation in labels["activation"]:
        for steps in labels["steps"]:
            row = rf"\| {activation['label']} +\| {steps['label']} +\| not run +\| \**\d\.\d+ ± \d\.\d+"
            assert re.search(row, run.stdout), run.stdout
    assert "silu_gains_from_recursion" in run.stdout


def test_commands_in_readme_name_existing_scripts_and_artifacts() -> None:
    for script in re.findall(r"python (scripts/\w+\.py)", README):
        assert (ROOT / script).is_file(), script
    for artifact in re.findall(r"reproduce\.py (\w+/\w+)", README):
        known = (ROOT / "paper_repro" / "papers" / f"{artifact}.yaml").is_file()
        assert known or f"<!-- example: {artifact} -->" in README, artifact

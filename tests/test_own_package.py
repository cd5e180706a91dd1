"""A package outside of the repository: the example of docs/add/package.md, refusals, results of code that changed."""

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paper_repro.base.errors import ROOT

FILES = re.compile(r"<!-- own: (\S+) -->\n```(?:python|yaml)\n(.*?)```", re.DOTALL)
RUN = re.compile(r"<!-- own run -->\n    (python .*)\n")
PAGE = (ROOT / "docs" / "add" / "package.md").read_text(encoding="utf-8")


def write(folder: Path) -> None:
    """The package of the page, and points on a parabola, each seventh far off."""
    written = FILES.findall(PAGE)
    assert len(written) == 5
    for name, content in written:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    draws = random.Random(0)
    xs = [draws.uniform(-1, 1) for _ in range(200)]
    ys = [1 - x + x * x + (5 if place % 7 == 0 else draws.gauss(0, 0.05)) for place, x in enumerate(xs)]
    (folder / "points.txt").write_text("".join(f"{x:.4f} {y:.4f}\n" for x, y in zip(xs, ys, strict=True)))


def call(folder: Path, command: str, *more: str, packages: str | None = None, code: int = 0) -> str:
    """Run a command line of the page in the folder and return what it prints."""
    words = command.replace("/path/to", str(folder)).split()[1:]
    own = {"PAPER_REPRO_PACKAGES": str(folder / "mylab") if packages is None else packages, "PYTHONPATH": str(ROOT)}
    line, environment = [sys.executable, str(ROOT / words[0]), *words[1:], *more], {**os.environ, **own}
    done = subprocess.run(line, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == code and "Traceback" not in said, said
    return said


TABLE = RUN.findall(PAGE)[0]
TRAIN = "python scripts/train.py mylab/points data.path=/path/to/points.txt runs=/path/to/runs"
EXPERIMENT = """# @package _global_
# Points of a file.
defaults: [/machine: cpu, _self_]
task: {_target_: paper_repro.training.fit.Fit}
module: {_target_: mylab.loss.Regression, delta: 0.1}
model: {_target_: mylab.model.Polynomial, degree: 2}
data: {_target_: mylab.data.PointsData, path: "???", seed: "${seed}"}
optimizer: {_target_: torch.optim.Adam, _partial_: true, lr: 0.03}
schedule: {_target_: paper_repro.training.schedules.Cosine, warmup_fraction: 0.0, final_factor: 0.0}
training: {steps: 20, clip_norm: null, precision: 32-true}
seed: 0
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    write(folder)
    said = call(folder, TABLE)
    errors = [float(found) for found in re.findall(r"\| (\d\.\d+) ± ", said)]
    assert len(errors) == 2 and errors[1] < 0.1 < errors[0], said  # outliers pull the squared error's fit away
    assert "†" not in said
    return folder


@pytest.fixture
def own(trained: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder with its results, as it was before each test: its path enters the ids."""
    shutil.copytree(trained, tmp_path / "kept")
    yield trained
    shutil.rmtree(trained)
    shutil.copytree(tmp_path / "kept", trained)


def numbers(said: str) -> list[str]:
    return re.findall(r"\d\.\d+ ± \d\.\d+", said)


@pytest.mark.slow
def test_results_of_other_code_are_said_marked_and_run_again(own: Path) -> None:
    before = call(own, TABLE)
    assert "other code" not in before and call(own, TABLE, "--cells").count("as now") == 4
    model = own / "mylab" / "model.py"
    model.write_text(model.read_text().replace("@ self.coefficients", "@ self.coefficients * 0.5"))
    after = call(own, TABLE)
    assert f"4 results come from other code or data than there is now ({model}); --again makes them anew" in after
    assert re.findall(r"± \d\.\d+ †", after) and numbers(after) == numbers(before)
    assert call(own, TABLE, "--cells").count(f"other: {model}") == 4
    again = call(own, TABLE, "--again")
    assert numbers(again) != numbers(before) and "†" not in again
    assert call(own, TABLE, "--cells").count("as now") == 4
    assert len([*(own / "runs" / "replaced").glob("*/record.json")]) == 4
    assert numbers(call(own, TABLE, "--again")) == numbers(again)  # nothing is left to run anew


def test_each_kind_of_file_counts_once_its_content_changes(own: Path) -> None:
    for file, more in (("points.txt", "0.5 0.75\n"), ("mylab/data.py", "X = 1\n"), ("mylab/metric.py", "X = 1\n")):
        path = own / file
        before = path.read_text()
        path.write_text(before + more)
        assert f"4 results come from other code or data than there is now ({path})" in call(own, TABLE, "--render")
        path.write_text(before)
    assert "other code" not in call(own, TABLE, "--render")
    shutil.rmtree(own / "runs" / "code")
    assert call(own, TABLE, "--cells").count("not recorded") == 4


@pytest.mark.slow
def test_an_experiment_of_ones_own_goes_on_as_code_it_was_begun_with(own: Path) -> None:
    path = own / "mylab" / "conf" / "experiment" / "mylab" / "points.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(EXPERIMENT)
    assert re.search(r"mylab/points +Points of a file\.", call(own, "python scripts/train.py --list"))
    assert f"# {path}:6" in call(own, TRAIN, "--config")
    said, model = call(own, TRAIN), own / "mylab" / "model.py"
    before = model.read_text()
    Path(*re.findall(r"^/.*record\.json$", said, re.MULTILINE)).unlink()  # it goes on from its checkpoint
    model.write_text(before + "X = 1\n")
    changed = f"1 result comes from other code or data than there is now ({model})"
    assert "other code" not in said and changed in call(own, TRAIN)
    model.write_text(before)
    assert changed in call(own, TRAIN) and "other code" not in call(own, TRAIN, "--again")


@pytest.mark.slow
@pytest.mark.parametrize(("packages", "target", "said"), [
    ("", "mylab.model.Polynomial", "a package of yours is named by PAPER_REPRO_PACKAGES=mylab"),
    ("{}/mylab", "os.system", "is refused"),
    ("{}/mylab", "mylab.data.Path", "is refused"),
    ("{}/mylab", "mylab.model.Polynom", "did you mean 'Polynomial'?"),
    ("os", "os.system", "os is a package of Python or of this repository"),
    ("{}/absent", "mylab.model.Polynomial", "absent' is not the folder or the name of a package"),
])  # fmt: skip
def test_what_is_not_of_a_named_package_is_refused(trained: Path, packages: str, target: str, said: str) -> None:
    words = f"python scripts/train.py cem/gaussian_process model._target_={target} runs=/path/to/refused"
    found = call(trained, words, packages=packages.format(trained), code=2)
    assert said in found and len(found.strip().splitlines()) == 1

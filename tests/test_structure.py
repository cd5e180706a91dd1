import ast
import graphlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from paper_repro.base.errors import ROOT

SIBLINGS = ("datamodules", "kernels", "lightning_modules")
FOLDERS = ("paper_repro", *SIBLINGS, "scripts")
STANDARD = frozenset(sys.stdlib_module_names)


class Import(NamedTuple):
    """One imported module; whether the import is at the module's top level, and whether for its types alone."""

    file: Path
    line: int
    name: str
    top: bool
    types: bool

    @property
    def where(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: imports {self.name}"

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def module(path: Path) -> str:
    """Return the name by which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("paper_repro", *parts) if parts[0] in SIBLINGS else parts).removesuffix(".__init__")


def imports(*folders: str) -> Iterator[Import]:
    """Yield what the files of folders import, names imported from a package included."""
    for path in files(*folders):
        yield from _imports(path, ast.parse(path.read_text(encoding="utf-8")), top=True, types=False)


def _imports(path: Path, node: ast.AST, top: bool, types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            package = f"{child.module}." if isinstance(child, ast.ImportFrom) else ""
            yield from (Import(path, child.lineno, package + alias.name, top, types) for alias in child.names)
        called = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        typed = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _imports(path, child, top and not called, types or typed)


CONFIGS = {"omegaconf", "hydra", "yaml", "filelock", "tabulate", "numpy"}
RULES: dict[str, tuple[set[str], set[str], set[str]]] = {
    "kernels": ({"torch", "triton"}, {"kernels", "models.common"}, set()),
    "paper_repro/models": ({"torch"}, {"models", "kernels"}, set()),
    "paper_repro/metrics": (
        {"numpy", "torch", "torchmetrics"},
        {"metrics"},
        {"scipy", "sentence_transformers", "language_tool_python", "spellchecker", "PIL", "requests", "safetensors"}
        | {"transformers"},
    ),
    "datamodules": (
        {"torch", "lightning", "datasets", "numpy", "scipy"},
        {"datamodules"},
        {"tokenizers", "PIL", "av", "diffusers", "huggingface_hub"},
    ),
    "paper_repro/training": (
        {"torch", "lightning", "torchmetrics", "safetensors", "numpy"},
        {"training", "datamodules.counter_based", "kernels", "models.common", "cells.tasks", "cells.planned"},
        {"tensorboard", "wandb"},
    ),
    "lightning_modules": (
        {"torch", "lightning", "torchmetrics"},
        {"lightning_modules", "models", "training", "metrics"},
        set(),
    ),
    "paper_repro/probes": (
        {"torch"},
        {"probes", "models", "datamodules", "metrics", "training.module", "training.counting"}
        | {"cells.tasks", "kernels.preferences"},  # counts are of the ops' definitions
        {"PIL", "lightning", "lm_eval", "pyarrow", "scipy", "skimage"},
    ),
    "paper_repro/papers": (
        {"numpy"},
        {"tables", "cells.planned", "cells.records", "cells.tasks", "metrics", "papers"},
        {"matplotlib", "scipy"},
    ),
    "paper_repro/base": (CONFIGS, set(), {"matplotlib", "scipy"}),
    "paper_repro/cells": (CONFIGS, {"cells"}, {"requests"}),
    "paper_repro/tables": (CONFIGS, {"tables", "cells"}, {"matplotlib", "scipy"}),
    "paper_repro/site": (
        {"jinja2", "markdown_it", "markupsafe"},
        {"site", "tables", "cells", "exports.card"},
        {"scipy"},
    ),
    "paper_repro/exports": (
        {"torch", "safetensors", "yaml"},
        {"exports", "tables", "cells", "training", "datamodules.tokenizers"},
        {"huggingface_hub", "pandas"},
    ),
}
"""What each folder may import: packages, rooms of paper_repro beside ``base``, and packages inside functions alone."""


@pytest.mark.parametrize("folder", RULES)
def test_a_folder_imports_what_its_rule_names(folder: str) -> None:
    packages, rooms, late = RULES[folder]
    found = []
    for item in (item for item in imports(folder) if not item.types):
        parts = item.name.split(".")
        if item.package == "paper_repro":
            good = parts[1] in {*rooms, "base"} or ".".join(parts[1:3]) in rooms
        else:
            good = item.package in STANDARD | packages or (not item.top and item.package in late)
        if not good:
            found.append(item.where)
    assert found == []


def test_each_paper_imports_its_own_code_and_kernels_import_triton_only_where_they_are_fused() -> None:
    for item in (item for item in imports("paper_repro/papers") if ".papers." in item.name):
        paper = item.file.relative_to(ROOT / "paper_repro" / "papers").parts[0]
        assert f".papers.{paper}." in item.name, item.where
    assert {item.file.name for item in imports("kernels") if item.package == "triton"} == {"triton.py"}


def test_no_module_of_tables_or_of_the_site_leads_back_to_itself_not_even_for_its_types() -> None:
    folders = "paper_repro/tables", "paper_repro/site"
    names = {path: module(path) for path in files(*folders)}
    assert len(names) > 10
    graph = graphlib.TopologicalSorter[str]()
    for item in imports(*folders):
        graph.add(names[item.file], *({item.name, item.name.rpartition(".")[0]} & {*names.values()}))
    graph.prepare()  # raises CycleError


def run(code: str, folder: Path = ROOT) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_renders_a_table_imports_no_torch_even_through_others() -> None:
    """A laptop renders a table, a figure or a listing in a second."""
    paths = files(*(f"paper_repro/{room}" for room in ("base", "cells", "tables", "site")))
    names = [*map(module, paths), *(f"paper_repro.metrics.{name}" for name in ("fits", "speedup"))]
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
    heavy = {{"torch", "lightning", "torchmetrics", "datasets", "transformers", "triton"}} & set(sys.modules)
    assert not heavy, f"{{name}} imports {{heavy}}"
"""
    run(code)


def test_every_module_can_be_imported_while_a_plan_counts_on_the_meta_device() -> None:
    paths = [path for path in files("paper_repro", *SIBLINGS) if path.stem not in ("triton", "__main__")]
    names = [*map(module, paths)]
    code = f"import importlib, torch\nwith torch.device('meta'):\n    print(*map(importlib.import_module, {names!r}))"
    assert run(code).count("<module") == len(names) > 100


@pytest.mark.slow
def test_sentence_transformers_can_be_imported_beside_our_kernels(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    ours = "import paper_repro.kernels; print(len(paper_repro.__path__))"
    assert [run(f"import sentence_transformers; {ours}"), run(ours, tmp_path)] == ["2", "2"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tree so that no build folder is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "tree"
    for name in (*FOLDERS, "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, copy)
    (copy / "results" / "cells").mkdir(parents=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(copy)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (ROOT / "build").exists() and not (ROOT / "dist").exists()
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_one_package_with_every_module_config_and_table(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"paper_repro"}
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "paper_repro").rglob("*")
        if path.suffix in (".py", ".yaml", ".css", ".js", ".html", ".md", ".json", ".safetensors")
    }
    beside = [*files(*SIBLINGS, "scripts"), *(ROOT / "datamodules").glob("*.yaml")]
    expected |= {f"paper_repro/{path.relative_to(ROOT).as_posix()}" for path in beside}
    assert {name for name in names if ".dist-info/" not in name} == expected


INSTALLED = """
import sys
from importlib.util import find_spec
import paper_repro
from paper_repro.kernels import causal_attention
from paper_repro.tables import plan, spec
assert len(plan.make(spec.load("cem/table3"), "smoke").cells) == 60
assert spec.load("ebt/tableD1").modules
assert len(spec.load("ebt/figB4").bases) == 3
counter_based = find_spec("paper_repro.datamodules.counter_based").origin
print(sys.prefix, len(paper_repro.__path__), paper_repro.__file__, counter_based, causal_attention.__file__)
"""


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """Installed as a user does, but with the packages that are here already: nothing is downloaded."""
    own = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(own)], check=True, timeout=120)
    python, command = own / "bin" / "python", own / "bin" / "paper-repro"
    variables = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--no-deps"]
    install += ["--ignore-installed", str(wheel)]  # an editable install's egg-info in the checkout may be seen
    subprocess.run(install, cwd=tmp_path, env=variables, check=True, timeout=300)
    (site,) = own.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")

    def said(*words: str | Path) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    prefix, count, *places = said(python, "-c", INSTALLED).split()
    assert (prefix, count, len(places)) == (str(own), "1", 3)
    assert all(place.startswith(str(site / "paper_repro")) for place in places)
    assert said(command, "generate", "ngpt", "--prompt", "Return the", "--tokens", "3").startswith("Return the")
    del variables["PAPER_REPRO_RUNS"]
    said(command, "reproduce", "cem/table1")
    assert (tmp_path / "runs" / "cem" / "table1" / "exact" / "table.md").is_file(), "in the folder of the call"


def name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def test_constraints_are_the_versions_of_the_lock_file_and_that_is_of_todays_requirements() -> None:
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    expected = {name(one["name"]): one["version"] for one in locked if "registry" in one["source"]}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert {name(line.split("==")[0]): line.split("==")[1] for line in lines} == expected
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (own,) = (one for one in locked if one["name"] == project["name"])
    required = {name(re.split(r"[\[<>=;! ]", text)[0]) for text in project["dependencies"]}
    assert required == {name(one["name"]) for one in own["dependencies"]}

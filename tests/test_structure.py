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
from dataclasses import dataclass
from pathlib import Path

import pytest

from paper_repro.base.errors import ROOT

SIBLINGS = ("datamodules", "kernels", "lightning_modules")
FOLDERS = ("paper_repro", *SIBLINGS, "scripts")
TORCH_FREE = (
    *(
        f"{room}.{path.stem}"
        for room in ("base", "cells", "tables", "site")
        for path in sorted((ROOT / "paper_repro" / room).glob("*.py"))
        if path.stem != "__init__"
    ),
    "metrics.fits",
    "metrics.speedup",
    "metrics.students_t",
)
"""Modules that a table, a figure, a listing or the runner imports: a laptop renders with them in a second."""
STANDARD = frozenset(sys.stdlib_module_names)


@dataclass(frozen=True)
class Import:
    """One imported module, and whether the import stands at the module's top level."""

    file: Path
    line: int
    name: str
    top: bool

    @property
    def where(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: imports {self.name}"

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


def imports(path: Path) -> Iterator[Import]:
    """What a file imports, names imported from a package included, type-checking blocks left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for top, node in _statements(tree, True):
        if isinstance(node, ast.Import):
            yield from (Import(path, node.lineno, alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; say paper_repro...."
            module = node.module or ""
            yield from (Import(path, node.lineno, f"{module}.{alias.name}", top) for alias in node.names)


def _statements(node: ast.AST, top: bool) -> Iterator[tuple[bool, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield top, child
        inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _statements(child, top and not inside)


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


CONFIGS = {"omegaconf", "hydra", "yaml", "filelock", "rich", "tabulate", "numpy"}
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
        {"probes", "models", "datamodules", "metrics", "training.probe", "training.module", "training.counting"}
        | {"cells.tasks", "kernels.preferences"},  # counts are of the ops' definitions
        {"PIL", "lm_eval", "numpy", "pyarrow", "scipy", "skimage", "yaml"},
    ),
    "paper_repro/papers": (
        {"numpy"},
        {"tables", "cells.planned", "cells.records", "cells.tasks", "metrics", "papers"},
        {"matplotlib", "scipy"},
    ),
    "paper_repro/base": (CONFIGS, set(), {"matplotlib", "scipy"}),
    "paper_repro/cells": (CONFIGS, {"cells"}, {"requests"}),
    "paper_repro/tables": (CONFIGS, {"tables", "cells"}, {"matplotlib", "pandas", "scipy"}),
    "paper_repro/site": (
        {"jinja2", "markdown_it", "markupsafe"},
        {"site", "tables", "cells", "exports.card"},
        {"scipy"},
    ),
    "paper_repro/exports": (
        {"torch", "safetensors", "transformers", "yaml"},
        {"exports", "tables.view", "cells", "models", "training", "datamodules.tokenizers"},
        {"huggingface_hub", "tokenizers"},
    ),
}
"""What each folder may import: packages, rooms of paper_repro beside ``base``, and packages inside functions alone."""


@pytest.mark.parametrize("folder", RULES)
def test_a_folder_imports_what_its_rule_names(folder: str) -> None:
    packages, rooms, late = RULES[folder]
    found = []
    for item in (item for path in files(folder) for item in imports(path)):
        parts = item.name.split(".")
        if item.package == "paper_repro":
            good = parts[1] in {*rooms, "base"} or ".".join(parts[1:3]) in rooms
        else:
            good = item.package in STANDARD | packages or (not item.top and item.package in late)
        if not good:
            found.append(item.where)
    assert found == []


def test_each_paper_imports_its_own_code_and_kernels_import_triton_only_where_they_are_fused() -> None:
    for item in (item for path in files("paper_repro/papers") for item in imports(path) if ".papers." in item.name):
        paper = item.file.relative_to(ROOT / "paper_repro" / "papers").parts[0]
        assert f".papers.{paper}." in item.name, item.where
    for item in (item for path in files("kernels") for item in imports(path) if item.package == "triton"):
        assert item.file.name == "triton.py", item.where
    for item in (item for path in files("paper_repro/exports") for item in imports(path)):
        if item.package == "transformers":
            assert item.file.name == "modeling_ngpt.py", item.where  # which is copied, and never imported


def test_no_module_of_tables_or_of_the_site_leads_back_to_itself_not_even_for_its_types() -> None:
    paths = files("paper_repro/tables", "paper_repro/site")
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        wanted = set[str]()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                wanted |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        graph[name] = wanted & names.keys()
    assert len(graph) > 10
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.slow
def test_nothing_imports_tests_scripts_or_a_bare_sibling() -> None:
    found = [item for path in files(*FOLDERS, "tests") for item in imports(path)]
    assert [item.where for item in found if item.package in SIBLINGS] == []
    outside = ("paper_repro.paper_repro.", "paper_repro.tests.", "paper_repro.scripts.", "tests.", "scripts.")
    shipped = [item for item in found if item.file.relative_to(ROOT).parts[0] != "tests"]
    assert [item.where for item in shipped if f"{item.name}.".startswith(outside)] == []


def run(code: str, folder: Path = ROOT) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_renders_a_table_imports_no_torch_even_through_others() -> None:
    code = f"""
import importlib, sys
for name in {TORCH_FREE!r}:
    importlib.import_module(f"paper_repro.{{name}}")
    heavy = {{"torch", "lightning", "torchmetrics", "datasets", "transformers", "triton"}} & set(sys.modules)
    assert not heavy, f"paper_repro.{{name}} imports {{heavy}}"
"""
    run(code)


def test_every_module_can_be_imported_while_a_plan_counts_on_the_meta_device() -> None:
    paths = [
        path for path in files("paper_repro", *SIBLINGS) if path.stem not in ("triton", "modeling_ngpt", "__main__")
    ]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    names = [name if name.startswith("paper_repro") else f"paper_repro.{name}" for name in names]
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
import torch
import paper_repro
from paper_repro.kernels import cem_mlp
from paper_repro.kernels.scaled_swiglu import scaled_swiglu
from paper_repro.models import common
from paper_repro.tables import plan, spec
pre = torch.randn(3, 8, dtype=torch.float64)  # (B, 2M)
assert torch.allclose(scaled_swiglu(pre), common.scaled_swiglu(pre), rtol=1e-12)
model = paper_repro.load("ngpt")
ids = torch.tensor([model.tokenizer.encode("The function returns")])
assert model.generate(ids, 5).shape == (1, ids.shape[1] + 5)
assert len(plan.make(spec.load("cem/table3"), "smoke").cells) == 60
assert spec.load("ebt/tableD1").modules
assert len(spec.load("ebt/figB4").bases) == 3
counter_based = find_spec("paper_repro.datamodules.counter_based").origin
print(sys.prefix, len(paper_repro.__path__), paper_repro.__file__, counter_based, cem_mlp.__file__)
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
        done = subprocess.run(
            words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300, check=False
        )
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


def test_constraints_are_the_versions_of_the_lock_file() -> None:
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    expected = {name(one["name"]): one["version"] for one in locked if "registry" in one["source"]}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert {name(line.split("==")[0]): line.split("==")[1] for line in lines} == expected
    files = [file for one in locked for file in (*one.get("wheels", ()), one.get("sdist"))]
    assert all(file is None or file["hash"].startswith("sha256:") for file in files)


def test_the_lock_file_is_of_todays_requirements() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (own,) = (one for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"] if one["name"] == project["name"])
    required = {name(re.split(r"[\[<>=;! ]", text)[0]) for text in project["dependencies"]}
    assert required == {name(one["name"]) for one in own["dependencies"]}

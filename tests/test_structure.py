import ast
import graphlib
import os
import shutil
import subprocess
import sys
import sysconfig
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


def wrong(folder: str, packages: set[str], rooms: set[str], inside_functions: set[str] | None = None) -> list[str]:
    """The imports of a folder that go another way than into these packages and these rooms of paper_repro."""
    found = []
    for path in files(folder):
        for item in imports(path):
            allowed = packages | (set() if item.top else inside_functions or set())
            if item.package == "paper_repro":
                parts = item.name.split(".")
                good = parts[1] in rooms or ".".join(parts[1:3]) in rooms or parts[1] == "base"
            else:
                good = item.package in STANDARD or item.package in allowed
            if not good:
                found.append(item.where)
    return found


def test_kernels_import_torch_alone_and_triton_only_where_they_are_fused() -> None:
    assert wrong("kernels", {"torch", "triton"}, {"kernels", "models.common"}) == []
    triton = [item for path in files("kernels") for item in imports(path) if item.package == "triton"]
    assert [item.where for item in triton if item.file.name != "triton.py"] == []


def test_models_import_kernels() -> None:
    assert wrong("paper_repro/models", {"torch"}, {"models", "kernels"}) == []


def test_metrics_import_torch_and_torchmetrics_and_heavy_extras_inside_functions() -> None:
    heavy = {
        "scipy",
        "sentence_transformers",
        "language_tool_python",
        "spellchecker",
        "PIL",
        "requests",
        "safetensors",
        "transformers",
    }
    assert wrong("paper_repro/metrics", {"numpy", "torch", "torchmetrics"}, {"metrics"}, heavy) == []


def test_datamodules_import_torch_lightning_and_datasets() -> None:
    packages = {"torch", "lightning", "datasets", "numpy", "scipy"}
    assert (
        wrong("datamodules", packages, {"datamodules"}, {"tokenizers", "PIL", "av", "diffusers", "huggingface_hub"})
        == []
    )


def test_training_imports_no_model_and_no_experiment() -> None:
    packages = {"torch", "lightning", "torchmetrics", "safetensors", "numpy"}
    rooms = {"training", "datamodules", "kernels", "models.common", "cells.tasks", "cells.planned"}
    assert wrong("paper_repro/training", packages, rooms, {"tensorboard", "wandb"}) == []
    data = [item for path in files("paper_repro/training") for item in imports(path) if ".datamodules." in item.name]
    assert [item.where for item in data if ".counter_based." not in item.name] == []


def test_lightning_modules_import_models_training_and_metrics() -> None:
    packages = {"torch", "lightning", "torchmetrics"}
    assert wrong("lightning_modules", packages, {"lightning_modules", "models", "training", "metrics"}) == []


def test_probes_import_what_they_measure_and_no_trainer() -> None:
    rooms = {"probes", "models", "datamodules", "metrics", "training", "cells.tasks"}
    rooms.add("kernels.preferences")  # counts are of the ops' definitions
    late = {"PIL", "lm_eval", "numpy", "pyarrow", "scipy", "skimage", "yaml"}
    assert wrong("paper_repro/probes", {"torch"}, rooms, late) == []
    trained = [item for path in files("paper_repro/probes") for item in imports(path) if ".training." in item.name]
    assert [item.where for item in trained if item.name.split(".")[2] not in ("probe", "module", "counting")] == []


def test_papers_import_what_draws_and_computes_and_no_torch() -> None:
    rooms = {"tables", "cells.planned", "cells.records", "cells.tasks", "metrics", "papers"}
    assert wrong("paper_repro/papers", {"numpy"}, rooms, {"matplotlib", "scipy"}) == []
    shared = [item for path in files("paper_repro/papers") for item in imports(path) if ".papers." in item.name]
    papers = [(item, item.file.relative_to(ROOT / "paper_repro" / "papers").parts[0]) for item in shared]
    assert [item.where for item, paper in papers if f".papers.{paper}." not in item.name] == []


def test_tables_stand_on_cells_and_cells_on_the_base_and_other_rooms_are_named_by_target() -> None:
    packages = {"omegaconf", "hydra", "yaml", "filelock", "rich", "tabulate", "numpy"}
    assert wrong("paper_repro/base", packages, set(), {"matplotlib", "scipy"}) == []
    assert (
        wrong(
            "paper_repro/tables",
            packages,
            {"tables", "cells", "metrics.students_t"},
            {"matplotlib", "numpy", "pandas", "scipy"},
        )
        == []
    )
    rooms = {"site", "tables", "cells", "exports.card"}
    assert wrong("paper_repro/site", {"filelock", "jinja2", "markupsafe"}, rooms, {"scipy"}) == []
    cells = [item for path in files("paper_repro/cells") for item in imports(path) if item.package == "paper_repro"]
    beyond = [item for item in cells if item.name.split(".")[1] not in ("base", "cells")]
    # A task is named by its target: the room of cells knows no model and no trainer.
    assert [item.where for item in beyond] == []


def test_no_module_of_tables_or_of_the_site_leads_back_to_itself_not_even_for_its_types() -> None:
    text = {path: path.read_text(encoding="utf-8") for path in files("paper_repro/tables", "paper_repro/site")}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in text}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        found = [node for node in ast.walk(ast.parse(text[path])) if isinstance(node, (ast.Import, ast.ImportFrom))]
        wanted = {alias.name for node in found if isinstance(node, ast.Import) for alias in node.names}
        froms = [node for node in found if isinstance(node, ast.ImportFrom)]
        wanted |= {str(node.module) for node in froms}
        wanted |= {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
        graph[name] = wanted & names.keys()
    assert len(graph) > 10
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_exports_read_weights() -> None:
    rooms = {"exports", "tables.view", "cells", "models", "training", "datamodules.tokenizers"}
    late = {"huggingface_hub", "omegaconf", "tokenizers"}
    assert wrong("paper_repro/exports", {"torch", "safetensors", "transformers", "yaml"}, rooms, late) == []
    theirs = [item for path in files("paper_repro/exports") for item in imports(path) if item.package == "transformers"]
    assert {item.file.name for item in theirs} == {"modeling_ngpt.py"}  # which is copied, and never imported


@pytest.mark.slow
def test_nothing_imports_tests_scripts_or_a_bare_sibling() -> None:
    found = [item for path in files(*FOLDERS, "tests") for item in imports(path)]
    assert [item.where for item in found if item.package in SIBLINGS] == []
    shipped = [item for item in found if item.file.relative_to(ROOT).parts[0] != "tests"]
    second_names = ("paper_repro.paper_repro", "paper_repro.tests", "paper_repro.scripts", "tests", "scripts")
    assert [
        item.where for item in shipped if f"{item.name}.".startswith(tuple(f"{name}." for name in second_names))
    ] == []


def test_the_walk_sees_every_kind_of_import(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text(
        "import a.b, c\nfrom d.e import f\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import hidden\n"
        "try:\n    import g\nexcept ImportError:\n    pass\n"
        "class K:\n    import h\n    def m(self):\n        from i import j\n"
    )
    found = {(item.name, item.top) for item in imports(path)}
    expected = {("a.b", True), ("c", True), ("d.e.f", True), ("typing.TYPE_CHECKING", True), ("g", True), ("h", True)}
    assert found == expected | {("i.j", False)}


def test_the_three_folders_are_no_packages_of_their_own() -> None:
    for sibling in SIBLINGS:
        assert (ROOT / sibling).is_dir() and not (ROOT / sibling / "__init__.py").exists()


def start(code: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def end(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output.strip()


def run(code: str, folder: Path = ROOT, **variables: str) -> str:
    return end(start(code, folder, **variables))


def test_what_renders_a_table_imports_no_torch_even_through_others() -> None:
    code = f"""
import importlib, sys
for name in {TORCH_FREE!r}:
    importlib.import_module(f"paper_repro.{{name}}")
    heavy = {{"torch", "lightning", "torchmetrics", "datasets", "transformers", "triton"}} & set(sys.modules)
    assert not heavy, f"paper_repro.{{name}} imports {{heavy}}"
"""
    run(code)


def test_the_package_has_no_loose_files() -> None:
    """Beside __init__ there is the command alone, which python -m paper_repro runs."""
    assert sorted(path.stem for path in (ROOT / "paper_repro").glob("*.py")) == ["__init__", "__main__"]


@pytest.mark.slow
def test_models_and_kernels_need_torch_alone() -> None:
    modules = [
        ".".join(path.relative_to(ROOT / "paper_repro").with_suffix("").parts) for path in files("paper_repro/models")
    ]
    modules += [
        ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files("kernels") if path.stem != "triton"
    ]
    code = f"""
import importlib, importlib.abc, sys
BLOCKED = {{"lightning", "torchmetrics", "hydra", "omegaconf", "scipy", "datasets", "transformers", "matplotlib"}}
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Block())
for name in {modules!r}:
    importlib.import_module("paper_repro." + name.removesuffix(".__init__"))
try:
    import scipy
except ImportError:
    print(len({modules!r}))
"""
    assert int(run(code)) == len(modules) > 0


@pytest.mark.slow
def test_sentence_transformers_can_be_imported_beside_our_kernels(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    ours = "import paper_repro.kernels; print(len(paper_repro.__path__))"
    started = [start(f"import sentence_transformers; {ours}", ROOT), start(ours, tmp_path)]
    assert [end(process) for process in started] == ["2", "2"]


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
    assert {"paper_repro/papers/cem/table3.yaml", "paper_repro/papers/cem/table3.py"} <= names
    assert "paper_repro/conf/experiment/cem/gaussian_process.yaml" in names
    assert "paper_repro/datamodules/counter_based.py" in names


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
assert len(spec.load("cem/fig3a").bases) == 2
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


def test_building_leaves_nothing_in_the_checkout(wheel: Path) -> None:
    assert wheel.is_file()
    assert not (ROOT / "build").exists() and not (ROOT / "dist").exists()

"""The bench command: rows of both kinds in its file, and the page that shows them."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from paper_repro.base.errors import RESULTS, ROOT, UsageError
from paper_repro.base.files import CodeState, read_code_state
from paper_repro.cells.records import SEAL, processor_name, seal

BENCH = """
from side_by_side import Comparison
def about():
    return {"compiler": "1.0"}
class Row:
    kind = "programs"
    def line(self): return "kernel: 3 blocks"
    def record(self): return {"blocks": 3}
def compare(device):
    yield Comparison("small", "ms", [2.0, 1.0, 3.0], [4.0, 5.0, 3.0], "definition", 1e-7, goal=1.5, teraflops=0.25)
    yield Row()
    yield Row()
"""


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def test_rows_of_both_kinds_are_printed_and_written(
    scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "made_up.py").write_text(BENCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    bench = import_module("bench")
    monkeypatch.setattr(bench, "BENCHES", tmp_path)
    assert bench.main(["made_up", "--json", str(tmp_path / "out.json")]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines == [
        "small: 2.00x, goal 1.5x; ms: ours 2.000 (1.000 to 3.000), definition 4.000 (3.000 to 5.000); "
        "relative error 1.0e-07; 0.25 TFLOP/s",
        "kernel: 3 blocks",
        "kernel: 3 blocks",
    ]
    found = json.loads((tmp_path / "out.json").read_text())
    assert found.pop(SEAL) == seal(found)
    assert (found["commit"], found["dirty"]) == read_code_state()
    assert found["device"] == f"cpu: {processor_name()}"
    assert found["bench"] == "made_up" and found["compiler"] == "1.0" and found["programs"] == [{"blocks": 3}] * 2
    assert [(item["ratio"], item["rounds"]) for item in found["comparisons"]] == [
        (2.0, sys.modules["side_by_side"].ROUNDS)
    ]


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, code: CodeState) -> Path:
    (folder / "made_up.py").write_text(BENCH.replace("    yield Row()\n", ""))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "made_up", raising=False)
    bench = import_module("bench")
    monkeypatch.setattr(bench, "BENCHES", folder)
    monkeypatch.setattr(bench, "read_code_state", lambda: code)
    path = folder / "results" / "made_up.json"
    path.parent.mkdir()
    assert bench.main(["made_up", "--json", str(path)]) == 0
    return path


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (CodeState("0123456789abcdef", False), "0123456789 "),
        (CodeState("0123456789abcdef", True), "0123456789 with uncommitted changes"),
        (CodeState(None, None), "commit unknown"),
    ],
)
def test_the_page_says_from_which_code_a_bench_is(
    scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: CodeState, text: str
) -> None:
    path = written(tmp_path, monkeypatch, code)
    line = next(line for line in import_module("results_index")._benches(path.parent).splitlines() if "small" in line)
    assert f"| {text}" in line


def test_an_edited_bench_is_refused_and_one_from_before_seals_is_read(
    scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, monkeypatch, CodeState("0" * 40, False))
    index = import_module("results_index")
    path.write_text(path.read_text().replace('"ratio": 2.0', '"ratio": 3.0'))
    with pytest.raises(UsageError, match="does not fit its content") as caught:
        index._benches(path.parent)
    assert str(path) in str(caught.value) and "measure it again" in str(caught.value)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in content.items() if key != SEAL}))
    with pytest.raises(UsageError, match="None does not fit"):
        index._benches(path.parent)
    old = {key: value for key, value in content.items() if key not in (SEAL, "commit", "dirty")}
    path.write_text(json.dumps(old))
    assert "commit unknown" in index._benches(path.parent)


def test_published_benches_are_sealed_or_from_before_and_from_committed_code(scripts: None) -> None:
    index = import_module("results_index")
    found = [index.read_bench(path) for path in sorted((RESULTS / "bench").glob("*.json"))]
    assert len(found) >= 27
    assert all(not bench.get("dirty") for bench in found)

"""The id of a cell depends on the content of its data, not on where they are."""

from pathlib import Path

from paper_repro.cells.planned import file_hashes, plan_cell
from paper_repro.tests.support.prepared import documentation


def test_an_absolute_name_of_a_file_gives_the_id_of_the_name_below_any_root(tmp_path: Path) -> None:
    ids = set()
    for root in (tmp_path / "here", tmp_path / "there"):
        path = documentation(root, 300) / "manifest.json"
        for name in ("documentation-300/manifest.json", str(path)):
            config = {"seed": 0, "data": {"files": {"manifest": name}}, "machine": {"data_root": str(root)}}
            assert None not in file_hashes(config).values()
            ids.add(plan_cell((), 0, config).id)
    assert len(ids) == 1

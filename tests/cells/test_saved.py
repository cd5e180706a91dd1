"""The steps that begun cells have saved, as --cells shows them."""

import json
import re
from pathlib import Path

import pytest

from paper_repro.cells import leases
from paper_repro.scripts import reproduce


def test_cells_that_were_begun_say_how_far_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("cem/table3", "--cells", "seeds=0", "training.steps=3000", f"runs={tmp_path}")

    def statuses() -> dict[str, str]:
        assert reproduce.main(words) == 0
        rows = [re.split(r" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()[3:]]
        return {row[0]: row[3] for row in rows}

    alone, first, second, running, begun, *_ = statuses()
    for folder, step in ((f"cells/{alone}", 1200), (f"cells/{alone}", 900), ("stacks/a", 2000), (f"cells/{begun}", 5)):
        path = tmp_path / folder / "checkpoints" / f"step-{step:09d}.ckpt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "stacks" / "a" / "members.json").write_text(json.dumps([first, second]))
    with leases.hold(tmp_path, [running, begun]):
        found = statuses()
    assert [found[cell] for cell in (alone, first, second, running, begun)] == [
        "begun: step 1,200 of 3,000",
        "begun: step 2,000 of 3,000",
        "begun: step 2,000 of 3,000",
        "running, no step saved",
        "running: step 5 of 3,000",
    ]
    assert {*list(found.values())[5:]} == {"finished (reference)"}

"""Rewrite the generated parts of README.md: the reference's Table 3, the list of artifacts and the benches.

readme.py            rewrite them
readme.py --check    exit code 1 if they are not up to date
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from paper_repro.artifacts.listing import listing
from paper_repro.base.command_line import RESULTS, ROOT, parse, run_main

README = ROOT / "README.md"


def main(arguments: Sequence[str]) -> int:
    words = parse(arguments, ("--check",), ())
    text = README.read_text()
    new = text
    parts = {
        "table3": _table3(RESULTS),
        "artifacts": listing(None, RESULTS, "github"),
        "benches": _benches(RESULTS / "bench"),
    }
    for name, content in parts.items():
        start = f"<!-- generated: {name} -->\n"
        before, _, rest = new.partition(start)
        _, end, after = rest.partition("<!-- end -->")
        new = f"{before}{start}\n{content}\n\n{end}{after}"
    if "--check" in words.flags:
        return int(new != text)
    README.write_text(new)
    return 0


def _table3(results: Path) -> str:
    """The first table of the published document."""
    lines = (results / "cem/table3/cpu/table.md").read_text().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("|"))
    stop = next(index for index in range(start, len(lines)) if not lines[index].startswith("|"))
    return "\n".join(lines[start:stop])


def _benches(folder: Path) -> str:
    """The ratios of every published bench, beside their goals."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        bench = json.loads(path.read_text())
        where = f"{bench['device']}, {bench['threads']} thread"
        for found in bench["comparisons"]:
            goal = "" if found["goal"] is None else f"{found['goal']:g}x"
            error = f"{found['relative_error']:.1e}"
            rows.append([bench["bench"], found["case"], found["other"], f"{found['ratio']:.2f}x", goal, error, where])
    headers = ["bench", "case", "against", "ratio", "goal", "relative error", "where"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


if __name__ == "__main__":
    sys.exit(run_main(main))

"""Rewrite the generated parts of README.md: the reference's Table 3 and the list of artifacts.

readme.py            rewrite them
readme.py --check    exit code 1 if they are not up to date
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from paper_repro.command_line import RESULTS, ROOT, parse, run_main
from paper_repro.listing import listing

README = ROOT / "README.md"


def main(arguments: Sequence[str]) -> int:
    words = parse(arguments, ("--check",), ())
    text = README.read_text()
    new = text
    for name, content in (("table3", _table3(RESULTS)), ("artifacts", listing(None, RESULTS, "github"))):
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


if __name__ == "__main__":
    sys.exit(run_main(main))

"""Compare two runs: which keys of their configs differ, their metrics side by side, where their curves end.

    compare.py 95071d22 runs/cells/b8497c8947d73191       two cells: ids, the beginnings of ids, or folders
    compare.py results/cem/table3/cpu runs/cem/table3/cpu+1a2b3c
                                                          two folders of tables, cell by cell at the same place and seed
    compare.py results runs cem/table3 scale=cpu          what two runs folders hold of one artifact

Ids are looked up in runs=DIR (default: $PAPER_REPRO_RUNS, else runs/) and among the committed results.  Nothing is run.
Exit codes: 0, or 2 for wrong usage.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before what another Python lacks is imported
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import sys
from collections.abc import Sequence

from paper_repro.base.command_line import RESULTS, parse, run_main
from paper_repro.base.errors import UsageError


def main(arguments: Sequence[str]) -> int:
    words = parse(arguments, ("--help", "-h"), ("scale", "runs"))
    if words.flags or not arguments:
        print(__doc__)
        return 0 if arguments else 2
    if words.overrides:
        raise UsageError(f"{words.overrides[0]}: nothing is run here; altered runs are compared by their folders")
    if len(words.names) not in (2, 3):
        raise UsageError(f"{len(words.names)} names: give two runs, and for two runs folders the artifact")
    from paper_repro.results.comparison import compare

    *artifact, scale = [*words.names[2:], words.settings.get("scale")]
    print(compare(words.names[:2], [words.runs, RESULTS], artifact[0] if artifact else None, scale))
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))

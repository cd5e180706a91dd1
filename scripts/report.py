"""Build the report: a site of all results that a browser opens without a server and without a network.

    report.py                    the site of results/ in site/; open site/index.html
    report.py to=DIR             into another folder, which is new, empty, or holds a report already
    report.py from=runs          of your own runs, with the reference beside each number

Pages: an index of all artifacts, a page for each artifact and scale, one for each record, all claims, all figures and
the measured speeds.  The same results give the same bytes.

Exit codes: 0 done, 2 wrong usage or a damaged table, 130 interrupted.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import sys
from collections.abc import Sequence

from paper_repro.base.errors import HOME, RESULTS, UsageError, nearest, parse, run_main

SETTINGS = ("to", "from")


def main(arguments: Sequence[str]) -> int:
    words = parse(arguments, ("--help", "-h"), SETTINGS)
    if words.flags:
        print(__doc__)
        return 0
    for word in (*words.names, *words.overrides):
        raise UsageError(
            f"{word}: not known here{nearest(word.partition('=')[0], SETTINGS)}; --help says what there is"
        )
    results = Path(words.settings.get("from", str(RESULTS))).expanduser()
    if not results.is_dir():
        raise UsageError(
            f"from={results}: there is no such folder; reproduce.py writes its tables below runs/, and what is "
            "published lies below results/"
        )
    from paper_repro.site.pages import build

    folder = Path(words.settings.get("to", str(HOME / "site"))).expanduser()
    source, files = build(results, folder)
    for cell in sorted(source.damaged):
        print(f"damaged: the record of cell {cell}; its page is left out", file=sys.stderr)
    pages = sum(name.endswith(".html") for name in files)
    print(f"{pages:,} pages, {sum(map(len, files.values())) / 1e6:.1f} MB: {folder / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))

"""Write a trained model's weights for use elsewhere, or upload them to the Hugging Face hub.

    export.py 95071d22e59ea75a --to DIR    weights, config, vocabulary and card
    export.py ngpt --to hf://owner/name    a model that comes with the package, to the hub
    export.py --make ngpt                  trains that one again, if runs/ has no result of it

In Python, load opens what the first two lines wrote, and a finished cell as well:

    from paper_repro import load
    model = load("DIR")

Exit codes: 0, or 2 where nothing was written.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import sys
from collections.abc import Sequence

from paper_repro.base.errors import Options, UsageError, run_main
from paper_repro.exports.weights import HUB, export, make, push


def main(arguments: Sequence[str]) -> int:
    given = [word.replace("runs=", "--runs=", 1) if word.startswith("runs=") else word for word in arguments]
    parser = Options("export.py", __doc__)
    add = parser.add_argument
    add("model", nargs="?", help="a cell's id, the beginning of one, its folder, a name as ngpt, or hf://owner/name")
    add("--to", help="where to write: a new folder, an empty one, or hf://owner/name")
    add("--private", action="store_true", help="a repository of the hub that is new is private")
    add("--make", nargs="+", metavar="NAME", help="train models that come with the package, and write them anew")
    add("--runs", type=Path, help="folder of runs for ids (default: $PAPER_REPRO_RUNS, else runs/); runs=DIR, too")
    words = parser.read(given)
    if words.make is not None and words.model is not None:
        raise UsageError(f"{words.model} and --make: give MODEL --to DIR, or --make NAME")
    if words.private and not str(words.to).startswith(HUB):
        raise UsageError(f"--private: it goes with --to {HUB}owner/name")
    if words.make is not None:
        written = [path for name in words.make for path in make(name, runs=words.runs)]
    elif words.model is None or words.to is None:
        raise UsageError("which model, and where to? give MODEL --to DIR, or --make NAME")
    elif words.to.startswith(HUB):
        print(push(words.model, words.to, words.runs, words.private))
        return 0
    else:
        written = export(words.model, Path(words.to), words.runs)
    print(*written, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))

"""Write the weights of a finished cell for use elsewhere.

    export.py 95071d22e59ea75a --to DIR                       model.safetensors and config.json
    export.py runs/cells/<cell> --to DIR --format huggingface  the same two, as transformers reads them

In Python, load_model opens the files of the first line, and a finished cell as well:

    from paper_repro import load_model
    model = load_model("DIR")

Exit codes: 0, or 2 where nothing was written.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import sys
from collections.abc import Sequence

from paper_repro.base.errors import Options, run_main
from paper_repro.exports.weights import FORMAT, export


def main(arguments: Sequence[str]) -> int:
    given = [word.replace("runs=", "--runs=", 1) if word.startswith("runs=") else word for word in arguments]
    parser = Options("export.py", __doc__)
    add = parser.add_argument
    add("cell", help="a cell's id, the beginning of one, or its folder")
    add("--to", type=Path, required=True, help="where to write: a new folder, or an empty one")
    add("--format", default=FORMAT, help="paper-repro, or huggingface: Llama and GPT for transformers")
    add("--runs", type=Path, help="folder of runs for ids (default: $PAPER_REPRO_RUNS, else runs/); runs=DIR, too")
    words = parser.read(given)
    for path in export(words.cell, words.to, words.format, words.runs):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))

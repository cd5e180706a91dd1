"""Write the weights of a finished cell for use elsewhere.

    export.py 95071d22e59ea75a --to DIR                       model.safetensors and config.json
    export.py runs/cells/<cell> --to DIR --format huggingface  the same two, as transformers reads them

CELL is a cell's id, the beginning of one, or its folder.  DIR is new or empty.  In Python, load_model opens what the
first line writes, and a finished cell as well:

    from paper_repro import load_model
    model = load_model("DIR")

    --format NAME     paper-repro (default), or huggingface: the Llama and GPT baselines, as LlamaForCausalLM and
                      GPT2LMHeadModel
    runs=DIR          where ids are looked up (default: $PAPER_REPRO_RUNS, else runs/)

Exit codes: 0, or 2 where nothing was written.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before what another Python lacks is imported
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import sys
from collections.abc import Sequence

from paper_repro.base.command_line import Options, run_main
from paper_repro.base.errors import UsageError
from paper_repro.exports import source


def main(arguments: Sequence[str]) -> int:
    if not arguments or {"--help", "-h"} & set(arguments):
        print(__doc__)
        return 0 if arguments else 2
    given = [word.replace("runs=", "--runs=", 1) if word.startswith("runs=") else word for word in arguments]
    parser = Options("export.py")
    parser.add_argument("cell", metavar="CELL")
    parser.add_argument("--to", type=Path)
    parser.add_argument("--format", default="paper-repro")
    parser.add_argument("--runs", type=Path)
    words = parser.read(given)
    if words.to is None:
        raise UsageError("--to DIR is needed: where to write; a new folder, or an empty one")

    source.check(words.cell, words.to, words.format, words.runs)  # what is refused, before torch is imported

    from paper_repro.exports.weights import export

    for path in export(words.cell, words.to, words.format, words.runs):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))

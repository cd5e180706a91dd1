"""Prepare the data that a table needs:

{usage}

An interrupted preparation goes on with the same command, and a missing or damaged file is made again by it.
Exit codes: 0 done, 2 wrong usage or data, 130 interrupted.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import sys
from collections.abc import Sequence

from paper_repro.base.errors import Options, UsageError, nearest, number, run_main
from paper_repro.datamodules.preparations import PREPARATIONS, usage


def main(arguments: Sequence[str]) -> int:
    parser = Options("prepare_data.py", (__doc__ or "").format(usage=usage()))
    add, whole = parser.add_argument, number(int, 1)
    add("name", metavar="DATA")
    add("--download", action="store_true", help="get what is absent from the network")
    add("--from", dest="source", type=Path, metavar="PATH", help="files that are here already")
    add("--to", type=Path, metavar="DIR", help="the folder of all data; $PAPER_REPRO_DATA if writable, else data/ here")
    add("--verify", action="store_true", help="read everything again that was prepared; changes nothing")
    add("--folder", metavar="NAME", help="of this preparation below the folder of all data, where several are in use")
    add("--vocabulary", type=whole, metavar="N", help="byte pairs to train, 4096; others have folders of their own")
    add("--max-tokens", type=whole, metavar="N", help="of a stream's training documents")
    add("--tokenizer", metavar="PATH", help="tokenizer.json or its folder, or gpt2, llama or gpt-neox")
    add("--workers", type=whole, metavar="N", help="processes that decode, 1; the files do not depend on it")
    add("--size", type=whole, metavar="N", help="of an image, 128, or a frame, 224; others have their own folders")
    add("--vae", metavar="PATH", help="the frozen encoder of frames, a folder or a name on the hub")
    given = {key: value for key, value in vars(parser.read(arguments)).items() if value not in (None, False)}
    name = given.pop("name")
    if name not in PREPARATIONS:
        raise UsageError(f"unknown data {name!r}{nearest(name, PREPARATIONS)}")
    PREPARATIONS[name].run(name, **given)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))

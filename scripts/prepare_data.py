"""Prepare the data that a table needs.

{usage}
    prepare_data.py documentation --verify         read everything again that was prepared; changes nothing

    --to DIR            the folder of all data; without it $PAPER_REPRO_DATA if that can be written, else data/ here
    --folder NAME       of this preparation below DIR, where several are in use (all but shakespeare and sudoku)
    --vocabulary N      byte pairs to train, 4096; other sizes lie in folders of their own, as documentation-512
                                                                (documentation; continuations: 512)
    --max-documents N   the first N documents only          (openwebtext, pg19)
    --shard-tokens N    tokens of a file, about 67 million  (openwebtext, documentation, pg19)
    --max-tokens N      the training documents up to the one that brings their tokens, an end of text after each, to N;
                        may be raised later; without it the whole stream        (slimpajama, redpajama, fineweb)
    --shard-documents N documents of a file, 65,536                             (slimpajama, redpajama, fineweb)
    --val-documents N   held-out documents, 2,048 of 0.05 %; 2,000 N are read for them       (redpajama, fineweb)
    --tokenizer PATH    tokenizer.json (byte-level as GPT-2's, or with byte fallback as LLaMA-2's), or a folder with
                        one; or gpt2, the default of openwebtext and pg19, or llama, that of slimpajama, or gpt-neox,
                        that of redpajama and fineweb; documentation trains its own
    --hub NAME@COMMIT   the data set's name on the hub; without a commit the one that it has now, which is noted
                                                                (celeba, coco, imagenet)
    --on-corrupt WHAT   of images that are damaged or cannot be RGB without a change of colours, and of damaged clips:
                        refuse or skip them                     (celeba, coco, imagenet, something-something)
    --workers N         processes that decode, 1; the files do not depend on it                 (the same)
    --size N            side of an image in pixels, 128, or of a frame, 224; other sizes lie in folders of their own,
                        as coco-64                              (coco, imagenet, something-something)
    --vae PATH          the frozen encoder, an autoencoder that diffusers saved, or its name on the hub and --download
                                                                (something-something)

What is streamed (slimpajama, redpajama, fineweb) may be prepared by several processes that see one folder: torchrun
--nproc-per-node 4 scripts/prepare_data.py slimpajama ...; each encodes its share of the blocks ($RANK of $WORLD_SIZE),
and the files do not depend on how many.
An interrupted preparation goes on with the same command, and a missing or damaged file is made again by it.
Exit codes: 0 done, 2 wrong usage or data, 130 interrupted.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import sys
from collections.abc import Sequence

from paper_repro.base.errors import UsageError, nearest, parse, run_main
from paper_repro.datamodules.preparations import PREPARATIONS, usage

FLAGS = ("--verify", "--download", "--help", "-h")


def main(arguments: Sequence[str]) -> int:
    settings = [*dict.fromkeys(option for one in PREPARATIONS.values() for option in one.options)]
    words = parse(arguments, FLAGS, settings)
    if words.flags & {"--help", "-h"} or not arguments:
        print((__doc__ or "").format(usage=usage()))
        return 0 if arguments else 2
    if len(words.names) != 1:
        raise UsageError(f"give one of {', '.join(PREPARATIONS)}, got {' '.join(words.names) or 'none'}")
    (name,) = words.names
    if name not in PREPARATIONS:
        raise UsageError(f"unknown data {name!r}{nearest(name, PREPARATIONS)}")
    if words.overrides:
        raise UsageError(f"unknown word {words.overrides[0]!r}{nearest(words.overrides[0], settings)}")
    options = PREPARATIONS[name].options
    for key in words.settings:
        if key not in options:
            valid = ", ".join(f"--{option}" for option in options)
            raise UsageError(f"{name} takes no --{key} (valid: {valid})")
    PREPARATIONS[name].run(name, words)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))

"""SlimPajama's documents as streams from the hub, or from a folder in its place (CEM, D.2).

A training file of the hub holds about 2.5 billion tokens, as many as the paper's whole budgets.
"""

from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.shard_writing import Part
from paper_repro.datamodules.text import TRAIN, VAL, TokenData
from paper_repro.datamodules.web_documents import from_folder, from_hub, names_and_sizes, reader

HUB = "gmongaras/SlimPajama-627B_Reupload"
"""The paper, D.2, spells the owner gmgongaras."""
REVISION = "c34c22dbb10ae6b264a2f357a909d1a537141b36"
TEST = "test"
HELD_OUT = {VAL: "validation", TEST: "test"}
"""The source's splits that are not trained on, by our names."""
HELD_OUT_DOCUMENTS = 2**13
COLUMN = "text"


class SlimPajamaData(TokenData):
    """SlimPajama's token shards: a ``TokenData`` with a third split, ``test``, that of the paper's perplexities."""

    @property
    def splits(self) -> tuple[str, ...]:
        return (TRAIN, VAL, TEST)


def load(path: Path | None = None) -> tuple[list[Part], dict[str, Any]]:
    """Return the streams of the splits train, val and test of the hub's SlimPajama or of a folder; and what they are.

    The first 8,192 documents of the source's own validation and test splits are val and test.  A source without them
    gives its first 8,192 documents to val, the next 8,192 to test and the rest to training.  Neither depends on how
    much is trained on.

    Args:
        path: a folder of parquet or jsonl files, whose names or folders may begin with train, validation and test;
            None: the hub.

    Raises:
        UsageError: the hub does not answer, the folder holds no data, or there is no split train or no column text.
    """
    rows = from_folder(path) if path else from_hub(HUB, revision=REVISION)
    revision = names_and_sizes(path) if path else REVISION
    where = HUB if path is None else str(path)
    if TRAIN not in rows:
        raise UsageError(f"{where}: splits {', '.join(rows)}, expected one called 'train': rename its files")
    size = HELD_OUT_DOCUMENTS
    places = {TRAIN: (TRAIN, 2 * size), VAL: (TRAIN, 0), TEST: (TRAIN, size)}
    if set(HELD_OUT.values()) <= set(rows):
        places = {TRAIN: (TRAIN, 0), **{split: (theirs, 0) for split, theirs in HELD_OUT.items()}}
    parts = [
        Part(split, reader(rows[theirs], f"{where}, split {theirs}", COLUMN, first), None if split == TRAIN else size)
        for split, (theirs, first) in places.items()
    ]
    source = {
        "name": "slimpajama",
        "from": HUB if path is None else "local files",
        "revision": revision,
        "held_out_documents": size,
        "splits": {split: f"{theirs} from document {first}" for split, (theirs, first) in places.items()},
    }
    return parts, source

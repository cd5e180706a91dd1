"""OpenWebText's documents, or a file or folder in its place, split as nanoGPT splits them (NRGPT, F.5)."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.text import read_text

HUB = "Skylion007/openwebtext"
HUB_DOCUMENTS = 8_013_769
REVISIONS = ("main", "refs/convert/parquet")
"""The second is the hub's own conversion, which may hold a part only: the documents are counted."""
VAL_SHARE = 0.0005
SPLIT_SEED = 2357
COLUMN = "text"
BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".txt": "text"}


class Column:
    """The texts of a data set, read in slices."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, places: slice, /) -> Sequence[str]:
        texts: list[str] = self.rows[places][COLUMN]
        return texts


@dataclass(frozen=True)
class WebText:
    """The documents, split."""

    train: Column
    val: Column
    source: dict[str, Any]


def load(path: Path | None = None, most: int | None = None) -> WebText:
    """Return the first ``most`` documents of a file, a folder or the hub's OpenWebText, 0.05 % of them validation.

    Args:
        path: a parquet, jsonl or txt file (a txt file is one document), a folder of files of one such kind, or a
            folder that ``datasets`` saved; None: the hub.
        most: documents; None: all.

    Raises:
        UsageError: the path holds nothing of this kind, there is no column ``text``, fewer than two documents, or the
            hub does not answer.
    """
    rows = _hub() if path is None else _local(path)
    if COLUMN not in rows.column_names:
        raise UsageError(f"{path}: columns {', '.join(rows.column_names)}, expected one called {COLUMN!r}: rename it")
    if most is not None:
        rows = rows.select(range(min(most, len(rows))))
    if len(rows) < 2:
        raise UsageError(f"{path or HUB}: {len(rows)} documents, expected at least 2, one for each split")
    probes = [rows[place][COLUMN] for place in (0, len(rows) // 2, len(rows) - 1)]
    source = {
        "name": "openwebtext",
        "from": HUB if path is None else "local files",
        "documents": len(rows),
        "sha256_of_first_middle_last": hashlib.sha256("\0".join(probes).encode()).hexdigest(),
        "split": f"train_test_split(test_size={VAL_SHARE}, seed={SPLIT_SEED}, shuffle=True)",
    }
    parts = rows.train_test_split(test_size=VAL_SHARE, seed=SPLIT_SEED, shuffle=True)
    return WebText(Column(parts["train"]), Column(parts["test"]), source)


def _hub() -> Any:
    """Return all of OpenWebText: from the repository's own files, or where these are a script, from the hub's
    conversion.
    """
    from datasets import load_dataset

    reasons = []
    for revision in REVISIONS:
        try:
            rows = load_dataset(HUB, revision=revision, split="train")
        except Exception as error:  # whatever the network, the hub's client or a retired format raises
            reasons.append(f"{revision}: {error}")
            continue
        if len(rows) == HUB_DOCUMENTS:
            return rows
        reasons.append(f"{revision}: {len(rows):,} documents, expected {HUB_DOCUMENTS:,}")
    raise UsageError(
        f"{HUB}: the hub did not give it ({'; '.join(reasons)}): get its files otherwise and say --from PATH"
    )


def _local(path: Path) -> Any:
    from datasets import Dataset, DatasetDict, load_dataset, load_from_disk

    if not path.exists():
        raise UsageError(
            f"{path}: there is no such file or folder; --from takes {', '.join(BUILDERS)} files or a folder"
        )
    if path.is_dir() and any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
        saved = load_from_disk(str(path))
        if isinstance(saved, DatasetDict) and "train" not in saved:
            raise UsageError(f"{path}: splits {', '.join(saved)}, expected one called 'train'")
        return saved["train"] if isinstance(saved, DatasetDict) else saved
    files = sorted(file for file in path.rglob("*") if file.suffix in BUILDERS) if path.is_dir() else [path]
    kinds = {BUILDERS.get(file.suffix, file.suffix) for file in files}
    if len(kinds) != 1 or not kinds <= set(BUILDERS.values()):
        found = ", ".join(sorted(kinds)) or "no files"
        raise UsageError(f"{path}: found {found}; expected files of one kind of {', '.join(BUILDERS)}")
    if kinds == {"text"}:
        return Dataset.from_dict({COLUMN: [read_text(file) for file in files]})
    try:
        return load_dataset(kinds.pop(), data_files=[str(file) for file in files], split="train")
    except Exception as error:  # the library's own, pyarrow's and pandas' errors
        raise UsageError(f"{path}: cannot be read: {error}; get the file again") from error

"""What a reference was made from, in few words: its data, the size of its models, its scale and its seeds.

A title names what the paper printed; these words say what stands behind the numbers.  They are read from configs and
records, so that they change with what is run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from paper_repro.artifacts.axes import EXACT
from paper_repro.artifacts.views import View
from paper_repro.base.identity import TARGET

FOLDERS = {
    "celeba": "CelebA",
    "coco": "COCO",
    "docstrings": "docstrings of installed Python packages",
    "fineweb": "FineWeb",
    "imagenet": "ImageNet",
    "openwebtext": "OpenWebText",
    "pg19": "PG-19",
    "redpajama": "RedPajama",
    "slimpajama": "SlimPajama",
    "something-something": "Something-Something V2",
}
"""What a prepared folder holds, by its name as far as the last hyphen that follows a known word."""
CLASSES = {
    "CelebAData": "CelebA",
    "CharacterData": "Shakespeare by characters",
    "Digits": "handwritten digits",
    "Faces": "faces of Labeled Faces in the Wild",
    "GaussianProcessData": "functions drawn from Gaussian processes",
    "GeneratedSudoku": "generated Sudoku boards",
    "ListOpsData": "ListOps",
    "Photographs": "squares of photographs",
    "SATNetAndRRN": "SATNet's and RRN's Sudoku boards",
    "SampleClips": "clips of sample videos",
    "SlimPajamaData": "SlimPajama",
}
"""What a class of data draws or reads by itself."""
NO_DATA = "made-up inputs"
ARITHMETIC = "arithmetic"


def data(config: Mapping[str, Any]) -> str:
    """Return the words for the data that a cell's config reads; empty for a config without data."""
    section = config.get("data")
    if not isinstance(section, Mapping):
        return ""
    source = section.get("source")
    for part in (source, section):
        files = part.get("files") if isinstance(part, Mapping) else None
        manifest = files.get("manifest") if isinstance(files, Mapping) else None
        if isinstance(manifest, str):
            return _folder(manifest.partition("/")[0])
    for part in (source, section):
        name = str(part.get(TARGET, "")).rpartition(".")[2] if isinstance(part, Mapping) else ""
        if name in CLASSES:
            return CLASSES[name]
    return ""


def _folder(name: str) -> str:
    known = [folder for folder in FOLDERS if name == folder or name.startswith(f"{folder}-")]
    return FOLDERS[max(known, key=len)] if known else name


def data_of(view: View) -> str:
    """Return the data of all cells of a view."""
    if view.scale_name == EXACT:
        return ARITHMETIC
    found = dict.fromkeys(data(cell.config) for point in view.points.values() for cell in point.cells.values())
    return " and ".join(word for word in found if word) or NO_DATA


def size_of(view: View) -> str:
    """Return the least and the most parameters of the judged records' models; empty where none has any."""
    judged = [record for point in view.points.values() for record in view.judged(point).values()]
    counts = sorted(record.parameters for record in judged if record.parameters)
    if not counts:
        return ""
    ends = list(dict.fromkeys(count_text(count) for count in (counts[0], counts[-1])))
    return f"{' to '.join(ends)} parameters"


def words(view: View) -> str:
    """Return data and size: "ListOps, 1.8k to 61k parameters"."""
    return ", ".join(part for part in (data_of(view), size_of(view)) if part)


def footer(view: View, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the line below a figure: scale, data, size, and how many seeds its rows are of.

    Where settings have different numbers of seeds, as after a look that not all of them needed, it says both ends.
    """
    drawn = {row["seed"] for row in rows if isinstance(row.get("seed"), int)}
    by_setting = [set(found) for point in view.points.values() if (found := view.judged(point))]
    ran = set().union(*by_setting)
    count, fewest = len(drawn or ran), min(map(len, by_setting), default=0)
    if 0 < count < len(ran):
        told = f"{count} of {len(ran)}"
    else:
        told = f"{fewest} to {len(ran)}" if fewest < len(ran) else str(len(ran))
    seeds = f"{told} seed{'s' if len(ran) > 1 else ''}" if ran else "no seed has run"
    parts = [f"{view.artifact.id}, scale {view.scale_name}", data_of(view), size_of(view)]
    return "; ".join(part for part in [*parts, "" if view.scale_name == EXACT else seeds] if part)


def count_text(count: float) -> str:
    """Write a count with two digits, or three above a hundred: 1,805 is 1.8k, 457,280 is 0.46M, 162,813,024 is 163M."""
    for unit, letter, least in ((1e9, "B", 1e9), (1e6, "M", 1e5), (1e3, "k", 1e3)):
        if count >= least:
            return f"{count / unit:.2g}{letter}" if count < 100 * unit else f"{count / unit:.0f}{letter}"
    return f"{count:.0f}"

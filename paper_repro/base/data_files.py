"""Where the files that a user brings, or prepares, are looked for."""

import os
from pathlib import Path

DATA_VARIABLE = "PAPER_REPRO_DATA"
DATA = Path(__file__).resolve().parents[2] / "data"
"""The last place, in the repository itself; git ignores it."""


def places(root: str | Path | None = None) -> list[tuple[str, Path | None]]:
    """Return the folders that are looked in, in order, each with its name; None where it is not set."""
    named = (
        ("machine.data_root", root),
        (f"${DATA_VARIABLE}", os.environ.get(DATA_VARIABLE)),
        ("the repository", DATA),
    )
    return [(name, Path(folder).expanduser() if folder else None) for name, folder in named]


def find_data(name: str, root: str | Path | None = None) -> Path | None:
    """Return the file or folder ``name`` in the configured folder, $PAPER_REPRO_DATA or ``data/``; None if it is in
    none.
    """
    paths = (folder / name for _, folder in places(root) if folder is not None)
    return next((path for path in paths if path.exists()), None)


def absent(name: str, root: str | Path | None = None, command: str = "") -> str:
    """Say that ``name`` is in none of the places, name each place once, and give the command that mends it."""
    found = places(root)
    looked = [
        f"{where} ({folder / name if folder else 'not set'})"
        for number, (where, folder) in enumerate(found)
        if folder is None or folder not in (later for _, later in found[number + 1 :])
    ]
    advice = f"put it there, or run: {command}" if command else "put it there"
    return f"needs {name}; it is not in {' and not in '.join(looked)}, and nothing is downloaded; {advice}"

"""Boards of Sudoku.

prepare_data.py sudoku --from DIR              SATNet's features.pt and labels.pt and RRN's test.csv (sudoku-hard),
                                               anywhere below DIR
"""

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.preparation import Preparation, Request


def sudoku(request: Request) -> None:
    """Check SATNet's and RRN's boards and put them in their place."""
    from paper_repro.datamodules import sudoku_files

    folder = request.root / sudoku_files.FOLDER
    if request.verify:
        found = sudoku_files.check(folder)
    elif request.source is None:
        raise UsageError("sudoku: give --from DIR, a folder with SATNet's and RRN's files")
    else:
        found = sudoku_files.install(request.source, folder)
    for name, boards in found.items():
        givens = (boards[:, 0] > 0).sum(axis=1)
        print(f"{name}: {len(boards):,} boards of {givens.min()} to {givens.max()} givens")
    print(f"{folder}: whole, every solution checked")


PREPARATIONS = {"sudoku": Preparation(sudoku, ("from",))}

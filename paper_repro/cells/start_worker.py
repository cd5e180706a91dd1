"""Starts a worker process: it notes which code there is before it imports that code."""

import sys

from paper_repro.base.code_state import read_code_state

if __name__ == "__main__":
    code = read_code_state()
    from paper_repro.cells.worker import main

    sys.exit(main(code))

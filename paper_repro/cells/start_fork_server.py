"""Starts a fork server: it notes which code there is before it imports that code."""

import os

from paper_repro.base.files import read_code_state

if __name__ == "__main__":
    code = read_code_state()
    from paper_repro.cells.fork_server import main

    main(code)
    os._exit(0)  # to take apart what was imported takes a third of a second

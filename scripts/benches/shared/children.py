"""What a bench measures in a process of its own: the memory that a pass adds to a peak, which no process can lower."""

import os
import subprocess
import sys
from pathlib import Path

SHARED = Path(__file__).resolve().parent


def measure_in_child(bench: str, *arguments: str, **environment: str) -> float:
    """Run the file of a bench with ``arguments`` on one thread and return the number that it prints.

    A file that is started so finds what benches share only through the child's search path.  Raises RuntimeError with
    what the child wrote if it ends with an error.
    """
    path = os.pathsep.join(filter(None, (str(SHARED), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, bench, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{bench} {' '.join(arguments)} ended with status {done.returncode}:\n{done.stderr}")
    return float(done.stdout)

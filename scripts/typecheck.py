"""Run mypy over the one package as it is installed: the folders at the top are linked inside it first.

Plain mypy sees ``paper_repro`` and the folders beside it as unrelated and misses errors across them.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIBLINGS = ("datamodules", "kernels", "lightning_modules", "scripts")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "paper_repro"
        package.mkdir()
        for path in (*(ROOT / "paper_repro").iterdir(), *(ROOT / sibling for sibling in SIBLINGS)):
            if path.name != "__pycache__":
                (package / path.name).symlink_to(path)
        options = ["--cache-dir", str(ROOT / ".mypy_cache"), "--config-file", str(ROOT / "pyproject.toml")]
        options += ["--namespace-packages", "--explicit-package-bases", "paper_repro"]
        command = [sys.executable, "-m", "mypy", *options]
        return subprocess.run(command, cwd=folder, env={"MYPYPATH": folder, "PATH": ""}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

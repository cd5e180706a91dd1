"""Run mypy over the one package as it is installed: the three folders at the top are linked inside it first.

Plain mypy sees ``paper_repro`` and the folders beside it as unrelated and misses errors across them.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIBLINGS = ("datamodules", "kernels", "lightning_modules")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "paper_repro"
        package.mkdir()
        for path in sorted((ROOT / "paper_repro").iterdir()):
            if path.name != "__pycache__":
                (package / path.name).symlink_to(path)
        for sibling in SIBLINGS:
            (package / sibling).symlink_to(ROOT / sibling)
        scripts = []
        for path in sorted((ROOT / "scripts").rglob("*.py")):
            scripts.append(str(Path(folder) / path.name))
            Path(scripts[-1]).symlink_to(path)
        cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
        options = ["--config-file", str(ROOT / "pyproject.toml"), "--namespace-packages", "--explicit-package-bases"]
        command = [sys.executable, "-m", "mypy", *cache, *options, str(package), *scripts]
        return subprocess.run(command, cwd=folder, env={"MYPYPATH": folder, "PATH": ""}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

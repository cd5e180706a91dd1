"""Energy-based and normalized transformers: five papers, rerun table by table.

``kernels/``, ``lightning_modules/`` and ``datamodules/`` stand at the top of the repository, but a regular top-level
package called ``kernels`` would shadow the Hugging Face package of that name.  They therefore carry no
``__init__.py``; in a checkout their parent is appended to this package's search path, in a wheel they are installed
inside this package, and either way they have one name only: ``paper_repro.kernels`` and so on.
"""

from pathlib import Path

_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "lightning_modules").is_dir():
    __path__.append(str(_root))

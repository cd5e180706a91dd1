"""Energy-based and normalized transformers: five papers, rerun table by table.

``kernels/``, ``lightning_modules/`` and ``datamodules/`` stand at the top of the repository, but a regular top-level
package called ``kernels`` would shadow the Hugging Face package of that name.  They therefore carry no
``__init__.py``; in a checkout their parent is appended to this package's search path, in a wheel they are installed
inside this package, and either way they have one name only: ``paper_repro.kernels`` and so on.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paper_repro.exports.weights import load_model as load_model

_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "lightning_modules").is_dir():
    __path__.append(str(_root))


def __getattr__(name: str) -> Any:
    """Import ``load_model`` where it is asked for: it needs torch, the rest of the package works without."""
    if name == "load_model":
        from paper_repro.exports.weights import load_model

        return load_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

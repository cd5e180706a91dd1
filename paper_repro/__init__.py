"""Energy-based and normalized transformers: five papers, rerun table by table.

``kernels/``, ``lightning_modules/`` and ``datamodules/`` stand at the top of the repository, but a regular top-level
package called ``kernels`` would shadow the Hugging Face package of that name.  They therefore carry no
``__init__.py``; in a checkout their parent is appended to this package's search path, in a wheel they are installed
inside this package, and either way they have one name only: ``paper_repro.kernels`` and so on.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paper_repro.exports.weights import load as load
    from paper_repro.exports.weights import push as push

_EXPORTED = ("load", "push")
_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "lightning_modules").is_dir():
    __path__.append(str(_root))


def __getattr__(name: str) -> Any:
    """Import ``load`` and ``push`` where they are asked for: the package imports alone what is used."""
    if name in _EXPORTED:
        return getattr(importlib.import_module("paper_repro.exports.weights"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTED])

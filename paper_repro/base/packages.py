"""Packages of a user that lie outside of the repository, whose classes and configs commands accept.

``$PAPER_REPRO_PACKAGES`` names them, by name or by folder, several as in $PATH; an installed package may name itself
by an entry point of the group ``paper_repro.packages``.  Below a package's folder, ``conf/`` holds configs in the
layout of ours, and ``papers/`` artifacts.
"""

import functools
import importlib.util
import os
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from paper_repro.base.errors import UsageError

VARIABLE = "PAPER_REPRO_PACKAGES"
GROUP = "paper_repro.packages"


def own_packages() -> Mapping[str, Path]:
    """Return the folder of each package of the user by its name; their modules can be imported from here on.

    Raises:
        UsageError: the variable names what is no package, or one of Python's or of ours.
    """
    return _found(os.environ.get(VARIABLE, ""))


@functools.lru_cache(maxsize=8)
def _found(given: str) -> Mapping[str, Path]:
    found: dict[str, Path] = {}
    for word in filter(None, given.split(os.pathsep)):
        name, folder = _one(word, f"${VARIABLE}={given}")
        found[name] = folder
    for point in metadata.entry_points(group=GROUP):
        name, folder = _one(point.value, f"the entry point {point.name!r} of {point.dist and point.dist.name}")
        found.setdefault(name, folder)
    return found


def _one(word: str, where: str) -> tuple[str, Path]:
    path = Path(word).expanduser()
    if path.is_dir() and (os.sep in word or not word.isidentifier()):
        folder = path.absolute()  # a link gives the package its name
        name = folder.name
        if str(folder.parent) not in sys.path:
            sys.path.append(str(folder.parent))
    else:
        name = word.strip()
    if not name.isidentifier():
        raise UsageError(f"{where}: {name!r} is neither a folder nor the name of a package; give for example mylab")
    if name in sys.stdlib_module_names or name == "paper_repro":
        raise UsageError(f"{where}: {name} is a package of Python or of this repository; give yours another name")
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise UsageError(
            f"{where}: there is no package {name}; give its folder, /path/to/{name}, or install it with pip install -e"
        )
    if path.is_dir() and os.sep in word and Path(places[0]).resolve() != folder.resolve():
        raise UsageError(f"{where}: Python takes {name} from {places[0]}; give your package another name")
    return name, Path(places[0]).resolve()

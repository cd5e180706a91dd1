"""From records to files: an artifact's table and figure, below runs/ or results/."""

from pathlib import Path
from types import ModuleType
from typing import Any

from paper_repro.artifacts import views
from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.companions import fault_in, named
from paper_repro.artifacts.figures import Figure
from paper_repro.artifacts.plan import Plan, with_looks
from paper_repro.artifacts.tables import Table
from paper_repro.artifacts.views import View
from paper_repro.base.errors import UsageError


def render(plan: Plan, runs: Path, reference: Path | None) -> tuple[Table, list[Path]]:
    """Write the table, and the figure where the artifact draws one, below ``runs``.

    Args:
        reference: the committed results to show beside the user's own; None where ``runs`` is itself the reference.

    Raises:
        UsageError: the disk is full or the folder read-only, or the Python file beside the YAML has an error; the
            records are untouched.
    """
    plan = with_looks(plan, [root / plan.folder for root in (runs, reference) if root is not None])
    view = views.build(plan, runs, reference)
    folder = runs / plan.folder
    table = table_of(view)
    try:
        written = table.write(folder)
        if (figure := figure_of(view)) is not None:
            written += figure.write(folder)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder}: cannot write there ({error.strerror}); every record is whole: free some "
            "space, or say runs=DIR for another folder, and use --render"
        ) from error
    except UsageError:
        raise
    except Exception as error:
        if (place := fault_in(plan.artifact.companions(), error)) is None:
            raise
        raise UsageError(
            f"{place}: {type(error).__name__}: {error}; every record is whole: mend it and use --render"
        ) from error
    return table, written


def table_of(view: View) -> Table:
    """Return the table of the kind that the YAML names, that the file beside it or a base defines, or a plain one."""
    found: Table = (_kind(view.artifact, view.artifact.table, Table) or Table)(view)
    return found


def figure_of(view: View) -> Figure | None:
    """Return the figure of the kind that the YAML names, or that the file beside it or a base defines; else None."""
    kind = _kind(view.artifact, view.artifact.figure, Figure)
    return None if kind is None else kind(view)


def check(artifact: Artifact) -> None:
    """Check the Python code of an artifact, which would else be imported only after everything was trained.

    Raises:
        UsageError: with file and line, it cannot be imported, or is not what the YAML says.
    """
    artifact.companions()
    for name, base in ((artifact.table, Table), (artifact.figure, Figure)):
        _kind(artifact, name, base)


def _kind(artifact: Artifact, name: str | None, base: Any) -> Any:
    if name is not None:
        kind = named(name, str(artifact.path))
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise UsageError(f"{artifact.path}: {name} is no {base.__name__}")
        return kind
    kinds = (_the_one(companion, base) for companion in artifact.companions())
    return next((kind for kind in kinds if kind is not None), None)


def _the_one(companion: ModuleType, base: Any) -> Any:
    """Return the subclass of ``base`` that the companion file defines, if it defines one; appendices do not count."""
    own = [
        value
        for value in vars(companion).values()
        if isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == companion.__name__
        and getattr(value, "stem", Figure.stem) == Figure.stem
    ]
    if len(own) > 1:
        raise UsageError(
            f"{companion.__file__}: more than one {base.__name__}: {', '.join(kind.__name__ for kind in own)}"
        )
    return own[0] if own else None

"""From records to files: an artifact's table and figure, below runs/ or results/."""

from pathlib import Path
from types import ModuleType
from typing import Any

from paper_repro import views
from paper_repro.errors import UsageError
from paper_repro.figures import Figure
from paper_repro.plan import Plan
from paper_repro.tables import Table


def render(plan: Plan, runs: Path, reference: Path | None) -> tuple[Table, list[Path]]:
    """Write the table, and the figure where the artifact draws one, below ``runs``.

    Args:
        reference: the committed results to show beside the user's own; None where ``runs`` is itself the reference.
    """
    view = views.build(plan, runs, reference)
    folder = runs / plan.folder
    companion = plan.artifact.companion()
    table: Table = (_the_one(companion, Table) or Table)(view)
    written = table.write(folder)
    if (figure := _the_one(companion, Figure)) is not None:
        written += figure(view).write(folder)
    return table, written


def _the_one(companion: ModuleType | None, base: Any) -> Any:
    """The subclass of ``base`` that the companion file defines, if it defines one."""
    if companion is None:
        return None
    own = [
        value
        for value in vars(companion).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == companion.__name__
    ]
    if len(own) > 1:
        raise UsageError(
            f"{companion.__file__}: more than one {base.__name__}: {', '.join(kind.__name__ for kind in own)}"
        )
    return own[0] if own else None

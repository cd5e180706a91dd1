"""Errors that the user can mend: each says what was found, what was expected and what to do."""

import difflib
from collections.abc import Iterable

MISUSE, INTERRUPTED = 2, 130
"""Exit codes of the commands, beside 0 (all done) and 1 (some cells failed, diverged or lack their data)."""


class UsageError(ValueError):
    """A command, a config or a file that the user wrote is wrong (exit code 2)."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the valid name nearest to ``name`` in any case, else the valid names."""
    names = sorted({str(item) for item in valid})
    folded = {item.casefold(): item for item in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    if close:
        return f" (did you mean '{folded[close[0]]}'?)"
    if not names:
        return ""
    shown = ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")
    return f" (valid: {shown})"

"""Lengths of time in words."""

HOUR = 3600
DAY = 24 * HOUR
YEAR = 365 * DAY


def duration(seconds: float) -> str:
    """Write seconds in the units that a person would use."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * HOUR:
        return f"{seconds / HOUR:.1f} h"
    if seconds < 2 * YEAR:
        return f"{seconds / DAY:,.0f} days"
    return f"{seconds / YEAR:,.0f} years"

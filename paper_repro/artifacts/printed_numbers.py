"""The paper's numbers in a figure: one look, one entry of the legend, and one rule for when they are drawn.

**The rule.**  A printed number is drawn where ours and the paper's have the same unit.  They always have at a scale
that is ``comparable``.  At a reduced scale they have if the quantity means the same with any data and size of model: a
count of parameters, a share, a ratio, a pure number (``EVERYWHERE``).  A loss or a perplexity of another corpus with
another tokenizer has another unit, whatever its name: such a number is not drawn, and the line below the figure gives
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import palette
from paper_repro.artifacts.views import View

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

EVERYWHERE = ("%", "share", "parameters", "ratio", "pure number")
"""How units begin that do not depend on the data or on the size of the models."""
LABEL = "paper"
LINE = "-."
STYLE: Any = {"linestyle": LINE, "linewidth": 1.0}
MARK: Any = {"marker": "D", "markersize": 4.5, "markerfacecolor": palette.GROUND, "markeredgewidth": 1.1}


@dataclass(frozen=True)
class PrintedNumber:
    """A number of the paper as a figure draws it: a point if it has a place, else a line across its panel."""

    label: str
    """Whose number it is; points of one label and panel are tied by a line."""
    value: float
    unit: str
    panel: int = 0
    at: float | None = None
    """Its place on the other axis; None: a line."""
    std: float | None = None
    """Half the length of an error bar."""
    upright: bool = False
    """Whether it is read on the horizontal axis, as a line from below to above."""
    color: str = palette.PAPER
    tied: bool = True
    """Whether a line ties it to the others of its label."""


def drawn(view: View, numbers: Sequence[PrintedNumber]) -> list[PrintedNumber]:
    """Return the numbers that the rule lets a figure draw."""
    return [one for one in numbers if view.plan.scale.comparable or one.unit.startswith(EVERYWHERE)]


def sentence(view: View, numbers: Sequence[PrintedNumber], words: str = "") -> str:
    """Return what the line below a figure says of the paper's numbers; nothing where it prints none.

    Args:
        words: what it says of those that are drawn, in place of the usual.
    """
    shown = drawn(view, numbers)
    hidden = [one for one in numbers if one not in shown]
    parts = []
    if shown and words:
        parts.append(words)
    elif shown:
        what = "Diamonds and dash-dotted lines" if has_lines(shown) else "Diamonds"
        parts.append(f"{what}: the paper's numbers{'' if view.plan.scale.comparable else ', of its own scale'}.")
    if hidden:
        units = " and ".join(dict.fromkeys(one.unit for one in hidden))
        listed = ", ".join(f"{one.label} {one.value:g}" for one in hidden)
        names = {(one.label, one.panel) for one in hidden}
        listed = f": {listed}" if len(names) == len(hidden) else f"; the table has these {len(hidden)} numbers"
        parts.append(f"Printed by the paper and not drawn, for {units} of other data are another unit{listed}.")
    return " ".join(parts)


def has_lines(numbers: Sequence[PrintedNumber]) -> bool:
    """Return whether some of the numbers are drawn as lines, or tied by one."""
    return any(one.at is None or one.tied for one in numbers)


def draw(panels: "Sequence[Axes]", numbers: Sequence[PrintedNumber]) -> None:
    """Draw printed numbers into their panels."""
    groups: dict[tuple[int, str], list[PrintedNumber]] = {}
    for one in numbers:
        if one.at is None:
            _draw_line(panels[one.panel], one)
        else:
            groups.setdefault((one.panel, one.label), []).append(one)
    for (panel, _), group in groups.items():
        style = {**MARK, "color": group[0].color, **(STYLE if group[0].tied else {"linestyle": "none"})}
        x, y = [one.at or 0.0 for one in group], [one.value for one in group]
        if any(one.std for one in group):
            panels[panel].errorbar(x, y, [one.std or 0.0 for one in group], capsize=2, **style)
        else:
            panels[panel].plot(x, y, **style)


def _draw_line(axes: "Axes", one: PrintedNumber) -> None:
    """Draw a line across a panel, with the mark at its end."""
    end: Any = {**MARK, "color": one.color, "clip_on": False, "zorder": 4}
    if one.upright:
        axes.axvline(one.value, color=one.color, **STYLE)
        axes.plot([one.value], [1.0], transform=axes.get_xaxis_transform(), **end)
    else:
        axes.axhline(one.value, color=one.color, **STYLE)
        axes.plot([1.0], [one.value], transform=axes.get_yaxis_transform(), **end)
        if one.color == palette.PAPER:  # no model's colour says whose number it is
            place: Any = {"xy": (0.0, one.value), "xycoords": axes.get_yaxis_transform(), "fontsize": 6}
            axes.annotate(one.label, xytext=(2, 2), textcoords="offset points", color=one.color, **place)


def legend_entry(numbers: Sequence[PrintedNumber]) -> "Artist":
    """Return the handle of the legend's entry for all printed numbers that a figure draws."""
    from matplotlib.lines import Line2D

    style = STYLE if has_lines(numbers) else {"linestyle": "none"}
    return Line2D([], [], color=palette.PAPER, **style, **MARK)

"""Figures of one prediction's thinking: energies by token and step, boards by step, images by step.

``scripts/think.py`` draws them from rows; low energies are green in all of them, high ones purple.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.tables import plots
from paper_repro.tables.figure import Axes, Canvas, Figure, Row

if TYPE_CHECKING:
    from matplotlib.cm import ScalarMappable

TOKENS_IN_A_PANEL = 24
MOST_TOKEN_CHARACTERS = 14
MEASURED = {"psnr": "PSNR (dB)", "energy": "energy (no unit)"}


class ThoughtFigure(Figure):
    """A figure of rows that are given, under a title."""

    legend = False

    def __init__(self, rows: Sequence[Row], title: str) -> None:
        self.given, self.headline = list(rows), title

    def rows(self) -> list[Row]:
        return self.given

    def footer(self, rows: Sequence[Row]) -> str:
        """Return nothing: the title names the cell."""
        return ""


class TokenEnergies(ThoughtFigure):
    """A heat map of energies: tokens from left to right, steps from the top down; long texts take several panels.

    Rows have ``place``, ``token``, ``new`` (1 after the end of the prompt, else 0), ``step`` and ``energy``.
    """

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        tokens = {row["place"]: _short(row["token"]) + " ?" * row["new"] for row in rows}
        panels = [list(tokens)[at : at + TOKENS_IN_A_PANEL] for at in range(0, len(tokens), TOKENS_IN_A_PANEL)]
        steps = 1 + max(row["step"] for row in rows)
        height = 1.5 + min(0.22 * steps, 4.0)
        canvas.set_size_inches(max(5.0, 2.2 + 0.36 * len(panels[0])), 0.6 + height * len(panels))
        energies = {(row["place"], row["step"]): row["energy"] for row in rows}
        limits: Any = {"vmin": min(energies.values()), "vmax": max(energies.values())}
        every = canvas.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, places in zip(every, panels, strict=True):
            values = [[energies[place, step] for place in places] for step in range(steps)]
            drawn = axes.imshow(values, cmap=plots.SIGNED, aspect="auto", interpolation="nearest", **limits)
            axes.grid(False)
            axes.set_xlim(-0.5, len(panels[0]) - 0.5)  # a token is as wide in the last panel as in the first
            labels = [tokens[place] for place in places]
            axes.set_xticks(range(len(places)), labels, rotation=60, ha="right", parse_math=False)
            axes.yaxis.get_major_locator().set_params(integer=True)
            axes.set_ylabel("after step")
        every[-1].set_xlabel("token that is predicted; those after the prompt with ?")
        canvas.colorbar(drawn, ax=list(every), label="energy (no unit)")


class BoardEnergies(ThoughtFigure):
    """A board after some of its steps: digits, givens bold, each cell shaded by its energy.

    Rows have ``step``, ``row``, ``column``, ``digit``, ``given`` (0 or 1) and ``energy``.
    """

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        steps = sorted({row["step"] for row in rows})
        across = len(steps) if len(steps) <= 4 else 3
        down = -(-len(steps) // across)
        canvas.set_size_inches(1.2 + 3.0 * across, 0.5 + 3.1 * down)
        panels = canvas.subplots(down, across, squeeze=False).flatten()
        low, high = min(row["energy"] for row in rows), max(row["energy"] for row in rows)
        for axes, step in zip(panels, steps, strict=False):
            drawn = _draw_board(axes, [row for row in rows if row["step"] == step], low, high)
            axes.set_title(f"after step {step}", fontsize=9)
        for axes in panels[len(steps) :]:
            axes.axis("off")
        canvas.colorbar(drawn, ax=list(panels), label="energy of a cell (no unit)")


class ImageStrip(ThoughtFigure):
    """A strip of an image, its noised or masked form, and the image after steps; below, PSNR and energy over steps.

    Rows have ``step``, ``psnr`` and ``energy``.

    Args:
        pictures: of the strip, (S + 2, H, H, C) in [0, 1]: the original, and one for each row.
        rows, title: see ``ThoughtFigure``.
        first: the name of the second picture.
    """

    def __init__(self, pictures: Any, rows: Sequence[Row], title: str, first: str) -> None:
        super().__init__(rows, title)
        self.pictures, self.first = pictures, first

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        names = ["original", self.first, *(f"step {row['step']}" for row in rows[1:])]
        canvas.set_size_inches(max(5.0, 1.3 * len(names)), 4.2)
        upper, lower = canvas.subfigures(2, 1, squeeze=False, height_ratios=[1, 2])[:, 0]
        panels = upper.subplots(1, len(names), squeeze=False)[0]
        for axes, name, picture in zip(panels, names, self.pictures, strict=True):
            axes.imshow(picture, cmap=plots.PICTURE, vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(name, fontsize=8)
            axes.axis("off")
        steps = [row["step"] for row in rows]
        for axes, (name, label) in zip(lower.subplots(1, 2), MEASURED.items(), strict=True):
            axes.plot(steps, [row[name] for row in rows], "o-", color=plots.BLUE, markersize=3)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set(xlabel="after step", ylabel=label)


def _draw_board(axes: Axes, rows: Sequence[Row], low: float, high: float) -> "ScalarMappable":
    cells = {(row["row"], row["column"]): row for row in rows}
    sides = range(1, 10)
    values = [[cells[row, column]["energy"] for column in sides] for row in sides]
    drawn = axes.imshow(values, cmap=plots.SIGNED, vmin=low, vmax=high, extent=(0.5, 9.5, 9.5, 0.5))
    for (row, column), cell in cells.items():
        share = (cell["energy"] - low) / ((high - low) or 1)
        style: Any = {"color": plots.ON_DARK if abs(share - 0.5) > 0.4 else plots.ON_LIGHT}
        style |= {"weight": "bold" if cell["given"] else "normal", "fontsize": 8}
        axes.text(column, row, str(cell["digit"]), ha="center", va="center", **style)
    for border in (3.5, 6.5):
        axes.axhline(border, color=plots.INK, linewidth=0.8)
        axes.axvline(border, color=plots.INK, linewidth=0.8)
    axes.set(xticks=sides, yticks=sides, xlabel="column", ylabel="row")
    axes.tick_params(labelsize=7)
    axes.grid(False)
    return drawn


def _short(token: str) -> str:
    """Return a token as a label: blanks and line ends to be seen, nothing that a font lacks."""
    shown = ascii(token)[1:-1]
    shown = shown if len(shown) <= MOST_TOKEN_CHARACTERS else f"{shown[: MOST_TOKEN_CHARACTERS - 3]}..."
    return f"'{shown}'"

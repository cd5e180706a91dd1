"""Strips of images that probes left beside a record, as rows of a figure."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import palette, ties
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def strip(view: View, name: str, place: Mapping[str, str], seed: int) -> Any:
    """Read the pixels of a cell's strip, (H, B H) or (H, B H, 4), of B images; None where there is none."""
    return _read(view.attachments(name, place).get(seed))


def floor_strip(view: View, floor: str, name: str, seed: int) -> Any:
    """Read the pixels of a strip that a floor's cell left, as ``strip`` does."""
    return _read(view.floor_attachment(floor, name, seed))


def _read(content: bytes | None) -> Any:
    from matplotlib.image import imread

    return None if content is None else imread(io.BytesIO(content), format="png")


def draw_strip(
    axes: "Axes", pixels: Any, label: str, rows: Sequence[Row], shown: Sequence[Row | None], error: str | None = None
) -> None:
    """Draw images side by side.

    Args:
        pixels: (H, B H) or (H, B H, 4), of B images.
        label: what stands before them.
        rows: those of the figure.
        shown: the row of each image; None for one without a row.
        error: the column whose numbers stand under the images; None where none do.
    """
    axes.imshow(pixels, cmap=palette.PICTURE, vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    axes.set_ylabel(label, rotation=0, ha="right", va="center")
    axes.set_yticks([])
    if any(row is not None for row in shown):
        ties.tie(axes, rows, shown)
    count = len(shown)
    side = pixels.shape[1] / count
    errors = [float(row[error]) for row in shown if row is not None] if error else []
    for index in range(1, count):
        axes.axvline(side * index - 0.5, color=palette.GROUND, linewidth=1.5)
    axes.set_xticks([side * (index + 0.5) for index in range(len(errors))], [f"{error:.3f}" for error in errors])
    axes.tick_params(length=0, labelsize=6)
    axes.grid(False)
    axes.spines[:].set_visible(False)

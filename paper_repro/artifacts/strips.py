"""Strips of images that probes left beside a record, as rows of a figure."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import palette
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


def draw_strip(axes: "Axes", pixels: Any, label: str, errors: Sequence[float] = (), count: int = 0) -> None:
    """Draw images side by side, under each its error."""
    axes.imshow(pixels, cmap=palette.PICTURE, vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    axes.set_ylabel(label, rotation=0, ha="right", va="center")
    axes.set_yticks([])
    count = max(count, len(errors), 1)
    side = pixels.shape[1] / count
    for index in range(1, count):
        axes.axvline(side * index - 0.5, color=palette.GROUND, linewidth=1.5)
    axes.set_xticks([side * (index + 0.5) for index in range(len(errors))], [f"{error:.3f}" for error in errors])
    axes.tick_params(length=0, labelsize=6)
    axes.grid(False)
    axes.spines[:].set_visible(False)

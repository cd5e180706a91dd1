"""What figures 2 to 5 share: the relaxations that the probes recorded, as rows and panels."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures, palette
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.strips import draw_strip, strip
from paper_repro.artifacts.views import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas
    from matplotlib.figure import SubFigure

EP = {"method": "ep"}
LINEAR = 1e-4
"""The share of an energy's fall below which its axis is linear, above logarithmic."""
ENERGY_MARKS = "Lines: one image each; dashed: the steps of training, T1."
IMAGE_MARKS = "Rows of pictures: the same images; under each its mean squared error."


@dataclass(frozen=True)
class RecordedRelaxation:
    """One model's relaxation of some images, as ``probes.relaxation_trace`` wrote it."""

    seed: int
    trained: int
    steps: list[int]
    energies: list[list[float]]
    """(steps, images)."""
    shown: list[int]
    errors: list[list[float]]
    """(shown, images)."""
    before: list[float]
    """How far each image's energy falls until T1."""
    after: list[float]
    """And after it."""
    late: list[bool]
    """Whether the image leaves a plateau after T1."""

    def growth(self) -> list[float]:
        """Compute how much each image's error grows after T1."""
        at = self.errors[self.shown.index(self.trained)]
        return [last - then for then, last in zip(at, self.errors[-1], strict=True)]


def traces(view: View, name: str) -> list[RecordedRelaxation]:
    """Read the relaxations of the models that EP trained, by seed."""
    found = sorted(view.attachments(f"{name}.json", EP).items())
    return [RecordedRelaxation(seed, **json.loads(content)) for seed, content in found]


class RelaxationFigure(figures.Figure):
    """Energies (``energies``) and images (``images``) of the first seed that has a trace.

    The images themselves are drawn from the attachments, figure.csv holds their errors.
    """

    legend_title = "image"
    name: str
    energies = False
    images = False

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.traces = traces(view, self.name)

    def rows(self) -> list[Row]:
        return [row for trace in self.traces[:1] for row in self._rows(trace)]

    def _rows(self, trace: RecordedRelaxation) -> Iterator[Row]:
        if self.energies:
            yield from _long(trace, "energy", trace.steps, trace.energies)
        if self.images:
            yield from _long(trace, "error", trace.shown, trace.errors)

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        if not rows:
            return
        kinds = [kind for kind in ("energy", "error") if any(row["quantity"] == kind for row in rows)]
        parts = canvas.subfigures(len(kinds), 1, squeeze=False, height_ratios=[2, 3][: len(kinds)])[:, 0]
        for kind, part in zip(kinds, parts, strict=True):
            own = [row for row in rows if row["quantity"] == kind]
            if kind == "energy":
                draw_energies(part, own, self.traces[0].trained)
            else:
                self._draw_images(part, rows, own)

    def _draw_images(self, canvas: "SubFigure", rows: Sequence[Row], errors: Sequence[Row]) -> None:
        seed, by_step = rows[0]["seed"], _by(errors, "step")
        names = {"original": "images.png", "masked": "masked.png"}
        none: list[Row | None] = [None] * len(next(iter(by_step.values())))
        strips: list[tuple[str, Any, list[Row | None]]] = [
            (label, strip(self.view, name, EP, seed), none) for label, name in names.items()
        ]
        for step, own in by_step.items():
            pixels = strip(self.view, f"{self.name}_{step}.png", EP, seed)
            strips.append((f"T = {step:,}", pixels, [*own]))
        panels = canvas.subplots(len(strips), 1)
        for axes, (label, pixels, shown) in zip(panels, strips, strict=True):
            if pixels is None:
                axes.set_axis_off()
            else:
                draw_strip(axes, pixels, label, rows, shown, "value")


def draw_energies(canvas: "SubFigure", rows: Sequence[Row], trained: int) -> None:
    """Draw left each image's energy, right how far it has come from its value at T1, over its fall until then."""
    from matplotlib import colormaps

    left, right = canvas.subplots(1, 2)
    images = _by(rows, "image")
    for index, (image, own) in enumerate(images.items()):
        steps, values = [row["step"] for row in own], [row["value"] for row in own]
        then = values[steps.index(trained)]
        fall = max(abs(values[0] - then), 1e-300)
        style: Any = {
            "color": colormaps[palette.ORDERED](index / max(len(images) - 1, 1)),
            "linewidth": 0.8,
            "label": image,
        }
        left.plot(steps[1:], values[1:], **style)
        right.plot(steps[1:], [(value - then) / fall for value in values[1:]], **style)
    right.set_yscale("symlog", linthresh=LINEAR)
    for axes in (left, right):
        axes.set(xscale="log", xlabel="steps T")
        axes.axvline(trained, color=palette.RULE, linestyle="--", linewidth=0.8)
    left.set_ylabel("energy (no unit)")
    right.set_ylabel(f"(E(T) - E(T1)) / (E(0) - E(T1)), linear within ±{LINEAR:g}")


def _long(
    trace: RecordedRelaxation, quantity: str, steps: Sequence[int], table: Sequence[Sequence[float]]
) -> Iterator[Row]:
    for step, values in zip(steps, table, strict=True):
        for image, value in enumerate(values, 1):
            yield {"seed": trace.seed, "quantity": quantity, "step": step, "image": image, "value": value}


def _by(rows: Sequence[Row], name: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[name], []).append(row)
    return found

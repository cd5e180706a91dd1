"""Figures 2 to 5: recorded relaxations, and images as they are completed."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paper_repro.tables import figure, plots
from paper_repro.tables.view import View

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

EP = {"method": "ep"}
IMAGES, DRAWN = 16, 8
"""Images of each model that are relaxed, and how many of them are drawn."""
ENERGY_MARKS = "Lines: one image each; dashed: the steps of training, T1."
ROUNDING = 1e-6
"""Below this share of their fall, energies of float32 states fluctuate."""
IMAGE_MARKS = "Columns of pictures: the same images; under each its mean squared error."


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


class RelaxationFigure(figure.Figure):
    """Energies (``energies``) and images (``images``) of the first seed that has a trace."""

    legend = False
    name: str
    energies = False
    images = False

    @cached_property
    def traces(self) -> list[RecordedRelaxation]:
        return traces(self.view, self.name)

    def rows(self) -> list[figure.Row]:
        return [row for trace in self.traces[:1] for row in self._rows(trace)]

    def _rows(self, trace: RecordedRelaxation) -> Iterator[figure.Row]:
        tables = [("energy", trace.steps, trace.energies)] * self.energies
        tables += [("error", trace.shown, trace.errors)] * self.images
        for quantity, steps, table in tables:
            for step, values in zip(steps, table, strict=True):
                for image, value in enumerate(values, 1):
                    yield {"seed": trace.seed, "quantity": quantity, "step": step, "image": image, "value": value}

    def draw(self, canvas: figure.Canvas, rows: Sequence[figure.Row]) -> None:
        if not rows:
            return
        kinds = ["energy"] * self.energies + ["error"] * self.images
        parts = canvas.subfigures(len(kinds), 1, squeeze=False, height_ratios=[1, 2][: len(kinds)])[:, 0]
        for kind, part in zip(kinds, parts, strict=True):
            own = [row for row in rows if row["quantity"] == kind]
            if kind == "energy":
                draw_energies(part, own, self.traces[0].trained)
            else:
                self._draw_images(part, own)

    def _draw_images(self, canvas: "SubFigure", rows: Sequence[figure.Row]) -> None:
        seed = rows[0]["seed"]
        strips: list[Strip] = [
            (label, plots.pixels(self.view.attachments(name, EP).get(seed)), None)
            for label, name in (("original", "images.png"), ("masked", "masked.png"))
        ]
        for step in dict.fromkeys(row["step"] for row in rows):
            errors = [row["value"] for row in rows if row["step"] == step]
            content = self.view.attachments(f"{self.name}_{step}.png", EP).get(seed)
            strips.append((f"T = {step:,}", plots.pixels(content), errors))
        draw_strips(canvas, strips)


Strip = tuple[str, Any, Sequence[float] | None]
"""Label, pixels and errors."""


def draw_strips(canvas: "figure.Canvas | SubFigure", strips: Sequence[Strip]) -> None:
    """Draw the first ``DRAWN`` images of each strip, one strip below the other."""
    for axes, (label, pixels, errors) in zip(canvas.subplots(len(strips), 1), strips, strict=True):
        if pixels is None:
            axes.set_axis_off()
        else:
            plots.draw_strip(axes, pixels[:, : DRAWN * pixels.shape[0]], label, errors[:DRAWN] if errors else None)


def draw_energies(canvas: "SubFigure", rows: Sequence[figure.Row], trained: int) -> None:
    """Draw the energy of each image, and the share of its fall that is still to come."""
    left, right = canvas.subplots(1, 2)
    for image in dict.fromkeys(row["image"] for row in rows):
        steps, values = zip(*((row["step"], row["value"]) for row in rows if row["image"] == image), strict=True)
        style: Any = {"color": plots.BLUE, "linewidth": 0.8, "alpha": 0.6}
        left.plot(steps[1:], values[1:], **style)
        fall = max(values[0] - values[-1], 1e-300)
        right.plot(steps[1:-1], [(value - values[-1]) / fall for value in values[1:-1]], **style)
    right.set_yscale("log", nonpositive="mask")
    right.set_ylim(ROUNDING, 1)
    for axes in (left, right):
        axes.set(xscale="log", xlabel="steps T")
        axes.axvline(trained, color=plots.RULE, linestyle="--", linewidth=0.8)
    left.set_ylabel("energy (no unit)")
    right.set_ylabel("share of the fall to come")

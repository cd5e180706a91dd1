"""CEM, figure 3b: what diagonal the scores of CEM attention have."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts.figures import Row
from paper_repro.papers.cem.text import (
    MARKERS,
    PerplexityFigure,
    chosen,
    dots,
    means,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


class Figure3b(PerplexityFigure):
    """Perplexity with no, a shared and a per-head diagonal, a marker for each size; Llama's are dashed lines."""

    marks = "Faint dots: seeds; marks and the dashed line: means over seeds."

    size = (5.0, 3.6)

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        kinds = [value for value in chosen(self.view, "model") if value != "llama"]
        sizes = chosen(self.view, "size")
        for size, marker in zip(sizes, MARKERS, strict=False):
            ending = f", {self.label('size', size)}" if len(sizes) > 1 else ""
            own = [row for row in rows if row["size"] == size]
            heights = {model: height for (model,), height in means(own, "model").items()}
            if "llama" in heights:
                axes.axhline(
                    heights["llama"], color=self.color("llama"), linestyle="--", linewidth=1, label=f"Llama{ending}"
                )
            points = [(place, heights[kind]) for place, kind in enumerate(kinds) if kind in heights]
            cem = [row for row in own if row["model"] in kinds]
            dots(axes, [kinds.index(row["model"]) for row in cem], cem, self.color(kinds[0]))
            if points:
                places, values = zip(*points, strict=True)
                axes.plot(places, values, marker, color=self.color(kinds[0]), label=f"CEM attention{ending}")
        axes.set_xticks(range(len(kinds)), labels=[self.label("model", kind) for kind in kinds])
        axes.set(xlabel="diagonal in the scores", ylabel=f"{self.split} perplexity")
        axes.margins(x=0.15)

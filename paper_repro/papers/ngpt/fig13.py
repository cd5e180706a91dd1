"""nGPT, figure 13: perplexity of long texts against the length of the windows that they are read in."""

import json
import math
from collections.abc import Sequence

from paper_repro.tables import figure, plots
from paper_repro.tables.figure import BaselineLine, Canvas, Row, baseline_lines

ATTACHMENT = "lengths.json"


class Figure13(figure.Figure):
    size = (5.0, 3.4)

    def baselines(self) -> list[BaselineLine]:
        lines = baseline_lines(self.view, "val_loss")
        return [BaselineLine(f"{line.label}, all validation documents", math.exp(line.value)) for line in lines]

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for model in self.artifact.axes["model"].values:
            for seed, content in sorted(self.view.attachments(ATTACHMENT, {"model": model}).items()):
                for length, perplexity in json.loads(content)["perplexity"].items():
                    number = float(f"{perplexity:.6g}")
                    rows.append({"model": model, "seed": seed, "length": int(length), "perplexity": number})
        return rows

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        plots.models(axes, self.view, rows, "length", "perplexity")
        split = "test" if self.view.plan.scale_name == "paper" else "validation"  # PG19's test books
        axes.set(xscale="log", yscale="log", xlabel="tokens of a window (first: as trained)")
        axes.set_ylabel(f"{split} perplexity")
        plots.log_ticks(axes.yaxis)
        lengths = sorted({row["length"] for row in rows})
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])

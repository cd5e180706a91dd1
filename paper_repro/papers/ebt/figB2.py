"""EBT, figure B.2: energies of predicted frames where a clip goes on, stands still, or is cut."""

from collections.abc import Sequence

from paper_repro.tables import figure, plots, stats

EBT = {"model": "ebt"}
KINDS = {"goes_on": "goes on", "still": "stands still", "cut": "is cut"}
QUANTITIES = {"energy": "energy of the predicted frame,\nless the seed's mean", "loss": "its loss (Smooth L1)"}


class FigureB2(figure.Figure):
    """Energy and loss by frame, the mean over windows; below, the first window of each kind of the first seed.

    The energies of a seed have an offset of their own: their mean over all kinds and frames is taken away.
    """

    size = (8.0, 5.4)
    marks = "Faint dots: seeds; lines: means over seeds; pictures: one clip of each kind, of the first seed."
    legend_title = "a clip that"

    def rows(self) -> list[figure.Row]:
        return [
            {"kind": row["kind"], "seed": seed, "frame": int(row["frame"])}
            | {name: round(float(row[name]), 8) for name in QUANTITIES}
            for seed, table in self.view.tables("frames.csv", EBT).items()
            for row in table
        ]

    def draw(self, canvas: figure.Canvas, rows: Sequence[figure.Row]) -> None:
        if not rows:
            return
        seeds = {row["seed"] for row in rows}
        offset = {seed: stats.mean([row["energy"] for row in rows if row["seed"] == seed]) for seed in seeds}
        upper, lower = canvas.subfigures(2, 1, squeeze=False, height_ratios=[3, 2])[:, 0]
        for axes, (quantity, label) in zip(upper.subplots(1, 2), QUANTITIES.items(), strict=True):
            for (kind, name), color in zip(KINDS.items(), plots.SERIES, strict=False):
                points = [
                    (row["frame"], row[quantity] - (offset[row["seed"]] if quantity == "energy" else 0.0))
                    for row in rows
                    if row["kind"] == kind
                ]
                plots.seeds_and_mean(axes, points, color, name, "--" if kind == "cut" else "-")
            axes.set(xlabel="frame", ylabel=label)
        for axes, (kind, name) in zip(lower.subplots(len(KINDS), 1), KINDS.items(), strict=True):
            pixels = plots.pixels(self.view.attachments(f"{kind}.png", EBT).get(rows[0]["seed"]))
            if pixels is not None:
                plots.draw_strip(axes, pixels, name)

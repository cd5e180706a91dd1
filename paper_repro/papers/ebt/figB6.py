"""EBT, figure B.6: PSNR over forward passes, at the noise of training and at more."""

from collections.abc import Iterator, Sequence

from paper_repro.tables import claims, figure, plots
from paper_repro.tables.figure import BaselineLine, Canvas, Row, panel_lines
from paper_repro.tables.view import View

LEVELS = {"in": "at the noise of training", "out": "at more noise"}
PASSES = 3
"""Passes at more noise, as the paper takes them."""
STYLES = {
    "ebt": ("ebt", "-", "EBT, passes of one step"),
    "dit": ("dit", "-", "DiT, passes through every time"),
    "dit_short": ("dit", ":", "DiT, one pass through some times"),
}


class FigureB6(figure.Figure):
    """PSNR over evaluations of the network, with a panel for each level of noise."""

    size = (10.0, 4.0)

    def rows(self) -> list[Row]:
        found = list(_ways(self.view, "ebt")) + list(_ways(self.view, "dit"))
        return [{**way, "psnr": round(way["psnr"], 6)} for level in LEVELS for way in found if way["level"] == level]

    def baselines(self) -> list[BaselineLine]:
        return panel_lines(self.view, [(f"{level}_psnr", None) for level in LEVELS])

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        for axes, (level, label) in zip(canvas.subplots(1, 2), LEVELS.items(), strict=True):
            for series, (model, style, name) in STYLES.items():
                own = [row for row in rows if (row["level"], row["series"]) == (level, series)]
                points, hollow = [(row["evaluations"], row["psnr"]) for row in own], series == "dit_short"
                plots.seeds_and_mean(axes, points, plots.model("ebt", model), name, style, hollow=hollow)
            axes.set(xlabel="evaluations of the network", ylabel=f"PSNR (dB), {label}")
            if rows:
                axes.set_xscale("log")
                plots.log_ticks(axes.xaxis)


def estimate_more_passes_help_at_more_noise(view: View) -> claims.Estimate:
    """Return EBT's PSNR after three passes less that after one."""
    ways = [way for way in _ways(view, "ebt") if way["level"] == "out"]
    first, last = ({way["seed"]: way["psnr"] for way in ways if way["evaluations"] == n} for n in (1, PASSES))
    return claims.difference(f"PSNR of EBT after {PASSES} passes", "PSNR after one", {"": (last, first)}, unit="dB")


def _ways(view: View, model: str) -> Iterator[Row]:
    """Yield each way in which the finished cells of a model denoise.

    A whole pass of DiT goes through every time of its level, which is the most steps of a pass there.
    """
    for seed, table in view.tables("denoising.csv", {"model": model}).items():
        for row in table:
            longest = max(int(other["steps"]) for other in table if other["level"] == row["level"])
            series = model if int(row["steps"]) == longest else f"{model}_short"
            head = {"level": row["level"], "series": series, "evaluations": int(row["nfe"]), "seed": seed}
            yield {**head, "psnr": float(row["psnr"])}

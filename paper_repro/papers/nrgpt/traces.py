"""What figures 2 and 6 share: the energies that the probe left behind, drawn, and the claims about them judged."""

import csv
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

ATTACHMENT = "energies.csv"
PANELS = {"total": "E", "attention": "E attention", "feed_forward": "E feed-forward"}


class EnergyFigure(figures.Figure):
    """Energy of every token against the recurrence, one panel each for total, attention and feed-forward."""

    size = (11.0, 3.2)

    def rows(self) -> list[Row]:
        """Return the energies of the first seed that has a trace."""
        for key in self.view.points:
            for seed, content in sorted(self.view.attachments(ATTACHMENT, dict(key)).items()):
                found = csv.DictReader(io.StringIO(content.decode()))
                return [
                    {
                        "seed": seed,
                        "step": int(row["step"]),
                        "token": int(row["token"]),
                        **{name: float(row[name]) for name in PANELS},
                    }
                    for row in found
                ]
        return []

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        from matplotlib import colormaps

        panels = canvas.subplots(1, len(PANELS))
        tokens: dict[int, list[Row]] = {}
        for row in rows:
            tokens.setdefault(row["token"], []).append(row)
        colors = colormaps["viridis"]
        for axes, (name, title) in zip(panels, PANELS.items(), strict=True):
            for token, own in tokens.items():
                color = colors(token / max(1, len(tokens) - 1))
                axes.plot([row["step"] for row in own], [row[name] for row in own], color=color, linewidth=0.6)
            axes.set(title=title, xlabel="recurrence")
        panels[0].set_ylabel("energy (no unit)")
        if tokens:
            from matplotlib.cm import ScalarMappable
            from matplotlib.colors import Normalize

            scale = ScalarMappable(Normalize(0, len(tokens) - 1), colors)
            canvas.colorbar(scale, ax=panels, label="token", shrink=0.9)


def judge_each(view: View, metric: str, good: Callable[[float], bool], text: str) -> Judgement:
    """Return whether a number is as claimed in every trained model; ``text`` has a place for the worst of them."""
    found = {
        f"{' '.join(value for _, value in key)} seed {seed}": value
        for key in view.points
        for seed, value in view.samples(metric, dict(key)).items()
    }
    if not found:
        return Judgement(UNDECIDED, "not run")
    bad = [name for name, value in found.items() if not good(value)]
    span = f"{text}: {min(found.values()):.3g} to {max(found.values()):.3g} over {len(found)} models"
    return Judgement(FAILS if bad else HOLDS, span + (f"; not in {', '.join(bad)}" if bad else ""))

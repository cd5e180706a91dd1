"""EBT, figures B.3 and B.5: a heat map of energies by token and step, and how well energies tell foreign texts."""

import json
from collections.abc import Sequence

from paper_repro.papers.ebt.learning import S2, TRANSFORMER
from paper_repro.papers.ebt.thinking import OWN_SETS, PAPER_SETS
from paper_repro.tables import claims, plots
from paper_repro.tables.figure import Canvas, Figure, Row
from paper_repro.tables.view import View

PLACE = {"model": S2}
ATTACHMENT = "token_energies.json"
SETS = (*PAPER_SETS, *OWN_SETS)
SCORES = {
    (S2, "energy"): (True, "EBT, energy"),
    (S2, "entropy"): (False, "EBT, entropy"),
    (TRANSFORMER, "loss"): (True, "Transformer++, loss"),
    (TRANSFORMER, "entropy"): (False, "Transformer++, entropy"),
}
"""By model and what is thresholded: whether its bars are full, and its name."""
MOST_TOKENS = 24


class FigureB3(Figure):
    """Above: energies of two texts by token and step. Below: AUROC of each set, by what is thresholded."""

    size = (10.0, 7.0)
    marks = "Heat maps: one seed; bars: means over seeds, from guessing at 0.5; dots: seeds."

    def rows(self) -> list[Row]:
        return [*_energies(self.view), *_aurocs(self.view)]

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        tokens, areas = ([row for row in rows if row["panel"] == panel] for panel in ("energy", "auroc"))
        texts = list(dict.fromkeys(row["set"] for row in tokens))
        parts = canvas.subplots(len(texts) + 1, 1, squeeze=False, height_ratios=[1.0] * len(texts) + [1.3])[:, 0]
        ends = [end(row["value"] for row in tokens) for end in (min, max)] if tokens else []
        for axes, text in zip(parts, texts, strict=False):
            own = [row for row in tokens if row["set"] == text]
            steps, places = (sorted({row[name] for row in own}) for name in ("step", "place"))
            energies = {(row["step"], row["place"]): row["value"] for row in own}
            names = {row["place"]: row["token"].replace("\n", "\\n").replace("$", r"\$") for row in own}
            values = [[energies[step, place] for place in places] for step in steps]
            image = plots.heat(
                axes, values, [names[place] for place in places], [str(step) for step in steps], "energy"
            )
            image.set_clim(*ends)
            axes.tick_params(axis="x", rotation=60, labelsize=7)
            axes.set_ylabel("steps")
            axes.set_title(f"{text}: energy of the prediction of each token", fontsize=9)
        groups = list(dict.fromkeys(row["set"] for row in areas))
        kinds = []
        for (model, score), (full, label) in SCORES.items():
            own = [row for row in areas if row["series"] == f"{model} {score}"]
            values = [[row["value"] for row in own if row["set"] == group] for group in groups]
            kinds.append((label, self.color(model), full, values))
        plots.bars(parts[-1], groups, kinds, base=0.5)
        parts[-1].set(ylabel="AUROC against validation", ylim=(0, 1.02))


def estimate_ood_energy(view: View) -> claims.Estimate:
    """The AUROC of energies of each set against validation, the mean over sets."""
    found = {name: view.samples(f"{name}_energy_auroc", PLACE) for name in SETS}
    return claims.number("AUROC of energy", {name: values for name, values in found.items() if values})


def _row(panel: str, name: str, series: str, step: int | str, place: int | str, token: str, value: float) -> Row:
    where = {"panel": panel, "set": name, "series": series, "step": step, "place": place, "token": token}
    return {**where, "value": round(value, 8)}


def _energies(view: View) -> list[Row]:
    contents = list(view.attachments(ATTACHMENT, PLACE).values())[:1]
    return [
        _row("energy", text["set"], S2, step, place, token, energy)
        for content in contents
        for text in json.loads(content)["texts"]
        for step, energies in enumerate(text["energies"])
        for place, (token, energy) in enumerate(zip(text["tokens"], energies, strict=True))
        if place < MOST_TOKENS
    ]


def _aurocs(view: View) -> list[Row]:
    return [
        _row("auroc", name, f"{model} {score}", "", seed, "", value)
        for model, score in SCORES
        for name in SETS
        for seed, value in sorted(view.samples(f"{name}_{score}_auroc", {"model": model}).items())
    ]

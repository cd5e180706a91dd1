"""EBT, figures B.3 and B.5: a heat map of energies by token and step, and how well energies tell foreign texts."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures, intervals, palette, ties
from paper_repro.artifacts.claims import FAILS, HOLDS, Judgement, combine, tested
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.shares import from_probit, probit
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.learning import NOT_RUN, S2, TRANSFORMER
from paper_repro.papers.ebt.thinking import OWN_SETS, PAPER_SETS, Seeds, above, difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PLACE = {"model": S2}
ATTACHMENT = "token_energies.json"
SCORES = {
    (S2, "energy"): (True, "EBT, energy"),
    (S2, "entropy"): (False, "EBT, entropy"),
    (TRANSFORMER, "loss"): (True, "Transformer++, loss"),
    (TRANSFORMER, "entropy"): (False, "Transformer++, entropy"),
}
"""What is thresholded: whether its bars are full, and its name."""
MOST_TOKENS = 24


class FigureB3(figures.Figure):
    """Above: energies of two texts by token and step. Below: AUROC of each set, by what is thresholded."""

    size = (10.0, 7.0)
    marks = "Heat maps: one seed; bars: means over seeds, from guessing at 0.5; dots: seeds."

    def rows(self) -> list[Row]:
        return [*_energies(self.view), *_aurocs(self.view)]

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        tokens = [row for row in rows if row["panel"] == "energy"]
        names = list(dict.fromkeys(row["set"] for row in tokens))
        parts = canvas.subplots(len(names) + 1, 1, squeeze=False, height_ratios=[1.0] * len(names) + [1.3])[:, 0]
        values = [row["value"] for row in tokens]
        for axes, name in zip(parts, names, strict=False):
            own = [row for row in tokens if row["set"] == name]
            image = _heat_map(axes, own, min(values), max(values))
            ties.tie(axes, rows, sorted(own, key=lambda row: (row["step"], row["place"])), image.get_array().shape[1])
            axes.set_title(f"{name}: energy of the prediction of each token", fontsize=9)
            canvas.colorbar(image, ax=axes, label="energy", fraction=0.02, pad=0.01)
        _bars(parts[-1], [row for row in rows if row["panel"] == "auroc"])


def judge_energy_is_uncertainty(view: View) -> Judgement:
    """Judge the rank correlation of energies and losses."""
    found = view.samples("energy_rank", PLACE)
    return above(found, what="rank correlation")


def judge_energy_says_more_than_entropy(view: View) -> Judgement:
    """Judge the rank correlation of energies against that of the entropies of the same predictions."""
    found = difference(view.samples("energy_rank", PLACE), view.samples("entropy_rank", PLACE))
    return above(found, what="difference")


def judge_ood_energy(view: View) -> Judgement:
    """Judge the AUROC of every set, by its probits."""
    found = {name: view.samples(f"{name}_energy_auroc", PLACE) for name in (*PAPER_SETS, *OWN_SETS)}
    present = {name: values for name, values in found.items() if values}
    if not present:
        return NOT_RUN
    return combine([(name, _told_apart(values)) for name, values in present.items()], FAILS, HOLDS)


def judge_energy_tells_foreign_texts_better(view: View) -> Judgement:
    """Judge the mean AUROC of energies against that of a Transformer++'s entropies, by their probits."""
    energies, entropies = _mean_auroc(view, S2, "energy"), _mean_auroc(view, TRANSFORMER, "entropy")
    found = difference(*({seed: probit(value) for seed, value in each.items()} for each in (energies, entropies)))
    if not found:
        return NOT_RUN
    sides = [intervals.mean([each[seed] for seed in found]) for each in (energies, entropies)]
    interval = intervals.of(list(found.values()))
    text = f"mean AUROC {sides[0]:.2f} and {sides[1]:.2f}, probits apart by {interval.mean:+.2f}"
    return tested(interval, f"{text} [{interval.low:+.2f}, {interval.high:+.2f}], {interval.count} seeds", 0.0)


def _told_apart(values: Mapping[int, float]) -> Judgement:
    found = intervals.of([probit(value) for value in values.values()])
    mean, low, high = (f"{from_probit(value):.2f}" for value in (found.mean, found.low, found.high))
    return tested(found, f"AUROC {mean} [{low}, {high}], {found.count} seeds", 0.0)


def _mean_auroc(view: View, model: str, score: str) -> Seeds:
    each = [view.samples(f"{name}_{score}_auroc", {"model": model}) for name in (*PAPER_SETS, *OWN_SETS)]
    present = [values for values in each if values]
    seeds = set.intersection(*(set(values) for values in present)) if present else set()
    return {seed: intervals.mean([values[seed] for values in present]) for seed in sorted(seeds)}


def _row(panel: str, name: str, series: str, step: int | str, place: int | str, token: str, value: float) -> Row:
    where = {"panel": panel, "set": name, "series": series, "step": step, "place": place, "token": token}
    return {**where, "value": round(value, 8)}


def _energies(view: View) -> list[Row]:
    found = []
    for content in list(view.attachments(ATTACHMENT, PLACE).values())[:1]:
        for text in json.loads(content)["texts"]:
            for step, energies in enumerate(text["energies"]):
                for place, (token, energy) in enumerate(zip(text["tokens"], energies, strict=True)):
                    if place < MOST_TOKENS:
                        found.append(_row("energy", text["set"], "s2", step, place, token, energy))
    return found


def _aurocs(view: View) -> list[Row]:
    found = []
    for model, score in SCORES:
        for name in (*PAPER_SETS, *OWN_SETS):
            for seed, value in sorted(view.samples(f"{name}_{score}_auroc", {"model": model}).items()):
                found.append(_row("auroc", name, f"{model} {score}", "", seed, "", value))
    return found


def _heat_map(axes: "Axes", rows: Sequence[Row], low: float, high: float) -> Any:
    steps, places = (1 + max(row[name] for row in rows) for name in ("step", "place"))
    grid = [[0.0] * places for _ in range(steps)]
    for row in rows:
        grid[row["step"]][row["place"]] = row["value"]
    image = axes.imshow(grid, aspect="auto", cmap=palette.ORDERED, vmin=low, vmax=high)
    labels = [row["token"].replace("\n", "\\n").replace("$", r"\$") for row in rows if row["step"] == 0]
    axes.set_xticks(range(places), labels, rotation=60, fontsize=7)
    axes.set_yticks(range(steps))
    axes.set_ylabel("steps")
    axes.grid(visible=False)
    return image


def _bars(axes: "Axes", rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(row["set"] for row in rows))
    width = 0.8 / len(SCORES)
    for index, ((model, score), (full, label)) in enumerate(SCORES.items()):
        color = palette.model("ebt", model)
        own = [row for row in rows if row["series"] == f"{model} {score}"]
        for position, name in enumerate(names):
            values = [row["value"] for row in own if row["set"] == name]
            if values:
                x = position + (index - (len(SCORES) - 1) / 2) * width
                mean, named = intervals.mean(values), position == 0
                style: Any = {
                    "color": color if full else palette.GROUND,
                    "edgecolor": color,
                    "hatch": "" if full else "////",
                }
                axes.bar(x, mean - 0.5, 0.9 * width, bottom=0.5, label=label if named else None, **style)
                dot: Any = {"color": palette.GROUND, "markeredgecolor": color, "markersize": 4, "clip_on": False}
                axes.plot([x] * len(values), values, "o", **dot)
    axes.axhline(0.5, color=palette.RULE, linewidth=0.8)
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="AUROC against validation", ylim=(0, 1.02))

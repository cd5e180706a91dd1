"""EBT, Table 5: boards solved by their number of blanks."""

from collections.abc import Mapping, Sequence

from paper_repro.tables import figure, plots

CELLS = 81
BOARDS, BY_GIVENS = "boards", "boards_of_"
RULES = "rules"


class Figure5(figure.Figure):
    """Share of boards solved over the number of blanks: the mean over seeds, and each seed as a point."""

    size = (6.4, 3.8)
    marks = "Faint dots: seeds; marks and lines: means over seeds, by the blanks of a board."

    def rows(self) -> list[figure.Row]:
        rows: list[figure.Row] = []
        for key, point in self.view.points.items():
            names = {name for record in self.view.judged(point).values() for name in record.metrics}
            givens = sorted(int(name.removeprefix(BY_GIVENS)) for name in names if name.startswith(BY_GIVENS))
            for count in reversed(givens):
                rows += _rows(dict(key)["model"], count, self.view.samples(f"{BY_GIVENS}{count}", dict(key)))
        rules = [one for one in self.view.baselines if one.name == RULES]
        for count in sorted({CELLS - row["blanks"] for row in rows}, reverse=True):
            rows += [row for one in rules for row in _rows(RULES, count, one.samples(f"{BY_GIVENS}{count}"))]
        return rows

    def printed(self, rows: Sequence[figure.Row]) -> list[figure.PrintedNumber]:
        unit, found = self.artifact.metrics[BOARDS].unit, []
        for key in self.view.points:
            model = dict(key)["model"]
            if (number := self.artifact.printed(key, BOARDS)) is not None:
                label, color = self.view.label("model", model), self.color(model)
                found.append(figure.PrintedNumber(label, number.mean, unit, color=color))
        return found

    def draw(self, canvas: figure.Canvas, rows: Sequence[figure.Row]) -> None:
        axes = canvas.add_subplot()
        models = {name: value.label for name, value in self.artifact.axes["model"].values.items()}
        for model, label in {**models, RULES: self.artifact.baselines[RULES].label}.items():
            own = [(row["blanks"], row["solved"]) for row in rows if row["model"] == model]
            color = plots.BASELINE if model == RULES else self.color(model)
            plots.seeds_and_mean(axes, own, color, label, ":" if model == RULES else "-")
        axes.set(xlabel="blanks of a test board", ylabel="boards solved (%)", ylim=(-3, 103))


def _rows(model: str, givens: int, shares: Mapping[int, float]) -> list[figure.Row]:
    return [
        {"model": model, "blanks": CELLS - givens, "seed": seed, "solved": round(100 * share, 6)}
        for seed, share in sorted(shares.items())
    ]

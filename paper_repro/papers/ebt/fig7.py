"""EBT, figure 7: perplexity over function evaluations, and the gain of verification over training."""

import math
from collections.abc import Iterator, Sequence

from paper_repro.papers.ebt import thinking
from paper_repro.papers.ebt.learning import S2, TRANSFORMER
from paper_repro.tables import claims, plots, stats
from paper_repro.tables.figure import Axes, BaselineLine, Canvas, Figure, Row, baseline_lines
from paper_repro.tables.table import Table
from paper_repro.tables.view import View

RECURRENT, FULL = "recurrent", "one"
TRAINED_STEPS = 3
"""The most steps of a prediction in training."""
STYLES = {
    "longer": (S2, "--", "EBT, one sample"),
    "best": (S2, "-", "EBT, best of {samples}"),
    "oracle": (S2, ":", "EBT, best of {samples} (bound: next token known)"),
    RECURRENT: (RECURRENT, "-", "Transformer++ trained with passes repeated"),
    TRANSFORMER: (TRANSFORMER, "-", "Transformer++"),
}
"""By series: the model, its line, and its name."""


class Table7(Table):
    """Losses and gains, and the gain over the first step that the paper's number speaks of."""

    def summary(self) -> dict[str, stats.Samples]:
        found = thinking.grids(self.view, _place(S2)).items()
        gains = {seed: thinking.mean_gain(grid, thinking.first(grid), thinking.longest(grid)) for seed, grid in found}
        return {"gain_over_one_step": gains}


class Figure7(Figure):
    """Panel a over evaluations, panel b over training tokens."""

    size = (10.0, 4.0)
    marks = f"{Figure.marks} Right: bars are means over seeds."

    def baselines(self) -> list[BaselineLine]:
        found = list(thinking.grids(self.view, _place(S2)).values())
        names = thinking.foreign(found[0]) if found else []
        each = [baseline_lines(self.view, f"{name}_loss", _place(S2)) for name in names]
        if not each or not all(each):
            return []
        return [BaselineLine(each[0][0].label, math.exp(stats.mean([one.value for one, *_ in each])), 0)]

    def rows(self) -> list[Row]:
        return [*_over_evaluations(self.view), *_over_training(self.view)]

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        left, right = canvas.subplots(1, 2)
        for panel, draw in (("evaluations", self._draw_evaluations), ("training", self._draw_training)):
            if own := [row for row in rows if row["panel"] == panel]:
                draw(left if panel == "evaluations" else right, own)

    def _draw_evaluations(self, axes: Axes, rows: Sequence[Row]) -> None:
        for series, (model, style, name) in STYLES.items():
            if own := [row for row in rows if row["series"] == series]:
                color, label = self.color(model), name.format(samples=own[0]["samples"])
                if series == TRANSFORMER:
                    axes.axhline(stats.mean([row["value"] for row in own]), color=color, label=label)
                    continue
                points = [(row["x"], row["value"]) for row in own]
                plots.seeds_and_mean(axes, points, color, label, style, hollow=series == "longer")
        axes.set(xlabel="function evaluations a token", ylabel="perplexity, other distributions")
        axes.set(xscale="log", yscale="log")
        plots.log_ticks(axes.xaxis)
        plots.log_ticks(axes.yaxis)

    def _draw_training(self, axes: Axes, rows: Sequence[Row]) -> None:
        color, places = self.color(S2), sorted({row["x"] for row in rows})
        kinds = []
        for series in ("longer", "best"):
            own = [row for row in rows if row["series"] == series]
            values = [[row["value"] for row in own if row["x"] == place] for place in places]
            label = STYLES[series][2].format(samples=own[0]["samples"])
            kinds.append((f"{label} (right)", color, series == "best", values))
        plots.bars(axes, [f"{place / 1e6:.3g}M" for place in places], kinds)
        axes.set(xlabel="training tokens", ylabel="perplexity gained over one step (%)")


def estimate_thinking_helps(view: View) -> claims.Estimate:
    """EBT's perplexity after the most steps over that after the most steps of training, one sample."""
    found = thinking.grids(view, _place(S2))
    after = thinking.perplexities(found, thinking.longest)
    before = thinking.perplexities(found, lambda _: (TRAINED_STEPS, 1))
    of = f"perplexity of EBT after {_most_steps(found)} steps"
    return claims.ratio(of, f"after {TRAINED_STEPS}, the most of training", thinking.by_set(after, before))


def estimate_verification_helps(view: View) -> claims.Estimate:
    """EBT's perplexity with the best of all samples over that with one sample, after the longest training."""
    lengths = [value for value in view.artifact.axes["length"].values if view.places(**_place(S2, value))]
    found = thinking.grids(view, _place(S2, lengths[-1]))
    best, one = (thinking.perplexities(found, at) for at in (thinking.verified, thinking.longest))
    sides = thinking.by_set(best, one)
    return claims.ratio("perplexity of EBT with the sample of lowest energy", "with one sample", sides)


def estimate_below_a_transformer(view: View) -> claims.Estimate:
    """EBT's perplexity after the most steps over that of a Transformer++ of as many training steps."""
    found = thinking.grids(view, _place(S2))
    ours = thinking.perplexities(found, thinking.longest)
    losses = {name: view.samples(f"{name}_loss", _place(TRANSFORMER)) for name in ours}
    theirs = {name: {seed: math.exp(loss) for seed, loss in own.items()} for name, own in losses.items()}
    of = f"perplexity of EBT after {_most_steps(found)} steps"
    return claims.ratio(of, "perplexity of Transformer++", thinking.by_set(ours, theirs))


def _place(model: str, length: str = FULL) -> claims.Place:
    return {"model": model, "length": length}


def _most_steps(found: dict[int, thinking.Grid]) -> int:
    return max((thinking.longest(grid)[0] for grid in found.values()), default=0)


def _mean_perplexity(grid: thinking.Grid, steps: int, samples: int, oracle: bool = False) -> float:
    """Return the geometric mean of the perplexities of all sets but validation."""
    found = [grid[thinking.At(name, steps, samples)] for name in thinking.foreign(grid)]
    return math.exp(stats.mean([(one.oracle or 0.0) if oracle else one.loss for one in found]))


def _row(panel: str, series: str, samples: int, x: float, seed: int, value: float) -> Row:
    return {"panel": panel, "series": series, "samples": samples, "x": x, "seed": seed, "value": round(value, 8)}


def _over_evaluations(view: View) -> Iterator[Row]:
    found = thinking.grids(view, _place(S2))
    for seed, grid in found.items():
        _, last = thinking.verified(grid)
        for steps in sorted({at.steps for at in grid}):
            for series, samples in (("longer", 1), ("best", last), ("oracle", last)):
                value = _mean_perplexity(grid, steps, samples, oracle=series == "oracle")
                yield _row("evaluations", series, samples, thinking.evaluations(steps, samples), seed, value)
    for seed, grid in thinking.grids(view, _place(RECURRENT)).items():
        for passes in sorted({at.steps for at in grid}):
            yield _row("evaluations", RECURRENT, 1, passes, seed, _mean_perplexity(grid, passes, 1))
    names = thinking.foreign(next(iter(found.values()))) if found else []
    each = [view.samples(f"{name}_loss", _place(TRANSFORMER)) for name in names]
    for seed in sorted(set.intersection(*map(set, each))) if each else ():
        value = math.exp(stats.mean([values[seed] for values in each]))
        yield _row("evaluations", TRANSFORMER, 1, 1, seed, value)


def _over_training(view: View) -> Iterator[Row]:
    kinds: tuple[tuple[str, thinking.Chosen], ...] = (("longer", thinking.longest), ("best", thinking.verified))
    for length in view.artifact.axes["length"].values:
        for seed, grid in thinking.grids(view, _place(S2, length)).items():
            tokens = thinking.trained_tokens(view, _place(S2, length))
            for series, at in kinds:
                gain = thinking.mean_gain(grid, thinking.first(grid), at(grid))
                yield _row("training", series, at(grid)[1], tokens, seed, gain)

"""EBT, figure 7: perplexity over function evaluations, and what verification gains over training."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, intervals, palette
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.floor_marks import FloorLine, floor_lines
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.learning import MARKS, NOT_RUN, S2, TRANSFORMER
from paper_repro.papers.ebt.thinking import (
    At,
    Grid,
    Seeds,
    above,
    difference,
    evaluations,
    fewest,
    foreign,
    grids,
    mean_gain,
    most,
    over_grids,
    trained_tokens,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Chosen = Callable[[Grid], tuple[int, int]]
"""Steps and samples of a grid."""
RECURRENT, FULL = "recurrent", "one"
TRAINED_STEPS, TRAINED_PASSES = 3, 3
STYLES = {
    "longer": (S2, "--", "EBT, one sample"),
    "best": (S2, "-", "EBT, best of {samples}"),
    "oracle": (S2, ":", "EBT, best of {samples} (bound: next token known)"),
    RECURRENT: (RECURRENT, "-", "Transformer++ trained with passes repeated"),
    TRANSFORMER: (TRANSFORMER, "-", "Transformer++"),
}
"""By series: the model, its line, and its name."""


class Figure7(figures.Figure):
    """Panel a over evaluations, panel b over training tokens."""

    size = (10.0, 4.0)
    marks = (
        f"{MARKS} Right: where one sample and the best of several gain the same, discs lie in rings and the solid line "
        "on the dashed one."
    )

    def floors(self) -> list[FloorLine]:
        """Return the bigram count's perplexity, as that of the models, in the left panel."""
        found = grids(self.view, _place(S2))
        names = foreign(next(iter(found.values()))) if found else []
        each = [floor_lines(self.view, f"{name}_loss", _place(S2)) for name in names]
        if not names or not all(each):
            return []
        return [FloorLine(each[0][0].label, math.exp(intervals.mean([one.value for one, *_ in each])), 0)]

    def rows(self) -> list[Row]:
        return [*_over_evaluations(self.view), *_over_training(self.view)]

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        left, right = canvas.subplots(1, 2)
        own = {panel: [row for row in rows if row["panel"] == panel] for panel in ("evaluations", "training")}
        for series, (model, style, label) in STYLES.items():
            color = palette.model(self.artifact.id, model)
            line = [row for row in own["evaluations"] if row["series"] == series]
            text = label.format(samples=line[0]["samples"]) if line else ""
            if series == TRANSFORMER and line:
                left.axhline(intervals.mean([row["value"] for row in line]), color=color, linestyle=style, label=text)
            elif line:
                _line(left, line, color, style, text, series == "longer")
        left.set(xlabel="function evaluations a token", ylabel="perplexity, other distributions", yscale="log")
        for series in ("longer", "best"):
            line = [row for row in own["training"] if row["series"] == series]
            if line:
                model, style, label = STYLES[series]
                text = label.format(samples=line[0]["samples"])
                _line(right, line, palette.model(self.artifact.id, model), style, text, series == "longer")
                right.lines[-1].set_markersize(8 if series == "longer" else 3.5)  # one may lie on the other
        figures.zero_line(right)
        right.set(xlabel="training tokens", ylabel="perplexity gained over one step (%)")
        for axes, found in zip((left, right), own.values(), strict=True):
            if found:
                axes.set_xscale("log")
                figures.log_ticks(axes.xaxis)
        if own["evaluations"]:
            figures.log_ticks(left.yaxis)


def judge_thinking_helps(view: View) -> Judgement:
    """Judge the mean gain of the most steps over the fewest, one sample."""
    return _not_run(view) or above(_gains(view, lambda grid: (fewest(grid), 1), _longest), what="gain", unit=" %")


def judge_thinking_helps_beyond_training(view: View) -> Judgement:
    """Judge the mean gain of the most steps over the most of training."""
    if (reason := _not_run(view) or _not_measured(view, S2, TRAINED_STEPS)) is not None:
        return reason
    found = _gains(view, lambda _: (TRAINED_STEPS, 1), _longest)
    return above(found, what="gain", unit=" %")


def judge_verification_helps(view: View) -> Judgement:
    """Judge what the best of all samples gains over one, and whether it is more than after the shortest training."""
    if (reason := _not_run(view)) is not None:
        return reason
    parts = [
        ("after the longest training", guarded(view, _verified)),
        ("more than after the shortest", guarded(view, _verified_more)),
    ]
    return combine(parts, FAILS, HOLDS)


def _verified(view: View) -> Judgement:
    return above(_gains(view, _longest, _all_samples, _lengths(view)[-1]), what="gain", unit=" %")


def _verified_more(view: View) -> Judgement:
    shortest, *_ = lengths = _lengths(view)
    last, first = (_gains(view, _longest, _all_samples, length) for length in (lengths[-1], shortest))
    return above(difference(last, first), what="gain more by", unit=" points")


def _lengths(view: View) -> list[str]:
    """Return the lengths of training that the scale runs, the shortest first."""
    return [value for value in view.artifact.axes["length"].values if view.covers(_place(S2, value))]


def judge_below_a_recurrent_transformer(view: View) -> Judgement:
    """Judge EBT's lowest perplexity within the recurrent model's evaluations in training against that model's."""
    if (reason := _not_run(view, RECURRENT) or _not_measured(view, RECURRENT, TRAINED_PASSES)) is not None:
        return reason
    own, other = (grids(view, _place(model)) for model in (S2, RECURRENT))
    passed = over_grids(other, lambda grid: _log_perplexity(grid, TRAINED_PASSES, 1))
    thought = over_grids(
        own,
        lambda grid: min(
            _log_perplexity(grid, at.steps, at.samples)
            for at in grid
            if evaluations(at.steps, at.samples) <= TRAINED_PASSES
        ),
    )
    found = {seed: 100 * (1 - math.exp(value)) for seed, value in difference(thought, passed).items()}
    return above(found, what="perplexity lower by", unit=" %")


def judge_passing_again_does_not_help(view: View) -> Judgement:
    """Judge whether passing the blocks as often as the most steps raises the recurrent model's perplexity."""
    if (reason := _not_measured(view, RECURRENT, TRAINED_PASSES)) is not None:
        return reason
    found = _gains(view, lambda _: (TRAINED_PASSES, 1), _longest, model=RECURRENT)
    return above({seed: -value for seed, value in found.items()}, what="loss", unit=" %")


def _not_run(view: View, *others: str) -> Judgement | None:
    if not all(grids(view, _place(model)) for model in (S2, *others)):
        return NOT_RUN if view.points else Judgement(UNDECIDED, "the scale has no such cells")
    return None


def _not_measured(view: View, model: str, steps: int) -> Judgement | None:
    """Say that the probe looked at other numbers of steps, as a user's override or a scale may have it."""
    found = grids(view, _place(model)).values()
    if all(any(at.steps == steps for at in grid) for grid in found):
        return None
    return Judgement(UNDECIDED, f"{view.artifact.axes['model'].values[model].label} has no losses after {steps} steps")


def _place(model: str, length: str = FULL) -> dict[str, str]:
    return {"model": model, "length": length}


def _longest(grid: Grid) -> tuple[int, int]:
    return most(grid).steps, 1


def _all_samples(grid: Grid) -> tuple[int, int]:
    return most(grid).steps, most(grid).samples


def _gains(view: View, before: Chosen, after: Chosen, length: str = FULL, model: str = S2) -> Seeds:
    return over_grids(grids(view, _place(model, length)), lambda grid: mean_gain(grid, before(grid), after(grid)))


def _log_perplexity(grid: Grid, steps: int, samples: int, oracle: bool = False) -> float:
    """Return the mean of the losses over all sets but validation."""
    found = [grid[At(name, steps, samples)] for name in foreign(grid)]
    return intervals.mean([(one.oracle or 0.0) if oracle else one.loss for one in found])


def _row(panel: str, series: str, samples: int, x: float, seed: int | str, value: float) -> Row:
    return {"panel": panel, "series": series, "samples": samples, "x": x, "seed": seed, "value": round(value, 8)}


def _over_evaluations(view: View) -> Iterator[Row]:
    found = grids(view, _place(S2))
    for seed, grid in found.items():
        last = most(grid).samples
        for steps in sorted({at.steps for at in grid}):
            for series, samples in (("longer", 1), ("best", last), ("oracle", last)):
                value = math.exp(_log_perplexity(grid, steps, samples, oracle=series == "oracle"))
                yield _row("evaluations", series, samples, evaluations(steps, samples), seed, value)
    for seed, grid in grids(view, _place(RECURRENT)).items():
        for passes in sorted({at.steps for at in grid}):
            value = math.exp(_log_perplexity(grid, passes, 1))
            yield _row("evaluations", RECURRENT, 1, passes, seed, value)
    names = foreign(next(iter(found.values()))) if found else []
    if names:
        each = [view.samples(f"{name}_loss", _place(TRANSFORMER)) for name in names]
        for seed in sorted(set.intersection(*(set(values) for values in each))):
            value = math.exp(intervals.mean([values[seed] for values in each]))
            yield _row("evaluations", TRANSFORMER, 1, 1, seed, value)


def _over_training(view: View) -> Iterator[Row]:
    for length in view.artifact.axes["length"].values:
        for seed, grid in grids(view, _place(S2, length)).items():
            tokens, last = trained_tokens(view, _place(S2, length)), most(grid)
            for series, samples in (("longer", 1), ("best", last.samples)):
                value = mean_gain(grid, (fewest(grid), 1), (last.steps, samples))
                yield _row("training", series, samples, tokens, seed, value)


def _line(axes: "Axes", rows: Sequence[Row], color: str, style: str, label: str, hollow: bool) -> None:
    figures.seeds_and_mean(axes, [(row["x"], row["value"]) for row in rows], color, label, style, hollow=hollow)

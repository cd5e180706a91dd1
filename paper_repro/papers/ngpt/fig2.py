"""nGPT, figure 2: final losses against token budgets, and the speedups read off them."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, intervals, palette, tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, tested
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.floor_marks import FloorLine, floor_lines
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.judgements import negate
from paper_repro.artifacts.printed_numbers import PrintedNumber
from paper_repro.artifacts.views import View
from paper_repro.metrics.speedup import Bound, Speedup, tokens_to_same_loss, tune
from paper_repro.papers.ngpt.runs import LOSS, chosen, context_of, note_best, runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

SIZE = "small"
"""The size whose speedup is printed; the paper gives one number for both."""
CANDIDATE = "ngpt"


class Figure2(figures.Figure):
    """One panel a context: every run as a dot, a line through the best mean over seeds of each budget."""

    size = (9.0, 3.6)
    marks = "Faint dots: all runs; lines: the best mean over seeds of each budget."
    printed_words = "Diamonds: where nGPT would reach the loss of GPT's longest run by the paper's speedup."

    def floors(self) -> list[FloorLine]:
        """Return each context's floor in its panel: windows of another length are other data."""
        contexts = [context for context in chosen(self.view, "context") if any(runs(self.view, context=context))]
        each = (floor_lines(self.view, LOSS, {"context": name}, panel) for panel, name in enumerate(contexts))
        return list(itertools.chain.from_iterable(each))

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for context in chosen(self.view, "context"):
            for size in chosen(self.view, "size"):
                for model in chosen(self.view, "model"):
                    own = list(runs(self.view, context=context, size=size, model=model))
                    window = int(self.view.counted("window", own[0].place) or 0) if own else 0
                    place = {"context": context, "window": window, "size": size, "model": model}
                    found += [_row("run", place, run.tokens, run.rate, run.seed, run.loss) for run in own]
                    for best in tune([run.finished for run in own]) if own else ():
                        found.append(_row("best", place, best.tokens, best.learning_rate, "mean", best.loss))
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        contexts = list(dict.fromkeys(row["context"] for row in rows)) or chosen(self.view, "context")
        panels = canvas.subplots(1, len(contexts), squeeze=False)[0]
        for axes, context in zip(panels, contexts, strict=True):
            own = [row for row in rows if row["context"] == context]
            for size, style in zip(chosen(self.view, "size"), ("-", "--"), strict=False):
                for model in chosen(self.view, "model"):
                    line = [row for row in own if (row["size"], row["model"]) == (size, model)]
                    _curve(axes, line, palette.model(self.artifact.id, model), style, self._label(model, size))
            axes.set(xscale="log", xlabel="training tokens", title=context_of(self.view, context))
            figures.log_ticks(axes.xaxis)
        panels[0].set_ylabel("final validation loss (nats per token)")

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        """Return, for each context, GPT's longest run and the tokens at which nGPT would have its loss: a ratio of
        tokens, which has no scale.
        """
        found = []
        for panel, context in enumerate(dict.fromkeys(row["context"] for row in rows)):
            word = f"speedup_{context.removeprefix('c')}"
            speedup = self.artifact.summary[word].published if word in self.artifact.summary else None
            best = [row for row in rows if (row["kind"], row["context"], row["size"]) == ("best", context, SIZE)]
            longest = max((row for row in best if row["model"] == "gpt"), key=lambda row: row["tokens"], default=None)
            if speedup is None or longest is None:
                continue
            label, color = f"speedup {speedup:g}", palette.model(self.artifact.id, CANDIDATE)
            for tokens in (longest["tokens"] / speedup, longest["tokens"]):
                found.append(PrintedNumber(label, longest[LOSS], "ratio of tokens", panel, tokens, color=color))
        return found

    def _label(self, model: str, size: str) -> str:
        label = self.artifact.axes["model"].values[model].label
        several = len(chosen(self.view, "size")) > 1
        return f"{label}, {self.artifact.axes['size'].values[size].label}" if several else label


class Speedups(tables.Table):
    """The runs; the speedups stand in the summary, every budget's with its interval in the remarks."""

    @cached_property
    def _headlines(self) -> dict[str, Speedup]:
        """The speedup behind each number of the summary."""
        found = {}
        for context in chosen(self.view, "context"):
            word = context.removeprefix("c")
            for name, baseline in (("speedup", "gpt"), ("speedup_qk", "gpt_qk")):
                if (speedup := headline(speedups(self.view, context, baseline))) is not None:
                    found[f"{name}_{word}"] = speedup
            times = step_time_ratio(self.view, context)
            if times is not None and f"speedup_{word}" in found:
                found[f"time_speedup_{word}"] = found[f"speedup_{word}"].step_time_corrected(times)
        return {name: speedup for name, speedup in found.items() if name in self.artifact.summary}

    def summary(self) -> dict[str, float]:
        return {name: speedup.ratio for name, speedup in self._headlines.items()}

    def signs(self) -> dict[str, str]:
        return {name: f"{speedup.bound} " for name, speedup in self._headlines.items() if speedup.bound != "="}

    def remarks(self) -> list[str]:
        found = []
        for context in chosen(self.view, "context"):
            label = context_of(self.view, context)
            for baseline in chosen(self.view, "model"):
                if baseline == CANDIDATE:
                    continue
                name = self.artifact.axes["model"].values[baseline].label
                texts = [f"{one.candidate.tokens:,.0f} tokens: {one}" for one in speedups(self.view, context, baseline)]
                if texts:
                    found.append(f"nGPT over {name}, {label}, by nGPT's budget (95 % interval): {'; '.join(texts)}.")
            if (times := step_time_ratio(self.view, context)) is not None:
                found.append(
                    f"A training step of nGPT took {times:.2f} of GPT's, {label} (median over pairs of equal "
                    "budget and seed, beside other work: ngpt/steptime measures it alone)."
                )
        return found


def speedups(view: View, context: str, baseline: str, candidate: str = CANDIDATE) -> tuple[Speedup, ...]:
    """Return the candidate's speedup at each of its budgets; none where runs are missing."""
    ours = [run.finished for run in runs(view, context=context, model=candidate, size=SIZE)]
    others = [run.finished for run in runs(view, context=context, model=baseline, size=SIZE)]
    return tokens_to_same_loss(others, ours) if ours and others else ()


def headline(found: Sequence[Speedup]) -> Speedup | None:
    """Return the largest budget's that the baseline's range holds; without one, the bound at the smallest budget."""
    inside = [speedup for speedup in found if speedup.bound == "="]
    return (inside[-1] if inside else found[0]) if found else None


def step_time_ratio(view: View, context: str) -> float | None:
    """Return nGPT's seconds per token over GPT's: the median over pairs of equal budget and seed."""
    times = {
        model: {
            (run.tokens, run.seed): run.seconds
            for run in runs(view, context=context, model=model, size=SIZE)
            if run.seconds > 0
        }
        for model in ("gpt", "ngpt")
    }
    common = times["gpt"].keys() & times["ngpt"].keys()
    return statistics.median(times["ngpt"][key] / times["gpt"][key] for key in common) if common else None


def above_one(view: View, baseline: str, candidate: str = CANDIDATE) -> Judgement:
    """Return every budget's interval above 1, at 1k context.

    Where the candidate's loss lies beyond all losses of the baseline, a bound may say nothing of a speedup near 1.  At
    equal tokens the speedup is above 1 if and only if the loss is below the baseline's: that is judged.
    """
    parts = []
    for speedup in speedups(view.unwatched(), "c1k", baseline, candidate):
        if speedup.bound == "=":
            found = _above_zero(speedup.by_seed, str(speedup))
        else:
            found = _lower(view.unwatched(), "c1k", speedup, baseline, candidate)
        tokens = f"{speedup.candidate.tokens:,.0f} tokens"
        parts.append((tokens, _of_both(view, found, baseline, candidate, (speedup, "c1k"))))
    return combine(parts, FAILS, HOLDS) if parts else Judgement(UNDECIDED, "not run")


def _lower(view: View, context: str, speedup: Speedup, baseline: str, candidate: str = CANDIDATE) -> Judgement:
    """Judge whether the candidate's loss at its budget is below the baseline's at the same one, both at their best
    rates.
    """
    found = []
    for model in (candidate, baseline):
        rates: dict[float, dict[int, float]] = {}
        for run in runs(view, context=context, model=model, size=SIZE):
            if run.tokens == speedup.candidate.tokens:
                rates.setdefault(run.rate, {})[run.seed] = run.loss
        if not rates:
            return Judgement(UNDECIDED, str(speedup))
        found.append(min(rates.values(), key=lambda losses: statistics.fmean(losses.values())))
    interval = intervals.compare(*found)
    text = f"{speedup}; loss less the other's {interval.mean:.4f} [{interval.low:.4f}, {interval.high:.4f}]"
    return tested(interval, text, high=0.0)


def judge_speedup_1k(view: View) -> Judgement:
    """Judge the speedup over GPT."""
    return above_one(view, "gpt")


def judge_speedup_beyond_qk_norm(view: View) -> Judgement:
    """Judge the speedup over GPT with QK norm."""
    return above_one(view, "gpt_qk")


def judge_speedup_grows_with_context(view: View) -> Judgement:
    """Judge whether, at each budget, a longer context has a higher speedup than the next shorter one, seed by seed."""
    contexts = chosen(view, "context")
    plain, parts = view.unwatched(), []
    for shorter, longer in itertools.pairwise(contexts):
        below = {one.candidate.tokens: one for one in speedups(plain, shorter, "gpt")}
        for above in speedups(plain, longer, "gpt"):
            if (other := below.get(above.candidate.tokens)) is not None:
                labels = [context_of(view, name) for name in (longer, shorter)]
                name = f"{labels[0]} above {labels[1]}, {above.candidate.tokens:,.0f} tokens"
                found = _of_both(view, _apart(above, other), "gpt", CANDIDATE, (above, longer), (other, shorter))
                parts.append((name, found))
    return combine(parts, FAILS, HOLDS) if parts else Judgement(UNDECIDED, "one context, or not run")


def judge_speedup_grows_with_budget(view: View) -> Judgement:
    """Judge whether, in each context, the speedup is higher at nGPT's longest budget than at its shortest, seed by
    seed.
    """
    parts = []
    for context in chosen(view, "context"):
        found = speedups(view.unwatched(), context, "gpt")
        if len(found) > 1:
            last, first = found[-1], found[0]
            apart = _apart(last, first)
            if apart.verdict == UNDECIDED and (first.bound, last.bound) == ("<", ">"):
                crossed = _crossed(view.unwatched(), context, first, last)
                apart = crossed if crossed.verdict == HOLDS else apart
            judged = _of_both(view, apart, "gpt", CANDIDATE, (last, context), (first, context))
            parts.append((context_of(view, context), judged))
    return combine(parts, FAILS, HOLDS) if parts else Judgement(UNDECIDED, "not run")


def _crossed(view: View, context: str, first: Speedup, last: Speedup) -> Judgement:
    """Judge whether the speedup is below 1 at the first budget and above 1 at the last, by losses at equal tokens."""
    below, above = (_lower(view, context, speedup, "gpt") for speedup in (first, last))
    return combine([("at the shortest budget below 1", negate(below)), ("at the longest above 1", above)], FAILS, HOLDS)


def _of_both(view: View, found: Judgement, baseline: str, candidate: str, *speedups: tuple[Speedup, str]) -> Judgement:
    """Return the judgement on speedups, each with its context, where the losses of both models are below the floor.

    A speedup compares the candidate with the two budgets of the baseline whose losses are next to its own, or with one
    where it lies beyond them all, and then perhaps with that of as many tokens.
    """

    def judge(view: View) -> Judgement:
        for speedup, context in speedups:
            note_best(view, speedup.candidate.tokens, context=context, model=candidate, size=SIZE)
            for tokens in _compared_with(view, speedup, context, baseline):
                note_best(view, tokens, context=context, model=baseline, size=SIZE)
        return found

    judged: Judgement = guarded(view, judge)
    return judged


def _compared_with(view: View, speedup: Speedup, context: str, baseline: str) -> set[float]:
    """Return the budgets of the baseline that a speedup is read off."""
    own = tune([run.finished for run in runs(view.unwatched(), context=context, model=baseline, size=SIZE)])
    point = speedup.candidate
    worse = min((one for one in own if one.loss >= point.loss), key=lambda one: one.loss, default=None)
    better = max((one for one in own if one.loss <= point.loss), key=lambda one: one.loss, default=None)
    found = {one.tokens for one in (worse, better) if one is not None}
    return found if len(found) == 2 else found | {one.tokens for one in own if one.tokens == point.tokens}


def _apart(larger: Speedup, smaller: Speedup) -> Judgement:
    """Judge whether one speedup is above another, by the seeds' log ratios of both."""
    turned: dict[Bound, Bound] = {"=": "=", ">": "<", "<": ">"}
    logs: dict[int, tuple[float, Bound]] = {}
    for seed in larger.by_seed.keys() & smaller.by_seed.keys():
        (above, one), (below, other) = larger.by_seed[seed], smaller.by_seed[seed]
        sides = {one, turned[other]} - {"="}
        if len(sides) > 1:
            return Judgement(UNDECIDED, f"{larger} against {smaller}: bounds on both sides")
        logs[seed] = (above - below, next(iter(sides), "="))
    return _above_zero(logs, f"{larger} against {smaller}")


def _above_zero(logs: Mapping[int, tuple[float, Bound]], text: str) -> Judgement:
    """Judge whether the mean of logarithms, of which some may be bounds, is above 0."""
    interval = intervals.of([value for value, _ in logs.values()]) if logs else None
    sides = {bound for _, bound in logs.values()} - {"="}
    if interval is None or interval.count < 2:
        return Judgement(UNDECIDED, f"{text}: one seed")
    if len(sides) > 1:
        return Judgement(UNDECIDED, f"{text}: bounds on both sides")
    for side in sides:
        interval = interval.opened(side)
    return tested(interval, text, 0.0, relative=True)


def _row(kind: str, place: Mapping[str, object], tokens: float, rate: float, seed: int | str, loss: float) -> Row:
    return {"kind": kind, **place, "tokens": int(tokens), "rate": rate, "seed": seed, LOSS: round(loss, 8)}


def _curve(axes: "Axes", rows: Sequence[Row], color: str, style: str, label: str) -> None:
    dots = [row for row in rows if row["kind"] == "run"]
    best = sorted((row["tokens"], row[LOSS]) for row in rows if row["kind"] == "best")
    if dots:
        axes.scatter([row["tokens"] for row in dots], [row[LOSS] for row in dots], s=8, color=color, alpha=0.3)
    if best:
        axes.plot(*zip(*best, strict=True), style, color=color, marker="o", markersize=3, linewidth=1.2, label=label)

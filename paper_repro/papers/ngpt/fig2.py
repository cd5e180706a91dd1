"""nGPT, figure 2: final losses against token budgets, and the speedups read off them."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from paper_repro.metrics.speedup import Bound, FinishedRun, Speedup, tokens_to_same_loss, tune
from paper_repro.papers.ngpt.runs import best_runs, context_of, judged_by, named, runs
from paper_repro.tables import claims, figure, plots, stats, table
from paper_repro.tables.figure import Axes, BaselineLine, Canvas, PrintedNumber, Row, panel_lines
from paper_repro.tables.view import View

SIZE = "small"
"""The size whose speedup is printed; the paper gives one number for both."""
CANDIDATE, SHORT = "ngpt", "c1k"
NGPT = plots.model("ngpt", CANDIDATE)
TURNED: dict[Bound, Bound] = {"=": "=", ">": "<", "<": ">"}
SIGNS: dict[Bound, str] = {"=": "", ">": "> ", "<": "< "}
MARKS: dict[Bound, str] = {"=": "o", ">": "^", "<": "v"}
End = tuple[str, float]
"""A model and its token budget."""


@dataclass(frozen=True)
class Part:
    """The logarithm of a speedup, or of the ratio of two, by seed."""

    logs: Mapping[int, float]
    sides: frozenset[Bound]
    """The bounds among the seeds."""
    items: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """What groups of test items add to the logarithm; none where records lack their losses."""

    def over(self, other: "Part") -> "Part":
        logs = {seed: self.logs[seed] - other.logs[seed] for seed in self.logs.keys() & other.logs.keys()}
        shared = self.items.keys() & other.items.keys()
        items = {seed: [a - b for a, b in zip(self.items[seed], other.items[seed], strict=True)] for seed in shared}
        return Part(logs, self.sides | {TURNED[side] for side in other.sides}, items)


def speedups(view: View, context: str, baseline: str) -> tuple[Speedup, ...]:
    """Return the speedup at each budget of nGPT; none where runs are missing."""
    plain = view.unwatched()
    ours = [run.finished for run in best_runs(plain, context=context, model=CANDIDATE, size=SIZE)]
    others = [run.finished for run in best_runs(plain, context=context, model=baseline, size=SIZE)]
    return tokens_to_same_loss(others, ours) if ours and others else ()


def parts(view: View, context: str, baseline: str) -> dict[str, Part]:
    """Return the speedups of nGPT by its budget; both models are read at the best rate of each budget."""
    runs = [run for name in (baseline, CANDIDATE) for run in best_runs(view, context=context, size=SIZE, model=name)]
    ends = {(run.place["model"], run.tokens): run.place for run in runs}
    for place in ends.values():
        view.samples(judged_by(view), place)
    losses, found = claims.losses_by_seed(view.unwatched(), ends), {}
    for one in speedups(view, context, baseline):
        sides = frozenset(bound for _, bound in one.by_seed.values() if bound != "=")
        logs = {seed: value for seed, (value, _) in one.by_seed.items()}
        tokens, items = one.candidate.tokens, {}
        for seed in losses.keys() & logs:
            read = {end: own for end, own in losses[seed].items() if end[0] == baseline or end[1] == tokens}
            items[seed] = stats.jackknife(_log_speedup, read)
        found[f"{tokens:,.0f} tokens"] = Part(logs, sides, items)
    return found


def _log_speedup(losses: Mapping[End, float]) -> float:
    """Return the logarithm of the speedup of one seed, from the losses at the end of each budget."""
    sides: tuple[list[FinishedRun], list[FinishedRun]] = [], []
    for (model, tokens), loss in losses.items():
        sides[model == CANDIDATE].append(FinishedRun(tokens, loss, 0.0, 0))
    return math.log(tokens_to_same_loss(*sides)[0].ratio)


def pooled(of: str, found: Mapping[str, Part]) -> claims.Estimate:
    """Return the geometric mean over the parts inside the baseline's range, or over the bounds where there are none."""
    clear = {label: part for label, part in found.items() if part.logs and len(part.sides) < 2}
    used = {label: part for label, part in clear.items() if not part.sides} or clear
    sides = set().union(*(part.sides for part in used.values()))
    if len(sides) > 1 or not used:
        return claims.nothing("bounds on both sides" if found else "not run")
    samples = {label: {seed: math.exp(log) for seed, log in part.logs.items()} for label, part in used.items()}
    items = {label: part.items for label, part in used.items()}
    return claims.number(of, samples, geometric=True, bound=next(iter(sides), "="), items=items)


def speedup(view: View, context: str, baseline: str) -> claims.Estimate:
    """Return tokens of the baseline over tokens of nGPT at equal loss, over the budgets of nGPT."""
    label = view.label("model", baseline)
    return pooled(f"tokens of {label} / tokens of nGPT at equal loss", parts(view, context, baseline))


estimate_speedup_1k = partial(speedup, context=SHORT, baseline="gpt")
estimate_speedup_beyond_qk_norm = partial(speedup, context=SHORT, baseline="gpt_qk")
estimate_speedup_remains = partial(speedup, context=SHORT, baseline="gpt_scaled")


def estimate_speedup_grows_with_context(view: View) -> claims.Estimate:
    """Return the speedup in a context over that in the next shorter one, at equal budgets."""
    each = {context: parts(view, context, "gpt") for context in view.chosen("context")}
    found = {
        f"{context_of(view, longer)}, {label}": each[longer][label].over(each[shorter][label])
        for shorter, longer in itertools.pairwise(each)
        for label in each[longer].keys() & each[shorter].keys()
    }
    return pooled("speedup in the longer context / speedup in the shorter one", found)


def estimate_speedup_grows_with_budget(view: View) -> claims.Estimate:
    """Return the speedup at the longest budget of nGPT over that at its shortest, in each context."""
    each = {context_of(view, name): [*parts(view, name, "gpt").values()] for name in view.chosen("context")}
    found = {label: own[-1].over(own[0]) for label, own in each.items() if len(own) > 1}
    return pooled("speedup at the longest budget / speedup at the shortest", found)


def step_time_ratio(view: View, context: str) -> float | None:
    """Return nGPT's seconds per token over GPT's: the median over pairs of equal budget and seed."""
    gpt, ngpt = (
        {(run.tokens, run.seed): run.seconds for run in runs(view, context=context, model=model, size=SIZE)}
        for model in ("gpt", CANDIDATE)
    )
    times = [ngpt[key] / gpt[key] for key in gpt.keys() & ngpt.keys() if gpt[key] > 0 and ngpt[key] > 0]
    return statistics.median(times) if times else None


class Speedups(table.Table):
    """The runs; the remarks have the speedup at every budget."""

    @cached_property
    def _numbers(self) -> dict[str, tuple[float, str]]:
        """The summary's speedups with their signs: at the largest budget inside GPT's losses, else the first bound."""
        found: dict[str, tuple[float, str]] = {}
        for context in self.view.chosen("context"):
            word = context.removeprefix("c")
            for name, baseline in ((f"speedup_{word}", "gpt"), (f"speedup_qk_{word}", "gpt_qk")):
                if name not in self.artifact.summary or not (each := speedups(self.view, context, baseline)):
                    continue
                one = next((inside for inside in reversed(each) if inside.bound == "="), each[0])
                found[name] = one.ratio, SIGNS[one.bound]
            own, times = found.get(f"speedup_{word}"), step_time_ratio(self.view, context)
            if own is not None and times is not None:
                found[f"time_speedup_{word}"] = own[0] / times, own[1]
        return {name: number for name, number in found.items() if name in self.artifact.summary}

    def summary(self) -> dict[str, float]:
        return {name: value for name, (value, _) in self._numbers.items()}

    def signs(self) -> dict[str, str]:
        return {name: sign for name, (_, sign) in self._numbers.items() if sign}

    def remarks(self) -> list[str]:
        found = []
        for context, baseline in itertools.product(self.view.chosen("context"), self.view.chosen("model")):
            each = speedups(self.view, context, baseline) if baseline != CANDIDATE else ()
            texts = [f"{one.candidate.tokens:,.0f} tokens: {one}" for one in each]
            names = f"{self.view.label('model', baseline)}, {context_of(self.view, context)}"
            if texts:
                found.append(f"nGPT over {names}, by nGPT's budget (95 % interval over seeds): {'; '.join(texts)}.")
        for context in self.view.chosen("context"):
            if (times := step_time_ratio(self.view, context)) is not None:
                told = "median over pairs of equal budget and seed, beside other work"
                found.append(f"A step of nGPT took {times:.2f} times GPT's, {context_of(self.view, context)} ({told}).")
        return found


class Figure2(figure.Figure):
    """Above the final losses of each context, below the speedups of nGPT over each baseline."""

    size = (9.0, 6.0)
    marks = (
        "Above: the best rate of each budget, mean and standard deviation over seeds. Below: nGPT's speedup at each of "
        "its budgets with its 95 % interval over seeds; triangles are bounds, beyond the losses of the baseline."
    )
    printed_words = "Dash-dotted: the paper's speedup; above, where nGPT would reach GPT's last loss by it."

    def baselines(self) -> list[BaselineLine]:
        return panel_lines(self.view, [(judged_by(self.view), {"context": one}) for one in self._contexts()])

    def _contexts(self) -> list[str]:
        return [context for context in self.view.chosen("context") if any(runs(self.view, context=context))]

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for context in self.view.chosen("context"):
            for size, model in itertools.product(self.view.chosen("size"), self.view.chosen("model")):
                own = list(runs(self.view, context=context, size=size, model=model))
                window = int(self.view.counted("window", own[0].place) or 0) if own else 0
                place = {"context": context, "window": window, "size": size, "model": model}
                found += [_row("run", place, run.tokens, run.rate, run.seed, run.judged) for run in own]
                chosen_runs = [run.finished for run in best_runs(self.view, context=context, size=size, model=model)]
                for best in tune(chosen_runs) if chosen_runs else ():
                    found.append(_row("best", place, best.tokens, best.learning_rate, "mean", best.loss))
                is_baseline = size == SIZE and model != CANDIDATE
                found += [_speedup_row(place, one) for one in speedups(self.view, context, model) if is_baseline]
        return found

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        contexts = self._contexts() or self.view.chosen("context")
        panels = canvas.subplots(2, len(contexts), squeeze=False, sharex="col", height_ratios=(3, 2))
        for column, context in enumerate(contexts):
            upper, lower = panels[:, column]
            for model in self.view.chosen("model"):
                own = [row for row in rows if (row["context"], row["model"]) == (context, model)]
                for size, style in zip(self.view.chosen("size"), ("-", "--"), strict=False):
                    line = [row for row in own if row["size"] == size]
                    _losses(upper, line, plots.model("ngpt", model), style, named(self.view, model, size))
                _speedups(lower, [row for row in own if row["kind"] == "speedup"], model)
            upper.margins(x=0.1)
            upper.set(xscale="log", title=context_of(self.view, context))
            lower.set(xlabel="training tokens", yscale="log")
            lower.margins(x=0.1, y=0.25)
            lower.axhline(1.0, color=plots.RULE, linewidth=0.8)
            plots.log_ticks(lower.xaxis)
            plots.log_ticks(lower.yaxis)
            lower.yaxis.set_major_formatter("{x:g}x")
        panels[0][0].set_ylabel("final loss (nats per token)")
        panels[1][0].set_ylabel("tokens of baseline / of nGPT")

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        """Return by context the printed speedup, GPT's longest run, and nGPT's tokens for its loss."""
        found, contexts = [], self._contexts()
        for panel, context in enumerate(contexts):
            word, place = f"speedup_{context.removeprefix('c')}", ("best", context, SIZE, "gpt")
            ratio = self.artifact.summary[word].published if word in self.artifact.summary else None
            best = [row for row in rows if (row["kind"], row["context"], row["size"], row["model"]) == place]
            longest = max(best, key=lambda row: row["tokens"], default=None)
            if ratio is None or longest is None:
                continue
            one = PrintedNumber(f"speedup {ratio:g}", longest["loss"], "ratio of tokens", panel, color=NGPT)
            found += [replace(one, at=tokens) for tokens in (longest["tokens"] / ratio, longest["tokens"])]
            found.append(replace(one, value=ratio, panel=len(contexts) + panel))
        return found


def _losses(axes: Axes, rows: Sequence[Row], color: str, style: str, label: str) -> None:
    """Draw the mean of each budget with the standard deviation over its seeds."""
    best = [row for row in rows if row["kind"] == "best"]
    seeds: dict[tuple[int, float], list[float]] = {}
    for row in rows:
        if row["kind"] == "run":
            seeds.setdefault((row["tokens"], row["rate"]), []).append(row["loss"])
    errors = [stats.sample_std(seeds[row["tokens"], row["rate"]]) or 0.0 for row in best]
    points = [row["tokens"] for row in best], [row["loss"] for row in best]
    axes.errorbar(*points, errors, fmt=f"o{style}", color=color, markersize=4, linewidth=1.2, capsize=2, label=label)


def _speedups(axes: Axes, rows: Sequence[Row], model: str) -> None:
    """Draw the speedups over a baseline, with their numbers: those over GPT on the left, the others on the right."""
    color, (shift, side) = plots.model("ngpt", model), (-6, "right") if model == "gpt" else (6, "left")
    for row in rows:
        value = float(row["speedup"])
        low, high = (float(row[end] or value) for end in ("low", "high"))
        errors, mark = [[value - low], [high - value]], MARKS[row["bound"]]
        axes.errorbar(row["tokens"], value, errors, fmt=mark, color=color, markersize=4)
        place: Any = {"xytext": (shift, 3), "textcoords": "offset points", "ha": side, "fontsize": 7}
        axes.annotate(f"{SIGNS[row['bound']]}{value:.2f}x", (row["tokens"], value), color=color, **place)


def _row(kind: str, place: Mapping[str, object], tokens: float, rate: object, seed: object, loss: float | None) -> Row:
    row = {"kind": kind, **place, "tokens": int(tokens), "rate": rate, "seed": seed}
    further = dict.fromkeys(("speedup", "low", "high", "bound"), "")
    return {**row, "loss": "" if loss is None else round(loss, 8), **further}


def _speedup_row(place: Mapping[str, object], one: Speedup) -> Row:
    row = _row("speedup", place, one.candidate.tokens, "", "mean", None)
    low, high = one.interval or (0.0, math.inf)
    row |= {"speedup": f"{one.ratio:.6g}", "bound": one.bound}
    return row | {"low": f"{low:.6g}" if low else "", "high": f"{high:.6g}" if math.isfinite(high) else ""}

"""NRGPT, Table 3: the printed ideal ranges, and which texts that nobody generated lie in them."""

from collections.abc import Mapping, Sequence
from typing import Any

from paper_repro.artifacts import intervals, tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, exactly, tested
from paper_repro.artifacts.typesetting import Grid
from paper_repro.artifacts.views import View

SHUFFLED_GQS = (0.905, 0.975)
"""0.91 to 0.97, as two digits print them."""

ROUNDING = 1e-9
"""A score of 0.8 is a sum of products that may end a few units of rounding below it."""


class Table3(tables.Table):
    def grid(self, markup: tuple[str, str] = ("**", "**"), chosen: Sequence[str] | None = None) -> Grid:
        """Return the measured values, with the ideal ranges above them and what lies outside at the end."""
        measured = super().grid(markup, chosen)
        ranges = _ranges(self.view)
        ideal = ["Ideal range (paper)"]
        for name, metric in self.artifact.metrics.items():
            if chosen is None or name in chosen:
                low_high = ranges.get(name)
                first = "" if low_high is None else f"{low_high[0]:g} to {low_high[1]:g}"
                ideal += [first] + [""] * (len(self._metric_headers(metric)) - 1)
        rows = [[*row, self._outside(text)] for row, text in zip(measured.rows, _texts(self.view), strict=True)]
        return Grid([*measured.headers, "Outside its ideal range"], [[*ideal, ""], *rows])

    def _outside(self, text: str) -> str:
        """Return the metrics whose mean over seeds is outside, of those that have a value."""
        means = _means(self.view, text)
        titles = {name: metric.title for name, metric in self.artifact.metrics.items()}
        if not means:
            return "not run" if not self.view.judged(self.view.point({"text": text})) else "nothing measured"
        outside = [titles[name] for name, mean in means.items() if not _good(self.view, name, mean)]
        return f"{', '.join(outside) or 'none'} (of {len(means)} measured)"


def judge_shakespeare_is_ideal(view: View) -> Judgement:
    return _all_ideal(view, "shakespeare")


def judge_prose_is_ideal(view: View) -> Judgement:
    return _all_ideal(view, "prose")


def judge_shuffled_words_score_high(view: View) -> Judgement:
    """Judge the mean over texts that are shuffled anew for each seed."""
    found = view.samples("gqs_paper", {"text": "shuffled"})
    if not found:
        return Judgement(UNDECIDED, "not run")
    low, high = min(found.values()), max(found.values())
    low_gqs, high_gqs = SHUFFLED_GQS
    return _within(found, low_gqs, high_gqs, f"{low:.3f} to {high:.3f} in {len(found)} texts")


def judge_gqs_is_good_for_nonsense(view: View) -> Judgement:
    """Judge whether shuffled words, one line repeated, and one word lie in GQS's good range, in the mean over seeds."""
    parts = []
    for text in ("shuffled", "repeated", "one_word"):
        parts.append((view.artifact.axes["text"].values[text].label, _ideal(view, "gqs_paper", text, "not run")))
    return combine(parts, FAILS, HOLDS)


def _all_ideal(view: View, text: str) -> Judgement:
    """Judge means over seeds; a metric without a value leaves the claim open where the others do not refute it."""
    parts = [(view.artifact.metrics[name].title, _ideal(view, name, text, "n/a")) for name in _ranges(view)]
    return combine(parts, FAILS, HOLDS)


def _ideal(view: View, name: str, text: str, absent: str) -> Judgement:
    found = view.samples(name, {"text": text})
    if not found:
        return Judgement(UNDECIDED, absent)
    low, high = _ranges(view)[name]
    return _within(found, low, high, f"{intervals.mean(list(found.values())):.3f}")


def _within(found: Mapping[int, float], low: float, high: float, text: str) -> Judgement:
    """Judge whether the mean of a metric lies in its range; a text that is the same for every seed has one value."""
    low, high = low - ROUNDING, high + ROUNDING
    if len(set(found.values())) == 1:
        return exactly(low <= next(iter(found.values())) <= high, text)
    interval = intervals.of(list(found.values()))
    return tested(interval, f"{text} [{interval.low:.3f}, {interval.high:.3f}]", low, high)


def _texts(view: View) -> list[str]:
    return [dict(key)["text"] for key in view.points]


def _ranges(view: View) -> dict[str, Any]:
    """Map each metric to [low, high], from the cells' config."""
    cell = next(cell for point in view.points.values() for cell in point.cells.values())
    ranges: dict[str, Any] = cell.config["ranges"]
    return ranges


def _good(view: View, name: str, value: float) -> bool:
    low, high = _ranges(view)[name]
    return bool(low - ROUNDING <= value <= high + ROUNDING)


def _means(view: View, text: str) -> dict[str, float]:
    """Return the mean over seeds of each metric with an ideal range, where there is a value."""
    found = {name: view.samples(name, {"text": text}) for name in _ranges(view)}
    return {name: intervals.mean(list(samples.values())) for name, samples in found.items() if samples}

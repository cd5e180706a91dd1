"""What figures 2 and 6 share: the energies that the probe left behind, drawn, and the claims about them judged."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures, intervals, palette
from paper_repro.artifacts.claims import UNDECIDED, Judgement, exactly, tested
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.shares import every
from paper_repro.artifacts.views import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

ATTACHMENT = "energies.csv"
EVEN_DRIFT = 0.1
"""What an energy that drifts evenly over all steps changes in the last tenth of them, over its span: what settles
changes less.
"""
SETTLED = 0.01
"""A token has settled once its energy stays within this share of its span of its last value."""
PANELS = {"total": "E", "attention": "E attention", "feed_forward": "E feed-forward"}


class EnergyFigure(figures.Figure):
    """Energy of every token against the recurrence, one panel each for total, attention and feed-forward."""

    size = (11.0, 3.2)
    marks = "Lines: one token each, coloured by its place in the text."

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
        colors = colormaps[palette.ORDERED]
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


def never(view: View, metric: str, cases: Callable[[float], tuple[int, int]], text: str) -> Judgement:
    """Judge whether something happens in no case of any trained model.

    Args:
        metric: of the models.
        cases: of a value of it, in how many cases it happens, and how many were looked at.
        text: see ``shares.every``.
    """
    found = {seed: cases(value) for seed, value in enumerate(_values(view, metric))}
    return every(found, text) if found else Judgement(UNDECIDED, "not run")


def bounded(view: View, metric: str, bound: float, text: str) -> Judgement:
    """Judge whether a number is at most a bound: one model above it refutes that, else the interval over models."""
    found = _values(view, metric)
    if not found:
        return Judgement(UNDECIDED, "not run")
    above = sum(value > bound for value in found)
    if above:
        return exactly(False, f"{text}: above {bound:g} in {above} of {len(found)} models, up to {max(found):.3g}")
    return _below(dict(enumerate(found)), bound, f"{text}: {{}}, at most {bound:g}", float)


def traced_tokens(view: View) -> int:
    """Return how many tokens the probe traces."""
    return int(_config(view)["probes"]["energy"]["num_tokens"])


def vocabulary_size(view: View) -> int:
    """Return how many tokens the models know."""
    return int(_config(view)["model"]["vocabulary_size"])


def _config(view: View) -> Mapping[str, Any]:
    return next(iter(next(iter(view.points.values())).cells.values())).config


def _values(view: View, metric: str) -> list[float]:
    return [value for key in view.points for value in view.samples(metric, dict(key)).values()]


def settles(view: View) -> Judgement:
    """Judge the largest late change of a token's energy, over its span, against that of an even drift: the interval of
    its logarithm over models.
    """
    values = _values(view, "late_change")
    if not values:
        return Judgement(UNDECIDED, "not run")
    logs = {number: math.log(max(value, 1e-300)) for number, value in enumerate(values)}
    what = "largest change of a token's energy in the last tenth of the steps, over its span"
    return _below(logs, math.log(EVEN_DRIFT), f"{what}: {{}}, an even drift has {EVEN_DRIFT:g}", math.exp)


def descends(view: View) -> Judgement:
    """Judge whether the energy of a token falls at every step from the one on at which its predecessors have settled.

    Only tokens count that have not settled with them: the others move less than what is left of their predecessors'
    movement could cause.
    """
    cases = {}
    for key in view.points:
        for seed, content in view.attachments(ATTACHMENT, dict(key)).items():
            cases[seed] = risen_after_predecessors(content)
    if not cases:
        return Judgement(UNDECIDED, "not run")
    if empty := sum(not count for _, count in cases.values()):
        return Judgement(UNDECIDED, f"nothing to judge in {empty} of {len(cases)} models")
    return every(cases, "tokens that move on after their predecessors have settled have a rise of their energy")


def risen_after_predecessors(content: bytes) -> tuple[int, int]:
    """Count the tokens that are further than ``SETTLED`` of their span from their last energy when all earlier tokens
    have settled, and of these the ones whose energy rises in a step from then on.

    Args:
        content: the attachment, a row for each step and token.

    Returns:
        How many rise, and how many there are.
    """
    import numpy as np

    rows = list(csv.DictReader(io.StringIO(content.decode())))
    steps = 1 + max(int(row["step"]) for row in rows)
    total = np.array([float(row["total"]) for row in rows]).reshape(steps, -1)  # (S + 1, T)
    span = np.maximum(np.ptp(total, axis=0), np.finfo(float).tiny)  # (T,)
    near = np.abs(total - total[-1]) <= SETTLED * span  # (S + 1, T)
    settled = np.logical_and.accumulate(near[::-1], axis=0)[::-1]
    before = np.logical_and.accumulate(settled, axis=1)[:, :-1]  # (S + 1, T - 1): all tokens before this one
    moving = before & ~settled[:, 1:]
    rises = np.diff(total, axis=0)[:, 1:] > 0  # (S, T - 1)
    return int((moving[:-1] & rises).any(axis=0).sum()), int(moving.any(axis=0).sum())


def _below(values: Mapping[int, float], limit: float, text: str, shown: Callable[[float], float]) -> Judgement:
    """Judge whether a quantity is below a limit by its 95 % interval over models; ``text`` has a place for it."""
    found = intervals.of(list(values.values()))
    mean, low, high = (shown(number) for number in (found.mean, found.low, found.high))
    numbers = f"{mean:.3g} [{low:.3g}, {high:.3g}] over {found.count} models"
    return tested(found, text.format(numbers), high=limit, relative=shown is math.exp)

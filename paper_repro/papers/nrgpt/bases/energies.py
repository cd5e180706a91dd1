"""NRGPT, figures 2 and 6: the energies that the probe recorded, drawn, and estimates of how they fall and settle."""

from collections.abc import Mapping, Sequence
from typing import Any

from paper_repro.tables import claims, figure, plots
from paper_repro.tables.stats import Samples
from paper_repro.tables.view import View

ATTACHMENT = "energies.csv"
SETTLED = 0.01
"""A token has settled once its energy stays within this share of its span of its last value."""
PANELS = {"total": "energy", "attention": "energy of attention", "feed_forward": "energy of feed-forward"}
PLACE = {"model": "ff2w"}


class EnergyFigure(figure.Figure):
    """Energy of every token against the recurrence, one panel each for total, attention and feed-forward."""

    size = (11.0, 3.2)
    marks = "Lines: one token each, coloured by its place in the text."

    def rows(self) -> list[figure.Row]:
        seed, table = next(iter(self.view.tables(ATTACHMENT, PLACE).items()), (0, []))
        return [
            {"seed": seed, "step": int(row["step"]), "token": int(row["token"])}
            | {name: float(row[name]) for name in PANELS}
            for row in table
        ]

    def draw(self, canvas: figure.Canvas, rows: Sequence[figure.Row]) -> None:
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        panels = canvas.subplots(1, len(PANELS))
        tokens: dict[int, list[figure.Row]] = {}
        for row in rows:
            tokens.setdefault(row["token"], []).append(row)
        last, colors = max(1, len(tokens) - 1), colormaps[plots.ORDERED]
        for axes, (name, title) in zip(panels, PANELS.items(), strict=True):
            for token, own in tokens.items():
                values = [row[name] for row in own]
                axes.plot([row["step"] for row in own], values, color=colors(token / last), linewidth=0.6)
            axes.set(title=title, xlabel="recurrence")
        panels[0].set_ylabel("energy (no unit)")
        if tokens:
            scale = ScalarMappable(Normalize(0, last), colors)
            canvas.colorbar(scale, ax=panels, label="place of the token", shrink=0.9)


def estimate_energy_ends_lower(view: View) -> claims.Estimate:
    tokens = int(_config(view)["probes"]["energy"]["num_tokens"])
    return claims.share("tokens whose energy ends lower", _counts(view.samples("ends_lower", PLACE), tokens))


def estimate_first_token_monotone(view: View) -> claims.Estimate:
    """Return the share of the vocabulary whose energy rises in no step where the token is the first of a text.

    Its energy then depends on no other token.
    """
    falling = {seed: 1 - rising for seed, rising in view.samples("first_tokens_rising", PLACE).items()}
    vocabulary = int(_config(view)["model"]["vocabulary_size"])
    return claims.share("first tokens whose energy falls at every step", _counts(falling, vocabulary))


def estimate_descent_after_predecessors(view: View) -> claims.Estimate:
    counts = {seed: falling_after_predecessors(table) for seed, table in view.tables(ATTACHMENT, PLACE).items()}
    return claims.share("tokens whose energy only falls once their predecessors have settled", counts)


def falling_after_predecessors(rows: Sequence[Mapping[str, str]]) -> tuple[int, int]:
    """Count the tokens that are further than ``SETTLED`` of their span from their last energy when all earlier tokens
    have settled, and those of them whose energy rises in no step from then on.

    Returns:
        How many only fall, and how many there are.
    """
    import numpy as np

    steps = 1 + max(int(row["step"]) for row in rows)
    total = np.array([float(row["total"]) for row in rows]).reshape(steps, -1)  # (S + 1, T)
    span = np.maximum(np.ptp(total, axis=0), np.finfo(float).tiny)  # (T,)
    near = np.abs(total - total[-1]) <= SETTLED * span  # (S + 1, T)
    settled = np.logical_and.accumulate(near[::-1], axis=0)[::-1]
    before = np.logical_and.accumulate(settled, axis=1)[:, :-1]  # (S + 1, T - 1): all tokens before this one
    moving = before & ~settled[:, 1:]
    rises = np.diff(total, axis=0)[:, 1:] > 0  # (S, T - 1)
    cases, rising = moving.any(axis=0), (moving[:-1] & rises).any(axis=0)
    return int((cases & ~rising).sum()), int(cases.sum())


def _config(view: View) -> Mapping[str, Any]:
    return next(iter(view.point(PLACE).cells.values())).config


def _counts(shares: Samples, cases: int) -> dict[int, tuple[int, int]]:
    return {seed: (round(share * cases), cases) for seed, share in shares.items()}

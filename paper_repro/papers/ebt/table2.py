"""EBT, table 2: gains of thinking without one technique of its training after the other."""

from paper_repro.tables import claims
from paper_repro.tables.view import View

LITTLE = 0.25
"""The share of the full configuration's gain that counts as almost nothing; the paper's is 0.01."""


def estimate_random_step_size_critical(view: View) -> claims.Estimate:
    """The gain without random step sizes less a quarter of the gain with all techniques."""
    quarter = {seed: LITTLE * value for seed, value in _gains(view, "full", "best").items()}
    sides = {"": (_gains(view, "fixed_step_size", "best"), quarter)}
    return claims.difference("gain without random step sizes", "a quarter of the full gain", sides, unit="points")


def estimate_langevin_tradeoff(view: View) -> claims.Estimate:
    """What verification adds to longer thinking with Langevin noise in training, less what it adds without."""
    added = []
    for technique in ("full", "no_noise"):
        best, longer = (_gains(view, technique, kind) for kind in ("best", "longer"))
        added.append({seed: best[seed] - longer[seed] for seed in best if seed in longer})
    of, to = "gain of verification with Langevin noise", "gain of verification without"
    return claims.difference(of, to, {"": (added[0], added[1])}, unit="points")


def _gains(view: View, technique: str, kind: str) -> dict[int, float]:
    """Return the gains on BIG-bench's Dyck words, or on ours where the former are absent."""
    place = {"model": "s2", "technique": technique}
    found = view.samples(f"bigbench-dyck_{kind}_gain", place)
    return found or view.samples(f"dyck-generated_{kind}_gain", place)

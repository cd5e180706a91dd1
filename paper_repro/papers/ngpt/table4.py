"""nGPT, Table 4: to which of the scales' initial values the loss is most sensitive."""

from paper_repro.papers.ngpt.bases.ablation import AXIS, LOSS
from paper_repro.tables import claims, stats
from paper_repro.tables.view import View

SECTIONS = {"qk": "s_qk", "uv": "s_u and s_nu"}
"""Beginnings of the settings' names in the other sections of the table."""


def estimate_sz_init_matters(view: View) -> claims.Estimate:
    """Return the loss at the worst setting of s_z over that at the worst setting of each other section."""
    parts = {f"s_z / {name}": (_worst(view, "z"), _worst(view, section)) for section, name in SECTIONS.items()}
    return claims.ratio("loss at the worst setting of s_z", "loss at the worst setting of another scale", parts)


def _worst(view: View, section: str) -> stats.Samples:
    """Return the losses by seed at the setting with the highest mean; empty where nothing of the section has run."""
    settings = [dict(key)[AXIS] for key in view.points if dict(key)[AXIS].startswith(f"{section}_")]
    found = [(name, list(view.unwatched().samples(LOSS, {AXIS: name}).values())) for name in settings]
    run = [(stats.mean(losses), name) for name, losses in found if losses]
    return view.samples(LOSS, {AXIS: max(run)[1]}) if run else {}

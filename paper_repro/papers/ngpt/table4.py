"""nGPT, Table 4: to which of the scales' initial values the loss is most sensitive."""

from paper_repro.papers.ngpt.bases.ablation import AXIS, LOSS
from paper_repro.tables import claims, stats
from paper_repro.tables.claims import RATIO, Place
from paper_repro.tables.view import View

SECTIONS = {"qk": "s_qk", "uv": "s_u and s_nu"}
"""Beginnings of the settings' names in the other sections of the table."""
CHOSEN = "val_loss"
"""The loss that names the worst settings; where there is a test split, its loss is reported."""


def estimate_sz_init_matters(view: View) -> claims.Estimate:
    """Return the loss at the worst setting of s_z over that at the worst setting of each other section."""
    worst = {section: _worst(view, section) for section in ("z", *SECTIONS)}
    if not all(worst.values()):
        return claims.nothing("not run")
    pairs = {f"s_z / {name}": (worst["z"], worst[section]) for section, name in SECTIONS.items()}
    sides = [(f"loss at the worst setting of {name}", LOSS) for name in ("s_z", "another scale")]
    return claims.at_places(view, RATIO, sides[0], sides[1], pairs)


def _worst(view: View, section: str) -> Place:
    """Return the setting with the highest mean validation loss; empty where nothing of the section has run."""
    settings = [dict(key)[AXIS] for key in view.points if dict(key)[AXIS].startswith(f"{section}_")]
    found = [(name, list(view.unwatched().samples(CHOSEN, {AXIS: name}).values())) for name in settings]
    run = [(stats.mean(losses), name) for name, losses in found if losses]
    return {AXIS: max(run)[1]} if run else {}

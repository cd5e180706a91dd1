"""nGPT, Table 4: to which of the scales' initial values the loss is most sensitive."""

import math
from collections.abc import Mapping

from paper_repro.artifacts import intervals
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, tested
from paper_repro.artifacts.views import View
from paper_repro.papers.ngpt.bases.ablation import AXIS, DEFAULT, LOSS

SECTIONS = {"qk": "s_qk", "uv": "s_u and s_nu", "z": "s_z"}
"""What the settings of a section of the table begin with."""


def judge_sz_init_matters(view: View) -> Judgement:
    """Return the log ratio to the default's loss at each section's worst setting: s_z's above each other's,
    over seeds.

    The worst setting of s_z may well have learned nothing: that it is bad is the claim.
    """
    worst = {section: _worst(view.without_floors() if section == "z" else view, section) for section in SECTIONS}
    parts = []
    for section, name in SECTIONS.items():
        if section != "z":
            parts.append((f"s_z above {name}", _above(worst["z"], worst[section])))
    return combine(parts, FAILS, HOLDS)


def _worst(view: View, section: str) -> dict[int, float]:
    """Return the losses by seed at the setting with the highest mean; empty where nothing of the section has run."""
    base = view.samples(LOSS, {AXIS: DEFAULT})
    found = []
    for key in view.points:
        setting = dict(key)[AXIS]
        losses = view.samples(LOSS, {AXIS: setting}) if setting.startswith(f"{section}_") else {}
        if ratios := {seed: math.log(losses[seed] / base[seed]) for seed in losses.keys() & base.keys()}:
            found.append(ratios)
    return max(found, key=lambda ratios: intervals.mean(list(ratios.values())), default={})


def _above(left: Mapping[int, float], right: Mapping[int, float]) -> Judgement:
    if not left or not right:
        return Judgement(UNDECIDED, "not run")
    found = intervals.compare(left, right)
    low, mean, high = (100 * math.expm1(value) for value in (found.low, found.mean, found.high))
    return tested(found, f"by {mean:.2f} % [{low:.2f}, {high:.2f}] of the loss", 0.0, relative=True)

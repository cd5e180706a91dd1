"""EBT, table 2: gains of thinking without one technique of its training after the other."""

from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.learning import NOT_RUN
from paper_repro.papers.ebt.thinking import Seeds, above, difference

REMOVED = ("fixed_step_size", "fixed_steps", "no_noise", "no_replay")
LITTLE = 0.25
"""The share of the full configuration's gain that counts as almost nothing; the paper's is 0.01."""


def judge_random_step_size_critical(view: View) -> Judgement:
    """Judge the gain of the full configuration, and what of it is left without random step sizes."""
    full, fixed = _gains(view, "full", "best"), _gains(view, "fixed_step_size", "best")
    if (reason := _undecided(view, ["full", "fixed_step_size"])) is not None:
        return reason
    left = difference({seed: LITTLE * value for seed, value in full.items()}, fixed)
    parts = [
        ("the full configuration gains", above(full, what="gain", unit=" %")),
        ("little is left of it", above(left, what="a quarter of it less what is left:", unit=" points")),
    ]
    return combine(parts, FAILS, HOLDS)


def judge_langevin_tradeoff(view: View) -> Judgement:
    """Judge the gain of longer thinking, and what verification adds to it, with and without noise in training."""
    if (reason := _undecided(view, ["full", "no_noise"])) is not None:
        return reason
    longer = {name: _gains(view, name, "longer") for name in ("full", "no_noise")}
    added = {name: difference(_gains(view, name, "best"), longer[name]) for name in longer}
    parts = [
        ("longer thinking", above(difference(longer["no_noise"], longer["full"]), what="gains", unit=" points more")),
        ("verification", above(difference(added["full"], added["no_noise"]), what="adds", unit=" points less")),
    ]
    return combine(parts, FAILS, HOLDS)


def judge_all_techniques_are_best(view: View) -> Judgement:
    """Judge the full configuration's gain, with verification, against that without each technique."""
    if (reason := _undecided(view, ["full", *REMOVED])) is not None:
        return reason
    full, values = _gains(view, "full", "best"), view.artifact.axes["technique"].values
    parts = [
        (values[name].label, above(difference(full, _gains(view, name, "best")), what="lead", unit=" points"))
        for name in REMOVED
    ]
    return combine(parts, FAILS, HOLDS)


def judge_all_steps_gain_more(view: View) -> Judgement:
    """Judge the gain of backpropagation through all steps against that of the truncated one."""
    if (reason := _undecided(view, ["full", "all_steps"])) is not None:
        return reason
    return above(difference(_gains(view, "all_steps", "best"), _gains(view, "full", "best")), unit=" points")


def _undecided(view: View, techniques: list[str]) -> Judgement | None:
    if not all(_gains(view, name, "best") for name in techniques):
        return NOT_RUN if view.points else Judgement(UNDECIDED, "the scale has no such cells")
    return None


def _gains(view: View, technique: str, kind: str) -> Seeds:
    """Return the gains on BIG-bench's Dyck words, or on ours where the former are absent."""
    place = {"model": "s2", "technique": technique}
    found = view.samples(f"bigbench-dyck_{kind}_gain", place)
    return found or view.samples(f"dyck-generated_{kind}_gain", place)

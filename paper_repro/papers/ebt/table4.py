"""EBT, table 4: whether EBT denoises better in fewer passes, and whether its features say more."""

from paper_repro.artifacts.claims import FAILS, HOLDS, Judgement, Order, Side, combine
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.denoising import DIT, EBT, LEVELS


def judge_denoise_fewer_passes(view: View) -> Judgement:
    """Judge EBT's few passes against DiT's at every time."""
    return _against(view, "psnr")


def judge_better_at_equal_evaluations(view: View) -> Judgement:
    """Judge EBT's passes against as many evaluations of DiT."""
    return _against(view, "psnr_equal")


def judge_better_at_equal_time(view: View) -> Judgement:
    """Judge EBT's passes against twice as many evaluations of DiT."""
    return _against(view, "psnr_double")


def judge_better_features(view: View) -> Judgement:
    """Judge the accuracy of the two linear classifiers."""
    return Order(Side("top_1", EBT), Side("top_1", DIT)).judge(view, {})


def _against(view: View, baseline: str) -> Judgement:
    parts = []
    for level, label in LEVELS.items():
        order = Order(Side(f"{level}_psnr", EBT), Side(f"{level}_{baseline}", DIT))
        parts.append((label, order.judge(view, {})))
    return combine(parts, FAILS, HOLDS)

"""CEM, ours: what figures 2b, 2c, 2d and 4 find with one rate for all, at each model's own best rate."""

from paper_repro.artifacts.brackets import best_is_inside
from paper_repro.artifacts.claims import FAILS, HOLDS, Judgement, combine
from paper_repro.artifacts.views import View
from paper_repro.papers.cem.bases.rates import judge_best
from paper_repro.papers.cem.text import PERPLEXITY, chosen


def judge_second_step_helps(view: View) -> Judgement:
    """Judge whether CEM attention with T = 2 reaches a lower perplexity than with T = 1."""
    return judge_best(view, "attention", "attention_t2")


def judge_gap_narrows(view: View) -> Judgement:
    """Judge whether CEM MLPs with T = 2 and a preconditioner reach a lower perplexity than with T = 1 and none."""
    return judge_best(view, "mlp", "mlp_t2")


def judge_widening_helps(view: View) -> Judgement:
    """Judge whether the parameter-matched CEM MLP reaches a lower perplexity than the dimension-matched one."""
    return judge_best(view, "mlp", "mlp_matched")


def judge_matched_beats_llama(view: View) -> Judgement:
    """Judge whether the parameter-matched CEM MLP reaches a lower perplexity than Llama."""
    return judge_best(view, "llama", "mlp_matched")


def judge_best_rate_is_bracketed(view: View) -> Judgement:
    """Judge whether each model's best rate lies inside the grid."""
    parts = []
    for size in chosen(view, "size"):
        for model in chosen(view, "model"):
            places = [dict(key) for key in view.points if (dict(key)["size"], dict(key)["model"]) == (size, model)]
            rates = {view.counted("lr", place): place for place in places if view.samples(PERPLEXITY, place)}
            label = view.artifact.axes["model"].values[model].label
            parts.append((label, best_is_inside(view, PERPLEXITY, rates)))
    return combine(parts, FAILS, HOLDS)

"""CEM, ours: what figures 2b, 2c, 2d and 4 find with one rate for all, at each model's own best rate."""

from paper_repro.artifacts.claims import Judgement
from paper_repro.artifacts.views import View
from paper_repro.papers.cem.bases.rates import judge_best


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

"""Made-up records for nGPT's predicates."""

import math
from collections.abc import Callable, Mapping

from paper_repro.tests.support.made_up import Made, Place
from paper_repro.tests.support.predicates.case import Case

BUDGETS = {"f8": 0, "f4": 1, "f2": 2}
DOUBLED = 0.3
"""What twice the tokens take off a loss."""
KNOWN = Made(known=True)


def above_gpt(of: Callable[[Place], float]) -> Made:
    """Losses of separate runs: those of GPT fall with the budget, others are so much above them."""
    return Made(
        lambda place, seed: {
            "val_loss": 5.0 - DOUBLED * BUDGETS[place["budget"]] + (0.0 if place["model"] == "gpt" else of(place))
        }
    )


def ngpt(change: float) -> Made:
    return above_gpt(lambda place: change if place["model"] == "ngpt" else 0.0)


def by_context(short: float, first: float, last: float) -> Made:
    """nGPT's loss above GPT's: in the shorter context, and in the longer one at the smaller and larger budget."""
    longer = {"f8": first, "f4": last}
    return above_gpt(lambda place: short if place["context"] == "c1k" else longer[place["budget"]])


def by_budget(first: float, last: float) -> Made:
    """nGPT's loss above GPT's at the smallest budget, and at the others."""
    return above_gpt(lambda place: first if place["budget"] == "f8" else last)


def levels(**of: float) -> Made:
    return above_gpt(lambda place: of.get(place["model"], 0.0))


def tenth(ours: float) -> Made:
    def loss(place: Place, seed: int) -> Mapping[str, float]:
        return {"val_loss": ours if (place["model"], place["budget"]) == ("ngpt", "f10") else 3.0}

    return Made(loss, scale="paper")


def downstream(metric: str, ours: float, scale: str) -> Made:
    def metrics(place: Place, seed: int) -> dict[str, float]:
        return {"val_loss": 4.0, metric: ours if place["model"] == "ngpt" else 40.0}

    return Made(metrics, scale=scale, seeds=(0, 1, 2))


def embeddings(error: float) -> Made:
    names = ("in", "out")
    return Made(
        lambda place, seed: {
            **{f"{name}_norm_error": error for name in names},
            **{f"{name}_norm_variation": 0.1 + 1e-4 * seed for name in names},
        },
        noise=0.0,
    )


def inspected(**metrics: float) -> Made:
    return Made(lambda place, seed: metrics, noise=1e-3)


def rates(best: float) -> Made:
    return Made(
        lambda place, seed: {"val_loss": 4.0 + 0.1 * math.log2(float(place["lr"]) / best) ** 2}, seeds=(0, 1, 2)
    )


CONTEXTS = {"t256": 0, "t1024": 1, "t4096": 2, "t8192": 3}
SIZES = {"w32": 0, "w128": 1, "w256": 2, "w512": 3}


def step_times(change: float) -> Made:
    """The ratio changes by so much from one context to the next, and from one size to the next."""

    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        return {"ratio_ngpt": 2.0 + change * (CONTEXTS[place["context"]] + SIZES.get(place["size"], 4))}

    return Made(metrics)


def ratios(value: float, scale: str = "cpu") -> Made:
    """The ratio of every step, fused or not; the noise is below what any claim allows."""
    return Made(lambda place, seed: {"ratio_ngpt": value}, noise=1e-3, scale=scale)


def counted(name: str, millions: float) -> Made:
    return Made(
        lambda place, seed: {name: millions * 1e6},
        noise=0.0,
        known=True,
        printed=lambda place: {"parameters": 468.2},
    )


def factors(half: float) -> Made:
    return Made(
        lambda place, seed: {
            "factor_quarter": 0.5 * (1 + math.cos(math.pi / 4)),
            "factor_half": half,
            "factor_end": 0.0,
        },
        noise=0.0,
        known=True,
    )


def worst(**of: float) -> Made:
    """Losses of the settings of a section, by its letter; the others 4."""
    return Made(lambda place, seed: {"val_loss": of.get(place["setting"].partition("_")[0], 4.0)})


CASES = {
    "ngpt.fig1.tenth_of_the_iterations": Case("ngpt/fig1", tenth(2.9), tenth(3.1)),
    "ngpt.fig2.speedup_1k": Case("ngpt/fig2", ngpt(-0.2), ngpt(0.2)),
    "ngpt.fig2.speedup_beyond_qk_norm": Case("ngpt/fig2", ngpt(-0.2), ngpt(0.2)),
    "ngpt.fig2.speedup_grows_with_context": Case(
        "ngpt/fig2", by_context(0.2, -0.15, 0.02), by_context(-0.15, 0.2, 0.2)
    ),
    "ngpt.fig2.speedup_grows_with_budget": Case("ngpt/fig2", by_budget(0.2, -0.2), by_budget(-0.2, 0.2)),
    "ngpt.fig3.downstream_better_at_equal_tokens": Case(
        "ngpt/fig3", downstream("downstream_mean", 50.0, "gpu"), downstream("downstream_mean", 30.0, "gpu")
    ),
    "ngpt.fig3.continuations_better_at_equal_tokens": Case(
        "ngpt/fig3", downstream("continuations_mean", 50.0, "cpu"), downstream("continuations_mean", 30.0, "cpu")
    ),
    "ngpt.fig4.embedding_norms_fixed": Case("ngpt/fig4", embeddings(0.0), embeddings(0.1)),
    "ngpt.fig6.modest_steps": Case(
        "ngpt/fig6", inspected(mean_alpha_A=0.2, mean_alpha_M=0.3), inspected(mean_alpha_A=0.2, mean_alpha_M=0.6)
    ),
    "ngpt.fig6.sqk_stable": Case("ngpt/fig6", inspected(sqk_spread=1.2), inspected(sqk_spread=2.0)),
    "ngpt.fig7.best_rate_is_bracketed": Case("ngpt/fig7", rates(8e-3), rates(1.0)),
    "ngpt.initial_weights.scaled_weights_help": Case(
        "ngpt/initial_weights", levels(gpt_scaled=-0.2, ngpt=-0.4), levels(gpt_scaled=0.2, ngpt=-0.4)
    ),
    "ngpt.initial_weights.speedup_remains": Case(
        "ngpt/initial_weights", levels(gpt_scaled=-0.2, ngpt=-0.4), levels(gpt_scaled=-0.4, ngpt=-0.2)
    ),
    "ngpt.steptime.step_overhead": Case("ngpt/steptime", ratios(1.7, "paper"), ratios(1.3, "paper")),
    "ngpt.steptime.step_takes_longer": Case("ngpt/steptime", ratios(1.2), ratios(0.8)),
    "ngpt.steptime.step_overhead_fused": Case("ngpt/steptime", ratios(1.05), ratios(1.3)),
    "ngpt.steptime.overhead_falls_with_context": Case("ngpt/steptime", step_times(-0.2), step_times(0.2)),
    "ngpt.steptime.overhead_falls_with_size": Case("ngpt/steptime", step_times(-0.2), step_times(0.2)),
    "ngpt.table2.printed_counts_are_truncated": Case(
        "ngpt/table2", counted("parameters", 468.29), counted("parameters", 468.31)
    ),
    "ngpt.table2.printed_counts_are_rounded": Case(
        "ngpt/table2", counted("parameters", 468.24), counted("parameters", 468.29)
    ),
    "ngpt.table2.early_counts_are_rounded": Case(
        "ngpt/table2", counted("parameters_counted_early", 468.24), counted("parameters_counted_early", 468.29)
    ),
    "ngpt.table3.cosine_annealing": Case("ngpt/table3", factors(0.5), factors(0.6)),
    "ngpt.table4.sz_init_matters": Case("ngpt/table4", worst(z=4.5, qk=4.1, uv=4.1), worst(z=4.1, qk=4.5, uv=4.5)),
}
MIXED = {
    ("ngpt/fig6", "modest_steps"): Case(
        "ngpt/fig6", inspected(mean_alpha_A=0.2, mean_alpha_M=0.3), inspected(mean_alpha_A=0.3, mean_alpha_M=0.2)
    )
}
"""Claims that are written in YAML with a function among their parts."""

"""EBT, Table D.2 and appendix D.5: FLOPs of a step, counted and by the paper's rule."""

from paper_repro.papers.ebt.tableD1 import EBT_FLOPS, TRANSFORMER_FLOPS
from paper_repro.tables import claims
from paper_repro.tables.table import Table
from paper_repro.tables.view import View

RULE = {"one_step": EBT_FLOPS / TRANSFORMER_FLOPS, "two_steps": 2 * EBT_FLOPS / TRANSFORMER_FLOPS}
"""FLOPs of a training step over Transformer++'s, by the paper's rule."""


class TableD2(Table):
    """The counts, with the rule in the summary."""

    def summary(self) -> dict[str, float]:
        return {f"rule_{model}": ratio for model, ratio in RULE.items()}


def estimate_step_costs_as_the_rule_says(view: View) -> claims.Estimate:
    """Counted FLOPs with the trunk's weights over Transformer++'s, relative to the rule; concatenated streams."""
    axes, found = view.artifact.axes, dict[str, float | None]()
    for model, rule in RULE.items():
        for size, spec in axes["size"].values.items():
            counted = view.only("weights_concatenated", {"size": size, "model": model})
            found[f"{axes['model'].values[model].label}, {spec.label}"] = None if counted is None else counted / rule
    return claims.count("FLOPs of a step, counted", found, "FLOPs by the paper's rule")

"""EBT, Table D.5: the cost of a step over Transformer++'s, compared with the printed ratios."""

from paper_repro.tables import claims, stats
from paper_repro.tables.table import Table
from paper_repro.tables.view import View

RATIOS = {"time": "ratio_own", "memory": "memory_ratio_own", "first": "first_ratio_own"}
MODELS = ("one_step", "two_steps")


class TableD5(Table):
    """Times and memory, with their ratios in the summary."""

    def summary(self) -> dict[str, stats.Samples]:
        return _ratios(self.view)


def estimate_step_cost(view: View) -> claims.Estimate:
    """Our ratios of time, memory and first step over the printed ones, the geometric mean over all."""
    parts: dict[str, tuple[stats.Samples, stats.Samples]] = {}
    for name, ours in _ratios(view).items():
        item = view.artifact.summary[name]
        assert item.published is not None
        parts[item.title] = ours, dict.fromkeys(ours, item.published)
    return claims.ratio("EBT's cost over Transformer++'s here", "the same in the paper", parts)


def _ratios(view: View) -> dict[str, stats.Samples]:
    return {
        f"{kind}_{name}": view.samples(metric, {"model": name}) for kind, metric in RATIOS.items() for name in MODELS
    }

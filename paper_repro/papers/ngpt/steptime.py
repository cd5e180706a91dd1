"""nGPT, appendix A.4: the overhead of a step, and whether it falls with context and size."""

from paper_repro.tables import claims, stats, table
from paper_repro.tables.view import View

RATIO, UNFUSED = "ratio_ngpt", {"implementation": "reference"}
PRINTED = {"ratio_4k": "t4096", "ratio_8k": "t8192"}


class StepTimes(table.Table):
    def summary(self) -> dict[str, stats.Samples]:
        found: dict[str, stats.Samples] = {}
        for name, context in PRINTED.items():
            samples = (self.view.samples(RATIO, place) for place in self.view.places(context=context, **UNFUSED))
            found[name] = next(filter(None, samples), {})
        return found


def estimate_overhead_falls_with_context(view: View) -> claims.Estimate:
    """Return the ratio at the longest context over that at the shortest for each size, and with axes exchanged."""
    axes, parts = view.artifact.axes, dict[str, tuple[stats.Samples, stats.Samples]]()
    for axis, other in (("context", "size"), ("size", "context")):
        for fixed, spec in axes[other].values.items():
            places = [{other: fixed, axis: value, **UNFUSED} for value in axes[axis].values]
            run = [place for place in places if view.places(**place)]
            if len(run) > 1:
                small, large = (axes[axis].values[place[axis]].label for place in (run[0], run[-1]))
                parts[f"{spec.label}: {small} to {large}"] = view.samples(RATIO, run[-1]), view.samples(RATIO, run[0])
    of = "step time of nGPT over GPT at the longest context or largest size"
    return claims.ratio(of, "the same at the shortest or smallest", parts)

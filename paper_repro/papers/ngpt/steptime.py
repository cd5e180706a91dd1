"""nGPT, appendix A.4: the overhead of a step, and whether it falls with context and size."""

from paper_repro.tables import claims, stats, table
from paper_repro.tables.view import View

RATIO, NAME = "ratio_ngpt", "time of a step of nGPT / of GPT"
UNFUSED, FUSED = {"implementation": "reference"}, {"implementation": "auto"}
PRINTED = {"ratio_4k": "t4096", "ratio_8k": "t8192"}


class StepTimes(table.Table):
    def summary(self) -> dict[str, stats.Samples]:
        each = {name: _measured(self.view, UNFUSED, [context]).values() for name, context in PRINTED.items()}
        return {name: next(filter(None, samples), {}) for name, samples in each.items()}


def estimate_step_takes_longer(view: View) -> claims.Estimate:
    """Return time of a step of nGPT over that of GPT at every size and context; not fused."""
    return claims.number(f"{NAME}, not fused", _measured(view, UNFUSED), geometric=True)


def estimate_step_overhead(view: View) -> claims.Estimate:
    """Return the same at the two contexts that the paper prints."""
    return claims.number(f"{NAME}, not fused", _measured(view, UNFUSED, [*PRINTED.values()]), geometric=True)


def estimate_step_overhead_fused(view: View) -> claims.Estimate:
    """Return time of a step of nGPT over that of GPT at every size and context; fused."""
    return claims.number(f"{NAME}, fused", _measured(view, FUSED), geometric=True)


def _measured(
    view: View, implementation: dict[str, str], contexts: list[str] | None = None
) -> dict[str, stats.Samples]:
    axes, found = view.artifact.axes, dict[str, stats.Samples]()
    for size, spec in axes["size"].values.items():
        for context in contexts or axes["context"].values:
            place = {"size": size, "context": context, **implementation}
            if view.places(**place):
                found[f"{spec.label}, {axes['context'].values[context].label}"] = view.samples(RATIO, place)
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

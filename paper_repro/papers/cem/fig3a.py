"""CEM, figure 3a: what its claims compare, as figure 5's."""

from paper_repro.papers.cem.bases.rates import estimate_full_cem_better, estimate_higher_rate

__all__ = ["estimate_full_cem_better", "estimate_higher_rate"]

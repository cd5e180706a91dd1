"""CEM, figure 2b: perplexity against parameters, Llama's gated MLP replaced."""

from paper_repro.papers.cem.text import ParametersFigure


class Figure2b(ParametersFigure):
    pass

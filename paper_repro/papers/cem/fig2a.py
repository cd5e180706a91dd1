"""CEM, figure 2a: perplexity against parameters, Llama's attention replaced."""

from paper_repro.papers.cem.text import ParametersFigure


class Figure2a(ParametersFigure):
    pass

"""CEM, figure 2a: perplexity against parameters, Llama's attention replaced."""

from paper_repro.papers.cem.text import ParametersFigure, PerplexityTable


class Table2a(PerplexityTable):
    pass


class Figure2a(ParametersFigure):
    pass

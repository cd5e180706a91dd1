"""CEM, figure 3a: perplexity against the initial learning rate, and the best rate of Llama and of CEM."""

from paper_repro.papers.cem import rates


class Table3a(rates.RatesTable):
    pass


class Figure3a(rates.RatesFigure):
    pass


judge_higher_rate = rates.judge_higher_rate
judge_full_cem_better = rates.judge_full_cem_better

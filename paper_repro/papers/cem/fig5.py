"""CEM, figure 5: perplexity against the initial learning rate, and the best rate of Llama and of CEM."""

from paper_repro.papers.cem import rates


class Table5(rates.RatesTable):
    pass


class Figure5(rates.RatesFigure):
    pass


judge_higher_rate = rates.judge_higher_rate
judge_full_cem_better = rates.judge_full_cem_better

"""CEM, figure 5: perplexity against the initial learning rate, and the best rate of Llama and of CEM."""

from paper_repro.claims import Judgement
from paper_repro.papers.cem import rates
from paper_repro.views import View


class Table5(rates.RatesTable):
    pass


class Figure5(rates.RatesFigure):
    pass


def judge_higher_rate(view: View) -> Judgement:
    return rates.judge_higher_rate(view)


def judge_full_cem_better(view: View) -> Judgement:
    return rates.judge_full_cem_better(view)

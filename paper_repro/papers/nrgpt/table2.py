"""NRGPT, Table 2: what its printed numbers of parameters count, and the claim made of them."""

from paper_repro.artifacts.claims import Judgement
from paper_repro.artifacts.views import View
from paper_repro.papers.nrgpt.conventions import judge_fewer

FEWER_MILLIONS = 34.0


def judge_fewer_parameters(view: View) -> Judgement:
    return judge_fewer(view, {"model": "gpt"}, {"model": "ff2w"}, FEWER_MILLIONS)

"""NRGPT, Table 4: what its printed numbers of parameters count, and the claim made of them."""

from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, exactly
from paper_repro.artifacts.views import View
from paper_repro.papers.nrgpt.conventions import CONVENTIONS, counts_at

HALF = (0.4, 0.6)
"""What "half" is taken to mean; the paper has 0.2M of 0.4M, with one digit each."""


def judge_half_the_parameters(view: View) -> Judgement:
    """Judge FF2W's count over GPT's at the paper's sizes, whichever way of counting is used for both."""
    own, baseline = counts_at(view, {"model": "ff2w"}), counts_at(view, {"model": "gpt"})
    if not own or not baseline:
        return Judgement(UNDECIDED, "not run")
    parts = []
    for name, label in CONVENTIONS.items():
        ratio = own[name] / baseline[name]
        text = f"{own[name]:,.0f} of {baseline[name]:,.0f}, {ratio:.2f}"
        parts.append((label, exactly(HALF[0] <= ratio <= HALF[1], text)))
    return combine(parts, FAILS, HOLDS)

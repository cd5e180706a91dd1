"""Shares of cases in which something happened: their intervals by the binomial distribution, and what they decide."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from paper_repro.artifacts.intervals import CONFIDENCE, Interval
from paper_repro.artifacts.judgements import Judgement, exactly, tested
from paper_repro.base import students_t

Counts = Mapping[int, tuple[int, int]]
"""By seed: in how many cases it happened, and how many were looked at."""
RARE = 0.05
"""One in twenty: a share of cases of which a figure of some 20 lines would show none."""

NORMAL = NormalDist()
NEAREST = 1e-4
"""How near to 0 and 1 a seed's share is taken to lie at most."""


def probit(share: float) -> float:
    """Return Phi^-1(share) phi(0), the quantile of a normal distribution in units of the share near 1/2.

    Shares of seeds, as accuracies and AUROCs are, crowd where they are near 1; Student's interval then holds their mean
    too seldom (four times in five) and reaches beyond 1.  Their quantiles have no such end.
    """
    return NORMAL.inv_cdf(min(max(share, NEAREST), 1 - NEAREST)) * NORMAL.pdf(0.0)


def from_probit(value: float) -> float:
    """Return the share of what ``probit`` returns."""
    return NORMAL.cdf(value / NORMAL.pdf(0.0))


@dataclass(frozen=True)
class Share(Interval):
    """A share with its two-sided 95 % interval by Clopper and Pearson.

    Cases of one model may go together.  By Korn and Graubard (1998) hits and cases are divided by the design effect,
    which is how much further apart the shares of the seeds lie than independent cases would put them, and by
    ``_penalty``, for that is known from few models.  Where all cases are alike nothing says whether those of one model
    go together, and each model counts as one case.
    """

    hits: float = 0.0
    cases: float = 1.0

    @property
    def has_spread(self) -> bool:
        """Whether there is an interval: unlike that of a mean it needs no values that differ."""
        return True

    def above(self, bound: float) -> float:
        """Return the one-sided p-value of the share being above a bound: at least so many hits, at the bound."""
        if bound < 0.0:
            return 0.0
        return 1.0 if bound >= 1.0 else _upper_tail(self.hits, self.cases, bound)

    def below(self, bound: float) -> float:
        """Return the one-sided p-value of the share being below a bound: at most so many hits, at the bound."""
        return replace(self, hits=self.cases - self.hits).above(1.0 - bound)

    def with_more(self, seeds: int, known: int) -> "Share":
        """Return the interval of the same share, of so many seeds more than the known ones."""
        factor = (known + seeds) / known
        if 0 < self.hits < self.cases and known > 1:
            factor *= _penalty(known) / _penalty(known + seeds)
        return _share(self.hits * factor, self.cases * factor, self.count + seeds)

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def share(counts: Counts) -> Share:
    """Return the interval of a share.

    Args:
        counts: of every seed, at least one case in all.
    """
    hits, cases = (sum(column) for column in zip(*counts.values(), strict=True))
    mean, effect = hits / cases, 1.0
    if hits in (0, cases):
        effect = cases / len(counts)
    elif len(counts) > 1:
        between = sum((own - mean * looked) ** 2 for own, looked in counts.values()) * len(counts) / (len(counts) - 1)
        effect = max(1.0, between / (cases * mean * (1 - mean))) * _penalty(len(counts))
    return _share(hits / effect, cases / effect, len(counts))


def _penalty(models: int) -> float:
    """Return the square of Student's quantile of so many models over the normal one: 4.8 of three, 1.5 of eight."""
    return (students_t.half_width(models - 1, CONFIDENCE) / students_t.half_width(math.inf, CONFIDENCE)) ** 2


def every(counts: Counts, text: str) -> Judgement:
    """Judge whether something happens in every case.

    One case in which it does not refutes that, as arithmetic does.  Where there is none, it holds if the interval of
    the share of such cases lies below ``RARE``.

    Args:
        counts: the cases in which it does not.
        text: what the cases are, and in which of them it does not happen: "images have a rise".
    """
    found = share(counts)
    hits, cases = (sum(column) for column in zip(*counts.values(), strict=True))
    if hits:
        return exactly(False, f"{hits:,} of {cases:,} {text}")
    return tested(found, f"0 of {cases:,} {text}: share {found}, {found.count} seeds, below {RARE:g} wanted", high=RARE)


def _share(hits: float, cases: float, count: int) -> Share:
    from scipy.special import betaincinv

    tail, mean = (1 - CONFIDENCE) / 2, hits / cases
    low = float(betaincinv(hits, cases - hits + 1, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, cases - hits, 1 - tail)) if hits < cases else 1.0
    return Share(mean, low, high, count, True, math.sqrt(mean * (1 - mean) / cases), hits=hits, cases=cases)


def _upper_tail(hits: float, cases: float, chance: float) -> float:
    from scipy.special import betainc

    return float(betainc(hits, cases - hits + 1, chance)) if hits > 0 else 1.0

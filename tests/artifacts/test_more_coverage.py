"""How often intervals hold the truth that come from fits and from questions."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from paper_repro.artifacts import intervals
from paper_repro.metrics.scaling import exponent_difference, fit_power_law
from paper_repro.metrics.transition import transition
from paper_repro.papers.nrgpt import table6

LEAST, MOST = 0.93, 0.97
SIZES = {"recurrent": (2756, 4436, 9620, 22580, 54548), "ours": (2421, 3861, 8271, 19221, 46101)}
"""Parameters of the models of nrgpt/fig3 at scale cpu."""
SLOPE, MIDDLES = 5.0, {"recurrent": 3.65, "ours": 3.66}
"""The fitted curves there have about these: accuracy one half near 4,500 parameters, 0.8 near 8,500."""
SPREAD = 0.3
"""The logits of the accuracies of seeds lie about so far apart there: 0.08 near one half, 0.01 near 0.97."""


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_sizes_at_which_two_families_learn(seeds: int) -> None:
    """Each seed has a fit of its own, and the logarithms of the sizes are compared over seeds."""
    generator, held, trials = np.random.default_rng(seeds), 0, 400
    truth = (MIDDLES["ours"] - MIDDLES["recurrent"]) * math.log(10)

    def size(family: str) -> float:
        logits = SLOPE * (np.log10(SIZES[family]) - MIDDLES[family]) + SPREAD * generator.standard_normal(5)
        return math.log(transition(SIZES[family], list(map(float, 1 / (1 + np.exp(-logits))))).size)

    for _ in range(trials):
        found = intervals.compare(*({seed: size(family) for seed in range(seeds)} for family in ("ours", "recurrent")))
        held += found.low <= truth <= found.high
    assert LEAST <= held / trials <= MOST


@pytest.mark.parametrize("shared", [False, True])
def test_the_noise_of_questions(shared: bool) -> None:
    """Two models answer MMLU's questions; ``shared``: half of what decides an answer is the question's own.

    The interval takes answers as independent: where models are right on the same questions it is wider than it need be.
    """
    columns = {"stem": {"algebra": 100, "physics": 150}, "humanities": {"law": 1534, "logic": 126}}
    accuracies, generator, held, trials = (0.31, 0.29), np.random.default_rng(0), 0, 2000
    quantiles = [NormalDist().inv_cdf(accuracy) for accuracy in accuracies]
    for _ in range(trials):
        found: list[dict[str, float]] = [{}, {}]
        for name, subjects in columns.items():
            shares = []
            for questions in subjects.values():
                common = generator.standard_normal(questions)
                own = generator.standard_normal((2, questions))
                ease = math.sqrt(0.5) * (common + own) if shared else own  # (2, questions)
                shares.append([(ease[model] < quantiles[model]).mean() for model in (0, 1)])
            for model in (0, 1):
                found[model][name] = 100 * float(np.mean([share[model] for share in shares]))
        errors = [table6.standard_error(columns, accuracies_of) for accuracies_of in found]
        difference = float(np.mean([*found[0].values()]) - np.mean([*found[1].values()]))
        interval = intervals.student(difference, math.hypot(*errors), math.inf, 1910)
        held += interval.low <= 2.0 <= interval.high
    assert held / trials >= LEAST and (shared or held / trials <= MOST)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_exponents_of_models_that_share_a_seed_hold_the_truth_more_often(seeds: int) -> None:
    """Four fifths of a seed's noise are common to all sizes of a model."""
    generator, held, trials = np.random.default_rng(seeds), 0, 1000
    sizes, spread, exponents = (1.0, 2.0, 4.0), 0.01, (0.12, 0.11)
    for _ in range(trials):
        laws = []
        for exponent in exponents:
            common = math.sqrt(0.8) * generator.standard_normal(seeds)
            noise = common + math.sqrt(0.2) * generator.standard_normal((len(sizes), seeds))
            losses = [
                3 * size**-exponent * math.exp(spread * one)
                for size, row in zip(sizes, noise, strict=True)
                for one in row
            ]
            laws.append(fit_power_law([size for size in sizes for _ in range(seeds)], losses))
        low, high = exponent_difference(*laws).interval
        held += low <= exponents[0] - exponents[1] <= high
    assert held / trials >= LEAST

"""NRGPT's estimates on made-up records with known answers, and the chance level of MMLU."""

import json
import math
from collections.abc import Callable, Sequence

import pytest

from paper_repro.tables.table import table_of
from paper_repro.tests.support.made_up import Made, Numbers, Place, estimate, estimated, value, view

WIDTHS = (32, 64, 128, 256, 512)
PER_SQUARE = {"gpt": 36, "rgpt_parallel": 13, "ff1": 7, "ff2w": 10}
LISTOPS_SIZES = {"12": 3e3, "16": 1e4, "25": 3e4, "40": 1e5, "64": 3e5}


def exactly(metrics: Callable[[Place, int], Numbers], scale: str = "cpu", **more: object) -> Made:
    return Made(metrics, noise=0.0, scale=scale, **more)  # type: ignore[arg-type]


def by_model(metric: str, scale: str = "cpu", **numbers: float) -> Made:
    return exactly(lambda place, seed: {metric: numbers[place["model"]]}, scale)


def everywhere(**metrics: float) -> Made:
    return exactly(lambda place, seed: metrics)


def scores(metric: str, ff2w: float, scale: str = "cpu") -> Made:
    """FF1, which is no candidate, is the highest; of the other models RGPT-parallel is."""
    return by_model(metric, scale, gpt=0.6, rgpt=0.4, rgpt_parallel=0.7, ff1=2.0, ff2w=ff2w)


def listops(ff1: float, ff2w: float) -> Made:
    """Accuracies rise at so many times the recurrent GPT's parameters."""
    behind = {"rgpt_parallel": 1.0, "ff1": ff1, "ff2w": ff2w}

    def accuracy(place: Place, seed: int) -> Numbers:
        decades = math.log10(LISTOPS_SIZES[place["width"]] / (1e4 * (1 + 0.01 * seed) * behind[place["model"]]))
        return {"accuracy": 1 / (1 + math.exp(-6 * decades))}

    return exactly(accuracy, parameters=lambda place: int(LISTOPS_SIZES[place["width"]]))


def shakespeare(
    loss: Callable[[Place, int], float], gap: Callable[[Place], float] = lambda place: 0.2, scale: str = "cpu"
) -> Made:
    def metrics(place: Place, seed: int) -> Numbers:
        best = loss(place, seed)
        last = {"val_loss": best + 0.1, "train_loss": best + 0.1 - gap(place)}
        return {"best_val_loss": best, "best_test_loss": best - (place["setting"] != "lr2e-3"), **last}

    def parameters(place: Place) -> int:
        return PER_SQUARE[place["model"]] * int(place["width"][1:]) ** 2

    def files(place: Place, seed: int) -> dict[str, bytes]:
        loss = metrics(place, seed)["best_test_loss"]
        return {"test_losses.json": json.dumps({"losses": [loss - 0.5, loss + 0.5]}).encode()}

    return exactly(metrics, scale, files=files, parameters=parameters)


def is_nrgpt(place: Place) -> bool:
    return place["model"].startswith("ff")


def curve(factor: Callable[[Place, int], float]) -> Made:
    """Losses straight in the logarithm of the parameters, rate 0.002 best by 0.05; NRGPT's times a factor.

    On the test half other rates are better, and not read.
    """

    def loss(place: Place, seed: int) -> float:
        parameters = PER_SQUARE[place["model"]] * int(place["width"][1:]) ** 2
        own = 4 - 0.2 * math.log(parameters) + 0.05 * (place["setting"] != "lr2e-3") + 0.01 * seed
        return own * (factor(place, seed) if is_nrgpt(place) else 1.0)

    return shakespeare(loss, scale="gpu")


def one_narrow_variant_is_worse(place: Place, seed: int) -> float:
    return 1.2 if place["model"] == "ff1" and place["width"] != "w512" else 1.0


def overfitting() -> Made:
    """The gap of the largest width in the best setting, and others that would turn the sign if they were read."""

    def gap(place: Place) -> float:
        if place["setting"] != "lr2e-3" or place["width"] != "w512":
            return 0.2 if is_nrgpt(place) else -5.0
        return 0.1 if is_nrgpt(place) else 0.4

    return shakespeare(lambda place, seed: 2.0 - 0.1 * (place["setting"] == "lr2e-3"), gap, "gpu")


def spread() -> Made:
    """The settings of NRGPT differ by 0.5, those of the others by 0.1."""
    return shakespeare(
        lambda place, seed: 2.0 + (0.5 if is_nrgpt(place) else 0.1) * (place["setting"] == "lr2e-3"), scale="gpu"
    )


CASES: list[tuple[str, str, Made, float]] = [
    ("fig2", "energy_ends_lower", everywhere(ends_lower=31 / 32), 31 / 32),
    ("fig2", "first_token_monotone", everywhere(first_tokens_rising=0.05), 0.95),
    ("fig2", "energy_settles", everywhere(late_change=0.02), 0.02),
    ("fig3", "listops_parity", listops(2.0, 4.0), math.sqrt(8)),
    # The order is its smallest step.
    ("fig3", "listops_order", listops(2.0, 3.0), 1.5),
    ("fig3", "listops_order", listops(2.0, 1.0), 0.5),
    ("fig4", "shakespeare_parity", curve(one_narrow_variant_is_worse), 1.0),
    ("fig4", "shakespeare_no_overfit", overfitting(), -0.3),
    ("fig4", "hyperparameter_sensitivity", spread(), 0.4),
    ("table1", "owt_order", by_model("best_val_loss", gpt=2.0, rgpt_parallel=3.0, ff2w=3.3), 1.1),
    ("table5", "loss_order_at_equal_parameters", by_model("best_val_loss", gpt=2, rgpt_parallel=3, ff2w=2.7), 0.9),
    # The highest, or lowest, is compared with the best other.
    ("table2", "diversity_distinct_1", scores("distinct_1", 0.9), 0.2),
    ("table4", "text_quality_perplexity", scores("perplexity", 0.5), 0.5 / 0.4),
    ("table6", "continuations_best", scores("continuations_mean", 0.5), -0.2),
]


@pytest.mark.parametrize(("artifact", "claim", "made", "expected"), CASES, ids=[f"{a}-{b}" for a, b, *_ in CASES])
def test_an_estimate_has_its_value(artifact: str, claim: str, made: Made, expected: float) -> None:
    assert estimated(f"nrgpt/{artifact}", claim, made) == pytest.approx(expected, rel=1e-4)


def energies(*tokens: Sequence[float]) -> Made:
    """The recorded energies of tokens over the steps."""
    rows = [
        f"{step},{token},{energy},0,0"
        for step, values in enumerate(zip(*tokens, strict=True))
        for token, energy in enumerate(values)
    ]
    content = "\n".join(["step,token,total,attention,feed_forward", *rows]).encode()
    return Made(files=lambda place, seed: {"energies.csv": content})


FIRST = [4.0, 3.0] + [2.0] * 8
"""The first token settles after two steps."""
LATER = [5.0, 4.5, 4.2, 4.1, 4.0, 4.0]
FALLS = [9.0, 8.0, 7.0, 6.0, *LATER]
RISES = [9.0, 8.0, 7.0, 7.1, *LATER]
ROSE_BEFORE = [8.0, 9.0, 7.0, 6.0, *LATER]
SETTLED_WITH_IT = [4.0, 5.0] + [2.0] * 8


@pytest.mark.parametrize(
    ("tokens", "hits"),
    [((FIRST, ROSE_BEFORE), 3), ((FIRST, SETTLED_WITH_IT, RISES), 0), ((FIRST, FALLS, SETTLED_WITH_IT), 3)],
)
def test_a_token_counts_once_its_predecessors_have_settled(tokens: tuple[list[float], ...], hits: int) -> None:
    interval = estimate(view("nrgpt/fig2", energies(*tokens)), "descent_after_predecessors").interval
    assert (interval.hits, interval.cases) == (hits, 3)  # type: ignore[union-attr]


def test_a_model_that_never_learns_has_no_transition() -> None:
    assert estimate(view("nrgpt/fig3", listops(1.0, 1e6)), "listops_parity").interval is None


def test_parity_is_the_ratio_of_the_lower_envelopes_at_every_common_size_paired_by_seed() -> None:
    found = estimate(view("nrgpt/fig4", curve(lambda place, seed: 1.04)), "shakespeare_parity")
    common = {PER_SQUARE[model] * width**2 for model in PER_SQUARE if model != "gpt" for width in WIDTHS} & set(
        range(13 * 32**2, 10 * 512**2 + 1)
    )  # from the baseline's smallest model to NRGPT's largest
    assert {label for label, _ in found.parts} == {f"{size:,} parameters" for size in common}
    assert all(found.shown(part.mean) == pytest.approx(1.04, rel=1e-3) for _, part in found.parts)
    assert value(found) == pytest.approx(1.04, rel=1e-3)
    noisy = estimate(view("nrgpt/fig4", curve(lambda place, seed: 1.0 + 0.05 * seed)), "shakespeare_parity").interval
    assert noisy is not None and noisy.paired and noisy.low < 0 < noisy.high


def test_flops_are_compared_at_equal_parameters() -> None:
    def metrics(place: Place, seed: int) -> Numbers:
        at_equal = place["parameters"] == "equal" and place["model"] in ("ff1_8d", "ff2w")
        return {"ratio": 2.0 if at_equal else 9.0}

    found = estimate(view("nrgpt/flops", exactly(metrics)), "flops_1_to_2")
    assert found.interval is not None and len(found.parts) == 12
    assert (found.interval.low, found.interval.high) == (2.0, 2.0)


def test_chance_of_mmlu_has_the_noise_of_every_question_and_printed_columns_their_mean() -> None:
    records = view("nrgpt/table6", Made(scale="paper"))
    columns = records.plan.cells[0].config["probes"]["mmlu"]["columns"]
    variance = 0.0
    for subjects in columns.values():
        for size in subjects.values():
            weight = 1 / (size * len(subjects) * len(columns))  # of one question in the average
            variance += size * weight**2 * 0.25 * 0.75
    summary = table_of(records).summary()
    assert summary["chance_half_width"] == pytest.approx(1.959964 * 100 * math.sqrt(variance), rel=1e-9)
    assert summary["printed_ff2w"] == pytest.approx(207.8 / 7)

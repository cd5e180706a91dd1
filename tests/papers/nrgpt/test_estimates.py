"""NRGPT's estimates on made-up records with known answers."""

import math
from collections.abc import Callable, Mapping, Sequence

import pytest

from paper_repro.tables import spec
from paper_repro.tables.claims import Estimate
from paper_repro.tests.support.made_up import Made, Place, estimate, value, view, without

WIDTHS = {"w32": 32, "w64": 64, "w128": 128}
PER_SQUARE = {"gpt": 36, "rgpt_parallel": 13, "ff1": 7, "ff2w": 10}
LISTOPS_SIZES = {"12": 3e3, "16": 1e4, "25": 3e4, "40": 1e5, "64": 3e5}


def found(artifact: str, claim: str, made: Made) -> Estimate:
    return estimate(view(artifact, made), claim)


def exactly(metrics: Callable[[Place, int], Mapping[str, float]], scale: str = "cpu", **more: object) -> Made:
    return Made(metrics, noise=0.0, scale=scale, **more)  # type: ignore[arg-type]


def by_model(metric: str, **numbers: float) -> Made:
    return exactly(lambda place, seed: {metric: numbers[place["model"]]})


@pytest.mark.parametrize(
    ("claim", "metric", "recorded", "expected"),
    [
        ("energy_ends_lower", "ends_lower", 31 / 32, 31 / 32),
        ("energy_ends_lower", "ends_lower", 1 / 32, 1 / 32),
        ("first_token_monotone", "first_tokens_rising", 0.05, 0.95),
        ("first_token_monotone", "first_tokens_rising", 0.95, 0.05),
        ("energy_bounded", "bound_use", 1.2, 1.2),
        ("energy_settles", "late_change", 0.02, 0.02),
    ],
)
def test_shares_and_sizes_of_energies_are_those_recorded(
    claim: str, metric: str, recorded: float, expected: float
) -> None:
    assert value(found("nrgpt/fig2", claim, exactly(lambda place, seed: {metric: recorded}))) == pytest.approx(expected)


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
FALLS = [9.0, 8.0, 7.0, 6.0, 5.0, 4.5, 4.2, 4.1, 4.0, 4.0]
RISES = [9.0, 8.0, 7.0, 7.1, 5.0, 4.5, 4.2, 4.1, 4.0, 4.0]
ROSE_BEFORE = [8.0, 9.0, 7.0, 6.0, 5.0, 4.5, 4.2, 4.1, 4.0, 4.0]
SETTLED_WITH_IT = [4.0, 5.0] + [2.0] * 8


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ((FIRST, FALLS), (3, 3)),
        ((FIRST, RISES), (0, 3)),
        ((FIRST, ROSE_BEFORE), (3, 3)),
        ((FIRST, SETTLED_WITH_IT, RISES), (0, 3)),
        ((FIRST, FALLS, SETTLED_WITH_IT), (3, 3)),
    ],
)
def test_a_token_counts_once_its_predecessors_have_settled(
    tokens: tuple[list[float], ...], expected: tuple[int, int]
) -> None:
    interval = found("nrgpt/fig2", "descent_after_predecessors", energies(*tokens)).interval
    assert (interval.hits, interval.cases) == expected  # type: ignore[union-attr]


def listops(ff1: float, ff2w: float) -> Made:
    """Accuracies rise at so many times the recurrent GPT's parameters."""
    behind = {"rgpt_parallel": 1.0, "ff1": ff1, "ff2w": ff2w}

    def accuracy(place: Place, seed: int) -> Mapping[str, float]:
        decades = math.log10(LISTOPS_SIZES[place["width"]] / (1e4 * (1 + 0.01 * seed) * behind[place["model"]]))
        return {"accuracy": 1 / (1 + math.exp(-6 * decades))}

    return exactly(accuracy, parameters=lambda place: int(LISTOPS_SIZES[place["width"]]))


def test_listops_parity_is_the_ratio_of_both_variants_to_the_recurrent_gpt() -> None:
    assert value(found("nrgpt/fig3", "listops_parity", listops(2.0, 4.0))) == pytest.approx(math.sqrt(8), rel=1e-4)
    assert value(found("nrgpt/fig3", "listops_parity", listops(0.5, 0.25))) == pytest.approx(1 / math.sqrt(8), rel=1e-4)


@pytest.mark.parametrize(("ff1", "ff2w", "step"), [(2.0, 3.0, 1.5), (1.2, 3.0, 1.2), (2.0, 1.0, 0.5), (0.5, 2.0, 0.5)])
def test_listops_order_is_the_smallest_step(ff1: float, ff2w: float, step: float) -> None:
    assert value(found("nrgpt/fig3", "listops_order", listops(ff1, ff2w))) == pytest.approx(step, rel=1e-4)


def test_a_model_that_never_learns_has_no_transition() -> None:
    assert found("nrgpt/fig3", "listops_parity", listops(1.0, 1e6)).interval is None


def shakespeare(
    loss: Callable[[Place, int], float], gap: Callable[[Place], float] = lambda place: 0.2, scale: str = "cpu"
) -> Made:
    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        best = loss(place, seed)
        return {"best_val_loss": best, "val_loss": best + 0.1, "train_loss": best + 0.1 - gap(place)}

    def parameters(place: Place) -> int:
        return PER_SQUARE[place["model"]] * int(place["width"][1:]) ** 2

    return exactly(metrics, scale, parameters=parameters)


def is_nrgpt(place: Place) -> bool:
    return place["model"].startswith("ff")


def curve(factor: Callable[[Place, int], float]) -> Made:
    """Losses straight in the logarithm of the parameters, rate 0.002 best by 0.05; NRGPT's times a factor."""

    def loss(place: Place, seed: int) -> float:
        parameters = PER_SQUARE[place["model"]] * WIDTHS[place["width"]] ** 2
        own = 4 - 0.2 * math.log(parameters) + 0.05 * (place["setting"] != "lr2e-3") + 0.01 * seed
        return own * (factor(place, seed) if is_nrgpt(place) else 1.0)

    return shakespeare(loss)


@pytest.mark.parametrize("factor", [1.0, 1.04, 0.8])
def test_parity_is_the_ratio_of_the_lower_envelopes_at_every_common_size(factor: float) -> None:
    estimate = found("nrgpt/fig4", "shakespeare_parity", curve(lambda place, seed: factor))
    common = {
        PER_SQUARE[model] * width**2 for model in PER_SQUARE if model != "gpt" for width in WIDTHS.values()
    } & set(range(13 * 32**2, 10 * 128**2 + 1))  # from the baseline's smallest model to NRGPT's largest
    assert {label for label, _ in estimate.parts} == {f"{size:,} parameters" for size in common}
    assert all(estimate.shown(part.mean) == pytest.approx(factor, rel=1e-3) for _, part in estimate.parts)
    assert value(estimate) == pytest.approx(factor, rel=1e-3)


def test_parity_takes_the_better_variant_and_pairs_seeds() -> None:
    made = curve(lambda place, seed: 1.2 if place["model"] == "ff1" and place["width"] != "w128" else 1.0)
    assert value(found("nrgpt/fig4", "shakespeare_parity", made)) == pytest.approx(1.0)
    noisy = found("nrgpt/fig4", "shakespeare_parity", curve(lambda place, seed: 1.0 + 0.05 * seed)).interval
    assert noisy is not None and noisy.paired and noisy.low < 0 < noisy.high


def test_overfitting_is_the_gap_at_the_largest_width_in_the_best_setting() -> None:
    def gap(place: Place) -> float:
        if place["setting"] != "lr2e-3" or place["width"] != "w512":
            return 0.2 if is_nrgpt(place) else -5.0  # would turn the sign if it were read
        return 0.1 if is_nrgpt(place) else 0.4

    made = shakespeare(lambda place, seed: 2.0 - 0.1 * (place["setting"] == "lr2e-3"), gap, "gpu")
    assert value(found("nrgpt/fig4", "shakespeare_no_overfit", made)) == pytest.approx(-0.3)


@pytest.mark.parametrize(("ours", "other"), [(0.5, 0.1), (0.1, 0.5)])
def test_sensitivity_is_the_difference_of_spreads(ours: float, other: float) -> None:
    made = shakespeare(lambda place, seed: 2.0 + (ours if is_nrgpt(place) else other) * (place["setting"] == "lr2e-3"))
    estimate = found("nrgpt/fig4", "hyperparameter_sensitivity", made)
    assert value(estimate) == pytest.approx(ours - other)
    assert len(estimate.parts) == 2 * len(WIDTHS)


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        ({"gpt": 2.0, "rgpt_parallel": 3.0, "ff2w": 3.3}, 1.1),
        ({"gpt": 2.0, "rgpt_parallel": 2.1, "ff2w": 3.3}, 1.05),
        ({"gpt": 2.0, "rgpt_parallel": 3.0, "ff2w": 2.7}, 0.9),
    ],
)
@pytest.mark.parametrize(
    ("artifact", "claim"), [("nrgpt/table1", "owt_order"), ("nrgpt/table5", "loss_order_at_equal_parameters")]
)
def test_the_order_of_losses_is_its_smallest_step(
    artifact: str, claim: str, losses: dict[str, float], step: float
) -> None:
    assert value(found(artifact, claim, by_model("best_val_loss", **losses))) == pytest.approx(step)


@pytest.mark.parametrize(
    ("artifact", "claim", "metric", "scale"),
    [
        ("nrgpt/table2", "diversity_distinct_1", "distinct_1", "cpu"),
        ("nrgpt/table2", "diversity_distinct_2", "distinct_2", "gpu"),
        ("nrgpt/table4", "text_quality_gqs", "gqs_paper", "cpu"),
        ("nrgpt/table6", "mmlu_best", "mmlu_generated_average", "gpu"),
        ("nrgpt/table6", "continuations_best", "continuations_mean", "cpu"),
    ],
)
@pytest.mark.parametrize(("ours", "ahead"), [(0.9, 0.2), (0.5, -0.2)])
def test_the_highest_is_compared_with_the_best_other(
    artifact: str, claim: str, metric: str, scale: str, ours: float, ahead: float
) -> None:
    others = {"gpt": 0.6, "rgpt": 0.4, "rgpt_parallel": 0.7, "ff1": 2.0}

    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        return {metric: ours if place["model"] == "ff2w" else others[place["model"]]}

    assert value(found(artifact, claim, exactly(metrics, scale))) == pytest.approx(ahead)


@pytest.mark.parametrize(("ours", "ratio"), [(80.0, 0.8), (150.0, 1.5)])
def test_the_lowest_perplexity_is_compared_with_the_best_other(ours: float, ratio: float) -> None:
    made = by_model("perplexity", gpt=100.0, rgpt=300.0, rgpt_parallel=200.0, ff1=1.0, ff2w=ours)
    assert value(found("nrgpt/table4", "text_quality_perplexity", made)) == pytest.approx(ratio)


@pytest.mark.parametrize(("ours", "ratio"), [(3.0, 2.0), (0.75, 0.5)])
def test_flops_are_compared_at_equal_parameters(ours: float, ratio: float) -> None:
    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        at_equal = place["parameters"] == "equal" and place["model"] in ("ff1_8d", "ff2w")
        return {"ratio": ours / 1.5 if at_equal else 9.0}

    estimate = found("nrgpt/flops", "flops_1_to_2", exactly(metrics, "exact"))
    assert estimate.interval is not None
    assert (estimate.interval.low, estimate.interval.high) == (ratio, ratio)
    assert len(estimate.parts) == 12


def test_without_records_nothing_is_estimated() -> None:
    for name in (name for name in spec.find() if name.startswith("nrgpt/")):
        artifact = spec.load(name)
        for claim in artifact.claims:
            scale = "exact" if "exact" in artifact.scales else (claim.scales or ["cpu"])[0]
            assert estimate(without(view(name, Made(scale=scale))), claim.id).interval is None, (name, claim.id)

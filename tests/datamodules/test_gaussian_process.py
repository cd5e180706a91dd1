import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paper_repro.datamodules.gaussian_process import (
    FAMILIES,
    SAMPLERS,
    GaussianProcessData,
    Kernel,
    RandomFeatures,
    draw_exactly,
    uniforms,
)

SMALL: dict[str, Any] = {"num_inputs": 3, "num_train": 50, "num_test": 7, "batch_size": 20, "num_features": 40}

VARIANTS: dict[str, dict[str, Any]] = {
    "rbf": {"name": "rbf"},
    "matern 1/2": {"name": "matern", "smoothness": 0.5},
    "matern 3/2": {"name": "matern"},
    "matern 5/2": {"name": "matern", "smoothness": 2.5},
    "periodic": {"name": "periodic"},
    "rational quadratic": {"name": "rational_quadratic"},
    "rational quadratic, alpha 3": {"name": "rational_quadratic", "alpha": 3.0},
    "non-stationary": {"name": "non_stationary"},
}


def _distance(left: np.ndarray, right: np.ndarray) -> float:
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(left, right, strict=True)))


def _matern_three_halves(left: np.ndarray, right: np.ndarray, length: float) -> float:
    r = math.sqrt(3) * _distance(left, right) / length
    return (1 + r) * math.exp(-r)


def _matern_five_halves(left: np.ndarray, right: np.ndarray, length: float) -> float:
    r = math.sqrt(5) * _distance(left, right) / length
    return (1 + r + r * r / 3) * math.exp(-r)


def _periodic(left: np.ndarray, right: np.ndarray, length: float) -> float:
    return math.exp(-2 * sum(math.sin((a - b) / 2) ** 2 for a, b in zip(left, right, strict=True)) / length**2)


FORMULAS: dict[str, Callable[[np.ndarray, np.ndarray, float], float]] = {
    "rbf": lambda a, b, length: math.exp(-(_distance(a, b) ** 2) / (2 * length**2)),
    "matern 1/2": lambda a, b, length: math.exp(-_distance(a, b) / length),
    "matern 3/2": _matern_three_halves,
    "matern 5/2": _matern_five_halves,
    "periodic": _periodic,
    "rational quadratic": lambda a, b, length: 1 / (1 + _distance(a, b) ** 2 / (2 * length**2)),
    "rational quadratic, alpha 3": lambda a, b, length: (1 + _distance(a, b) ** 2 / (6 * length**2)) ** -3,
    "non-stationary": lambda a, b, length: float(a @ b) + _matern_five_halves(a, b, length),
}


def _points(count: int, num_inputs: int = 3) -> np.ndarray:
    return 3 * uniforms((count, num_inputs), 11, "points") - 1.5


@pytest.mark.parametrize("variant", VARIANTS)
def test_covariance_is_the_formula(variant: str) -> None:
    kernel, left, right = Kernel.of(lengthscale=1.3, **VARIANTS[variant]), _points(6), _points(9)[3:]
    expected = [[FORMULAS[variant](a, b, 1.3) for b in right] for a in left]
    np.testing.assert_allclose(kernel.covariance(left, right), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("variant", VARIANTS)
def test_random_features_have_the_covariance_of_the_kernel(variant: str) -> None:
    """Each entry averages F terms of variance at most 3/2; five standard deviations."""
    features, points = 200_000, _points(6)
    kernel = Kernel.of(lengthscale=1.3, **VARIANTS[variant])
    drawn = RandomFeatures.draw(kernel, 3, features, seed=5)
    basis = np.cos(kernel.embed(points) @ drawn.frequencies.T + drawn.phases) * math.sqrt(2 / features)
    expected = kernel.covariance(points, points) - (points @ points.T if kernel.family.linear else 0)
    np.testing.assert_allclose(basis @ basis.T, expected, rtol=0, atol=5 * math.sqrt(1.5 / features))


PINNED = {
    "rbf": ((0.172428923019, 0.0644950550942, 0.0259170809365), (0.0605435832797, 0.259318455728, 0.299720917259)),
    "matern": ((0.408524213169, 0.585774560194, 0.610970067641), (0.789187020841, 0.436893615939, -0.0710437782866)),
    "periodic": ((-3.42219906761, -3.53683024095, -3.38336658163), (-1.56867976006, -1.68877514932, -1.65283220691)),
    "rational_quadratic": (
        (-1.45212397551, -1.3144744282, -1.12196116843),
        (-2.24909583011, -2.17027025466, -1.9369783089),
    ),
    "non_stationary": (
        (0.394111388273, -0.224951005266, -0.930386029788),
        (-0.583791782798, -0.487571621419, -0.889685682874),
    ),
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kernel", FAMILIES)
def test_values_are_those_of_the_first_version(kernel: str, sampler: str) -> None:
    features = {"num_features": 50} if sampler == "random_features" else {}
    options = {"num_inputs": 3, "num_train": 4, "num_test": 2, "batch_size": 2, "standardize": False} | features
    data = GaussianProcessData(kernel=kernel, seed=3, sampler=sampler, dtype="float64", **options)
    (train, train_values), (test, test_values) = (next(iter(data.evaluation_batches(name))) for name in data.splits)
    assert train[0].tolist() == [0.9906700368847174, -0.5598998192305047, 0.11660203570926231]
    assert test[-1].tolist() == [0.2174046699365817, -0.2713206108653121, 0.45576352374907025]
    found = [float(train_values[0]), float(train_values[3]), float(test_values[1])]
    np.testing.assert_allclose(found, PINNED[kernel][SAMPLERS.index(sampler)], rtol=1e-9, atol=1e-9)


def test_uniforms_are_pinned_and_differ_by_stream() -> None:
    assert uniforms((3,), 3, "a").tolist() == [0.6513563701527508, 0.36111254534995274, 0.46095798050181547]
    assert not np.array_equal(uniforms((3,), 3, "b"), uniforms((3,), 3, "a"))


def test_defaults_are_the_recipe_of_table_3() -> None:
    data = GaussianProcessData()
    train, test = (torch.cat([batch[0] for batch in data.evaluation_batches(split)]) for split in data.splits)
    assert (train.shape, test.shape) == ((10_000, 10), (2_000, 10))
    assert (data.num_features, data.steps_per_epoch, data.train_batch(0)[0].shape) == (12_288, 50, (200, 10))
    assert train.abs().max() <= 1
    # the mean of 10^5 uniforms on [-1, 1] has a standard deviation of 0.0018, their variance 1/3 one of 0.0009
    assert abs(float(train.mean())) < 0.01
    assert float(train.var()) == pytest.approx(1 / 3, abs=0.005)


def test_targets_are_standardised_with_the_training_values() -> None:
    options = {**SMALL, "dtype": "float64", "seed": 4}
    raw, scaled = (GaussianProcessData(standardize=flag, **options) for flag in (False, True))
    values = {split: next(iter(raw.evaluation_batches(split)))[1] for split in raw.splits}
    mean, deviation = values["train"].mean(), values["train"].std(correction=0)
    for split in scaled.splits:
        found = next(iter(scaled.evaluation_batches(split)))[1]
        torch.testing.assert_close(found, (values[split] - mean) / deviation, rtol=1e-12, atol=1e-12)


def test_noise_has_its_standard_deviation_and_leaves_the_function_alone() -> None:
    options = {**SMALL, "num_train": 4_000, "standardize": False, "dtype": "float64"}
    quiet, noisy = (GaussianProcessData(noise=noise, **options)._draw() for noise in (0.0, 0.3))
    assert np.array_equal(quiet["inputs"], noisy["inputs"])
    # 4,007 normal draws: the sample deviation is within 1.1% with one sigma
    assert float((noisy["values"] - quiet["values"]).std()) == pytest.approx(0.3, rel=0.06)


def test_an_epoch_sees_each_row_at_most_once_in_an_order_of_its_own() -> None:
    data = GaussianProcessData(**SMALL)
    train, targets = next(iter(data.evaluation_batches("train")))
    rows = {tuple(row.tolist()): float(target) for row, target in zip(train, targets, strict=True)}
    epochs = []
    for epoch in range(2):
        batches = [data.train_batch(epoch * data.steps_per_epoch + index) for index in range(data.steps_per_epoch)]
        seen = [tuple(row.tolist()) for inputs, _ in batches for row in inputs]
        values = [float(value) for _, batch in batches for value in batch]
        assert len(set(seen)) == len(seen) == 40
        assert [rows[row] for row in seen] == values
        epochs.append(seen)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("damaged", [False, True])
def test_cache_gives_the_same_data_without_drawing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    fresh = GaussianProcessData(**SMALL).data_hashes()
    assert GaussianProcessData(cache=tmp_path, **SMALL).data_hashes() == fresh
    (stored,) = tmp_path.glob("*.npz")
    draws: list[int] = []
    original = GaussianProcessData._draw
    monkeypatch.setattr(GaussianProcessData, "_draw", lambda self: (draws.append(1), original(self))[1])
    if damaged:
        stored.write_bytes(stored.read_bytes()[:-1])
    assert GaussianProcessData(cache=str(tmp_path), **SMALL).data_hashes() == fresh
    assert len(draws) == int(damaged)


def test_cache_tells_apart_every_argument_of_the_draw(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"kernel": "matern"},
        {"lengthscale": 1.0},
        {"kernel": "rational_quadratic", "alpha": 2.0},
        {"num_test": 8},
        {"num_features": 41},
        {"sampler": "cholesky", "num_features": None},
        {"noise": 0.1},
        {"input_range": (-1.0, 1.5)},
        {"seed": 1},
    ]
    for change in changes:
        GaussianProcessData(cache=tmp_path, **{**SMALL, **change}).prepare_data()
    assert len(list(tmp_path.glob("*.npz"))) == len(changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "mattern"}, r"kernel must be one of .* got 'mattern' \(did you mean 'matern'"),
        ({"smoothness": 1.5}, "smoothness=1.5 has no effect on kernel 'rbf'"),
        ({"kernel": "matern", "smoothness": 2.0}, r"smoothness must be one of \(0.5, 1.5, 2.5\), got 2.0"),
        ({"kernel": "rational_quadratic", "alpha": -1.0}, "alpha must be a positive finite number, got -1.0"),
        ({"num_train": 2.5}, "num_train must be a whole number of at least 1, got 2.5"),
        ({"batch_size": 51}, r"batch_size must be at most num_train \(50\), got 51"),
        ({"sampler": "exact"}, "sampler must be one of random_features, cholesky, got 'exact'"),
        ({"sampler": "cholesky"}, "num_features=40 has no effect with sampler='cholesky'"),
        ({"noise": -0.1}, "noise must be a positive finite number, got -0.1"),
        ({"input_range": (1.0, -1.0)}, "input_range must be two numbers, the lower first"),
        ({"dtype": "float16"}, "dtype must be one of float32, float64"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GaussianProcessData(**{**SMALL, **options})


def test_a_constant_training_set_is_refused() -> None:
    with pytest.raises(ValueError, match="set num_train to 2 or more"):
        GaussianProcessData(**{**SMALL, "num_train": 1, "batch_size": 1}).prepare_data()


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_draws_have_zero_mean_and_the_covariance_of_the_kernel(variant: str, sampler: str) -> None:
    """Draws over seeds, in units of the kernel's standard deviation.

    The mean of n products has a standard deviation of at most sqrt((2 + 3/F) / n), the 3/F from the kurtosis of F
    random features; five of those are allowed.
    """
    draws, features, points = 2_000, 32, _points(4)
    kernel = Kernel.of(lengthscale=0.9, **VARIANTS[variant])

    def draw(seed: int) -> np.ndarray:
        if sampler == "cholesky":
            return draw_exactly(kernel, points, seed)
        return RandomFeatures.draw(kernel, 3, features, seed)(points)

    covariance = kernel.covariance(points, points)
    deviation = np.sqrt(np.diag(covariance))
    values = np.stack([draw(seed) for seed in range(draws)]) / deviation
    tolerance = 5 * math.sqrt((2 + 3 / features) / draws)
    np.testing.assert_allclose(values.mean(0), 0, atol=5 / math.sqrt(draws))
    np.testing.assert_allclose(values.T @ values / draws, covariance / np.outer(deviation, deviation), atol=tolerance)

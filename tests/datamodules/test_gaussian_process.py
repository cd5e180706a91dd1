import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels

from paper_repro.datamodules.gaussian_process import (
    FAMILIES,
    SAMPLERS,
    GaussianProcessData,
    Kernel,
    draw_exactly,
    draw_features,
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
LENGTH = 1.3


def _periodic(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.exp(-2 * (np.sin((left[:, None] - right) / 2) ** 2).sum(-1) / LENGTH**2)


COVARIANCES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "rbf": kernels.RBF(LENGTH),
    "matern 1/2": kernels.Matern(LENGTH, nu=0.5),
    "matern 3/2": kernels.Matern(LENGTH, nu=1.5),
    "matern 5/2": kernels.Matern(LENGTH, nu=2.5),
    "periodic": _periodic,
    "rational quadratic": kernels.RationalQuadratic(LENGTH, 1.0),
    "rational quadratic, alpha 3": kernels.RationalQuadratic(LENGTH, 3.0),
    "non-stationary": kernels.DotProduct(0.0) + kernels.Matern(LENGTH, nu=2.5),
}


def _points(count: int, num_inputs: int = 3) -> np.ndarray:
    return 3 * uniforms((count, num_inputs), 11, "points") - 1.5


@pytest.mark.parametrize("variant", VARIANTS)
def test_covariance_is_that_of_scikit_learn(variant: str) -> None:
    kernel, left, right = Kernel.of(lengthscale=LENGTH, **VARIANTS[variant]), _points(6), _points(9)[3:]
    expected = COVARIANCES[variant](left, right)
    np.testing.assert_allclose(kernel.covariance(left, right), expected, rtol=1e-12, atol=1e-14)


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


def test_cache_tells_apart_every_argument_of_the_draw(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "kernel": "matern",
        "lengthscale": 1.0,
        "num_test": 8,
        "num_features": 41,
        "noise": 0.1,
        "input_range": (-1.0, 1.5),
        "seed": 1,
    }
    for name, value in changes.items():
        GaussianProcessData(cache=tmp_path, **{**SMALL, name: value}).prepare_data()
    assert len(list(tmp_path.glob("*.npz"))) == len(changes)


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
        return draw_features(kernel, points, features, seed)

    covariance = kernel.covariance(points, points)
    deviation = np.sqrt(np.diag(covariance))
    values = np.stack([draw(seed) for seed in range(draws)]) / deviation
    tolerance = 5 * math.sqrt((2 + 3 / features) / draws)
    np.testing.assert_allclose(values.mean(0), 0, atol=5 / math.sqrt(draws))
    np.testing.assert_allclose(values.T @ values / draws, covariance / np.outer(deviation, deviation), atol=tolerance)

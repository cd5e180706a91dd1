import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels

from paper_repro.datamodules.gaussian_process import KERNELS, GaussianProcessData, draw_features, uniforms

SMALL: dict[str, Any] = {"num_inputs": 3, "num_train": 50, "num_test": 7, "batch_size": 20, "num_features": 40}
LENGTH = 0.9


def _periodic(points: np.ndarray) -> np.ndarray:
    return np.exp(-2 * (np.sin((points[:, None] - points) / 2) ** 2).sum(-1) / LENGTH**2)


COVARIANCES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rbf": kernels.RBF(LENGTH),
    "matern": kernels.Matern(LENGTH, nu=1.5),
    "periodic": _periodic,
    "rational_quadratic": kernels.RationalQuadratic(LENGTH, 1.0),
    "non_stationary": kernels.DotProduct(0.0) + kernels.Matern(LENGTH, nu=2.5),
}
PINNED = {
    "rbf": (0.172428923019, 0.0644950550942, 0.0259170809365),
    "matern": (0.408524213169, 0.585774560194, 0.610970067641),
    "periodic": (-3.42219906761, -3.53683024095, -3.38336658163),
    "rational_quadratic": (-1.45212397551, -1.3144744282, -1.12196116843),
    "non_stationary": (0.394111388273, -0.224951005266, -0.930386029788),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_values_are_those_of_the_first_version(kernel: str) -> None:
    sizes = {"num_inputs": 3, "num_train": 4, "num_test": 2, "batch_size": 2, "num_features": 50}
    drawn = GaussianProcessData(kernel=kernel, seed=3, **sizes).draw()
    assert drawn["inputs"][0].tolist() == [0.9906700368847174, -0.5598998192305047, 0.11660203570926231]
    assert drawn["inputs"][-1].tolist() == [0.2174046699365817, -0.2713206108653121, 0.45576352374907025]
    np.testing.assert_allclose(drawn["values"][[0, 3, 5]], PINNED[kernel], rtol=1e-9, atol=1e-9)


def test_targets_are_standardised_with_the_training_values() -> None:
    data = GaussianProcessData(seed=4, **SMALL)
    values = data.draw()["values"]
    expected = (values - values[:50].mean()) / values[:50].std()
    for split, part in (("train", expected[:50]), ("test", expected[50:])):
        found = next(iter(data.evaluation_batches(split)))[1]
        torch.testing.assert_close(found, torch.from_numpy(part).float(), rtol=1e-6, atol=1e-6)


def test_cache_tells_apart_every_argument_of_the_draw(tmp_path: Path) -> None:
    changes = {"kernel": "matern", "lengthscale": 1.0, "num_test": 8, "num_features": 41, "seed": 1}
    for name, value in changes.items():
        GaussianProcessData(cache=tmp_path, **{**SMALL, name: value}).prepare_data()
    assert len(list(tmp_path.glob("*.npz"))) == len(changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_draws_have_zero_mean_and_the_covariance_of_the_kernel(name: str) -> None:
    """Draws over seeds, in units of the kernel's standard deviation, against scikit-learn's covariances.

    The mean of n products has a standard deviation of at most sqrt((2 + 3/F) / n), the 3/F from the kurtosis of F
    random features; five of those are allowed.
    """
    draws, features, points = 2_000, 32, 3 * uniforms((4, 3), 11, "points") - 1.5
    kernel, covariance = replace(KERNELS[name], lengthscale=LENGTH), COVARIANCES[name](points)
    deviation = np.sqrt(np.diag(covariance))
    values = np.stack([draw_features(kernel, points, features, seed) for seed in range(draws)]) / deviation
    tolerance = 5 * math.sqrt((2 + 3 / features) / draws)
    np.testing.assert_allclose(values.mean(0), 0, atol=5 / math.sqrt(draws))
    np.testing.assert_allclose(values.T @ values / draws, covariance / np.outer(deviation, deviation), atol=tolerance)

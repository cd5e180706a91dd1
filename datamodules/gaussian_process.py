"""Functions drawn from Gaussian processes and sampled at random points, the data of CEM's Table 3.

The paper gives neither the inputs nor the parameters of the kernels; the defaults here were fitted to its table.
Letters: N points, K input dimensions, F random features; d is the Euclidean distance of two points.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import gammaincinv, ndtri
from torch import Tensor

from paper_repro.base.errors import one_of, positive
from paper_repro.base.identity import mix
from paper_repro.datamodules.array_shards import hashes_of, kept
from paper_repro.datamodules.counter_based import CounterBasedDataModule, permutation

Array = NDArray[np.float64]

JITTER = 1e-8
EVALUATION_ROWS = 2_000
SAMPLERS = ("random_features", "cholesky")
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def _squared_exponential(squared: Array, _shape: float) -> Array:
    return np.exp(-squared / 2)


def _matern(squared: Array, smoothness: float) -> Array:
    r = np.sqrt(2 * smoothness * squared)
    if smoothness == 0.5:
        return np.exp(-r)
    return (1 + r if smoothness == 1.5 else 1 + r + r * r / 3) * np.exp(-r)


def _matern_mixing(uniforms: Array, smoothness: float) -> Array:
    return np.sqrt(smoothness / gammaincinv(smoothness, uniforms))


def _rational_quadratic(squared: Array, alpha: float) -> Array:
    return (1 + squared / (2 * alpha)) ** -alpha


def _rational_quadratic_mixing(uniforms: Array, alpha: float) -> Array:
    return np.sqrt(gammaincinv(alpha, uniforms) / alpha)


SMOOTHNESSES = (0.5, 1.5, 2.5)


@dataclass(frozen=True)
class Kernel:
    """A covariance of unit variance (plus x . x' for "non_stationary"), with l the lengthscale.

    * rbf: exp(-d^2 / (2 l^2))
    * matern, smoothness 1/2, 3/2, 5/2: exp(-r), (1 + r) exp(-r), (1 + r + r^2/3) exp(-r), r = sqrt(2 smoothness) d / l
    * periodic, period 2 pi: exp(-2 sum_i sin^2((x_i - x'_i) / 2) / l^2), that is rbf between (cos x, sin x)
    * rational_quadratic: (1 + d^2 / (2 alpha l^2))^-alpha
    * non_stationary: x . x' + matern of smoothness 5/2
    """

    name: str
    lengthscale: float
    correlation: Callable[[Array, float], Array] = field(repr=False)
    """(d^2 / lengthscale^2, shape) to the correlation of the stationary part."""
    mixing: Callable[[Array, float], Array] | None = field(default=None, repr=False)
    """(uniforms, shape) to the factor on Gaussian frequencies that gives the kernel's spectrum; None for a factor 1."""
    shape_name: str | None = None
    shape: float = 0.0
    """Matern's smoothness or the rational quadratic's alpha."""
    on_circles: bool = False
    """Distances are taken between (cos x, sin x)."""
    linear: bool = False
    """x . x' is added."""

    @staticmethod
    def of(
        name: str, lengthscale: float | None = None, smoothness: float | None = None, alpha: float | None = None
    ) -> "Kernel":
        """Return the kernel ``name``; what is None takes the value fitted to Table 3."""
        kernel = FAMILIES[one_of("kernel", name, FAMILIES)]
        if lengthscale is not None:
            kernel = replace(kernel, lengthscale=positive("lengthscale", lengthscale))
        for parameter, value in (("smoothness", smoothness), ("alpha", alpha)):
            if value is None:
                continue
            if parameter != kernel.shape_name:
                raise ValueError(f"{parameter}={value} has no effect on kernel {name!r}: leave it out")
            kernel = replace(kernel, shape=positive(parameter, value))
        if smoothness not in (None, *SMOOTHNESSES):
            raise ValueError(f"smoothness must be one of {SMOOTHNESSES}, got {smoothness!r}")
        return kernel

    def covariance(self, left: Array, right: Array) -> Array:
        """Return the covariance matrix (N, M) of the function's values at ``left`` (N, K) and ``right`` (M, K)."""
        squared = cdist(self.embed(left), self.embed(right), "sqeuclidean") / self.lengthscale**2
        stationary = self.correlation(squared, self.shape)
        return stationary + left @ right.T if self.linear else stationary

    def embed(self, points: Array) -> Array:
        """Return the points between which distances are taken: (N, K), or (N, 2K) on circles."""
        return np.concatenate([np.cos(points), np.sin(points)], axis=1) if self.on_circles else points


FAMILIES = {
    "rbf": Kernel("rbf", 4.5, _squared_exponential),
    "matern": Kernel("matern", 3.5, _matern, _matern_mixing, "smoothness", 1.5),
    "periodic": Kernel("periodic", 2.65, _squared_exponential, on_circles=True),
    "rational_quadratic": Kernel(
        "rational_quadratic", 2.8, _rational_quadratic, _rational_quadratic_mixing, "alpha", 1.0
    ),
    "non_stationary": Kernel("non_stationary", 3.55, _matern, _matern_mixing, shape=2.5, linear=True),
}
"""The kernels with the values that were fitted to Table 3."""


def uniforms(shape: tuple[int, ...], *stream: int | str) -> Array:
    """Draw uniform numbers inside (0, 1), the middles of 2^52 equal cells, from Philox keyed by the stream's name.

    Bit-equal on every machine: NumPy guarantees the raw output of its bit generators.
    """
    raw = np.random.Philox(key=mix(*stream)).random_raw(math.prod(shape))
    return ((raw >> np.uint64(12)).astype(np.float64) + 0.5).reshape(shape) * 2.0**-52


def draw_features(kernel: Kernel, points: Array, num_features: int, seed: int) -> Array:
    """Return the values, (N,), of one draw at ``points``, (N, K):
    f(x) = sqrt(2/F) sum_j w_j cos(omega_j . z + b_j) + slope . x, with z = ``kernel.embed(x)``.

    Over w ~ N(0, 1), b ~ U(0, 2 pi), slope ~ N(0, 1), for a kernel with x . x', and omega from the kernel's spectrum
    its covariance is exactly the kernel's.
    """

    def stream(name: str, *shape: int) -> Array:
        return uniforms(shape, seed, "gaussian_process", kernel.name, name)

    z = torch.from_numpy(np.ascontiguousarray(kernel.embed(points)))  # (N, K), on circles (N, 2K)
    frequencies = ndtri(stream("frequencies", num_features, z.shape[1])) / kernel.lengthscale  # omega, (F, K)
    if kernel.mixing is not None:
        frequencies *= kernel.mixing(stream("mixing", num_features), kernel.shape)[:, None]
    phases = torch.from_numpy(2 * math.pi * stream("phases", num_features))  # b, (F,)
    weights = torch.from_numpy(ndtri(stream("weights", num_features)))  # w, (F,)
    transposed = torch.from_numpy(frequencies).T.contiguous()
    rows = max(1, (1 << 17) // num_features)
    out = torch.empty(len(z), dtype=torch.float64)
    for some, into in zip(z.split(rows), out.split(rows), strict=True):
        torch.mv(torch.addmm(phases, some, transposed).cos_(), weights, out=into)
    values = out.numpy() * math.sqrt(2 / num_features)
    return values + points @ ndtri(stream("slope", points.shape[1])) if kernel.linear else values


def draw_exactly(kernel: Kernel, points: Array, seed: int) -> Array:
    """Return the values, (N,), of one draw at ``points``, (N, K): L n with L L^T = covariance + 1e-8 I and n ~ N(0, I).

    N^3 / 3 multiply-adds and 40 N^2 bytes: 25 s on one thread and 6 GB for 12,000 points.
    """
    covariance = kernel.covariance(points, points)
    covariance[np.diag_indices(len(points))] += JITTER
    normals = ndtri(uniforms((len(points),), seed, "gaussian_process", kernel.name, "values"))
    return np.linalg.cholesky(covariance) @ normals


@dataclass(eq=False, repr=False)
class GaussianProcessData(CounterBasedDataModule):
    """Regression on one draw of a zero-mean Gaussian process at uniform points (CEM, Table 3).

    Splits "train" and "test"; a batch is (inputs (B, K), targets (B,)).  With random features the function does not
    depend on the points, nor on how many there are.

    Reproducibility: the inputs and the batch order are bit-equal on every machine; function values agree to rounding
    (1e-12) only, so a hash of the targets may differ between machines.

    Args:
        kernel: "rbf", "matern", "periodic", "rational_quadratic" or "non_stationary", see ``Kernel``.
        lengthscale, smoothness, alpha: of the kernel; None takes the value fitted to Table 3.
        batch_size: rows of a training batch; an epoch drops the rest that does not fill one.
        sampler: "random_features", or "cholesky", which is exact and cubic in the number of points.
        num_features: F of the random features.
        noise: standard deviation of the normal noise added to each value, in units of the kernel's.
        standardize: subtract the mean of the training values and divide by their standard deviation, on both splits.
        input_range: each coordinate of a point is uniform between these two.
        cache: folder that keeps drawn functions, or None.
        dtype: "float32" or "float64", of the batches; the draw is always made in float64.
    """

    splits = ("train", "test")

    kernel: str = "rbf"
    lengthscale: float | None = None
    smoothness: float | None = None
    alpha: float | None = None
    num_inputs: int = 10
    num_train: int = 10_000
    num_test: int = 2_000
    batch_size: int = 200
    sampler: str = "random_features"
    num_features: int | None = None
    noise: float = 0.0
    standardize: bool = True
    input_range: tuple[float, float] = (-1.0, 1.0)
    seed: int = 0
    cache: str | Path | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self.covariance = Kernel.of(self.kernel, self.lengthscale, self.smoothness, self.alpha)
        exact = one_of("sampler", self.sampler, SAMPLERS) == "cholesky"
        if exact and self.num_features is not None:
            raise ValueError(f"num_features={self.num_features} has no effect with sampler='cholesky': leave it out")
        self.check_numbers("num_inputs", "num_train", "num_test", "batch_size", "seed", "num_features")
        self.num_features = None if exact else self.num_features or 12_288
        self.sizes = {"train": self.num_train, "test": self.num_test}
        if self.batch_size > self.num_train:
            raise ValueError(f"batch_size must be at most num_train ({self.num_train}), got {self.batch_size}")
        if self.noise != 0:
            positive("noise", self.noise)
        low, high = map(float, self.input_range)
        if not low < high:
            raise ValueError(f"input_range must be two numbers, the lower first, got {self.input_range!r}")
        self.input_range = low, high
        self.type = DTYPES[one_of("dtype", self.dtype, DTYPES)]
        self._epoch: tuple[int, tuple[Tensor, Tensor]] | None = None

    def prepare_data(self) -> None:
        """Draw the function, or read it from the cache."""
        _ = self._splits

    @cached_property
    def _splits(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        options = (self.num_inputs, self.sampler, self.num_features, self.noise, self.input_range, self.seed)
        arrays = kept(self.cache, "gaussian_process", __name__, (self.covariance, self.sizes, *options), self._draw)
        inputs, values = arrays["inputs"], arrays["values"]
        if self.standardize:
            train = values[: self.num_train]
            scale = float(train.std())
            if scale == 0:
                raise ValueError("standardize needs training values that differ: set num_train to 2 or more")
            values = (values - train.mean()) / scale
        tensors = (torch.from_numpy(array).to(self.type).split([*self.sizes.values()]) for array in (inputs, values))
        return dict(zip(self.sizes, zip(*tensors, strict=True), strict=True))

    def train_batch(self, step: int) -> tuple[Tensor, Tensor]:
        epoch, index = divmod(step, self.num_train // self.batch_size)
        if self._epoch is None or self._epoch[0] != epoch:
            order = permutation(self.num_train, mix(self.seed, "order", epoch))
            inputs, targets = self._split("train")
            self._epoch = (epoch, (inputs[order], targets[order]))
        inputs, targets = self._epoch[1]
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return inputs[rows], targets[rows]

    def example_batch(self) -> tuple[Tensor, Tensor]:
        inputs = torch.zeros(self.batch_size, self.num_inputs, dtype=self.type)
        return inputs, inputs[:, 0]

    def evaluation_batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        inputs, targets = self._split(split)
        return zip(inputs.split(EVALUATION_ROWS), targets.split(EVALUATION_ROWS), strict=True)

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of the inputs and of the targets as they are served: training rows, then test rows."""
        inputs, targets = zip(*map(self._split, self.splits), strict=True)
        return hashes_of({"inputs": map(torch.Tensor.numpy, inputs), "targets": map(torch.Tensor.numpy, targets)})

    def _split(self, split: str) -> tuple[Tensor, Tensor]:
        return self._splits[one_of("split", split, self.splits)]

    def _draw(self) -> dict[str, Array]:
        """Draw inputs (N, K) and values (N,) of both splits, in float64, before standardising."""
        low, high = self.input_range
        points = [
            uniforms((size, self.num_inputs), self.seed, "gaussian_process", "inputs", split)
            for split, size in self.sizes.items()
        ]
        inputs = low + (high - low) * np.concatenate(points)
        if self.num_features is None:
            values = draw_exactly(self.covariance, inputs, self.seed)
        else:
            values = draw_features(self.covariance, inputs, self.num_features, self.seed)
        if self.noise:
            noise = ndtri(uniforms(values.shape, self.seed, "gaussian_process", self.kernel, "noise"))
            values = values + self.noise * noise
        return {"inputs": inputs, "values": values}

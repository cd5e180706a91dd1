"""Functions drawn from Gaussian processes and sampled at random points, the data of CEM's Table 3.

The paper gives neither the inputs nor the parameters of the kernels; the defaults here were fitted to its table.
Letters: N points, K input dimensions, F random features; d is the Euclidean distance of two points.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtri
from torch import Tensor

from paper_repro.base.errors import at_least, one_of, positive
from paper_repro.base.identity import mix
from paper_repro.datamodules.array_shards import hashes_of, kept
from paper_repro.datamodules.counter_based import CounterBasedDataModule, permutation

Array = NDArray[np.float64]
EVALUATION_ROWS = 2_000
NUM_FEATURES = 12_288


def _matern(smoothness: float, uniforms: Array) -> Array:
    return np.sqrt(smoothness / gammaincinv(smoothness, uniforms))


def _rational_quadratic(alpha: float, uniforms: Array) -> Array:
    return np.sqrt(gammaincinv(alpha, uniforms) / alpha)


@dataclass(frozen=True)
class Kernel:
    """A covariance of unit variance (plus x . x' for "non_stationary"), with l the lengthscale.

    * rbf: exp(-d^2 / (2 l^2))
    * matern, of smoothness 3/2: (1 + r) exp(-r), r = sqrt(3) d / l
    * periodic, period 2 pi: exp(-2 sum_i sin^2((x_i - x'_i) / 2) / l^2), that is rbf between (cos x, sin x)
    * rational_quadratic, alpha = 1: 1 / (1 + d^2 / (2 l^2))
    * non_stationary: x . x' + matern of smoothness 5/2, (1 + r + r^2/3) exp(-r), r = sqrt(5) d / l
    """

    name: str
    lengthscale: float
    mixing: Callable[[Array], Array] | None = None
    """Uniforms to the factor on Gaussian frequencies that gives the kernel's spectrum; None for a factor 1."""
    on_circles: bool = False
    """Distances are taken between (cos x, sin x)."""
    linear: bool = False
    """x . x' is added."""

    def embed(self, points: Array) -> Array:
        """Return the points between which distances are taken: (N, K), or (N, 2K) on circles."""
        return np.concatenate([np.cos(points), np.sin(points)], axis=1) if self.on_circles else points


KERNELS = {
    "rbf": Kernel("rbf", 4.5),
    "matern": Kernel("matern", 3.5, partial(_matern, 1.5)),
    "periodic": Kernel("periodic", 2.65, on_circles=True),
    "rational_quadratic": Kernel("rational_quadratic", 2.8, partial(_rational_quadratic, 1.0)),
    "non_stationary": Kernel("non_stationary", 3.55, partial(_matern, 2.5), linear=True),
}
"""The kernels with the lengthscales that were fitted to Table 3."""


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
        frequencies *= kernel.mixing(stream("mixing", num_features))[:, None]
    phases = torch.from_numpy(2 * math.pi * stream("phases", num_features))  # b, (F,)
    weights = torch.from_numpy(ndtri(stream("weights", num_features)))  # w, (F,)
    transposed = torch.from_numpy(frequencies).T.contiguous()
    rows = max(1, (1 << 17) // num_features)
    out = torch.empty(len(z), dtype=torch.float64)
    for some, into in zip(z.split(rows), out.split(rows), strict=True):
        torch.mv(torch.addmm(phases, some, transposed).cos_(), weights, out=into)
    values = out.numpy() * math.sqrt(2 / num_features)
    return values + points @ ndtri(stream("slope", points.shape[1])) if kernel.linear else values


@dataclass(eq=False, repr=False)
class GaussianProcessData(CounterBasedDataModule):
    """Regression on one draw of a zero-mean Gaussian process at uniform points (CEM, Table 3).

    Splits "train" and "test"; a batch is (inputs (B, K), targets (B,)), float32.  Each coordinate of a point is uniform
    between -1 and 1; targets are standardised by mean and deviation of the training values.  The function does not
    depend on the points, nor on how many there are.

    Reproducibility: the inputs and the batch order are bit-equal on every machine; function values agree to rounding
    (1e-12) only, so a hash of the targets may differ between machines.

    Args:
        kernel: "rbf", "matern", "periodic", "rational_quadratic" or "non_stationary", see ``Kernel``.
        lengthscale: of the kernel; None takes the value fitted to Table 3.
        batch_size: rows of a training batch; an epoch drops the rest that does not fill one.
        num_features: F of the random features; None: 12,288.
        cache: folder that keeps drawn functions, or None.
    """

    splits = ("train", "test")

    kernel: str = "rbf"
    lengthscale: float | None = None
    num_inputs: int = 10
    num_train: int = 10_000
    num_test: int = 2_000
    batch_size: int = 200
    num_features: int | None = None
    seed: int = 0
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        self.check_numbers("num_inputs", "num_test", "batch_size", "seed", "num_features")
        at_least("num_train", self.num_train, 2)  # values that have a deviation
        self.covariance = KERNELS[one_of("kernel", self.kernel, KERNELS)]
        if self.lengthscale is not None:
            self.covariance = replace(self.covariance, lengthscale=positive("lengthscale", self.lengthscale))
        self.sizes = {"train": self.num_train, "test": self.num_test}
        if self.batch_size > self.num_train:
            raise ValueError(f"batch_size must be at most num_train ({self.num_train}), got {self.batch_size}")
        self._epoch: tuple[int, tuple[Tensor, Tensor]] | None = None

    def prepare_data(self) -> None:
        """Draw the function, or read it from the cache."""
        _ = self._splits

    @cached_property
    def _splits(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        key = (self.kernel, self.covariance.lengthscale, self.num_inputs, self.sizes, self.num_features, self.seed)
        arrays = kept(self.cache, "gaussian_process", __name__, key, self.draw)
        inputs, values = arrays["inputs"], arrays["values"]
        train = values[: self.num_train]
        values = (values - train.mean()) / train.std()
        tensors = (torch.from_numpy(array).float().split([*self.sizes.values()]) for array in (inputs, values))
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
        inputs = torch.zeros(self.batch_size, self.num_inputs)
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

    def draw(self) -> dict[str, Array]:
        """Draw inputs (N, K) and values (N,) of both splits, in float64, before standardising."""
        points = [
            uniforms((size, self.num_inputs), self.seed, "gaussian_process", "inputs", split)
            for split, size in self.sizes.items()
        ]
        inputs = 2.0 * np.concatenate(points) - 1.0
        values = draw_features(self.covariance, inputs, self.num_features or NUM_FEATURES, self.seed)
        return {"inputs": inputs, "values": values}

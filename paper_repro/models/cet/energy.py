"""CET's energy terms (Training a Convergent Energy Transformer with Equilibrium Propagation, section 2 and appendix B).

Letters: B images, C channels, H image side, p patch side, s stride, k = p/s, N tokens, D token width, P = C p^2 numbers
of a patch, K heads of width R, M memories.  Every term has its energy (B,), its closed-form gradients by the tokens z
and the output image y, and those by its own parameters, which use its own inputs alone (local learning rules).
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from paper_repro.base.arguments import at_least, positive
from paper_repro.kernels.energy_attention import energy_attention, energy_attention_gradients

ROWS = {"cpu": 1024}
"""Tokens whose hidden numbers, far more than their own, lie in memory at once: enough for a CPU's products, while a GPU
takes them all."""


class CETState(NamedTuple):
    """The variables that a relaxation moves."""

    z: Tensor
    """Tokens, (B, N, D)."""
    y: Tensor
    """The output image in blocks, (B, H/s, H/s, C s^2), see ``CETPatches``."""


class CETClamped(NamedTuple):
    """The tensors that stay fixed during a relaxation."""

    patches: Tensor
    """The patches of the masked image, (B, N, P)."""
    drive: Tensor
    """F(masked image, W_enc) + b_enc, (B, N, D)."""


class CETGradient(NamedTuple):
    """The gradient of an energy holds None for a variable on which the energy does not depend."""

    z: Tensor | None
    y: Tensor | None


class CETNudge(NamedTuple):
    """A nudge adds beta C(y, x) to the energy, where C is the sum of squares over an image."""

    target: Tensor
    """x in blocks, (B, H/s, H/s, C s^2)."""
    beta: Tensor
    """One number for each image, (B,): of both signs where both nudged phases run as one batch."""


class CETPatches:
    """Cuts square images into overlapping patches, so that convolutions are products of matrices.

    Blocks are the image as (B, H/s, H/s, C s^2), one row a block of s x s pixels.  A patch is k x k neighbouring
    blocks, its P numbers in the order (k, k, C, s, s); ``from_convolution`` brings a kernel (D, C, p, p) into it.
    Patch n = N_side r + q lies at row r, column q.

    Raises:
        ValueError: a number below 1, a stride that does not divide patch and image, or a patch larger than the image.
    """

    def __init__(self, channels: int, size: int, patch: int, stride: int) -> None:
        self.channels, self.size = at_least("channels", channels), at_least("size", size)
        self.patch, self.stride = at_least("patch", patch), at_least("stride", stride)
        if patch % stride or size % stride or patch > size:
            raise ValueError(
                f"patches of {patch} at stride {stride} do not tile images of {size}: the stride must divide both, and "
                "the patch must fit"
            )
        self.reach = patch // stride
        self.side = (size - patch) // stride + 1
        self.count, self.numbers = self.side**2, channels * patch**2

    def blocks(self, images: Tensor) -> Tensor:
        """Cut images (B, C, H, H) into blocks (B, H/s, H/s, C s^2).

        Raises:
            ValueError: images of another shape.
        """
        if images.ndim != 4 or images.shape[1:] != (self.channels, self.size, self.size):
            raise ValueError(
                f"images must have shape (B, {self.channels}, {self.size}, {self.size}), got {tuple(images.shape)}"
            )
        cut = images.unflatten(3, (-1, self.stride)).unflatten(2, (-1, self.stride))  # (B, C, H/s, s, H/s, s)
        return cut.permute(0, 2, 4, 1, 3, 5).flatten(3)  # (B, H/s, H/s, C, s, s) -> (B, H/s, H/s, C s^2)

    def images(self, blocks: Tensor) -> Tensor:
        """Undo ``blocks``."""
        cut = blocks.unflatten(3, (self.channels, self.stride, self.stride))  # (B, H/s, H/s, C, s, s)
        return cut.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)  # (B, C, H, H)

    def gather(self, blocks: Tensor) -> Tensor:
        """Collect the patches of blocks: (B, H/s, H/s, C s^2) -> (B, N, P)."""
        end = self.side
        parts = [blocks[:, i : i + end, j : j + end] for i in range(self.reach) for j in range(self.reach)]
        return torch.cat(parts, -1).flatten(1, 2)  # (B, N_side, N_side, k^2 C s^2) -> (B, N, P)

    def scatter(self, patches: Tensor) -> Tensor:
        """Transpose ``gather``: add patches (B, N, P) up where they overlap, as blocks."""
        own = self.channels * self.stride**2
        grid = patches.unflatten(1, (self.side, self.side)).split(own, -1)  # k^2 of (B, N_side, N_side, C s^2)
        total = self.side + self.reach - 1
        out = patches.new_zeros(len(patches), total, total, own)  # (B, H/s, H/s, C s^2)
        for index, part in enumerate(grid):
            i, j = divmod(index, self.reach)
            out[:, i : i + self.side, j : j + self.side] += part
        return out

    def from_convolution(self, kernel: Tensor) -> Tensor:
        """Turn a kernel (D, C, p, p) into a matrix (D, P)."""
        cut = kernel.unflatten(3, (self.reach, self.stride)).unflatten(
            2, (self.reach, self.stride)
        )  # (D, C, k, s, k, s)
        return cut.permute(0, 2, 4, 1, 3, 5).flatten(1)

    def to_convolution(self, matrix: Tensor) -> Tensor:
        """Undo ``from_convolution``."""
        cut = matrix.unflatten(
            1, (self.reach, self.reach, self.channels, self.stride, self.stride)
        )  # (D, k, k, C, s, s)
        return cut.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


class CETTerm(nn.Module):
    """A term of the energy maps a state and what is clamped to energies and gradients; a subclass defines all three."""

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        """Compute the energy of each image, (B,)."""
        raise NotImplementedError

    def gradient(self, state: CETState, clamped: CETClamped) -> CETGradient:
        """Compute the gradients of each image's energy by z and y."""
        raise NotImplementedError

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of sum_b weights_b energy_b, weights (B,), by the names of the parameters."""
        raise NotImplementedError


class CETEncoder(CETTerm):
    """The encoder's energy is 1/2 |z|^2 - <F(xbar, W), z> - sum_nd z_nd b_d (equation 8)."""

    def __init__(self, patches: CETPatches, width: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, patches.numbers) * positive("std", std))
        self.bias = nn.Parameter(torch.zeros(width))

    def drive(self, patches: Tensor) -> Tensor:
        """Compute F(xbar, W) + b, (B, N, D)."""
        return torch.matmul(patches, self.weight.mT) + self.bias  # (B, N, P) (P, D)

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        return (state.z * (state.z / 2 - clamped.drive)).sum((1, 2))  # (B, N, D) -> (B,)

    def gradient(self, state: CETState, clamped: CETClamped) -> CETGradient:
        return CETGradient(state.z - clamped.drive, None)

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        weighted = weights.view(-1, 1, 1) * state.z
        return {"weight": -_outer(weighted, clamped.patches), "bias": -weighted.sum((0, 1))}  # (D, P), (D,)


class CETPosition(CETTerm):
    """The positions' energy is -<b, z>, with one vector for each place (equation 9)."""

    def __init__(self, num_tokens: int, width: int, std: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(num_tokens, width) * positive("std", std))

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        return -(state.z * self.bias).sum((1, 2))  # (B, N, D) (N, D) -> (B,)

    def gradient(self, state: CETState, clamped: CETClamped) -> CETGradient:
        return CETGradient(-self.bias.expand_as(state.z), None)

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        return {"bias": -torch.einsum("b,bnd->nd", weights, state.z)}  # (N, D)


class CETMemory(CETTerm):
    """The memories' energy is -sum_nm relu(z_n . w_m)^2 with M memories w (equation 10).

    It has no factor 1/2, unlike the Energy Transformer's.
    """

    def __init__(self, num_memories: int, width: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(at_least("num_memories", num_memories), width) * positive("std", std))

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        return -self._hidden(state.z).square().sum((1, 2))  # (B, N, M) -> (B,)

    def gradient(self, state: CETState, clamped: CETClamped) -> CETGradient:
        return CETGradient(-2 * torch.matmul(self._hidden(state.z), self.weight), None)  # (B, N, M) (M, D)

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        summed = torch.zeros_like(self.weight)
        parts = (part.split(at_once(state.z)) for part in (state.z, weights.view(-1, 1, 1) * state.z))
        for z, weighted in zip(*parts, strict=True):
            summed = summed.addmm_(self._hidden(z).flatten(0, 1).mT, weighted.flatten(0, 1), alpha=-2)
        return {"weight": summed}

    def _hidden(self, z: Tensor) -> Tensor:
        return torch.matmul(z, self.weight.mT).relu_()  # (B, N, D) -> (B, N, M)


class CETAttention(CETTerm):
    """The attention's energy is -1/gamma sum_kn log sum_m exp(gamma Q_kn . K_km) (equations 11 to 14).

    Q = W_Q z and K = W_K z.

    Equation 13 as printed lets heads attend to heads within a token; its sum and the Energy Transformer make clear that
    tokens attend to tokens, themselves included.
    """

    def __init__(self, width: int, num_heads: int, head_width: int, gamma: float, std: float) -> None:
        super().__init__()
        self.num_heads, self.gamma = at_least("num_heads", num_heads), positive("gamma", gamma)
        rows = num_heads * at_least("head_width", head_width)
        self.query = nn.Parameter(torch.randn(rows, width) * positive("std", std))
        self.key = nn.Parameter(torch.randn(rows, width) * std)

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        _, _, lse = energy_attention(*self._project(state.z), self.gamma)  # (B, K, N)
        return -lse.sum((1, 2)) / self.gamma

    def gradient(self, state: CETState, clamped: CETClamped) -> CETGradient:
        by_query, by_key = self._read(state.z)  # (B, N, K R) each
        return CETGradient(-torch.matmul(by_query, self.query) - torch.matmul(by_key, self.key), None)

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        by_query, by_key = self._read(state.z)
        weighted = weights.view(-1, 1, 1) * state.z
        return {"query": -_outer(by_query, weighted), "key": -_outer(by_key, weighted)}

    def _project(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Compute queries and keys, (B, K, N, R) each."""
        both = torch.matmul(z, torch.cat([self.query, self.key]).mT)  # (B, N, D) -> (B, N, 2 K R)
        query, key = both.unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return query, key

    def _read(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Compute P K and P^T Q of all heads, (B, N, K R) each, P = softmax(gamma Q K^T) over keys."""
        by_query, by_key = energy_attention_gradients(*self._project(z), self.gamma)
        return by_query.transpose(1, 2).flatten(2), by_key.transpose(1, 2).flatten(2)


class CETDecoder(CETTerm):
    """The decoder's energy is 1/2 |y|^2 - <F(y, W), z> - sum_c b_c sum_pixels y_c (equation 15)."""

    def __init__(self, patches: CETPatches, width: int, std: float) -> None:
        super().__init__()
        self.patches = patches
        self.weight = nn.Parameter(torch.randn(width, patches.numbers) * positive("std", std))
        self.bias = nn.Parameter(torch.zeros(patches.channels))

    def energy(self, state: CETState, clamped: CETClamped) -> Tensor:
        own = (state.y * (state.y / 2 - self.biases())).sum((1, 2, 3))  # (B, H/s, H/s, C s^2) -> (B,)
        return own - (self._seen(state.y) * state.z).sum((1, 2))  # (B, N, D) -> (B,)

    def gradient(self, state: CETState, clamped: CETClamped) -> CETGradient:
        drawn = self.patches.scatter(torch.matmul(state.z, self.weight))  # (B, N, D) -> (B, N, P) -> blocks
        return CETGradient(-self._seen(state.y), state.y - drawn - self.biases())

    def parameter_gradients(self, state: CETState, clamped: CETClamped, weights: Tensor) -> dict[str, Tensor]:
        weighted = weights.view(-1, 1, 1) * state.z
        summed = torch.einsum("b,bijc->c", weights, state.y).unflatten(0, (self.patches.channels, -1)).sum(1)
        return {"weight": -_outer(weighted, self.patches.gather(state.y)), "bias": -summed}

    def biases(self) -> Tensor:
        """Return the bias of every number of a block, (C s^2,)."""
        return self.bias.repeat_interleave(self.patches.stride**2)

    def _seen(self, y: Tensor) -> Tensor:
        """Compute F(y, W), (B, N, D)."""
        return torch.matmul(self.patches.gather(y), self.weight.mT)  # (B, N, P) (P, D)


def at_once(z: Tensor) -> int:
    """Count how many images of tokens (B, N, D) go through a product with hidden numbers together, see ``ROWS``."""
    images, count, _ = z.shape
    return max(1, min(images, ROWS.get(z.device.type, images * count) // count))


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Compute sum_bn left_bn right_bn^T, (X, Y), from (B, N, X) and (B, N, Y)."""
    return left.flatten(0, 1).mT @ right.flatten(0, 1)

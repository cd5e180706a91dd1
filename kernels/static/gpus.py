"""The GPUs that kernels are compiled for: how many blocks of a program fit on a multiprocessor, and the rates."""

from collections.abc import Mapping
from dataclasses import dataclass

WARP = 32
PARTITIONS = 4
"""Parts of a multiprocessor, each with a quarter of the registers; a warp stays in one."""
REGISTERS = 1 << 16
"""Registers of 32 bits that a multiprocessor has; a block can have all of them."""
REGISTER_UNIT, SHARED_UNIT = 256, 128
"""Registers that a warp, and bytes of shared memory that a block, is given a multiple of."""
RESERVED = 1 << 10
"""Bytes of shared memory that the system keeps in each block."""
MOST_WARPS, MOST_BLOCKS = 64, 32
"""Warps and blocks that a multiprocessor holds at most."""


@dataclass(frozen=True)
class GPU:
    """One model of GPU, of compute capability 8.0 or 9.0.

    The limits stand in NVIDIA's CUDA C++ Programming Guide ("Technical Specifications per Compute Capability") and in
    its tuning guides for Ampere and Hopper, what is given in multiples in the header cuda_occupancy.h of its toolkit,
    the rates in its data sheets: A100 80GB SXM and H100 SXM, without sparsity.
    """

    name: str
    capability: int
    """The compute capability, times 10."""
    processors: int
    """Multiprocessors."""
    shared: int
    """Bytes of shared memory that the blocks of a multiprocessor have together; one block has 1 KiB less at most."""
    bytes_per_second: float
    """The rate of the device's memory."""
    products_per_second: Mapping[str, float]
    """The FLOP/s of matrix products, by the type of their factors: bf16 (and fp16), tf32, fp32 and fp64."""
    operations_per_second: float
    """The FLOP/s of other arithmetic in float32, where each is one half of a fused multiply and add."""

    @property
    def architecture(self) -> str:
        return f"sm_{self.capability}"

    @property
    def most_shared(self) -> int:
        """Return the bytes of shared memory that a block can ask for."""
        return self.shared - RESERVED

    def blocks(self, registers: int, shared: int, warps: int) -> int:
        """Return how many blocks a multiprocessor holds at once; 0 where not even one fits.

        A warp is given registers in units of 256, from its own quarter of the multiprocessor; a block is given shared
        memory in units of 128 bytes, and 1 KiB is kept for the system (cuda_occupancy.h).

        Args:
            registers: of a thread.
            shared: bytes of a block, static and dynamic, without the system's.
            warps: of a block.
        """
        of_warp = _multiple(registers * WARP, REGISTER_UNIT)
        of_block = _multiple(shared + RESERVED, SHARED_UNIT)
        if shared > self.most_shared or of_warp * _multiple(warps, PARTITIONS) > REGISTERS:
            return 0
        by_registers = REGISTERS // PARTITIONS // of_warp * PARTITIONS // warps
        return min(MOST_BLOCKS, MOST_WARPS // warps, by_registers, self.shared // of_block)


def _multiple(count: int, unit: int) -> int:
    return -(-count // unit) * unit


A100 = GPU(
    "A100",
    80,
    108,
    164 << 10,
    2.039e12,
    {"bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12, "fp64": 19.5e12},
    19.5e12,
)
H100 = GPU(
    "H100",
    90,
    132,
    228 << 10,
    3.35e12,
    {"bf16": 989e12, "tf32": 494e12, "fp32": 67e12, "fp64": 67e12},
    67e12,
)
GPUS = (A100, H100)

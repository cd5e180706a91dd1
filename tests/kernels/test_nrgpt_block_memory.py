"""A training step's peak of live tensors, counted on the meta device (``training.counting.peak_bytes``).

There attention holds its scores and the feed-forward part is not cut into pieces: the count is an upper bound.
"""

import pytest
import torch
from torch.nn import functional

from paper_repro.kernels.preferences import prefer
from paper_repro.models import nrgpt
from paper_repro.training.counting import BYTES_PER_PARAMETER, num_parameters, peak_bytes


def _peak(make: type[nrgpt.NRGPT], recompute: bool) -> int:
    with torch.device("meta"):
        model = make(65, 256, 512, 2, num_steps=6, dropout=0.1)
        ids = torch.zeros(64, 256, dtype=torch.long)
    with prefer(recompute=recompute):
        peak = peak_bytes(lambda: functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward())
    return peak + BYTES_PER_PARAMETER * num_parameters(model)


@pytest.mark.parametrize("make", [nrgpt.NRGPT_H_FF1, nrgpt.NRGPT_H_FF2W])
def test_a_shakespeare_step_of_width_512_stays_below_4_gb(make: type[nrgpt.NRGPT]) -> None:
    recomputed = _peak(make, recompute=True)
    assert recomputed < 2e9  # half of the demand: the process itself and the allocator take their share
    assert _peak(make, recompute=False) > 2 * recomputed

"""``train.py`` under torchrun, each rank of which writes down what it holds after an optimiser step.

$SHARES names the folder: file RANK has the largest share that the rank ever held of the bytes that parameters and
moments take on one device.
"""

import os
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from paper_repro.training.machine import Sharded

real = Sharded.optimizer_step


def bytes_of(tensors: Iterable[Tensor]) -> int:
    held = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum(tensor.untyped_storage().nbytes() for tensor in held)


def optimizer_step(self: Sharded, *arguments: Any, **words: Any) -> Any:
    result = real(self, *arguments, **words)
    assert self.lightning_module is not None
    own, state = [*self.lightning_module.parameters()], self.optimizers[0].state
    moments = [state[one][name] for one in own if one.requires_grad for name in ("exp_avg", "exp_avg_sq")]
    assert moments and all(isinstance(tensor, DTensor) for tensor in (*own, *moments))
    whole = sum((12 if one.requires_grad else 4) * one.numel() for one in own)
    path = Path(os.environ["SHARES"]) / os.environ["RANK"]
    before = float(path.read_text()) if path.exists() else 0.0
    path.write_text(repr(max(before, bytes_of([*own, *moments]) / whole)))
    return result


if __name__ == "__main__":
    Sharded.optimizer_step = optimizer_step  # type: ignore[method-assign]
    script = str(Path(__file__).parents[2] / "scripts" / "train.py")
    sys.argv = [script, *sys.argv[1:]]
    runpy.run_path(script, run_name="__main__")

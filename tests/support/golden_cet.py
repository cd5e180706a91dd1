"""Golden records of CET: (D, N) tokens and (C, H, H) images of one instance, under our names and layout."""

from typing import Any

import torch
from torch import Tensor

from paper_repro.models.cet import CET, CETState
from paper_repro.models.common import to_blocks

NAMES = {
    "Wenc": "encoder.weight",
    "benc": "encoder.bias",
    "bpos": "position.bias",
    "Wdec": "decoder.weight",
    "bdec": "decoder.bias",
    "WQ": "attention.query",
    "WK": "attention.key",
    "Wmem": "memory.weight",
}


def build(record: dict[str, Any]) -> CET:
    sizes, settings = record["meta"]["cfg"], record["meta"]["hyp"]
    model = CET(
        channels=sizes["C"],
        size=sizes["H"],
        patch=sizes["hp"],
        stride=settings["stride"],
        width=sizes["D"],
        num_heads=sizes["NH"],
        head_width=sizes["DH"],
        num_memories=sizes["M"],
        gamma=settings["gamma"],
    ).double()
    model.load_state_dict(ours(model, record, "th"), strict=True)
    return model


def ours(model: CET, record: dict[str, Any], kind: str) -> dict[str, Tensor]:
    """The tensors ``kind``_... of the record, one for every parameter, in our layout."""
    found = {}
    for theirs, name in NAMES.items():
        value = record[f"{kind}_{theirs}"]
        if theirs in ("Wenc", "Wdec"):
            value = to_blocks(value, model.patches.stride).flatten(1)
        elif theirs in ("WQ", "WK"):
            value = value.flatten(0, 1)
        elif theirs in ("bpos", "Wmem"):
            value = value.mT
        found[name] = value
    return found


def state(model: CET, z: Tensor, y: Tensor) -> CETState:
    """The state of tokens (D, N) and an image (C, H, H), or of several along the first dimension."""
    z, y = (z, y) if z.ndim == 3 else (z[None], y[None])
    return CETState(z.mT, model.patches.blocks(y))


SMALL = {"channels": 2, "size": 8, "patch": 4, "stride": 2, "width": 6, "num_heads": 2, "head_width": 3}
"""Nine tokens."""


def small(sizes: dict[str, int] = SMALL, **options: Any) -> CET:
    """Return a model in float64 whose weights are all away from their start."""
    torch.manual_seed(0)
    model = CET(**sizes, num_memories=5, **{"init_std": 0.12, "attention_std": 0.5, **options}).double()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model

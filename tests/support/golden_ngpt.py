"""Records of the authors' code for nGPT and its GPT, $PAPER_REPRO_GOLDEN/ngpt/*.npz, as models of ours.

Sizes, switches and weights come from each file, so another file put into the folder is checked too.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from paper_repro.models.llama import RotaryLanguageModel
from paper_repro.models.ngpt import NGPT, BaselineGPT
from paper_repro.tests.support.float64 import in_float64

ROPE = {"standard": "textbook", "official": "published"}
ONE_TO_ONE = {
    "norm_attn.gain": "attention.norm.weight",
    "norm_mlp.gain": "feed_forward.norm.weight",
    "attn.alpha": "attention_rate.stored",
    "mlp.alpha": "feed_forward_rate.stored",
    "attn.sqk": "attention.scale.stored",
    "mlp.su": "feed_forward.scale_u.stored",
    "mlp.sg": "feed_forward.scale_nu.stored",
}
"""In a layer: their name -> ours, where both hold the same tensor."""
SCALES = {"alpha_A": "alpha_attn", "alpha_M": "alpha_mlp", "s_qk": "sqk", "s_u": "suv", "s_nu": "suv", "s_z": "sz"}
OUTSIDE = {
    "embed.in": "token_embedding.weight",
    "embed.out": "output.weight",
    "norm_final.gain": "final_norm.weight",
    "sz": "scale_z.stored",
}


def build(record: dict[str, Any]) -> RotaryLanguageModel:
    meta = record["meta"]
    options: dict[str, Any] = {
        "vocabulary_size": meta["vocab"],
        "block_length": meta["seq"],
        "width": meta["dim"],
        "num_heads": meta["heads"],
        "num_layers": meta["layers"],
        "rope": ROPE[meta["rope"]],
    }
    make: type[RotaryLanguageModel] = BaselineGPT
    if meta["model"] != "gpt":
        make, options["qk_norm"] = NGPT, meta["qk_norm"]
        for name, theirs in SCALES.items():
            options[name] = {"mode": "vector", "init": meta[f"{theirs}_init"], "scale": meta[f"{theirs}_scale"]}
    model: RotaryLanguageModel = in_float64(partial(make, **options))
    weights = ours(record, "raw")
    assert set(weights) == {name for name, _ in model.named_parameters()}
    model.load_state_dict(model.state_dict() | weights)
    if isinstance(model, NGPT):
        model.project()
    return model


def ours(record: dict[str, Any], kind: str) -> dict[str, Tensor]:
    """The tensors ``kind``/... of the record under our names and in our layout: every matrix has D last."""
    theirs = {name.removeprefix(f"{kind}/"): value for name, value in record.items() if name.startswith(f"{kind}/")}
    found = {ours: theirs[name] for name, ours in OUTSIDE.items() if name in theirs}
    for layer in range(record["meta"]["layers"]):
        place, block = f"layers.{layer}.", f"blocks.{layer}."
        branch = "branch." if f"{place}norm_attn.gain" in theirs else ""
        found |= {block + ours: theirs[place + name] for name, ours in ONE_TO_ONE.items() if place + name in theirs}
        found |= {
            f"{block}attention.{branch}query_key_value.weight": torch.cat(
                [theirs[f"{place}attn.w{letter}"] for letter in "qkv"]
            ),
            f"{block}attention.{branch}output.weight": theirs[f"{place}attn.wo"].mT,
            f"{block}feed_forward.{branch}up.weight": torch.cat([theirs[f"{place}mlp.w{letter}"] for letter in "ug"]),
            f"{block}feed_forward.{branch}down.weight": theirs[f"{place}mlp.wo"].mT,
        }
    assert sum(value.numel() for value in found.values()) == sum(value.numel() for value in theirs.values())
    return found


def loss(model: RotaryLanguageModel, record: dict[str, Any]) -> Tensor:
    targets = record["targets"]
    return model.cross_entropy(record["idx"], targets.masked_fill(targets == -1, -100))

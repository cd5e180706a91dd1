"""Records of the authors' code for NRGPT and its baselines, $PAPER_REPRO_GOLDEN/nrgpt/*.npz, as models of ours.

Sizes, switches and weights come from each file, so another file put into the folder is checked, too.
"""

from typing import Any

import torch
from torch import Tensor

from paper_repro.models import gpt, nrgpt

ENERGY_MODELS = {
    "nrgpt_ff1": nrgpt.NRGPT_H_FF1,
    "nrgpt_ff2w": nrgpt.NRGPT_H_FF2W,
    "nrgpt_ff2": nrgpt.NRGPT_H_FF2,
}
RECURRENT_MODELS = {"rec_serial": gpt.RGPT, "rec_parallel": gpt.RGPTParallel}
TENSORS = {
    "tok_emb": "token_embedding.weight",
    "pos_emb": "position_embedding.weight",
    "rate": "inference_rate.weight",
    "ff_scale": "feed_forward_scale",
}
LAYERS = {
    "lnf": "final_norm",
    "head": "output",
    "norm": "norm",
    "att_o": "attention.output",
    "norm1": "attention_norm",
    "norm2": "feed_forward_norm",
}
"""With a weight and, in some models, a bias."""
SIZES = {
    "vocabulary_size": "vocab",
    "block_length": "block",
    "width": "n_embed",
    "num_heads": "n_head",
    "hidden_factor": "hid_factor",
}
FEED_FORWARD = {"nrgpt_ff1": ("up",), "nrgpt_ff2w": ("up", "down"), "nrgpt_ff2": ("inner", "up")}


def build(record: dict[str, Any], inference_rate: str = "full") -> gpt.PositionalLanguageModel:
    """The model of the record, with its weights but for those of a rate that has none of its own, in float64."""
    kind, num_steps, model = record["cfg_model"], record["cfg_n_layer"], None
    sizes = {ours: record[f"cfg_{theirs}"] for ours, theirs in SIZES.items()}
    if kind in ENERGY_MODELS:
        mask = "strict" if record["cfg_strict_mask"] else "inclusive"
        model = ENERGY_MODELS[kind](**sizes, num_steps=num_steps, mask=mask, inference_rate=inference_rate)
    elif kind in RECURRENT_MODELS:
        model = RECURRENT_MODELS[kind](**sizes, num_steps=num_steps)
    else:
        assert kind == "gpt", f"the record holds an unknown model {kind!r}"
        model = gpt.GPT(**sizes, num_layers=num_steps)
    model = model.double()
    values = {name: record[f"w.{theirs}"] for name, theirs in translated(record, "w.", model).items()}
    if inference_rate == "positive_scalar":
        values["inference_rate.log_c"] = record["w.rate"][0, :1].log()
    model.load_state_dict(values | fused(record, "w.", model), strict=True)
    return model


def translated(record: dict[str, Any], prefix: str, model: torch.nn.Module) -> dict[str, str]:
    """Our name of every weight in the record that is kept as it is -> theirs, without ``prefix``."""
    names, parts = dict(TENSORS), FEED_FORWARD.get(record["cfg_model"], ("up", "down"))
    for kind in ("weight", "bias"):
        names |= {f"{theirs}_{kind[0]}": f"{ours}.{kind}" for theirs, ours in LAYERS.items()}
        names |= {f"ff_{kind[0]}{number}": f"feed_forward.{part}.{kind}" for number, part in enumerate(parts, 1)}
    ours, found = set(model.state_dict()), {}
    for theirs in (name.removeprefix(prefix) for name in record if name.startswith(prefix)):
        layer, _, last = theirs.rpartition(".")
        place = f"blocks.{layer.removeprefix('layer')}." if layer else "block."
        name = names.get(last, "")
        found |= dict.fromkeys({name, place + name} & ours, theirs)
    return found


def fused(record: dict[str, Any], prefix: str, model: torch.nn.Module) -> dict[str, Tensor]:
    """The weights that we keep in one matrix: J of all heads; queries, keys and values of all heads."""
    found = {}
    for name in model.state_dict():
        if name == "attention.key.weight":
            found[name] = record[f"{prefix}att_J"].flatten(0, 1)
        if name.endswith("query_key_value.weight"):
            place = f"{prefix}layer{name.split('.')[1]}." if name.startswith("blocks.") else prefix
            found[name] = torch.cat([record[f"{place}att_{letter}"].flatten(0, 1) for letter in "qkv"])
    return found

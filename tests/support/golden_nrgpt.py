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
SHELL = {
    "tok_emb": "token_embedding.weight",
    "pos_emb": "position_embedding.weight",
    "lnf_w": "final_norm.weight",
    "lnf_b": "final_norm.bias",
    "head_w": "output.weight",
    "head_b": "output.bias",
}
BLOCK = {
    "att_o_w": "attention.output.weight",
    "att_o_b": "attention.output.bias",
    "ff_w1": "feed_forward.up.weight",
    "ff_b1": "feed_forward.up.bias",
    "ff_w2": "feed_forward.down.weight",
    "ff_b2": "feed_forward.down.bias",
    "norm1_w": "attention_norm.weight",
    "norm1_b": "attention_norm.bias",
    "norm2_w": "feed_forward_norm.weight",
    "norm2_b": "feed_forward_norm.bias",
}
ENERGY_BLOCK = {
    "norm_w": "norm.weight",
    "norm_b": "norm.bias",
    "rate": "inference_rate.weight",
    "ff_scale": "feed_forward_scale",
}
FEED_FORWARD = {"nrgpt_ff1": ("up",), "nrgpt_ff2w": ("up", "down"), "nrgpt_ff2": ("inner", "up")}


def _sizes(record: dict[str, Any]) -> dict[str, int]:
    return {
        "vocabulary_size": record["cfg_vocab"],
        "block_length": record["cfg_block"],
        "width": record["cfg_n_embed"],
        "num_heads": record["cfg_n_head"],
        "hidden_factor": record["cfg_hid_factor"],
    }


def build(record: dict[str, Any], inference_rate: str = "full") -> gpt.PositionalLanguageModel:
    """The model of the record, with its weights but for those of a rate that has none of its own, in float64."""
    kind, num_steps, model = record["cfg_model"], record["cfg_n_layer"], None
    if kind in ENERGY_MODELS:
        mask = "strict" if record["cfg_strict_mask"] else "inclusive"
        model = ENERGY_MODELS[kind](**_sizes(record), num_steps=num_steps, mask=mask, inference_rate=inference_rate)
    elif kind in RECURRENT_MODELS:
        model = RECURRENT_MODELS[kind](**_sizes(record), num_steps=num_steps)
    else:
        assert kind == "gpt", f"the record holds an unknown model {kind!r}"
        model = gpt.GPT(**_sizes(record), num_layers=num_steps)
    model = model.double()
    values = {name: record[f"w.{theirs}"] for name, theirs in translated(record, "w.", model).items()}
    if inference_rate == "positive_scalar":
        values["inference_rate.log_c"] = record["w.rate"][0, :1].log()
    model.load_state_dict(values | fused(record, "w.", model), strict=True)
    return model


def translated(record: dict[str, Any], prefix: str, model: torch.nn.Module) -> dict[str, str]:
    """Our name of every weight in the record that is kept as it is -> theirs, without ``prefix``."""
    ours, found = set(model.state_dict()), {}
    for theirs in (name.removeprefix(prefix) for name in record if name.startswith(prefix)):
        layer, _, last = theirs.rpartition(".")
        place = f"blocks.{layer.removeprefix('layer')}." if layer else "block."
        if record["cfg_model"] in ENERGY_MODELS:
            names = {**SHELL, **ENERGY_BLOCK}
            for index, module in enumerate(FEED_FORWARD[record["cfg_model"]], start=1):
                names |= {f"ff_{kind[0]}{index}": f"feed_forward.{module}.{kind}" for kind in ("weight", "bias")}
        else:
            names = {**SHELL, **{theirs: place + ours for theirs, ours in BLOCK.items()}}
        if names.get(last) in ours:
            found[names[last]] = theirs
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

"""Golden records of EBT on tokens and images, under our names: their linear weights are (outputs, inputs), as ours."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paper_repro.models.ebt import EBT, ThinkingSettings, TransformerPlusPlus
from paper_repro.models.ebt_image import DiT, ImageEBT
from paper_repro.tests.support.float64 import in_float64

ONCE = {
    "token_embedding": "token_embedding.weight",
    "dist_to_embed": "prediction_embedding.weight",
    "lm_head": "output.weight",
    "out_w": "output.weight",
    "out_b": "output.bias",
    "energy_head": "energy_head.weight",
    "final_norm": "trunk.final_norm.weight",
    "final_mod_w": "trunk.final_modulation.weight",
    "final_mod_b": "trunk.final_modulation.bias",
    "step_embedding": "landscapes.embedding.weight",
    "condition": "landscapes.embedding.weight",
    "alpha": "step_size_parameter",
    "t_fc1_w": "time_embedding.0.weight",
    "t_fc1_b": "time_embedding.0.bias",
    "t_fc2_w": "time_embedding.2.weight",
    "t_fc2_b": "time_embedding.2.bias",
}
IN_BLOCK = {
    "attn_norm": "attention_norm.weight",
    "ffn_norm": "feed_forward_norm.weight",
    "o": "attention.output.weight",
    "ffn_down": "feed_forward.down.weight",
    "mod_w": "modulation.weight",
    "mod_b": "modulation.bias",
    "qkv_w": "attention.query_key_value.weight",
    "qkv_b": "attention.query_key_value.bias",
    "proj_w": "attention.output.weight",
    "proj_b": "attention.output.bias",
    "fc1_w": "feed_forward.up.weight",
    "fc1_b": "feed_forward.up.bias",
    "fc2_w": "feed_forward.down.weight",
    "fc2_b": "feed_forward.down.bias",
}
JOINED = {
    "attention.query_key_value.weight": ("q", "k", "v"),
    "feed_forward.gate_up.weight": ("ffn_gate", "ffn_up"),
}


def size(record: dict[str, Any], name: str) -> int:
    return int(record[f"cfg/{name}"])


def tensors(record: dict[str, Any], kind: str) -> dict[str, Tensor]:
    """The record's weights (kind "w") or gradients (kind "g"), by our names.

    In an image model theirs has the numbers of an output patch ordered by row, column and channel.
    """
    given = {name.removeprefix(f"{kind}/"): value for name, value in record.items() if name.startswith(f"{kind}/")}
    patch = "patch_embedding" if "w/out_w" in record else "prediction_embedding"
    names, found = ONCE | {"patch_w": f"{patch}.weight", "patch_b": f"{patch}.bias"}, {}
    for layer in range(size(record, "num_transformer_blocks")):
        theirs, ours = f"layer{layer}.", f"trunk.blocks.{layer}."
        names |= {theirs + key: ours + name for key, name in IN_BLOCK.items()}
        for name, keys in JOINED.items():
            if theirs + keys[0] in given:
                found[ours + name] = torch.cat([given[theirs + key] for key in keys])
    found |= {ours: given[theirs] for theirs, ours in names.items() if theirs in given}
    if "out_w" in given:
        side = size(record, "patch_size")
        for name in ("output.weight", "output.bias"):
            found[name] = found[name].unflatten(0, (side, side, -1)).movedim(2, 0).flatten(0, 2)
    if "patch_w" in given:
        found[f"{patch}.weight"] = given["patch_w"].flatten(1)
    return found


def build(record: dict[str, Any], streams: str = "split") -> Any:
    """The record's EBT in float64."""
    kind = "time_embed" if "w/step_embedding" in record else "default"
    if "w/final_mod_w" in record:
        kind = "adaln"
    return _on_tokens(
        EBT,
        record,
        variant=kind,
        num_landscapes=1 if kind == "default" else len(record["w/step_embedding"]),
        step_size=float(record["cfg/mcmc_step_size"]),
        learn_step_size="g/alpha" in record,
        streams=streams,
    )


def build_transformer(record: dict[str, Any]) -> Any:
    """The record's Transformer++ in float64."""
    return _on_tokens(TransformerPlusPlus, record)


def _on_tokens(make: Callable[..., Any], record: dict[str, Any], **options: Any) -> Any:
    vocabulary, hidden = len(record["w/token_embedding"]), len(record["w/layer0.ffn_gate"])
    block_length = size(record, "context_length")
    return _built(make, record, vocabulary_size=vocabulary, block_length=block_length, hidden=hidden, **options)


def build_image_model(record: dict[str, Any]) -> Any:
    """The record's ImageEBT, or its DiT, in float64."""
    is_dit = "w/out_w" in record
    image = record["x" if is_dit else "real"]
    own = {"num_landscapes": len(record["w/condition"]), "learn_step_size": "g/alpha" in record} if not is_dit else {}
    sizes = {"image_size": image.shape[-1], "channels": image.shape[1], "patch": size(record, "patch_size")}
    return _built(DiT if is_dit else ImageEBT, record, hidden=len(record["w/layer0.fc1_w"]), **sizes, **own)


def _built(make: Callable[..., Any], record: dict[str, Any], **options: Any) -> Any:
    width, heads = size(record, "embedding_dim"), size(record, "multiheaded_attention_heads")
    layers = size(record, "num_transformer_blocks")
    model = in_float64(partial(make, width=width, num_heads=heads, num_layers=layers, **options))
    model.load_state_dict(tensors(record, "w"), strict=True)
    return model


def settings(record: dict[str, Any], listing: bool) -> ThinkingSettings:
    """What the record's run was trained with; one landscape a step."""
    truncate = bool(record["cfg/truncate_mcmc"])
    return ThinkingSettings(
        num_steps=len(record["step_pred"]),
        rule="listing" if listing else "code",
        noise=float(record["cfg/langevin_dynamics_noise"]),
        step_size_spread=float(record["cfg/randomize_mcmc_step_size_scale"]),
        detach=not record["cfg/no_mcmc_detach"],
        truncate=truncate,
        loss="last" if truncate else "mean",
    )

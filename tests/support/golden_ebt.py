"""Golden records of EBT on tokens, under our names: their linear weights are (outputs, inputs), as ours."""

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
    "energy_head": "energy_head.weight",
    "final_norm": "trunk.final_norm.weight",
    "final_mod_w": "trunk.final_modulation.weight",
    "final_mod_b": "trunk.final_modulation.bias",
    "step_embedding": "landscapes.embedding.weight",
    "alpha": "step_size_parameter",
}
IN_BLOCK = {
    "attn_norm": "attention_norm.weight",
    "ffn_norm": "feed_forward_norm.weight",
    "o": "attention.output.weight",
    "ffn_down": "feed_forward.down.weight",
    "mod_w": "modulation.weight",
    "mod_b": "modulation.bias",
}
JOINED = {
    "attention.query_key_value.weight": ("q", "k", "v"),
    "feed_forward.gate_up.weight": ("ffn_gate", "ffn_up"),
}


def size(record: dict[str, Any], name: str) -> int:
    return int(record[f"cfg/{name}"])


def tensors(record: dict[str, Any], kind: str) -> dict[str, Tensor]:
    """The record's weights (kind "w") or gradients (kind "g"), by our names."""
    found = {ours: record[f"{kind}/{theirs}"] for theirs, ours in ONCE.items() if f"{kind}/{theirs}" in record}
    for layer in range(size(record, "num_transformer_blocks")):
        theirs, ours = f"{kind}/layer{layer}.", f"trunk.blocks.{layer}."
        found |= {ours + name: record[theirs + key] for key, name in IN_BLOCK.items() if theirs + key in record}
        found |= {ours + name: torch.cat([record[theirs + key] for key in keys]) for name, keys in JOINED.items()}
    return found


def variant(record: dict[str, Any]) -> str:
    if "w/final_mod_w" in record:
        return "adaln"
    return "time_embed" if "w/step_embedding" in record else "default"


def build(record: dict[str, Any], streams: str = "split") -> EBT:
    """The record's EBT in float64."""
    kind = variant(record)
    model: EBT = _on_tokens(
        EBT,
        record,
        variant=kind,
        num_landscapes=1 if kind == "default" else len(record["w/step_embedding"]),
        step_size=float(record["cfg/mcmc_step_size"]),
        learn_step_size="g/alpha" in record,
        streams=streams,
    )
    return model


def build_transformer(record: dict[str, Any]) -> TransformerPlusPlus:
    """The record's Transformer++ in float64."""
    model: TransformerPlusPlus = _on_tokens(TransformerPlusPlus, record)
    return model


def _on_tokens(make: Callable[..., Any], record: dict[str, Any], **options: Any) -> Any:
    sizes = {
        "vocabulary_size": len(record["w/token_embedding"]),
        "block_length": size(record, "context_length"),
        "width": size(record, "embedding_dim"),
        "num_heads": size(record, "multiheaded_attention_heads"),
        "num_layers": size(record, "num_transformer_blocks"),
        "hidden": len(record["w/layer0.ffn_gate"]),
    }
    model = in_float64(partial(make, **sizes, **options))
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


IMAGE_ONCE = {
    "energy_head": "energy_head.weight",
    "final_mod_w": "trunk.final_modulation.weight",
    "final_mod_b": "trunk.final_modulation.bias",
    "condition": "landscapes.embedding.weight",
    "alpha": "step_size_parameter",
    "t_fc1_w": "time_embedding.0.weight",
    "t_fc1_b": "time_embedding.0.bias",
    "t_fc2_w": "time_embedding.2.weight",
    "t_fc2_b": "time_embedding.2.bias",
}
IMAGE_IN_BLOCK = {
    "qkv_": "attention.query_key_value.",
    "proj_": "attention.output.",
    "fc1_": "feed_forward.up.",
    "fc2_": "feed_forward.down.",
    "mod_": "modulation.",
}


def image_tensors(record: dict[str, Any], kind: str) -> dict[str, Tensor]:
    """The record's weights (kind "w") or gradients (kind "g") of an image model, by our names.

    Theirs has the numbers of an output patch ordered by row, column and channel.
    """
    patch = "patch_embedding" if "w/out_w" in record else "prediction_embedding"
    names = {**IMAGE_ONCE, "patch_b": f"{patch}.bias"}
    found = {ours: record[f"{kind}/{theirs}"] for theirs, ours in names.items() if f"{kind}/{theirs}" in record}
    if f"{kind}/patch_w" in record:
        found[f"{patch}.weight"] = record[f"{kind}/patch_w"].flatten(1)
    side = size(record, "patch_size")
    for theirs, ours in (("out_w", "output.weight"), ("out_b", "output.bias")):
        if f"{kind}/{theirs}" in record:
            whole = record[f"{kind}/{theirs}"].unflatten(0, (side, side, -1))
            found[ours] = whole.movedim(2, 0).flatten(0, 2)
    for layer in range(size(record, "num_transformer_blocks")):
        for theirs, ours in IMAGE_IN_BLOCK.items():
            for end, name in (("w", "weight"), ("b", "bias")):
                key = f"{kind}/layer{layer}.{theirs}{end}"
                if key in record:
                    found[f"trunk.blocks.{layer}.{ours}{name}"] = record[key]
    return found


def build_image_model(record: dict[str, Any]) -> Any:
    """The record's ImageEBT, or its DiT, in float64."""
    image = record["x" if "w/out_w" in record else "real"]
    sizes = {
        "image_size": image.shape[-1],
        "channels": image.shape[1],
        "patch": size(record, "patch_size"),
        "width": size(record, "embedding_dim"),
        "num_heads": size(record, "multiheaded_attention_heads"),
        "num_layers": size(record, "num_transformer_blocks"),
        "hidden": len(record["w/layer0.fc1_w"]),
    }
    make: Callable[[], Any] = partial(DiT, **sizes)
    if "w/out_w" not in record:
        landscapes = len(record["w/condition"])
        make = partial(ImageEBT, **sizes, num_landscapes=landscapes, learn_step_size="g/alpha" in record)
    model = in_float64(make)
    model.load_state_dict(image_tensors(record, "w"), strict=True)
    return model

"""Language models as transformers opens them: the same function, up to rounding, or an error.

``Llama`` and nGPT's ``BaselineGPT`` become a LlamaForCausalLM.  ``NGPT``, which no class of transformers computes,
takes its code along (``modeling_ngpt``).  NRGPT's ``GPT`` becomes a GPT2LMHeadModel, whose output has no bias; GPT's
has one.  Where it is not zero, the exported model is H dimensions wider (H heads).  They hold the mean of the D others,
so that a LayerNorm over D + H numbers has the same mean and D / (D + H) times the variance, which its epsilon and
weights undo; the last LayerNorm's bias makes one of them 1, and the output matrix multiplies it by the bias of the
output.

Legend: V vocabulary, D width, H heads, Y = D/H, M hidden width, E further dimensions, 0 or H; W = D + E.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from paper_repro.base.configs import TARGET
from paper_repro.base.errors import UsageError
from paper_repro.datamodules.tokenizers import BytePairTokenizer, CharacterTokenizer
from paper_repro.models.gpt import GPT, SerialBlock
from paper_repro.models.llama import Block, GatedFeedForward, Llama, PreNorm, RotaryAttention, RotaryLanguageModel
from paper_repro.models.ngpt import NGPT, BaselineGPT

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

    from paper_repro.datamodules.tokenizers import Tokenizer

EXPORTED = (
    "exported are Llama without parts of CEM, nGPT's BaselineGPT (both with rope=textbook, qk_norm=false and "
    "storage=float32), NGPT (storage=float32) and NRGPT's GPT"
)
ROPE_BASE = 10000.0
CODE = ("exports/modeling_ngpt.py", "models/ngpt.py", "models/llama.py", "models/common.py", "base/errors.py")
"""The files that compute NGPT, below the package; an exported folder has them side by side."""
IMPORT = re.compile(r"^( *from )paper_repro\.(?:base|models)\.(?=\w+ import)", re.MULTILINE)


class Converted(NamedTuple):
    """A model in Hugging Face's format."""

    tensors: dict[str, Tensor]  # by Hugging Face's names
    config: dict[str, Any]  # the content of config.json
    code: dict[str, bytes]  # files of Python by name, of a model that transformers does not know


def converted(model: nn.Module, settings: Mapping[str, Any]) -> Converted:
    """Return a model, built with these settings, in Hugging Face's format; UsageError: it cannot be exported."""
    if type(model) is NGPT:
        return _ngpt(model, settings)
    if isinstance(model, Llama) and type(model) in (Llama, BaselineGPT):
        return _llama(model)
    if type(model) is GPT:
        return _gpt2(model)
    raise _refused(f"{type(model).__name__} is no architecture of transformers")


def vocabulary(tokenizer: "Tokenizer", context: int) -> dict[str, bytes]:
    """Return tokenizer.json and tokenizer_config.json, with which transformers gives a text the same ids."""
    assert isinstance(tokenizer, CharacterTokenizer | BytePairTokenizer)
    library = _of_characters(tokenizer) if isinstance(tokenizer, CharacterTokenizer) else tokenizer.library
    end = None if tokenizer.end_of_text is None else library.id_to_token(tokenizer.end_of_text)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "eos_token": end,
        "split_special_tokens": True,  # the text of a special token is ordinary text
        "clean_up_tokenization_spaces": False,
    }
    return {"tokenizer.json": library.to_str(pretty=True).encode() + b"\n", "tokenizer_config.json": as_json(config)}


def _of_characters(tokenizer: CharacterTokenizer) -> "Library":
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    words = {character: index for index, character in enumerate(tokenizer.characters)}
    library = Tokenizer(models.WordLevel(words, unk_token=""))  # no such word: an unknown character is an error
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    return library


def as_json(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file of JSON."""
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def _refused(reason: str) -> UsageError:
    return UsageError(f"--format huggingface: {reason}; {EXPORTED}; --format paper-repro takes every model")


def _check_storage(model: RotaryLanguageModel) -> None:
    if model.storage != "float32":
        raise _refused(f"this {type(model).__name__} computes in {model.storage} and float32 by turns")


def _ngpt(model: NGPT, settings: Mapping[str, Any]) -> Converted:
    _check_storage(model)
    buffers = {name: one.clone() for name, one in model.named_buffers(remove_duplicate=False)}  # none shares its memory
    tensors = {f"model.{name}": one for name, one in {**dict(model.named_parameters()), **buffers}.items()}
    config = {
        "architectures": ["NGPTForCausalLM"],
        "auto_map": {"AutoConfig": "modeling_ngpt.NGPTConfig", "AutoModelForCausalLM": "modeling_ngpt.NGPTForCausalLM"},
        "model_type": "paper_repro_ngpt",
        "arguments": {key: value for key, value in settings.items() if key != TARGET},
        "vocab_size": model.vocabulary_size,
        "hidden_size": model.width,
        "num_hidden_layers": len(model.blocks),
        "max_position_embeddings": model.block_length,
        "tie_word_embeddings": False,
        **_common(),
        "use_cache": False,
    }
    package = Path(__file__).parents[1]
    texts = {Path(name).name: (package / name).read_text(encoding="utf-8") for name in CODE}
    return Converted(tensors, config, {name: IMPORT.sub(r"\1.", text).encode() for name, text in texts.items()})


def _llama(model: Llama) -> Converted:
    name = type(model).__name__
    if model.rope != "textbook":
        raise _refused(f"this {name} has rope={model.rope}, which is no rotation")
    _check_storage(model)
    tensors = {
        "model.embed_tokens.weight": model.token_embedding.weight,
        "model.norm.weight": model.final_norm.weight,
        "lm_head.weight": model.output.weight,
    }
    num_heads, hidden = 0, 0
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        attention_norm, attention = _branch(block.attention, RotaryAttention, "attention")
        norm, feed_forward = _branch(block.feed_forward, GatedFeedForward, "feed-forward part")
        plain = attention.scale is None and not attention.normalize
        if not plain or not math.isclose(attention.softmax_scale, model.head_width**-0.5):
            raise _refused(f"this {name} normalises queries and keys (qk_norm=true)")
        if feed_forward.scale_u is not None or feed_forward.scale_nu is not None:
            raise _refused(f"this {name} scales its feed-forward part")
        num_heads, hidden = attention.num_heads, len(feed_forward.down.weight)
        query, key, value = attention.query_key_value.weight.chunk(3)  # (D, D) each
        up, gate = feed_forward.up.weight.chunk(2)  # (M, D) each
        own: dict[str, Tensor] = {
            "input_layernorm": attention_norm.weight,
            "self_attn.q_proj": _halves(query, num_heads),
            "self_attn.k_proj": _halves(key, num_heads),
            "self_attn.v_proj": value,
            "self_attn.o_proj": attention.output.weight.mT,
            "post_attention_layernorm": norm.weight,
            "mlp.up_proj": up,
            "mlp.gate_proj": gate,
            "mlp.down_proj": feed_forward.down.weight.mT,
        }
        tensors |= {f"model.layers.{index}.{key}.weight": tensor for key, tensor in own.items()}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocabulary_size,
        "hidden_size": model.width,
        "intermediate_size": hidden,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads,
        "head_dim": model.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": model.block_length,
        "rms_norm_eps": model.final_norm.eps,
        "rope_theta": ROPE_BASE,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        **_common(),
    }
    return Converted(tensors, config, {})


Branch = TypeVar("Branch", RotaryAttention, GatedFeedForward)


def _branch(part: nn.Module, kind: type[Branch], what: str) -> tuple[nn.RMSNorm, Branch]:
    """Return the norm of a part of a block, and what reads its output."""
    if isinstance(part, PreNorm) and part.num_passes != 1:
        raise _refused(f"this model applies its parts {part.num_passes} times")
    if not isinstance(part, PreNorm) or not isinstance(part.branch, kind):
        raise _refused(f"this model has the {what} {type(part).__name__}")
    return part.norm, part.branch


def _halves(weight: Tensor, num_heads: int) -> Tensor:
    """Return rows (D, D) in the order of Hugging Face's rotation: it pairs i with i + Y/2, we pair 2 i with 2 i + 1."""
    heads = weight.unflatten(0, (num_heads, -1, 2))  # (H, Y/2, 2, D)
    return heads.transpose(1, 2).flatten(0, 2)


def _gpt2(model: GPT) -> Converted:
    bias = model.output.bias
    blocks = [block for block in model.blocks if isinstance(block, SerialBlock)]
    num_heads, dropout = blocks[0].attention.num_heads, blocks[0].attention.dropout
    wide = _Wide(model.width, num_heads, num_heads if bool(bias.any()) else 0)
    tied = model.output.weight is model.token_embedding.weight and not wide.more
    tensors = {
        "transformer.wte.weight": wide.writing(model.token_embedding.weight),
        "transformer.wpe.weight": wide.writing(model.position_embedding.weight),
        **wide.norm("transformer.ln_f", model.final_norm, 1.0),
    }
    if not tied:
        tensors["lm_head.weight"] = wide.output(model.output.weight, bias)
    for index, block in enumerate(blocks):
        place, attention, feed_forward = f"transformer.h.{index}", block.attention, block.feed_forward
        query, key, value = attention.query_key_value.weight.double().chunk(3)
        rows = [wide.heads(query * wide.query_factor), wide.heads(key), wide.heads(value)]
        joined = torch.cat([wide.reading(one) for one in rows])  # (3 W, W)
        tensors |= {
            **wide.norm(f"{place}.ln_1", block.attention_norm, 0.0),
            # Its Conv1D keeps a matrix as (inputs, outputs).
            f"{place}.attn.c_attn.weight": joined.mT,
            f"{place}.attn.c_attn.bias": torch.zeros(len(joined)),
            f"{place}.attn.c_proj.weight": wide.writing(wide.heads(attention.output.weight.mT)),
            f"{place}.attn.c_proj.bias": wide.writing(attention.output.bias),
            **wide.norm(f"{place}.ln_2", block.feed_forward_norm, 0.0),
            f"{place}.mlp.c_fc.weight": wide.reading(feed_forward.up.weight).mT,
            f"{place}.mlp.c_fc.bias": feed_forward.up.bias,
            f"{place}.mlp.c_proj.weight": wide.writing(feed_forward.down.weight.mT),
            f"{place}.mlp.c_proj.bias": wide.writing(feed_forward.down.bias),
        }
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocabulary_size,
        "n_positions": model.block_length,
        "n_embd": wide.width,
        "n_layer": len(blocks),
        "n_head": num_heads,
        "n_inner": len(blocks[0].feed_forward.up.bias),
        "activation_function": "relu",
        "layer_norm_epsilon": model.final_norm.eps * model.width / wide.width,
        "embd_pdrop": 0.0,
        "attn_pdrop": dropout,
        "resid_pdrop": dropout,
        "tie_word_embeddings": tied,
        **_common(),
    }
    return Converted({name: tensor.float() for name, tensor in tensors.items()}, config, {})


class _Wide:
    """How what reads a state of D dimensions, and what writes to it, becomes one of W = D + E; in float64."""

    def __init__(self, width: int, num_heads: int, more: int) -> None:
        self.narrow, self.num_heads, self.more = width, num_heads, more
        self.width = width + more
        self.query_factor = math.sqrt(self.width / width)  # scores are divided by the root of W / H, ours of D / H

    def writing(self, rows: Tensor) -> Tensor:
        """Return what is added to a state, (..., D), with its mean in each further dimension, (..., W)."""
        rows = rows.double()
        return torch.cat([rows, rows.mean(-1, keepdim=True).expand(*rows.shape[:-1], self.more)], -1)

    def reading(self, matrix: Tensor) -> Tensor:
        """Return a matrix (outputs, D) that leaves the further dimensions out, (outputs, W)."""
        return nn.functional.pad(matrix.double(), (0, self.more))

    def heads(self, rows: Tensor) -> Tensor:
        """Return rows (D, ...), one for each channel of all heads, with zeros for further channels, (W, ...)."""
        split = rows.double().unflatten(0, (self.num_heads, -1))  # (H, Y, ...)
        return nn.functional.pad(split, (0, 0, 0, self.more // self.num_heads)).flatten(0, 1)

    def norm(self, place: str, norm: nn.LayerNorm, constant: float) -> dict[str, Tensor]:
        """Return a LayerNorm's weight and bias, (W,) each; the first further dimension it gives is ``constant``."""
        further = torch.zeros(self.more, dtype=torch.float64)
        further[:1] = constant
        weight = norm.weight.double() * math.sqrt(self.narrow / self.width)
        return {
            f"{place}.weight": torch.cat([weight, torch.zeros_like(further)]),
            f"{place}.bias": torch.cat([norm.bias.double(), further]),
        }

    def output(self, matrix: Tensor, bias: Tensor) -> Tensor:
        """Return the output matrix (V, W), which multiplies the constant by the bias (V,)."""
        matrix = self.reading(matrix)
        if self.more:
            matrix[:, self.narrow] = bias.double()
        return matrix


def _common() -> dict[str, Any]:
    return {"dtype": "float32", "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "use_cache": True}

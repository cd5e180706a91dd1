"""A GPT-2 of two layers with random weights, whose tokens are bytes, saved as transformers saves a model."""

from pathlib import Path

import torch

WIDTH, HEADS, POSITIONS = 16, 2, 32


def save(folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    alphabet = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"vocab_size": 256, "n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS}
        model = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.5, bos_token_id=0, eos_token_id=0))
    model.save_pretrained(folder)
    return folder

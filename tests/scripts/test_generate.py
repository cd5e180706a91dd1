"""generate.py with models that come with the package, with a cell that is written here, and what it refuses."""

from typing import Any

import pytest

from paper_repro import load
from paper_repro.base.errors import run_main
from paper_repro.cells.tasks import WEIGHTS
from paper_repro.datamodules.tokenizers import CharacterTokenizer
from paper_repro.models.generation import generate
from paper_repro.scripts import generate as command
from paper_repro.tests.exports import test_weights

CORPUS = "To be, or not to be: that is the question.\nROMEO and JULIET.\n" * 3
MODEL = {"_target_": "paper_repro.models.gpt.RGPT", "vocabulary_size": 32, "block_length": 24, "width": 8}
MODEL |= {"num_heads": 1, "num_steps": 2}


def texts(capsys: Any, model: str, *words: str) -> str:
    assert run_main(command.main, [model, *words]) == 0
    return str(capsys.readouterr().out)


def generated(name: str, prompt: str, tokens: int, **options: Any) -> str:
    """Generate without the command; returns the text as it is printed."""
    model: Any = load(name)
    allowed = model.tokenizer.vocabulary_size
    found = generate(model, model.tokenizer.encode(prompt), tokens, num_allowed=allowed, **options)
    return f"{model.tokenizer.decode(found)}\n"


def test_prompts_are_continued_by_the_models_weights_in_so_many_inner_steps(capsys: Any) -> None:
    words = ("--prompt", "ROMEO", "--prompt", "to", "--tokens", "40", "--seed", "5", "--temperature", "0.5")
    assert run_main(command.main, ["nrgpt_ff1", *words]) == 0
    output = capsys.readouterr()
    expected = [generated("nrgpt_ff1", prompt, 40, temperature=0.5, seed=5) for prompt in ("ROMEO", "to")]
    assert output.out == "".join(expected)
    assert texts(capsys, "nrgpt_ff1", *words, "--inner-steps", "1") != output.out


def test_top_k_and_top_p_shape_the_text_and_the_cache_does_not(capsys: Any) -> None:
    hot, words = ["--temperature", "1e9"], ("rgpt_parallel", "--prompt", "to", "--tokens", "20")
    wild, coldest = texts(capsys, *words, *hot), texts(capsys, *words, "--temperature", "0")
    assert wild != coldest
    assert texts(capsys, *words, *hot, "--top-k", "1") == texts(capsys, *words, *hot, "--top-p", "1e-6") == coldest
    assert texts(capsys, *words, "--temperature", "0", "--cache") == coldest
    assert texts(capsys, *words, "--temperature", "1e-300") == coldest  # logits overflow


def test_a_cell_is_named_by_its_folder_or_its_weights_and_another_vocabulary_is_refused(tmp_path, capsys):
    (tmp_path / "corpus.txt").write_text(CORPUS)
    folder, own = tmp_path / "cells" / test_weights.CELL, CharacterTokenizer(CORPUS).fingerprint
    test_weights.write(tmp_path, MODEL, data={"tokenizer": own})
    words = ("--data-root", str(tmp_path), "--prompt", "be", "--tokens", "4")
    assert texts(capsys, str(folder), *words) == texts(capsys, str(folder / WEIGHTS), *words)
    test_weights.write(tmp_path, MODEL, data={"tokenizer": "ab" * 32})
    assert run_main(command.main, [str(folder), *words]) == 2
    assert f"the tokenizer found here is {own[:16]}..." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nrgpt_ff1", "--prompt", "to", "--tokens", "0"], "--tokens: 0: give 1 or more"),
        (["nrgpt_ff1"], "required: --prompt"),
        (["rgpt_parallel", "--prompt", "to be " * 300], "has 1800 tokens, the model's context holds 128: shorten it"),
        (["nrgpt_ff1", "--prompt", "x~"], "the character '~' (U+007E) at position 1"),
        (["nrgpt_ff1", "--prompt", "to", "--cache"], "no cache of keys and values"),
        (["rgpt_parallel", "--prompt", "to", "--stop"], "no token that ends a text"),
        (["rgpt_parallel", "--prompt", "to", "--inner-steps", "2"], "--inner-steps is for NRGPT and CEM, RGPTParallel"),
        (["cem", "--prompt", "to", "--inner-steps", "0"], "--inner-steps 0: num_steps must be"),
        (["ebt", "--prompt", "to"], "generates no text; give a language model's cell; think.py --prompt shows how"),
    ],
)
def test_wrong_words(capsys: Any, words: list[str], message: str) -> None:
    assert run_main(command.main, words) == 2
    assert message in capsys.readouterr().err

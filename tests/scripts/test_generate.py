import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.base.errors import RESULTS, ROOT, run_main
from paper_repro.cells import records
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import Cell
from paper_repro.datamodules.tokenizers import CharacterTokenizer
from paper_repro.models.generation import Settle, generate
from paper_repro.training import checkpoints
from paper_repro.training.build import build

CORPUS = "To be, or not to be: that is the question.\nROMEO and JULIET.\n" * 3
CELL = "0123456789abcdef"
NRGPT = {"_target_": "paper_repro.models.nrgpt.NRGPT_H_FF1", "inference_rate": "identity"}
RGPT = {"_target_": "paper_repro.models.gpt.RGPT"}
CEM = {
    "_target_": "paper_repro.models.llama.Llama",
    **{"vocabulary_size": 32, "block_length": 24, "width": 8, "num_heads": 2, "num_layers": 1, "hidden": 16},
    "attention": {"_target_": "paper_repro.models.cem.CEMAttention", "_partial_": True},
    "feed_forward": {"_target_": "paper_repro.models.llama.gated_feed_forward", "_partial_": True},
}


MAIN = importlib.import_module("paper_repro.scripts.generate").main


def config(model: dict[str, Any], **sections: Any) -> dict[str, Any]:
    sizes = {"vocabulary_size": 32, "block_length": 24, "width": 8, "num_heads": 1, "num_steps": 6}
    return {
        "module": {"_target_": "paper_repro.lightning_modules.nrgpt_shakespeare.NRGPTShakespeare"},
        "model": model if "num_layers" in model else {**sizes, **model},
        "data": {"_target_": "paper_repro.datamodules.text.CharacterData", "files": {"text": "corpus.txt"}},
        "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.01},
        "schedule": {"_target_": "paper_repro.training.schedules.Cosine"},
        "training": {"steps": 1},
        "seed": 3,
        **sections,
    }


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write a cell as a run leaves it, with the weights that it starts with; gives its folder."""
    monkeypatch.delenv("PAPER_REPRO_DATA", raising=False)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus.txt").write_text(CORPUS)

    def write(model: dict[str, Any] = NRGPT, status: str = "finished", **changes: Any) -> Path:
        folder = tmp_path / "cells" / CELL
        whole = config(model, **changes.pop("sections", {}))
        torch.manual_seed(0)
        parts = build(Cell(CELL, {**whole, "probes": {}}))
        for parameter in parts.module.parameters():
            parameter.data.mul_(8)  # away from the nearly uniform start
        checkpoints.save_weights(folder / checkpoints.WEIGHTS, parts.module, CELL)
        hashes = changes.get("hashes", {"tokenizer": CharacterTokenizer(CORPUS).fingerprint})
        record = Record(CELL, status, 3, whole, {"val_loss": 1.0}, {}, 10, None, 1.0, None, "", {"data": hashes})
        records.write(folder / "record.json", record)
        assert records.read(folder / "record.json") == record and asdict(record)["cell"] == CELL
        return folder

    return write


def run(folder: Path, *words: str) -> int:
    data = folder.parent.parent / "data"
    return run_main(MAIN, [str(folder), "--data-root", str(data), *words])


def test_top_k_and_top_p_shape_the_text_and_the_cache_does_not(
    make: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, hot = make(RGPT), ["--temperature", "1e9"]
    texts = []
    for words in (hot, ["--temperature", "0"], [*hot, "--top-k", "1"], [*hot, "--top-p", "1e-6"], ["--cache"]):
        assert run(folder, "--prompt", "to", "--tokens", "20", *words) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] != texts[1] and texts[1:] == [texts[1]] * 4  # its weights are far from uniform


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        (RGPT, ["--top-p", "1.5"], "top_p must lie in (0, 1]"),
        (RGPT, ["--stop"], "no token that ends a text"),
        (NRGPT, ["--cache"], "no cache of keys and values"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    make: Callable[..., Path], capsys: Any, model: dict[str, Any], words: list[str], message: str
) -> None:
    assert run(make(model), "--prompt", "to", "--tokens", "2", *words) == 2
    assert message in capsys.readouterr().err


def model_of(folder: Path) -> Any:
    parts = build(Cell(CELL, records.read(folder / "record.json").config | {"probes": {}}))
    checkpoints.load_weights(folder / checkpoints.WEIGHTS, parts.module, CELL)
    return parts.module.model.eval()


def expected(folder: Path, prompt: str, tokens: int, **options: Any) -> str:
    tokenizer = CharacterTokenizer(CORPUS)
    ids = generate(
        model_of(folder), tokenizer.encode(prompt), tokens, num_allowed=tokenizer.vocabulary_size, **options
    ).ids
    return tokenizer.decode(ids)


def test_prompts_are_continued_by_the_cells_weights(make: Callable[..., Path], capsys: Any) -> None:
    folder = make()
    words = ("--prompt", "ROMEO", "--prompt", "to", "--tokens", "40", "--seed", "5", "--temperature", "0.5")
    assert run(folder, *words) == 0
    texts = [expected(folder, prompt, 40, temperature=0.5, seed=5) for prompt in ("ROMEO", "to")]
    output = capsys.readouterr()
    assert output.out == f"{texts[0]}\n{texts[1]}\n"
    assert output.err.splitlines() == ["--- prompt 'ROMEO', seed 5", "--- prompt 'to', seed 5"]
    data = str(folder.parent.parent / "data")
    assert run_main(MAIN, [str(folder / checkpoints.WEIGHTS), "--data-root", data, *words]) == 0
    assert capsys.readouterr().out == output.out


def test_settling_is_reported(make: Callable[..., Path], capsys: Any) -> None:
    folder = make()
    assert run(folder, "--prompt", "ROMEO", "--tokens", "9", "--settle", "0.05", "--inner-steps", "40") == 0
    output = capsys.readouterr()
    tokenizer = CharacterTokenizer(CORPUS)
    settle = Settle(0.05, num_steps=40)
    found = generate(
        model_of(folder), tokenizer.encode("ROMEO"), 9, seed=0, settle=settle, num_allowed=len(tokenizer.characters)
    )
    assert output.out == tokenizer.decode(found.ids) + "\n"
    assert f"inner steps per token: mean {found.mean_steps:.2f}; tokens by number: " in output.err
    assert max(found.steps) < 40


def test_inner_steps_are_others_than_those_of_the_training(make: Callable[..., Path], capsys: Any) -> None:
    folder = make(CEM)
    words = ("--prompt", "ROMEO", "--tokens", "60", "--temperature", "0")
    texts = []
    for steps in ("1", "4"):
        assert run(folder, *words, "--inner-steps", steps) == 0
        texts.append(capsys.readouterr().out)
    assert run(folder, *words) == 0
    assert capsys.readouterr().out == texts[0] != texts[1]
    assert run(folder, *words, "--inner-steps", "0") == 2
    assert "--inner-steps 0: num_steps must be" in capsys.readouterr().err


def test_without_prompts_those_of_the_cells_probe_or_four_of_the_papers_kind(
    make: Callable[..., Path], capsys: Any
) -> None:
    probe = {"_target_": "paper_repro.probes.text_quality.TextQuality", "prompts": ["be"], "seeds": [8]}
    folder = make(sections={"probes": {"other": None, "texts": probe}})
    assert run(folder, "--tokens", "4") == 0
    assert capsys.readouterr().err == "--- prompt 'be', seed 8\n"
    folder = make()
    assert run(folder, "--tokens", "4", "--crop") == 0
    seeds = [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert seeds == ["5", "17", "42", "99"]


def test_another_vocabulary_is_refused_naming_both(make: Callable[..., Path], capsys: Any) -> None:
    folder = make(hashes={"tokenizer": "ab" * 32})
    assert run(folder, "--prompt", "be") == 2
    message = capsys.readouterr().err
    assert f"the tokenizer found here is {CharacterTokenizer(CORPUS).fingerprint[:16]}..." in message
    assert "trained with abababababababab..." in message and "--data-root" in message


def test_a_prompt_longer_than_the_context(make: Callable[..., Path], capsys: Any) -> None:
    folder, long = make(), "To be, or not to be: that is"
    assert run(folder, "--prompt", long, "--tokens", "3") == 2
    assert "has 28 tokens, the model's context holds 24: shorten it, or give --crop" in capsys.readouterr().err
    assert run(folder, "--prompt", long, "--tokens", "3", "--crop") == 0
    assert capsys.readouterr().out == expected(folder, long, 3) + "\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--promt", "x"], r"unknown option --promt (did you mean '--prompt'?)"),
        (["--tokens", "0"], "--tokens: 0: give 1 or more"),
        (["--prompt", ""], "the prompt has no token, expected at least one: a blank prompt is two newlines"),
        (["--prompt", "xyz"], "the character 'x' (U+0078) at position 0"),
        (["--settle", "-1"], "tolerance must be a finite number of at least 0"),
        (["--inner-steps", "0"], "num_steps must be a whole number of at least 1"),
    ],
)
def test_wrong_words(make: Callable[..., Path], capsys: Any, words: list[str], message: str) -> None:
    assert run(make(), *words) == 2
    assert message in capsys.readouterr().err


def test_what_is_no_checkpoint(make: Callable[..., Path], capsys: Any, tmp_path: Path) -> None:
    assert run(make(RGPT), "--inner-steps", "2") == 2
    assert "--inner-steps is for NRGPT and CEM, RGPT makes none: leave it out" in capsys.readouterr().err
    assert run(make(RGPT), "--settle", "0.1") == 2
    assert "RGPT has no energies" in capsys.readouterr().err
    assert run(tmp_path / "cells" / "none") == 2
    assert "no record.json there, expected the folder of a finished cell" in capsys.readouterr().err
    assert run(make(status="diverged"), "--prompt", "be") == 2
    assert "the cell is diverged" in capsys.readouterr().err
    folder = make()
    weights = folder / checkpoints.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-7])
    assert run(folder, "--prompt", "be") == 2
    assert "damaged" in capsys.readouterr().err
    weights.unlink()
    assert run(folder, "--prompt", "be") == 2
    assert "not there, expected the weights of the cell" in capsys.readouterr().err
    (folder / "record.json").write_text("{}")
    assert run(folder, "--prompt", "be") == 2
    assert "not a run record" in capsys.readouterr().err


def test_a_temperature_at_which_logits_overflow_is_that_of_the_likeliest_token(
    make: Callable[..., Path], capsys: Any
) -> None:
    folder = make()
    for temperature in ("0", "1e-30", "1e-40", "1e-300"):
        assert run(folder, "--prompt", "be", "--tokens", "8", "--temperature", temperature) == 0
        assert capsys.readouterr().out == expected(folder, "be", 8, temperature=0.0) + "\n"
    for temperature in ("nan", "inf"):
        assert run(folder, "--prompt", "be", "--temperature", temperature) == 2
        assert f"--temperature: {temperature}: give 0" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["generate", "inspect_model", "think"])
def test_a_cell_may_be_named_by_its_id(script: str) -> None:
    option = {"generate": ["--prompt", "1"], "inspect_model": [], "think": ["--prompt", "1"]}[script]
    found = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / f"{script}.py"), "95071d22", *option],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PAPER_REPRO_RUNS": str(RESULTS)},
    )
    assert found.returncode == 2 and "cells/95071d22e59ea75a/weights.safetensors: not there" in found.stderr

"""think.py with EBTs on characters and on Sudoku that the tests train for a moment, and what it refuses."""

import csv
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro import load
from paper_repro.base.errors import ROOT, run_main
from paper_repro.cells import records
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import Cell
from paper_repro.datamodules.sudoku_boards import puzzle
from paper_repro.datamodules.tokenizers import CharacterTokenizer
from paper_repro.probes import thoughts
from paper_repro.probes.thoughts import Manner, Reader, TextThought, think_of_board
from paper_repro.training import checkpoints
from paper_repro.training.build import build, rebuild

SCRIPT = ROOT / "scripts" / "think.py"
CORPUS = "the cat sat on the mat and the cat ran to the rat.\n" * 8
TOKENIZER = CharacterTokenizer(CORPUS)
PROMPT = "the cat ran"
CELL = "0123456789abcdef"
SIZES = {"vocabulary_size": 20, "block_length": 16, "width": 16, "num_heads": 2, "num_layers": 1}
EBT = {"_target_": "paper_repro.models.ebt.EBT", "variant": "time_embed", "num_landscapes": 2, "step_size": 5.0}
TRANSFORMER = {"_target_": "paper_repro.models.ebt.TransformerPlusPlus"}
EBT_MODULE = {
    "_target_": "paper_repro.lightning_modules.ebt_language.EBTLanguage",
    "step_size_multiplier": 10.0,
    "thinking": {"_target_": "paper_repro.models.ebt.ThinkingSettings", "num_steps": 2, "most_steps": 3},
}
MODULES = {
    "EBT": EBT_MODULE,
    "SudokuEBT": {**EBT_MODULE, "_target_": "paper_repro.lightning_modules.ebt_sudoku.EBTSudoku"},
    "SudokuFeedForward": {"_target_": "paper_repro.lightning_modules.ebt_sudoku.SudokuClassifier"},
    "TransformerPlusPlus": {"_target_": "paper_repro.lightning_modules.ebt_language.TransformerLanguage"},
}
SUDOKU = {"_target_": "paper_repro.models.ebt_sudoku.SudokuEBT", "step_size": 10.0, "width": 16, "num_layers": 1}
FEED_FORWARD = {"_target_": "paper_repro.models.ebt_sudoku.SudokuFeedForward", "width": 16, "num_layers": 1}
BOARDS = {
    "_target_": "paper_repro.datamodules.sudoku.GeneratedSudoku",
    **{"num_train": 8, "num_val": 1, "num_test_each": 1, "train_givens": [70, 78], "test_givens": [70, 70]},
    "batch_size": 8,
}


THINK = importlib.import_module("paper_repro.scripts.think")


def config(model: dict[str, Any]) -> dict[str, Any]:
    plays = "sudoku" in model["_target_"]
    kept = {"num_heads"} if plays else SIZES.keys()
    sizes = {name: value for name, value in SIZES.items() if name in kept}
    texts = {
        "_target_": "paper_repro.datamodules.text.CharacterData",
        **{"files": {"text": "corpus.txt"}, "batch_size": 8, "window": 16, "num_evaluation_batches": 1},
    }
    return {
        "module": MODULES[model["_target_"].rpartition(".")[2]],
        "model": {**sizes, **model},
        "data": BOARDS if plays else texts,
        "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.02},
        "schedule": {"_target_": "paper_repro.training.schedules.Constant"},
        "training": {"steps": 1},
        "seed": 3,
    }


def write(folder: Path, model: dict[str, Any], steps: int = 0, status: str = "finished") -> Path:
    """Write a cell as a run leaves it, trained for some steps; its data lie beside it.  Returns its folder."""
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "corpus.txt").write_text(CORPUS)
    whole, cell = config(model), folder / "cells" / CELL
    torch.manual_seed(0)
    machine = {} if "sudoku" in model["_target_"] else {"data_root": str(folder / "data")}
    parts = build(Cell(CELL, {**whole, "probes": {}, "machine": machine}))
    optimizer = torch.optim.AdamW(parts.module.parameters(), lr=0.02)
    for step in range(steps):
        batch = parts.data.train_batch(step)
        loss, _ = parts.module.loss_and_carry(batch, parts.module.draws_of(batch, step, 0, torch.device("cpu")), {})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    checkpoints.save_weights(cell / checkpoints.WEIGHTS, parts.module, CELL)
    hashes = {"tokenizer": TOKENIZER.fingerprint}
    records.write(
        cell / "record.json", Record(CELL, status, 3, whole, {}, {}, 10, None, 1.0, None, "", {"data": hashes})
    )
    return cell


def of_another_variant(folder: Path) -> Path:
    """Put the weights of an adaLN model beside the record of a time_embed one."""
    cell = write(folder, {**EBT, "variant": "adaln"})
    record = records.read(cell / "record.json")
    record.config["model"]["variant"] = "time_embed"
    records.write(cell / "record.json", record)
    return cell


def a_baseline(folder: Path) -> Path:
    """Make the record one of a task that keeps no weights."""
    cell = write(folder, SUDOKU)
    record = records.read(cell / "record.json")
    record.config["task"] = {"_target_": "paper_repro.probes.floors.SudokuFloor"}
    records.write(cell / "record.json", record)
    (cell / checkpoints.WEIGHTS).unlink()
    return cell


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("trained"), EBT, steps=60)


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("player"), SUDOKU, steps=2)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few points, and find no data but the test's."""
    monkeypatch.delenv("PAPER_REPRO_DATA", raising=False)
    whole = thoughts.rows
    monkeypatch.setattr(thoughts, "rows", lambda found, seed: whole(found, seed, num_curves=2, points=5))


def run(folder: Path, *words: str) -> int:
    return run_main(THINK.main, [str(folder), "--data-root", str(folder.parent.parent / "data"), *words])


def read(folder: Path, manner: Manner, num_steps: int) -> TextThought:
    parts = rebuild(folder, Cell(CELL, records.read(folder / "record.json").config))
    model: Any = parts.module.model
    return Reader(model, TOKENIZER, manner).read(TOKENIZER.encode(PROMPT), num_steps)


@pytest.mark.slow
def test_each_number_of_steps_is_reported_with_energies_perplexity_samples_and_next_tokens(
    trained: Path, tmp_path: Path, capsys: Any
) -> None:
    words = ("--steps", "4,2", "--samples", "3", "--seed", "7", "--step-size", "4", "--out", str(tmp_path))
    assert run(trained, "--prompt", PROMPT, *words) == 0
    heading, *blocks = capsys.readouterr().out.split("\n\n")
    assert heading.startswith(f"EBT {CELL}, landscapes 2, alpha 4 (the model's own is ")
    assert heading.endswith("samples 3, noise 0, seed 7") and len(blocks) == 2
    for block, steps in zip(blocks, (2, 4), strict=True):
        found = read(trained, Manner(3, step_size=4.0, seed=7), steps)
        first, text, following, landscapes, head, *lines = block.splitlines()
        assert found.perplexity is not None and found.perplexity < TOKENIZER.vocabulary_size - 4
        perplexity = f"perplexity {found.perplexity:.5g} of the 10 tokens after the first"
        assert first == f"steps {steps}, NFE {3 * steps + 1}, {perplexity}"
        assert text == PROMPT
        assert following == "next: " + ", ".join(f"{token!r} {share:.3g}" for token, share in found.following)
        assert (
            landscapes == f"landscapes, one after the other: {'E 0; E 1 to 2' if steps == 2 else 'E 0 to 1; E 2 to 4'}"
        )
        assert re.findall(r"E (\d)", head) == [str(step) for step in range(steps + 1)]
        assert len(lines) == len(found.places) == len(PROMPT)
        for line, place in zip(lines, found.places, strict=True):
            assert line.startswith("-" if place.token is None else repr(place.token))
            numbers = line.split()[-steps - 2 :]
            assert numbers == [str(place.sample), *(f"{energy:.3g}" for energy in place.energies)]


def test_the_energies_of_the_most_steps_are_drawn(trained: Path, tmp_path: Path, capsys: Any) -> None:
    words = ("--prompt", PROMPT, "--steps", "2,3", "--samples", "2", "--tokens", "3", "--out", str(tmp_path))
    assert run(trained, *words) == 0
    output = capsys.readouterr()
    assert output.err.splitlines() == [str(tmp_path / "energies" / f"figure.{end}") for end in ("csv", "png", "svg")]
    rows = list(csv.DictReader((tmp_path / "energies" / "figure.csv").open()))
    found = read(trained, Manner(2), 3)
    expected = [
        (str(at), place.name, step, energy)
        for at, place in enumerate(found.places, 1)
        for step, energy in enumerate(place.energies)
    ]
    drawn = [(row["place"], row["token"], int(row["step"]), float(row["energy"])) for row in rows]
    assert drawn[: len(expected)] == expected
    assert len(drawn) == len(expected) + 3 * 4
    assert [row["new"] for row in rows] == ["0"] * 4 * (len(PROMPT) - 1) + ["1"] * 4 * 4
    continuation = output.out.split("\n\n")[-1].splitlines()
    assert continuation[0] == "continuation, steps 3, NFE 7 a token, 21 in all"
    assert continuation[1] == "".join(row["token"] for row in rows[-12::4])
    assert len(continuation) == 3 + 3


@pytest.mark.slow
def test_the_landscape_is_drawn_around_the_last_prediction(trained: Path, tmp_path: Path) -> None:
    assert run(trained, "--prompt", PROMPT, "--landscape", "--out", str(tmp_path)) == 0
    rows = list(csv.DictReader((tmp_path / "landscape" / "figure.csv").open()))
    assert {row["space"] for row in rows} == {"candidates", "logits"}
    energies = read(trained, Manner(), 3).places[-1].energies
    ends = [row for row in rows if (row["kind"], row["line"]) == ("path", "3")]
    assert len(ends) == 4
    for row in ends:
        assert float(row["energy"]) == pytest.approx(energies[-1], rel=1e-4)
    assert (tmp_path / "landscape" / "figure.png").stat().st_size > 10_000


def test_on_a_terminal_low_energies_are_green(trained: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    words = ("--prompt", PROMPT, "--out", str(tmp_path))
    assert run(trained, *words) == 0
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    monkeypatch.setattr(THINK, "wants_color", lambda stream: True)
    assert run(trained, *words) == 0
    colored = capsys.readouterr().out
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain
    energies = [energy for place in read(trained, Manner(), 3).places for energy in place.energies]
    assert f"\x1b[48;5;28;38;5;231m{min(energies):>9.3g}\x1b[0m" in colored
    assert f"\x1b[48;5;54;38;5;231m{max(energies):>9.3g}\x1b[0m" in colored


@pytest.mark.slow
def test_the_command_itself_draws_beside_the_checkpoint(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "cell")
    command = [sys.executable, str(SCRIPT), str(folder / checkpoints.WEIGHTS), "--prompt", PROMPT]
    environment = {**os.environ, "PAPER_REPRO_DATA": str(trained.parent.parent / "data"), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[2].startswith("steps 3, NFE 4, perplexity ")
    assert (folder / "thinking" / "energies" / "figure.png").is_file()


GIVENS, SOLUTION = puzzle(0, 76)
BOARD = "".join(map(str, GIVENS))


@pytest.mark.slow
def test_a_board_is_printed_after_each_step_with_energies_and_a_verdict(
    player: Path, tmp_path: Path, capsys: Any
) -> None:
    words = ("--board", BOARD.replace("0", "."), "--steps", "3,1", "--samples", "2", "--landscape")
    assert run(player, *words, "--out", str(tmp_path)) == 0
    output = capsys.readouterr()
    heading, *blocks = output.out.split("\n\n")
    assert heading.startswith(f"SudokuEBT {CELL}, landscapes 1, ") and len(blocks) == 2
    model: Any = rebuild(player, Cell(CELL, records.read(player / "record.json").config)).module.model
    for block, steps in zip(blocks, (1, 3), strict=True):
        found = think_of_board(model, GIVENS, steps, Manner(2))
        verdict = "accepts" if found.accepted[-1] else "does not accept"
        right = sum(digit == own for digit, own in zip(found.boards[-1], SOLUTION, strict=True)) - 76
        first, *lines = block.splitlines()
        assert first == (
            f"steps {steps}, NFE {2 * steps + 1}, sample {found.sample}: the judge {verdict} the board; "
            f"{right} of 5 blanks as in the solution, the others have *"
        )
        shown = [1] if steps == 1 else [0, 1, 2, 3]
        assert len(lines) == 10 * len(shown)
        for index, step in enumerate(shown):
            title, *rows = lines[10 * index : 10 * index + 10]
            assert title.startswith(f"after step {step}")
            digits = "".join(re.findall(r"\d", " ".join(row[:26] for row in rows)))
            assert digits == "".join(map(str, found.boards[step]))
            stars = "".join(rows[at][:27] for at in range(9)).count("*")
            assert stars == sum(a != b for a, b in zip(found.boards[step], SOLUTION, strict=True))
            energies = " ".join(row[27:] for row in rows).split()
            assert energies == [f"{energy:.3g}" for energy in found.energies[step]]
    drawn = list(csv.DictReader((tmp_path / "energies" / "figure.csv").open()))
    assert [int(row["digit"]) for row in drawn] == [digit for own in found.boards for digit in own]
    assert [float(row["energy"]) for row in drawn] == [energy for own in found.energies for energy in own]
    assert [row["given"] for row in drawn[:81]] == ["1" if given else "0" for given in GIVENS]
    assert len(output.err.splitlines()) == 6 and (tmp_path / "landscape" / "figure.png").is_file()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (BOARD[:-1], "--board: 80 characters, expected 81"),
        (f"x{BOARD[1:]}", "--board: 'x' at row 1, column 1, expected 1 to 9"),
        ("11" + "." * 79, "--board: row 1 has the digit 1 twice (row 1, column 1 and row 1, column 2)"),
        ("12345678." + "." * 8 + "9" + "." * 63, "--board: no digits fill its blanks by the rules"),
        ("." * 81, "--board: more than one solution"),
        ("".join(map(str, SOLUTION)), "--board: no blank, so there is nothing to think about"),
    ],
)
def test_boards_that_are_none(player: Path, capsys: Any, given: str, message: str) -> None:
    assert run(player, "--board", given) == 2
    found = capsys.readouterr()
    assert message in found.err and found.err.count("\n") == 1 and found.out == ""


@pytest.mark.slow
def test_boards_as_collections_write_them_and_a_file_of_them(player: Path, tmp_path: Path, capsys: Any) -> None:
    words = ("--steps", "2", "--out", str(tmp_path / "out"))
    assert run(player, "--board", BOARD, *words) == 0
    plain = capsys.readouterr().out
    for blank in "0*_":
        assert run(player, "--board", BOARD.replace(".", blank) + " ", *words) == 0
        assert capsys.readouterr().out == plain
    file = tmp_path / "boards.txt"
    file.write_text(f"{BOARD} \n\n{BOARD.replace('.', '*')}\n")
    assert run(player, "--board", str(file), *words) == 0
    assert capsys.readouterr().out.count(plain.partition("\n")[2]) == 2
    assert (tmp_path / "out" / "2" / "energies" / "figure.csv").is_file()
    file.write_text(f"{BOARD}\nx{BOARD[1:]}\n")
    assert run(player, "--board", str(file), *words) == 2
    assert f"{file}, line 2: 'x' at row 1, column 1" in capsys.readouterr().err


def test_texts_are_for_one_ebt_and_boards_for_the_other(trained: Path, player: Path, capsys: Any) -> None:
    assert run(trained, "--board", BOARD) == 2
    assert "this EBT was trained on texts: give --prompt TEXT" in capsys.readouterr().err
    assert run(player, "--prompt", "a") == 2
    assert "this EBT was trained on Sudoku: give --board DIGITS" in capsys.readouterr().err
    assert run(player, "--prompt", "a", "--board", BOARD) == 2
    assert "give one of --prompt TEXT, --board DIGITS, --image FILE" in capsys.readouterr().err
    assert run(player, "--board", BOARD, "--tokens", "3") == 2
    assert "--tokens: --board has none; it goes with --prompt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "think about what? give one of --prompt TEXT"),
        (["--prompt", ""], "the prompt is empty, expected at least one token"),
        (["--prompt", "the cat sat on th"], "has 17 tokens, the model's context holds 16: shorten it"),
        (["--prompt", "the dog"], "the character 'g' (U+0067) at position 6"),
        (["--prompt", "a", "--steps", "0,2"], "--steps: 0,2: give whole numbers of 1 or more with commas"),
        (["--prompt", "a", "--steps", "4,1"], "--steps 1: the model's predictions pass 2 landscapes"),
        (["--prompt", "a", "--samples", "0"], "--samples: 0: give 1 or more"),
        (["--prompt", "a", "--step-size", "1e39"], "--step-size: 1e39: give a number from 1e-30 to 1e+30"),
        (["--prompt", "a", "--out", "x.png"], "--out x.png: give a folder"),
        (["--promt", "a"], "unknown option --promt (did you mean '--prompt'?)"),
    ],
)
def test_wrong_words(trained: Path, tmp_path: Path, capsys: Any, words: list[str], message: str) -> None:
    assert run(trained, *([] if "--out" in words else ["--out", str(tmp_path)]), *words) == 2
    found = capsys.readouterr()
    assert message in found.err and found.err.count("\n") == 1 and found.out == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: write(folder, TRANSFORMER),
            "its model, TransformerPlusPlus, is no EBT and has no energy; generate.py continues texts with this one",
        ),
        (lambda folder: write(folder, FEED_FORWARD), "its model, SudokuFeedForward, is no EBT"),
        (a_baseline, "the task of this cell is SudokuFloor, a baseline or a count that trains"),
        (lambda folder: write(folder, EBT, status="diverged"), "the cell is diverged"),
        (lambda folder: folder / "cells" / "absent", "no record.json there, expected the folder of a finished cell"),
        (of_another_variant, "weights of another model than EBTLanguage: "),
    ],
)
def test_what_cannot_think(tmp_path: Path, capsys: Any, change: Callable[[Path], Path], message: str) -> None:
    assert run(change(tmp_path), "--prompt", "a") == 2
    found = capsys.readouterr()
    assert message in found.err and found.err.count("\n") == 1 and found.out == ""


def test_the_forward_pass_of_nrgpt_is_shown_as_the_descent_that_it_is(tmp_path: Path, capsys: Any) -> None:
    words = ["nrgpt_ff1", "--prompt", "KING:", "--steps", "5", "--out", str(tmp_path)]
    assert run_main(THINK.main, words) == 0
    assert capsys.readouterr().out.startswith("NRGPT_H_FF1 ")
    with (tmp_path / "energies" / "figure.csv").open() as file:
        rows = list(csv.DictReader(file))
    model = load("nrgpt_ff1")
    ids = torch.tensor([model.tokenizer.encode("KING:")])
    x = model.embed(ids)
    for step in range(6):
        energies = [float(row["energy"]) for row in rows if row["step"] == str(step)]
        assert energies == pytest.approx(model.energies(x).total[0].tolist(), rel=1e-4), step
        x = model.step(x, step)
    tokens = [row["token"] for row in rows if row["step"] == "0"]
    following = model.tokenizer.decode([int(model.logits(model.descend(ids, 5).state)[0, -1].argmax())])
    assert tokens == [*"ING:", following]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nrgpt_ff1", "--image", "a.png"], "NRGPT_H_FF1 descends on texts: give --prompt TEXT"),
        (["nrgpt_ff1", "--prompt", "a", "--samples", "2"], "--samples: it is an EBT's, and NRGPT_H_FF1 is none"),
        (["nrgpt_ff1", "--prompt", "a", "--step-size", "2"], "--step-size: it is an EBT's"),
        (["nrgpt_ff1", "--prompt", ""], "the prompt is empty"),
        (["cet", "--prompt", "a"], "CET descends on images: give --image FILE"),
        (["cet", "--image", "absent.png"], "--image absent.png"),
        (["rgpt_parallel", "--prompt", "a"], "is no EBT and has no energy; generate.py continues texts"),
    ],
)
def test_wrong_words_of_a_descent(capsys: Any, words: list[str], message: str) -> None:
    assert run_main(THINK.main, words) == 2
    found = capsys.readouterr()
    assert message in found.err and found.err.count("\n") == 1


@pytest.mark.parametrize("name", ["generate", "inspect_model"])
def test_the_command_that_serves_an_ebt_is_named_by_the_others(
    name: str, trained: Path, player: Path, capsys: Any
) -> None:
    other = importlib.import_module(f"paper_repro.scripts.{name}")
    for folder, option in ((trained, "prompt"), (player, "board")):
        assert run_main(other.main, [str(folder)]) == 2
        assert capsys.readouterr().err.endswith(f"; think.py --{option} shows how this one thinks\n")

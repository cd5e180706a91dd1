"""think.py with the EBTs, the NRGPT and the CET that come with the package, and what it refuses."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from skimage import data

from paper_repro import load
from paper_repro.base.errors import run_main
from paper_repro.datamodules.sudoku_boards import puzzle
from paper_repro.probes.thoughts import Manner, Reader, read_image, think_of_board
from paper_repro.scripts import think

PROMPT = "The number of"
GIVENS, SOLUTION = puzzle(0, 76)
BOARD = "".join(map(str, GIVENS))
FORMATS = ("csv", "png", "svg")


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    Image.fromarray(data.astronaut()[::8, ::16]).save(tmp_path / "photograph.png")
    return tmp_path / "photograph.png"


def drawn(folder: Path) -> list[dict[str, str]]:
    assert all((folder / f"figure.{end}").stat().st_size > 1000 for end in ("png", "svg"))
    with (folder / "figure.csv").open() as file:
        return list(csv.DictReader(file))


def test_each_number_of_steps_is_printed_and_the_most_are_drawn(tmp_path: Path, capsys: Any) -> None:
    words = ("--prompt", PROMPT, "--steps", "4,2", "--samples", "3", "--seed", "7", "--out", str(tmp_path))
    assert run_main(think.main, ["ebt", *words]) == 0
    output = capsys.readouterr()
    assert output.err.splitlines() == [str(tmp_path / f"figure.{end}") for end in FORMATS]
    heading, *blocks = output.out.split("\n\n")
    assert heading.startswith("EBT ") and heading.endswith("samples 3, seed 7") and len(blocks) == 2
    model: Any = load("ebt")
    reader = Reader(model, model.tokenizer, Manner(3, seed=7))
    for block, steps in zip(blocks, (2, 4), strict=True):
        found = reader.read(reader.encode(PROMPT), steps)
        first, text, _, _, *lines = block.splitlines()
        assert first.startswith(f"steps {steps}, NFE {3 * steps + 1}, perplexity {found.perplexity:.5g} of")
        assert text == PROMPT
        for line, place in zip(lines, found.places, strict=True):
            numbers = line.split()[-steps - 2 :]
            assert numbers == [str(place.sample), *(f"{energy:.3g}" for energy in place.energies)]
    assert [(row["token"], int(row["new"]), int(row["step"]), float(row["energy"])) for row in drawn(tmp_path)] == [
        (place.name, place.token is None, step, pytest.approx(energy, rel=1e-6))
        for place in found.places
        for step, energy in enumerate(place.energies)
    ]


@pytest.mark.slow
def test_a_board_is_printed_after_each_step_with_energies_and_a_verdict(tmp_path: Path, capsys: Any) -> None:
    words = ("--board", BOARD.replace("0", "."), "--steps", "3,1", "--samples", "2")
    assert run_main(think.main, ["ebt_sudoku", *words, "--out", str(tmp_path)]) == 0
    _, *blocks = capsys.readouterr().out.split("\n\n")
    model: Any = load("ebt_sudoku")
    for block, steps in zip(blocks, (1, 3), strict=True):
        found = think_of_board(model, GIVENS, steps, Manner(2))
        verdict = "accepts" if found.accepted[-1] else "does not accept"
        right = sum(digit == own for digit, own in zip(found.boards[-1], SOLUTION, strict=True)) - 76
        first, *lines = block.splitlines()
        assert first.startswith(f"steps {steps}, NFE {2 * steps + 1}, sample {found.sample}: the judge {verdict} the")
        assert f"; {right} of 5 blanks as in the solution" in first
        for index, step in enumerate([1] if steps == 1 else [0, 1, 2, 3]):
            rows = lines[10 * index + 1 : 10 * index + 10]
            digits = "".join(re.findall(r"\d", " ".join(row[:26] for row in rows)))
            assert digits == "".join(map(str, found.boards[step]))
            energies = " ".join(row[27:] for row in rows).split()
            assert energies == [f"{energy:.3g}" for energy in found.energies[step]]


@pytest.mark.slow
def test_boards_as_collections_write_them_and_a_file_of_them(tmp_path: Path, capsys: Any) -> None:
    def thought_of(board: str) -> str:
        assert run_main(think.main, ["ebt_sudoku", "--board", board, "--steps", "1"]) == 0
        return str(capsys.readouterr().out)

    plain = thought_of(BOARD)
    assert all(thought_of(BOARD.replace("0", blank) + " ") == plain for blank in ".*_")
    file = tmp_path / "boards.txt"
    file.write_text(f"{BOARD} \n\n{BOARD.replace('0', '*')}\n")
    assert thought_of(str(file)).count(plain.partition("\n")[2]) == 2


def test_a_noised_image_is_printed_and_drawn_after_each_step(photograph: Path, tmp_path: Path, capsys: Any) -> None:
    image = read_image(photograph, 16, 3)
    assert image.shape == (3, 16, 16) and -1 <= float(image.min()) < float(image.max()) <= 1
    words = ["--image", str(photograph), "--steps", "2", "--out", str(tmp_path)]
    assert run_main(think.main, ["ebt_image", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "t = 99" in lines[0] and [line.split()[0] for line in lines[2:]] == ["0", "1", "2"]
    rows = drawn(tmp_path)
    assert [row["step"] for row in rows] == ["0", "1", "2"] and float(rows[0]["psnr"]) < 20


def test_a_masked_image_is_completed_by_cet(photograph: Path, tmp_path: Path) -> None:
    assert run_main(think.main, ["cet", "--image", str(photograph), "--steps", "5", "--out", str(tmp_path)]) == 0
    rows = drawn(tmp_path)
    assert [row["step"] for row in rows] == ["0", "1", "4", "5"]
    assert float(rows[-1]["energy"]) < float(rows[0]["energy"])


def test_the_forward_pass_of_nrgpt_is_shown_as_the_descent_that_it_is(tmp_path: Path) -> None:
    assert run_main(think.main, ["nrgpt_ff1", "--prompt", "KING:", "--steps", "5", "--out", str(tmp_path)]) == 0
    rows = drawn(tmp_path)
    model: Any = load("nrgpt_ff1")
    ids = torch.tensor([model.tokenizer.encode("KING:")])
    x = model.embed(ids)
    for step in range(6):
        energies = [float(row["energy"]) for row in rows if row["step"] == str(step)]
        assert energies == pytest.approx(model.energies(x).total[0].tolist(), rel=1e-4), step
        x = model.layers()[0](x)
    tokens = [row["token"] for row in rows if row["step"] == "0"]
    following = model.tokenizer.decode([int(model.logits(model.trace(ids, 5).state)[0, -1].argmax())])
    assert tokens == [*"ING:", following]


TEXT = ("--prompt", "a")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ebt"], "think about what? give one of --prompt TEXT"),
        (["ebt_sudoku", *TEXT], "SudokuEBT was not trained on that: give --board DIGITS"),
        (["ebt_sudoku", "--board", BOARD[:-1]], "--board: 80 characters, expected 81"),
        (["ebt_sudoku", "--board", "".join(map(str, SOLUTION))], "--board: no blank"),
        (["ebt_image", "--image", "absent.png"], "--image absent.png"),
        (["nrgpt_ff1", *TEXT, "--samples", "2"], "--samples: NRGPT_H_FF1 makes one prediction"),
        (["rgpt_parallel", *TEXT], "RGPTParallel, has no energy to watch; generate.py continues texts"),
    ],
)
def test_wrong_words(capsys: Any, words: Sequence[str], message: str) -> None:
    assert run_main(think.main, list(words)) == 2
    found = capsys.readouterr()
    assert message in found.err and found.err.count("\n") == 1 and found.out == ""

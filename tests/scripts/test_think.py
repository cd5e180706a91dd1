"""think.py with the EBTs, the NRGPT and the CET that come with the package, and what it refuses."""

import csv
import hashlib
import importlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from skimage import data

from paper_repro import load
from paper_repro.base.errors import run_main
from paper_repro.datamodules.sudoku_boards import puzzle
from paper_repro.exports.card import LIST
from paper_repro.probes import thoughts
from paper_repro.probes.thoughts import Manner, Reader, TextThought, read_image, think_of_board
from paper_repro.scripts import think

PROMPT = "The number of"
GIVENS, SOLUTION = puzzle(0, 76)
BOARD = "".join(map(str, GIVENS))
FORMATS = ("csv", "png", "svg")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Draw few points, below a folder of the test."""
    monkeypatch.setenv("PAPER_REPRO_RUNS", str(tmp_path / "runs"))
    whole = thoughts.rows
    monkeypatch.setattr(thoughts, "rows", lambda found, seed: whole(found, seed, num_curves=2, points=5))


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    Image.fromarray(data.astronaut()[::8, ::16]).save(tmp_path / "photograph.png")
    return tmp_path / "photograph.png"


def with_two_landscapes(folder: Path) -> str:
    """Write a copy of the EBT that comes with the package, with a second landscape, and return its folder."""
    shutil.copytree(LIST.parent / "ebt", folder)
    path, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    weights = load_file(path)
    one = weights["landscapes.embedding.weight"]  # (1, D)
    save_file({**weights, "landscapes.embedding.weight": torch.cat([one, one.flip(1)])}, path)
    config["model"]["num_landscapes"] = 2
    config["weights_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def drawn(folder: Path, name: str = "energies") -> list[dict[str, str]]:
    assert all((folder / name / f"figure.{end}").stat().st_size > 1000 for end in ("png", "svg"))
    with (folder / name / "figure.csv").open() as file:
        return list(csv.DictReader(file))


def read(manner: Manner, num_steps: int, name: str = "ebt") -> TextThought:
    model: Any = load(name)
    reader = Reader(model, model.tokenizer, manner)
    return reader.read(reader.encode(PROMPT), num_steps)


@pytest.mark.slow
def test_each_number_of_steps_is_reported_with_energies_perplexity_samples_and_next_tokens(
    tmp_path: Path, capsys: Any
) -> None:
    words = ("--steps", "4,2", "--samples", "3", "--seed", "7", "--step-size", "4", "--out", str(tmp_path))
    model = with_two_landscapes(tmp_path / "model")
    assert run_main(think.main, [model, "--prompt", PROMPT, *words]) == 0
    heading, *blocks = capsys.readouterr().out.split("\n\n")
    assert run_main(think.main, [model, *TEXT, "--steps", "4,1"]) == 2
    assert "--steps 1: the model's predictions pass 2 landscapes" in capsys.readouterr().err
    assert heading.startswith("EBT ") and ", landscapes 2, alpha 4 (the model's own is " in heading
    assert heading.endswith("samples 3, noise 0, seed 7") and len(blocks) == 2
    for block, steps in zip(blocks, (2, 4), strict=True):
        found = read(Manner(3, step_size=4.0, seed=7), steps, model)
        first, text, following, landscapes, _, *lines = block.splitlines()
        perplexity = f"perplexity {found.perplexity:.5g} of the {len(found.places) - 1} tokens after the first"
        assert (first, text) == (f"steps {steps}, NFE {3 * steps + 1}, {perplexity}", PROMPT)
        assert following == "next: " + ", ".join(f"{token!r} {share:.3g}" for token, share in found.following)
        assert landscapes.endswith(": E 0; E 1 to 2" if steps == 2 else ": E 0 to 1; E 2 to 4")
        for line, place in zip(lines, found.places, strict=True):
            numbers = line.split()[-steps - 2 :]
            assert numbers == [str(place.sample), *(f"{energy:.3g}" for energy in place.energies)]


def test_the_energies_of_the_most_steps_are_drawn(tmp_path: Path, capsys: Any) -> None:
    words = ("--prompt", PROMPT, "--steps", "2,3", "--samples", "2", "--tokens", "3", "--out", str(tmp_path))
    assert run_main(think.main, ["ebt", *words]) == 0
    output = capsys.readouterr()
    assert output.err.splitlines() == [str(tmp_path / "energies" / f"figure.{end}") for end in FORMATS]
    rows = drawn(tmp_path)
    expected = [
        (str(at), place.name, step, pytest.approx(energy, rel=1e-6))
        for at, place in enumerate(read(Manner(2), 3).places, 1)
        for step, energy in enumerate(place.energies)
    ]
    found = [(row["place"], row["token"], int(row["step"]), float(row["energy"])) for row in rows]
    assert found[: len(expected)] == expected
    assert [row["new"] for row in rows] == ["0"] * (len(expected) - 4) + ["1"] * 4 * 4  # 4 energies of each token
    continuation = output.out.split("\n\n")[-1].splitlines()
    assert continuation[0] == "continuation, steps 3, NFE 7 a token, 21 in all"
    assert continuation[1] == "".join(row["token"] for row in rows[-12::4])
    assert len(continuation) == 3 + 3


@pytest.mark.slow
def test_the_landscape_is_drawn_around_the_last_prediction(tmp_path: Path) -> None:
    assert run_main(think.main, ["ebt", "--prompt", PROMPT, "--landscape", "--out", str(tmp_path)]) == 0
    rows = drawn(tmp_path, "landscape")
    assert {row["space"] for row in rows} == {"candidates", "logits"}
    energies = read(Manner(), 2).places[-1].energies
    ends = [float(row["energy"]) for row in rows if (row["kind"], row["line"]) == ("path", "2")]
    assert ends == pytest.approx([energies[-1]] * 4, rel=1e-4)


def test_energies_are_coloured_on_a_terminal(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_main(think.main, ["ebt", "--prompt", PROMPT]) == 0
    plain = capsys.readouterr().out
    assert "\x1b" not in plain and drawn(tmp_path / "runs" / "ebt" / "thinking")
    monkeypatch.setattr(think, "wants_color", lambda stream: True)
    assert run_main(think.main, ["ebt", "--prompt", PROMPT]) == 0
    colored = capsys.readouterr().out
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain
    lowest = min(energy for place in read(Manner(), 2).places for energy in place.energies)
    assert f"\x1b[48;5;28;38;5;231m{lowest:>9.3g}\x1b[0m" in colored  # green


@pytest.mark.slow
def test_a_board_is_printed_after_each_step_with_energies_and_a_verdict(tmp_path: Path, capsys: Any) -> None:
    words = ("--board", BOARD.replace("0", "."), "--steps", "3,1", "--samples", "2", "--landscape")
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
            stars = "".join(row[:27] for row in rows).count("*")
            assert stars == sum(a != b for a, b in zip(found.boards[step], SOLUTION, strict=True))
            energies = " ".join(row[27:] for row in rows).split()
            assert energies == [f"{energy:.3g}" for energy in found.energies[step]]
    cells = drawn(tmp_path)
    assert [int(row["digit"]) for row in cells] == [digit for own in found.boards for digit in own]
    assert [row["given"] for row in cells[:81]] == ["1" if given else "0" for given in GIVENS]
    assert drawn(tmp_path, "landscape")


@pytest.mark.slow
def test_boards_as_collections_write_them_and_a_file_of_them(tmp_path: Path, capsys: Any) -> None:
    def thought_of(board: str) -> str:
        assert run_main(think.main, ["ebt_sudoku", "--board", board, "--out", str(tmp_path / "out")]) == 0
        return str(capsys.readouterr().out)

    plain = thought_of(BOARD)
    assert all(thought_of(BOARD.replace("0", blank) + " ") == plain for blank in ".*_")
    file = tmp_path / "boards.txt"
    file.write_text(f"{BOARD} \n\n{BOARD.replace('0', '*')}\n")
    assert thought_of(str(file)).count(plain.partition("\n")[2]) == 2
    assert drawn(tmp_path / "out" / "2")


def test_a_noised_image_is_printed_and_drawn_after_each_step(photograph: Path, tmp_path: Path, capsys: Any) -> None:
    image = read_image(photograph, 16, 3)
    assert image.shape == (3, 16, 16) and -1 <= float(image.min()) < float(image.max()) <= 1
    words = ["--image", str(photograph), "--steps", "2", "--time", "199", "--out", str(tmp_path)]
    assert run_main(think.main, ["ebt_image", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "t = 199" in lines[0] and [line.split()[0] for line in lines[2:]] == ["0", "1", "2"]
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
        x = model.step(x, step)
    tokens = [row["token"] for row in rows if row["step"] == "0"]
    following = model.tokenizer.decode([int(model.logits(model.trace(ids, 5).state)[0, -1].argmax())])
    assert tokens == [*"ING:", following]


TEXT, NUMBER, PICTURE = ("--prompt", "a"), ("--board", BOARD), ("--image", "PHOTOGRAPH")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ebt"], "think about what? give one of --prompt TEXT"),
        (["ebt", *TEXT, *NUMBER], "give one of --prompt TEXT, --board DIGITS, --image FILE"),
        (["ebt", "--prompt", ""], "the prompt is empty, expected at least one token"),
        (["ebt", "--prompt", "x1" * 140], "the model's context holds 256: shorten it"),
        (["ebt", *TEXT, "--steps", "0,2"], "--steps: 0,2: give whole numbers of 1 or more with commas"),
        (["ebt", *TEXT, "--step-size", "1e39"], "--step-size: 1e39: give a number from 1e-30 to 1e+30"),
        (["ebt", *TEXT, "--out", "x.png"], "--out x.png: give a folder"),
        (["ebt", "--promt", "a"], "unknown option --promt (did you mean '--prompt'?)"),
        (["ebt", *TEXT, "--time", "9"], "--time: --prompt has none"),
        (["ebt", *NUMBER], "this EBT was trained on texts: give --prompt TEXT"),
        (["ebt_sudoku", *TEXT], "this EBT was trained on Sudoku: give --board DIGITS"),
        (["ebt_sudoku", *NUMBER, "--tokens", "3"], "--tokens: --board has none; it goes with --prompt"),
        (["ebt_sudoku", "--board", BOARD[:-1]], "--board: 80 characters, expected 81"),
        (["ebt_sudoku", "--board", "." * 81], "--board: more than one solution"),
        (["ebt_sudoku", "--board", "".join(map(str, SOLUTION))], "--board: no blank"),
        (["ebt_image", *TEXT], "this EBT was trained on images: give --image FILE"),
        (["ebt_image", "--image", "absent.png"], "--image absent.png"),
        (["ebt_image", *PICTURE, "--time", "1000"], "time must lie in 0 ... 999"),
        (["ebt_image", *PICTURE, "--samples", "2"], "one sample"),
        (["ebt_image", *PICTURE, "--noise", "1"], "no noise in its steps"),
        (["nrgpt_ff1", "--image", "a.png"], "NRGPT_H_FF1 descends on texts: give --prompt TEXT"),
        (["nrgpt_ff1", *TEXT, "--samples", "2"], "--samples: it is an EBT's, and NRGPT_H_FF1 is none"),
        (["cet", *TEXT], "CET descends on images: give --image FILE"),
        (["rgpt_parallel", *TEXT], "is no EBT and has no energy; generate.py continues texts"),
    ],
)
def test_wrong_words(photograph: Path, capsys: Any, words: Sequence[str], message: str) -> None:
    assert run_main(think.main, [str(photograph) if word == "PHOTOGRAPH" else word for word in words]) == 2
    found = capsys.readouterr()
    assert message in found.err and found.err.count("\n") == 1 and found.out == ""


@pytest.mark.parametrize("name", ["generate", "inspect_model"])
@pytest.mark.parametrize(("model", "option"), [("ebt", "prompt"), ("ebt_sudoku", "board")])
def test_the_command_that_serves_an_ebt_is_named_by_the_others(name: str, model: str, option: str, capsys: Any) -> None:
    other = importlib.import_module(f"paper_repro.scripts.{name}")
    assert run_main(other.main, [model]) == 2
    assert capsys.readouterr().err.endswith(f"; think.py --{option} shows how this one thinks\n")

"""Watch a trained EBT think: energies of its predictions by step, for a text, a Sudoku board or an image; or watch the
descent that is the forward pass of an NRGPT, for a text, and of a CET, which completes a masked image.

    think.py ebt --prompt "The default valu" --steps 1,2,8            # a model that comes with the package
    think.py runs/cells/<cell> --prompt "def area(" --steps 1,2,4,8 --samples 10
    think.py runs/cells/<cell> --board 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79
    think.py runs/cells/<cell> --image photograph.jpg --steps 4
    think.py nrgpt_ff1 --prompt "ROMEO:"
    think.py cet --image photograph.jpg

NFE is the number of function evaluations: N S gradients and a last pass, in which the samples are compared.  For a text
or an image a figure is drawn, too; the names of its files go to the standard error.  Exit codes as train.py's.
"""

from __future__ import annotations

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.base.errors import Options, UsageError, counts, number, run_main
from paper_repro.exports.weights import Opened, opened
from paper_repro.tables import plots
from paper_repro.tables.figure import Canvas, Figure, Row

if TYPE_CHECKING:
    from paper_repro.probes.thoughts import BoardThought, ImageThought, Manner, Place, TextThought

SUBJECTS = {"prompt": "--prompt TEXT", "board": "--board DIGITS", "image": "--image FILE"}
"""The options that say what is thought about."""
MOST_COLUMNS = 9
"""Steps whose energies a table shows; a figure shows all."""
MOST_TOKEN_CHARACTERS = 12


def main(arguments: Sequence[str]) -> int:
    parser = Options("think.py", __doc__)
    add = parser.add_argument
    add("checkpoint", help="a name as ebt, hf://owner/name, folder of a finished cell or an export, or a cell's id")
    add("--prompt", help="a text: think about each of its tokens from the second on, and the one that follows")
    add("--board", help="a Sudoku of 81 characters by row, 0 . * or _ for a blank, or a file with one a line")
    add("--image", type=Path, help="an image: its central square is made as small as the model's, and noised or masked")
    add("--steps", type=counts, help="numbers of steps of a prediction (default: the most of the training)")
    add("--samples", type=number(int, 1), default=1, help="an EBT's predictions; that of lowest energy is chosen")
    add("--seed", type=int, default=0, help="of the first predictions, the noise and the mask (default 0)")
    add("--out", type=Path, help="folder for the figure (default: thinking/ beside the checkpoint)")
    add("--data-root", help="folder of the data of the vocabulary, beside $PAPER_REPRO_DATA")
    add("--device", choices=("cpu", "gpu"), default="cpu")
    words = parser.read(arguments)
    given = [name for name in SUBJECTS if getattr(words, name) is not None]
    if len(given) != 1:
        raise UsageError(f"think about what? give one of {', '.join(SUBJECTS.values())}")
    found = opened(words.checkpoint, device=words.device, data_root=words.data_root)

    from paper_repro.models.ebt import EBT
    from paper_repro.models.ebt_sudoku import SudokuEBT
    from paper_repro.probes.thoughts import asked_by, command_for

    model = found.module.model
    name, subject = type(model).__name__, asked_by(model)
    if subject is None:
        raise UsageError(f"{words.checkpoint}: its model, {name}, has no energy to watch; {command_for(model)}")
    if given != [subject]:
        raise UsageError(f"{words.checkpoint}: {name} was not trained on that: give {SUBJECTS[subject]}")
    if words.samples > 1 and not isinstance(model, EBT | SudokuEBT):
        raise UsageError(f"--samples: {name} makes one prediction; leave it out")
    try:
        figure = {"prompt": text, "board": board, "image": image}[subject](words, found)
        if figure is not None:
            print(*figure.write(words.out or found.folder / "thinking"), sep="\n", file=sys.stderr)
    except OSError as error:
        raise UsageError(f"--out: {error}; give another folder") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    return 0


def text(words: argparse.Namespace, found: Opened) -> ThoughtFigure:
    """Print what is thought of a text, and return the figure of the energies of its tokens."""
    from paper_repro.models.nrgpt import NRGPT
    from paper_repro.probes.thoughts import Reader

    model: Any = found.module.model
    tokenizer, label = found.tokenizer(), f"{type(model).__name__} {found.cell}"
    if isinstance(model, NRGPT):
        reader, steps = Reader(model, tokenizer), max(words.steps or [model.num_steps])
        places = reader.descend(reader.encode(words.prompt), steps)
        print(f"{label}, {steps} steps of the forward pass")
        _print_places(places)
    else:
        reader = Reader(model, tokenizer, _manner(words, found))
        ids = reader.encode(words.prompt)
        thoughts = [reader.read(ids, count) for count in _steps(words, found)]
        print(_heading(words, found))
        for thought in thoughts:
            _print_text(thought, tokenizer.decode(ids[:1]))
        places = thoughts[-1].places
    rows = [
        {"place": at, "token": place.name, "new": int(place.token is None), "step": step, "energy": energy}
        for at, place in enumerate(places, start=1)
        for step, energy in enumerate(place.energies)
    ]
    return TokenEnergies(rows, f"Energies of the predictions of each token, {label}")


def board(words: argparse.Namespace, found: Opened) -> None:
    """Print what is thought of each Sudoku board, with the energies of its cells."""
    from paper_repro.datamodules.sudoku_boards import check_board, given_boards
    from paper_repro.probes.thoughts import think_of_board

    model: Any = found.module.model
    given = [(name, givens, check_board(givens, name)) for name, givens in given_boards(words.board)]
    for name, givens, _ in given:
        if 0 not in givens:
            raise UsageError(f"{name}: no blank, so there is nothing to think about: leave some cells out")
    print(_heading(words, found))
    for name, givens, solution in given:
        if len(given) > 1:
            print(f"\n{name}")
        thoughts = [think_of_board(model, givens, count, _manner(words, found)) for count in _steps(words, found)]
        for thought in thoughts:
            last = len(thought.boards) - 1
            _print_board(thought, givens, solution, _spread(last) if thought is thoughts[-1] else [last])


def image(words: argparse.Namespace, found: Opened) -> ThoughtFigure:
    """Print what becomes of a noised or masked image after some steps, and return the strip of these images."""
    import torch

    from paper_repro.base.configs import instantiate
    from paper_repro.base.identity import mix
    from paper_repro.models.cet import CET
    from paper_repro.probes.thoughts import complete_image, read_image, think_of_image

    module: Any = found.module
    model, label = module.model, f"{type(module.model).__name__} {found.cell}"
    thought: ImageThought
    if isinstance(model, CET):
        steps = max(words.steps or [module.phases.free_steps])
        whole = read_image(words.image, model.patches.size, model.patches.channels)
        draw = torch.Generator().manual_seed(mix(words.seed, "mask"))
        masked = instantiate(found.config["data"]).masked(whole[None], draw)[0]
        thought = complete_image(model, whole, masked, steps, module.phases.step_size)
        print(f"{label}, {steps} steps of the forward pass")
        shown = sorted({0, steps, *(4**power for power in range(9) if 4**power < steps)})
        title, first = f"A masked image after steps of the relaxation, {label}", "masked"
    else:
        steps = max(_steps(words, found))
        whole = read_image(words.image, model.patches.image_size, model.patches.channels)
        thought = think_of_image(model, whole, module.time, steps, module.thinking, words.seed)
        print(f"{_heading(words, found)}, noised as at t = {module.time}")
        shown = list(range(steps + 1))
        title, first = f"A noised image (t = {module.time}) after each step, {label}", "noised"
    rows = [{"step": step, "psnr": thought.psnr[step], "energy": thought.energies[step]} for step in shown]
    print(f"{'step':>5} {'NFE':>5} {'PSNR':>8} {'energy':>10}")
    for row in rows:  # a step is one evaluation
        print(f"{row['step']:>5} {row['step']:>5} {row['psnr']:>8.2f} {row['energy']:>10.4g}")
    return ImageStrip(thought.pictures[[0, *(step + 1 for step in shown)]], rows, title, first)


class ThoughtFigure(Figure):
    """A figure of rows that are given, under a title."""

    legend = False

    def __init__(self, rows: Sequence[Row], title: str) -> None:
        self.given, self.headline = list(rows), title

    def rows(self) -> list[Row]:
        return self.given

    def footer(self, rows: Sequence[Row]) -> str:
        """Return nothing: the title names the cell."""
        return ""


class TokenEnergies(ThoughtFigure):
    """A heat map of energies: tokens from left to right, steps from the top down.

    Rows have ``place``, ``token``, ``new`` (1 after the end of the prompt, else 0), ``step`` and ``energy``.
    """

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        tokens = {row["place"]: _short(row["token"]) + " ?" * row["new"] for row in rows}
        steps = 1 + max(row["step"] for row in rows)
        canvas.set_size_inches(max(5.0, 2.2 + 0.36 * len(tokens)), 2.1 + min(0.22 * steps, 4.0))
        energies = {(row["place"], row["step"]): row["energy"] for row in rows}
        values = [[energies[place, step] for place in tokens] for step in range(steps)]
        axes: Any = canvas.subplots()
        drawn = axes.imshow(values, cmap=plots.SIGNED, aspect="auto", interpolation="nearest")
        axes.grid(False)
        axes.set_xticks(range(len(tokens)), [*tokens.values()], rotation=60, ha="right", parse_math=False)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set(xlabel="token that is predicted; those after the prompt with ?", ylabel="after step")
        canvas.colorbar(drawn, ax=axes, label="energy (no unit)")


class ImageStrip(ThoughtFigure):
    """A strip of an image, its noised or masked form, and the image after steps; below, PSNR and energy over steps.

    Rows have ``step``, ``psnr`` and ``energy``.

    Args:
        pictures: of the strip, (S + 2, H, H, C) in [0, 1]: the original, and one for each row.
        rows, title: see ``ThoughtFigure``.
        first: the name of the second picture.
    """

    def __init__(self, pictures: Any, rows: Sequence[Row], title: str, first: str) -> None:
        super().__init__(rows, title)
        self.pictures, self.first = pictures, first

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        names = ["original", self.first, *(f"step {row['step']}" for row in rows[1:])]
        canvas.set_size_inches(max(5.0, 1.3 * len(names)), 4.2)
        upper, lower = canvas.subfigures(2, 1, squeeze=False, height_ratios=[1, 2])[:, 0]
        panels = upper.subplots(1, len(names), squeeze=False)[0]
        for axes, name, picture in zip(panels, names, self.pictures, strict=True):
            axes.imshow(picture, cmap=plots.PICTURE, vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(name, fontsize=8)
            axes.axis("off")
        steps, measured = [row["step"] for row in rows], {"psnr": "PSNR (dB)", "energy": "energy (no unit)"}
        for axes, (name, label) in zip(lower.subplots(1, 2), measured.items(), strict=True):
            axes.plot(steps, [row[name] for row in rows], "o-", color=plots.BLUE, markersize=3)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set(xlabel="after step", ylabel=label)


def _steps(words: argparse.Namespace, found: Opened) -> list[int]:
    module: Any = found.module
    return sorted({*(words.steps or [module.thinking.longest])})


def _manner(words: argparse.Namespace, found: Opened) -> Manner:
    from paper_repro.probes.thoughts import Manner

    module: Any = found.module
    return Manner(words.samples, module.thinking, words.seed)


def _heading(words: argparse.Namespace, found: Opened) -> str:
    model: Any = found.module.model
    alpha = f"{float(model.step_size.detach()):.4g}"
    return (
        f"{type(model).__name__} {found.cell}, landscapes {model.num_landscapes}, alpha {alpha}, samples "
        f"{words.samples}, seed {words.seed}"
    )


def _spread(last: int) -> list[int]:
    """Return the steps 0 to ``last``, or some of them, evenly."""
    count = min(last + 1, MOST_COLUMNS)
    return sorted({round(index * last / max(count - 1, 1)) for index in range(count)})


def _print_board(thought: BoardThought, givens: Sequence[int], solution: Sequence[int], steps: Sequence[int]) -> None:
    """Print a verdict, and the board after these steps: digits, wrong ones with a star, and the energies of cells."""
    last = thought.boards[-1]
    blanks = [cell for cell, digit in enumerate(givens) if not digit]
    right = sum(last[cell] == solution[cell] for cell in blanks)
    verdict = "accepts" if thought.accepted[-1] else "does not accept"
    print(
        f"\nsteps {len(thought.boards) - 1}, NFE {thought.trace.num_evaluations}, sample {thought.sample}: the judge "
        f"{verdict} the board; {right} of {len(blanks)} blanks as in the solution, the others have *"
    )
    for step in steps:
        digits, energies = thought.boards[step], thought.energies[step]
        said = ", accepted" if thought.accepted[step] else ""
        print(f"after step {step}{said}: energy {sum(energies):.6g}, of each cell on the right")
        for first in range(0, 81, 9):
            cells = range(first, first + 9)
            shown = (f"{digits[cell]}{' ' if digits[cell] == solution[cell] else '*'}" for cell in cells)
            print(" ".join(shown), " ", " ".join(f"{energies[cell]:>8.3g}" for cell in cells))


def _print_text(thought: TextThought, first: str) -> None:
    places, said = thought.places, ""
    if thought.perplexity is not None:
        said = f", perplexity {thought.perplexity:.5g} of the {len(places) - 1} tokens after the first"
    print(f"\nsteps {len(places[0].energies) - 1}, NFE {thought.trace.num_evaluations}{said}")
    print("".join(_shown(token) for token in (first, *(place.token or "" for place in places))))
    print(f"next: {', '.join(f'{token!r} {probability:.3g}' for token, probability in thought.following)}")
    _print_places(places)


def _print_places(places: Sequence[Place]) -> None:
    """Print a table: each token, its prediction, the chosen sample, and its energies after some of the steps."""
    columns = _spread(len(places[0].energies) - 1)
    head = f"{'token':<14} {'p':>8}  {'predicted':<14} {'p':>8} {'sample':>6}"
    print(" ".join([head, *(f"{f'E {step}':>9}" for step in columns)]))
    for place in places:
        own = "-" if place.own_probability is None else f"{place.own_probability:.3g}"
        token = "-" if place.token is None else _short(place.token)
        line = f"{token:<14} {own:>8}  {_short(place.thought):<14} {place.probability:>8.3g} {place.sample:>6}"
        print(" ".join([line, *(f"{place.energies[step]:>9.3g}" for step in columns)]))


def _short(token: str) -> str:
    """Return a token as a label: blanks and line ends to be seen, nothing that a font lacks."""
    shown = ascii(token)[1:-1]
    shown = shown if len(shown) <= MOST_TOKEN_CHARACTERS else f"{shown[: MOST_TOKEN_CHARACTERS - 3]}..."
    return f"'{shown}'"


def _shown(token: str) -> str:
    """Return a token for a line of text, with line ends and other control characters made visible."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in token)


if __name__ == "__main__":
    sys.exit(run_main(main))

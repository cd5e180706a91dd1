"""Watch a trained EBT think: energies of its predictions by step, for a text, a Sudoku board or an image; or watch the
descent that is the forward pass of an NRGPT, for a text, and of a CET, which completes a masked image.

    think.py ebt --prompt "The default valu" --steps 1,2,8            # a model that comes with the package
    think.py runs/cells/<cell> --prompt "def area(" --steps 1,2,4,8 --samples 10
    think.py runs/cells/<cell> --board 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79
    think.py runs/cells/<cell> --image photograph.jpg --steps 4
    think.py nrgpt_ff1 --prompt "ROMEO:"
    think.py cet --image photograph.jpg

NFE is the number of function evaluations: N S gradients and a last pass, in which the samples are compared.  The names
of the files with the figure go to the standard error.  Exit codes as train.py's.
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

if TYPE_CHECKING:
    from think_figures import ThoughtFigure

    from paper_repro.probes.thoughts import BoardThought, ImageThought, Manner, Place, TextThought

sys.path.append(str(Path(__file__).parent))  # where think_figures is, for paper-repro think, too
SUBJECTS = {"prompt": "--prompt TEXT", "board": "--board DIGITS", "image": "--image FILE"}
"""The options that say what is thought about."""
MOST_COLUMNS = 9
"""Steps whose energies a table shows; a figure shows all."""


def main(arguments: Sequence[str]) -> int:
    parser = Options("think.py", __doc__)
    add = parser.add_argument
    add("checkpoint", help="a name as ebt, hf://owner/name, folder of a finished cell or an export, or a cell's id")
    add("--prompt", help="a text: think about each of its tokens from the second on, and the one that follows")
    add("--board", help="a Sudoku of 81 characters by row, 0 . * or _ for a blank; or a file of boards, one a line")
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
        figures = {"prompt": text, "board": boards, "image": image}[subject](words, found)
        folder = words.out or found.folder / "thinking"
        for index, figure in enumerate(figures, start=1):
            for path in figure.write(folder / str(index) if len(figures) > 1 else folder):
                print(path, file=sys.stderr)
    except OSError as error:
        raise UsageError(f"--out: {error}; give another folder") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    return 0


def text(words: argparse.Namespace, found: Opened) -> list[ThoughtFigure]:
    """Print what is thought of a text, and return the figure of the energies of its tokens."""
    from think_figures import TokenEnergies

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
    return [TokenEnergies(rows, f"Energies of the predictions of each token, {label}")]


def boards(words: argparse.Namespace, found: Opened) -> list[ThoughtFigure]:
    """Print what is thought of each Sudoku board, and return the figures of the energies of their cells."""
    from think_figures import BoardEnergies

    from paper_repro.datamodules.sudoku_boards import check_board, given_boards
    from paper_repro.probes.thoughts import think_of_board

    model: Any = found.module.model
    given = [(name, givens, check_board(givens, name)) for name, givens in given_boards(words.board)]
    for name, givens, _ in given:
        if 0 not in givens:
            raise UsageError(f"{name}: no blank, so there is nothing to think about: leave some cells out")
    print(_heading(words, found))
    title = f"Energies of a board's cells, givens bold, {type(model).__name__} {found.cell}"
    figures: list[ThoughtFigure] = []
    for name, givens, solution in given:
        if len(given) > 1:
            print(f"\n{name}")
        thoughts = [think_of_board(model, givens, count, _manner(words, found)) for count in _steps(words, found)]
        last = thoughts[-1]
        shown = _spread(len(last.boards) - 1)
        for thought in thoughts:
            _print_board(thought, givens, solution, shown if thought is last else [len(thought.boards) - 1])
        rows = [
            {"step": step, "row": cell // 9 + 1, "column": cell % 9 + 1, "digit": digit}
            | {"given": int(givens[cell] > 0), "energy": last.energies[step][cell]}
            for step in shown
            for cell, digit in enumerate(last.boards[step])
        ]
        figures.append(BoardEnergies(rows, title))
    return figures


def image(words: argparse.Namespace, found: Opened) -> list[ThoughtFigure]:
    """Print what becomes of a noised or masked image after some steps, and return the strip of these images."""
    import torch
    from think_figures import ImageStrip

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
    return [ImageStrip(thought.pictures[[0, *(step + 1 for step in shown)]], rows, title, first)]


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
    shown = repr(token)
    return shown if len(shown) <= 14 else f"{shown[:10]}...{shown[-1]}"


def _shown(token: str) -> str:
    """Return a token for a line of text, with line ends and other control characters made visible."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in token)


if __name__ == "__main__":
    sys.exit(run_main(main))

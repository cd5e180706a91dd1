"""Watch a trained EBT think: energies of its predictions by step, for a text, a Sudoku board or an image; or watch the
descent that is the forward pass of an NRGPT, for a text, and of a CET, which completes a masked image.

    think.py ebt --prompt "The default valu" --steps 1,2,8            # a model that comes with the package
    think.py runs/cells/<cell> --prompt "def area(" --steps 1,2,4,8 --samples 10
    think.py runs/cells/<cell> --prompt "def area(" --tokens 20       # continue it, thinking about each token
    think.py runs/cells/<cell> --prompt "def area(" --landscape       # also the energy around the last prediction
    think.py runs/cells/<cell> --board 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79
    think.py runs/cells/<cell> --image photograph.jpg --steps 4
    think.py nrgpt_ff1 --prompt "ROMEO:"
    think.py cet --image photograph.jpg

NFE is the number of function evaluations: N S gradients and a last pass, in which the samples are compared.  On a
terminal energies are coloured, low ones green; $NO_COLOR turns colours off.  The names of the files with figures go to
the standard error.  Exit codes as train.py's.
"""

from __future__ import annotations

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import argparse
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from paper_repro.base.errors import Options, UsageError, counts, number, run_main
from paper_repro.exports.weights import Opened, opened

if TYPE_CHECKING:
    from think_figures import ThoughtFigure

    from paper_repro.probes.thoughts import BoardThought, ImageThought, Place, Surface, TextThought

sys.path.append(str(Path(__file__).parent))  # where think_figures is, for paper-repro think, too
SUBJECTS = {
    "prompt": ("texts", "--prompt TEXT"),
    "board": ("Sudoku", "--board DIGITS"),
    "image": ("images", "--image FILE"),
}
"""The data of an EBT, and the option that asks it about them."""
GO_WITH = {"tokens": ["prompt"], "time": ["image"], "landscape": ["prompt", "board"]}
OF_AN_EBT = {"samples": 1, "noise": 0.0, "step_size": None, "tokens": None, "time": None, "landscape": None}
"""The options that say how an EBT thinks, with their defaults."""
Shade = Callable[[str, float], str]
MOST_COLUMNS = 9
"""Steps whose energies a table shows; a figure shows all."""
SHADES = ((28, 231), (71, 16), (151, 16), (255, 16), (183, 16), (134, 16), (54, 231))
"""Background and text, among the 256 colours, from low to high."""


def main(arguments: Sequence[str]) -> int:
    words = _words(arguments)
    found = opened(words.checkpoint, device=words.device, data_root=words.data_root)

    from paper_repro.probes.thoughts import DESCENTS

    try:
        if isinstance(found.module.model, tuple(DESCENTS.values())):
            figures = _descended(words, found)
        else:
            figures = getattr(Thinker(words, found), words.subject)()
        for name, figure in figures.items():
            for path in figure.write((words.out or found.folder / "thinking") / name):
                print(path, file=sys.stderr)
    except OSError as error:
        raise UsageError(f"--out: {error}; give another folder") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    return 0


def _words(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Options("think.py", __doc__)
    add = parser.add_argument
    add("checkpoint", help="a name as ebt, hf://owner/name, folder of a finished cell or an export, or a cell's id")
    add("--prompt", help="a text: think about each of its tokens from the second on, and the one that follows")
    add("--board", help="a Sudoku of 81 characters by row, 0 . * or _ for a blank; or a file of boards, one a line")
    add("--image", type=Path, help="an image: its central square is made as small as the model's, and noised or masked")
    add("--time", type=int, help="time of that noise, 0 to 999 (default: as in training)")
    add("--steps", type=counts, help="numbers of steps of a prediction (default: the most of the training)")
    add("--samples", type=number(int, 1), default=1, help="number of predictions; the one of lowest energy is chosen")
    add("--noise", type=number(float, 0), default=0.0, help="Langevin noise of each step, in logits (default 0)")
    add("--step-size", type=number(float, 1e-30, 1e30), help="instead of the model's own")
    add("--seed", type=int, default=0, help="of the first predictions, the noise and the mask (default 0)")
    add("--tokens", type=number(int, 0), help="number of tokens that continue a prompt, each the likeliest one")
    add("--landscape", action="store_true", default=None, help="draw the energy around the last prediction")
    add("--out", type=Path, help="folder for energies/ and landscape/ (default: thinking/ beside the checkpoint)")
    add("--data-root", help="folder of the data of the vocabulary, beside $PAPER_REPRO_DATA")
    add("--device", choices=("cpu", "gpu"), default="cpu")
    words = parser.read(arguments)
    given = [name for name in SUBJECTS if getattr(words, name) is not None]
    if len(given) != 1:
        raise UsageError(f"think about what? give one of {', '.join(option for _, option in SUBJECTS.values())}")
    words.subject = given[0]
    for option, subjects in GO_WITH.items():
        if getattr(words, option) is not None and words.subject not in subjects:
            raise UsageError(f"--{option}: --{words.subject} has none; it goes with --{' or --'.join(subjects)}")
    if words.out is not None and words.out.suffix in (".png", ".svg", ".csv"):
        raise UsageError(f"--out {words.out}: give a folder; the files in it are named figure.png, .svg and .csv")
    return words


class Thinker:
    """A trained EBT, and the words that say how it thinks; each method prints a thought and returns its figures."""

    def __init__(self, words: argparse.Namespace, found: Opened) -> None:
        from paper_repro.lightning_modules.prediction_descent import PredictionDescent
        from paper_repro.models.ebt import TransformerPlusPlus
        from paper_repro.probes.thoughts import KINDS, Manner, command_for

        module: Any = found.module
        model, place, name = module.model, words.checkpoint, type(module.model).__name__
        if isinstance(model, TransformerPlusPlus) or not isinstance(module, PredictionDescent):
            raise UsageError(f"{place}: its model, {name}, is no EBT and has no energy; {command_for(model)}")
        if not isinstance(model, KINDS[words.subject]):
            fitting = [SUBJECTS[subject] for subject, kind in KINDS.items() if isinstance(model, kind)]
            what, option = fitting[0] if fitting else ("frames", "the cell of another one")
            raise UsageError(f"{place}: this EBT was trained on {what}: give {option}")
        self.steps = sorted({*(words.steps or [module.thinking.longest])})
        if self.steps[0] < (least := module.model.num_landscapes):
            raise UsageError(
                f"--steps {self.steps[0]}: the model's predictions pass {least} landscapes one after the other: "
                f"give {least} or more"
            )
        self.words, self.found, self.label = words, found, f"{name} {found.cell}"
        self.model: Any = module.model
        settings = replace(module.thinking, noise=words.noise)
        self.manner = Manner(words.samples, settings, words.step_size, words.seed)
        alpha = own = f"{float(self.model.step_size.detach()):.4g}"
        if words.step_size is not None:
            alpha = f"{words.step_size:g} (the model's own is {own})"
        self.heading = (
            f"{self.label}, landscapes {self.model.num_landscapes}, alpha {alpha}, samples {words.samples}, "
            f"noise {words.noise:g}, seed {words.seed}"
        )

    def prompt(self) -> dict[str, ThoughtFigure]:
        from paper_repro.probes.thoughts import Reader, num_evaluations

        tokenizer = self.found.tokenizer()
        reader = Reader(self.model, tokenizer, self.manner)
        ids = reader.encode(self.words.prompt)
        print(self.heading)
        found = [reader.read(ids, count) for count in self.steps]
        new = list(reader.extend(ids, self.words.tokens or 0, self.steps[-1]))
        places = [place for thought in found for place in thought.places] + new
        shade = shader(energy for place in places for energy in place.energies)
        for thought in found:
            _print_text(thought, tokenizer.decode(ids[:1]), shade)
        if new:
            steps = self.steps[-1]
            evaluations = num_evaluations(self.manner.num_samples, steps)
            print(f"\ncontinuation, steps {steps}, NFE {evaluations} a token, {evaluations * len(new)} in all")
            print("".join(shade(_shown(place.thought), place.energies[-1]) for place in new))
            _print_places(new, shade)
        energies = _token_energies(found[-1].places + new, f"Energies of predictions, {self.label}")
        what = "the prediction of the token after the prompt"
        return self._figures(energies, lambda: reader.around(ids, found[-1]), what)

    def board(self) -> dict[str, ThoughtFigure]:
        from think_figures import BoardEnergies

        from paper_repro.datamodules.sudoku_boards import check_board, given_boards
        from paper_repro.probes.thoughts import around_board, think_of_board

        boards = [(name, givens, check_board(givens, name)) for name, givens in given_boards(self.words.board)]
        for name, givens, _ in boards:
            if 0 not in givens:
                raise UsageError(f"{name}: no blank, so there is nothing to think about: leave some cells out")
        print(self.heading)
        figures: dict[str, ThoughtFigure] = {}
        for index, (name, givens, solution) in enumerate(boards, start=1):
            folder = f"{index}/" if len(boards) > 1 else ""
            if folder:
                print(f"\n{name}")
            found = [think_of_board(self.model, givens, count, self.manner) for count in self.steps]
            last, shown = found[-1], _spread(self.steps[-1])
            shade = shader(energy for thought in found for energies in thought.energies for energy in energies)
            for thought in found:
                steps = shown if thought is last else [thought.trace.num_steps]
                print_board(thought, givens, solution, steps, shade)
            rows = [
                {"step": step, "row": cell // 9 + 1, "column": cell % 9 + 1, "digit": digit}
                | {"given": int(givens[cell] > 0), "energy": last.energies[step][cell]}
                for step in shown
                for cell, digit in enumerate(last.boards[step])
            ]
            energies = BoardEnergies(rows, f"Energies of a board's cells, givens bold, {self.label}")
            around = functools.partial(around_board, self.model, givens, last)
            drawn = self._figures(energies, around, "the board's prediction")
            figures |= {folder + kind: figure for kind, figure in drawn.items()}
        return figures

    def image(self) -> dict[str, ThoughtFigure]:
        from paper_repro.probes.thoughts import read_image, think_of_image

        module: Any = self.found.module
        time = module.time if self.words.time is None else self.words.time
        patches = self.model.patches
        image = read_image(self.words.image, patches.image_size, patches.channels)
        thought = think_of_image(self.model, image, time, self.steps[-1], self.manner)
        print(f"{self.heading}, noised as at t = {time}")
        title = f"A noised image (t = {time}) after each step, {self.label}"
        return _strip(thought, range(self.steps[-1] + 1), title, "noised")

    def _figures(
        self, energies: ThoughtFigure, around: Callable[[], Sequence[Surface]], what: str
    ) -> dict[str, ThoughtFigure]:
        """Return the figure of energies, and that of the energy around a prediction where it is asked for."""
        if not self.words.landscape:
            return {"energies": energies}
        from think_figures import Surfaces

        from paper_repro.probes.thoughts import rows

        count = self.model.num_landscapes
        where = f" on landscape {count} of {count}" if count > 1 else ""
        title = f"Energy{where} around {what}, {self.label}"
        return {"energies": energies, "landscape": Surfaces(list(rows(around(), self.manner.seed)), title)}


def _descended(words: argparse.Namespace, found: Opened) -> dict[str, ThoughtFigure]:
    """Print the descent that is the forward pass of a model, and return its figures."""
    from paper_repro.probes.thoughts import DESCENTS, Reader

    module: Any = found.module
    model, name = module.model, type(module.model).__name__
    subject = next(subject for subject, kind in DESCENTS.items() if isinstance(model, kind))
    if words.subject != subject:
        raise UsageError(f"{words.checkpoint}: {name} descends on {SUBJECTS[subject][0]}: give {SUBJECTS[subject][1]}")
    for option, default in OF_AN_EBT.items():
        if getattr(words, option) != default:
            raise UsageError(f"--{option.replace('_', '-')}: it is an EBT's, and {name} is none; leave it out")
    steps = max(words.steps or [module.phases.free_steps if subject == "image" else model.num_steps])
    label = f"{name} {found.cell}"
    print(f"{label}, {steps} steps of the forward pass")
    if subject == "image":
        return _completed(words, found, steps, label)
    reader = Reader(model, found.tokenizer())
    places = reader.descend(reader.encode(words.prompt), steps)
    _print_places(places, shader(energy for place in places for energy in place.energies))
    return {"energies": _token_energies(places, f"Energies of the states that predict each token, {label}")}


def _completed(words: argparse.Namespace, found: Opened, steps: int, label: str) -> dict[str, ThoughtFigure]:
    import torch

    from paper_repro.base.configs import instantiate
    from paper_repro.base.identity import mix
    from paper_repro.probes.thoughts import complete_image, read_image

    module: Any = found.module
    patches, data = module.model.patches, instantiate(found.config["data"])
    image = read_image(words.image, patches.size, patches.channels)
    masked = data.masked(image[None], torch.Generator().manual_seed(mix(words.seed, "mask")))[0]
    thought = complete_image(module.model, image, masked, steps, module.phases.step_size)
    shown = sorted({0, steps, *(4**power for power in range(9) if 4**power < steps)})
    return _strip(thought, shown, f"A masked image after steps of the relaxation, {label}", "masked")


def _token_energies(places: Sequence[Place], title: str) -> ThoughtFigure:
    from think_figures import TokenEnergies

    rows = [
        {"place": at, "token": place.name, "new": int(place.token is None), "step": step, "energy": energy}
        for at, place in enumerate(places, start=1)
        for step, energy in enumerate(place.energies)
    ]
    return TokenEnergies(rows, title)


def _strip(thought: ImageThought, shown: Sequence[int], title: str, first: str) -> dict[str, ThoughtFigure]:
    """Print PSNR and energy after some steps, of which each is one evaluation, and return the figure."""
    from think_figures import ImageStrip

    rows = [{"step": step, "psnr": thought.psnr[step], "energy": thought.energies[step]} for step in shown]
    print(f"{'step':>5} {'NFE':>5} {'PSNR':>8} {'energy':>10}")
    for row in rows:
        print(f"{row['step']:>5} {row['step']:>5} {row['psnr']:>8.2f} {row['energy']:>10.4g}")
    return {"energies": ImageStrip(thought.pictures[[0, *(step + 1 for step in shown)]], rows, title, first)}


def wants_color(stream: TextIO) -> bool:
    """Return whether a stream is a terminal, and neither $NO_COLOR nor TERM=dumb asks for plain text."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def shader(energies: Iterable[float]) -> Shade:
    """Return what puts a text on the colour of its energy, from the least to the largest of ``energies``."""
    shown = list(energies)
    low, high, colored = min(shown), max(shown), wants_color(sys.stdout)

    def shade(text: str, value: float) -> str:
        if not colored:
            return text
        share = (value - low) / (high - low) if high > low else 0.5
        background, ink = SHADES[min(int(share * len(SHADES)), len(SHADES) - 1)]
        return f"\x1b[48;5;{background};38;5;{ink}m{text}\x1b[0m"

    return shade


def print_board(
    thought: BoardThought, givens: Sequence[int], solution: Sequence[int], steps: Sequence[int], shade: Shade
) -> None:
    """Print a verdict, and the board after these steps: digits, wrong ones with a star, and the energies of cells."""
    board = thought.boards[-1]
    blanks = [cell for cell, digit in enumerate(givens) if not digit]
    right = sum(board[cell] == solution[cell] for cell in blanks)
    verdict = "accepts" if thought.accepted[-1] else "does not accept"
    print(
        f"\nsteps {thought.trace.num_steps}, NFE {thought.trace.num_evaluations}, sample {thought.sample}: the judge "
        f"{verdict} the board; {right} of {len(blanks)} blanks as in the solution, the others have *"
    )
    for step in steps:
        board, energies = thought.boards[step], thought.energies[step]
        said = ", accepted" if thought.accepted[step] else ""
        print(f"after step {step}{said}: energy {sum(energies):.6g}, of each cell on the right")
        for first in range(0, 81, 9):
            cells = range(first, first + 9)
            stars = {cell: " " if board[cell] == solution[cell] else "*" for cell in cells}
            digits = (shade(f"{board[cell]}{stars[cell]}", energies[cell]) for cell in cells)
            print(" ".join(digits), " ", " ".join(shade(f"{energies[cell]:>8.3g}", energies[cell]) for cell in cells))


def _spread(last: int) -> list[int]:
    """Return the steps 0 to ``last``, or some of them, evenly."""
    count = min(last + 1, MOST_COLUMNS)
    return sorted({round(index * last / max(count - 1, 1)) for index in range(count)})


def _print_text(thought: TextThought, first: str, shade: Shade) -> None:
    places, trace = thought.places, thought.trace
    said = ""
    if thought.perplexity is not None:
        said = f", perplexity {thought.perplexity:.5g} of the {len(places) - 1} tokens after the first"
    print(f"\nsteps {trace.num_steps}, NFE {trace.num_evaluations}{said}")
    colored = [shade(_shown(place.token), place.energies[-1]) for place in places if place.token is not None]
    print("".join([_shown(first), *colored]))
    print(f"next: {', '.join(f'{token!r} {probability:.3g}' for token, probability in thought.following)}")
    if trace.num_landscapes > 1:
        steps = [[*group] for _, group in itertools.groupby(range(len(trace.landscapes)), trace.landscapes.__getitem__)]
        columns = (f"E {own[0]}" if len(own) == 1 else f"E {own[0]} to {own[-1]}" for own in steps)
        print(f"landscapes, one after the other: {'; '.join(columns)}")
    _print_places(places, shade)


def _print_places(places: Sequence[Place], shade: Shade) -> None:
    """Print a table: each token, its prediction, the chosen sample, and its energies after some of the steps."""
    columns = _spread(len(places[0].energies) - 1)
    head = f"{'token':<14} {'p':>8}  {'predicted':<14} {'p':>8} {'sample':>6}"
    print(" ".join([head, *(f"{f'E {step}':>9}" for step in columns)]))
    for place in places:
        own = "-" if place.own_probability is None else f"{place.own_probability:.3g}"
        token = "-" if place.token is None else _short(place.token)
        line = f"{token:<14} {own:>8}  {_short(place.thought):<14} {place.probability:>8.3g} {place.sample:>6}"
        print(" ".join([line, *(shade(f"{place.energies[step]:>9.3g}", place.energies[step]) for step in columns)]))


def _short(token: str) -> str:
    shown = repr(token)
    return shown if len(shown) <= 14 else f"{shown[:10]}...{shown[-1]}"


def _shown(token: str) -> str:
    """Return a token for a line of text, with line ends and other control characters made visible."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in token)


if __name__ == "__main__":
    sys.exit(run_main(main))

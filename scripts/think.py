"""Watch a trained EBT think: energies of its predictions by step, for a text, a Sudoku board or an image.

    think.py runs/cells/<cell> --prompt "def area(" --steps 1,2,4,8 --samples 10
    think.py runs/cells/<cell> --prompt "def area(" --tokens 20       # continue it, thinking about each token
    think.py runs/cells/<cell> --prompt "def area(" --landscape       # also the energy around the last prediction
    think.py runs/cells/<cell> --board 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79
    think.py runs/cells/<cell> --image photograph.jpg --steps 4

CHECKPOINT is the folder of an EBT's finished cell (record.json and weights.safetensors), the weights in it, or its id.

    --prompt TEXT       what to think about: each of its tokens from the second on, and the one that follows
    --board DIGITS      a Sudoku board of 81 characters, row by row, 0 . * or _ for a blank, with one solution; or a
                        file of boards, one a line
    --image FILE        an image, of which the central square is made as small as the model's, and noised
    --time T            of that noise, 0 to 999 (default: that of the training)
    --steps S,S         how many steps a prediction takes (default: the most of the training)
    --samples N         predictions, of which that of lowest energy is chosen, for each token or for the whole board
                        (default 1)
    --noise SIGMA       Langevin noise of each step, in logits (default 0, also where training had noise)
    --step-size ALPHA   in the place of the model's own
    --seed N            of the first predictions and the noise (default 0)
    --tokens K          after a prompt: so many further tokens, each the likeliest one after the most steps asked for
    --landscape         draw the energy along random directions through the last prediction, in one and two dimensions
    --out DIR           where energies/ and landscape/ go, each with three files (default: thinking/ by the checkpoint)
    --data-root DIR     where the data lie from which the vocabulary comes, beside $PAPER_REPRO_DATA
    --device NAME       cpu (default) or gpu

NFE is the number of function evaluations: N S gradients and a last pass, in which the samples are compared.  On a
terminal energies are coloured, low ones green; $NO_COLOR turns colours off.  Files drawn are named on the standard
error.  Exit codes as train.py's.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before what another Python lacks is imported
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.base.command_line import Options, run_main
from paper_repro.base.errors import UsageError
from paper_repro.base.terminal import Shader, wants_color
from paper_repro.cells.records import Record
from paper_repro.tables.view import trained

if TYPE_CHECKING:
    from think_figures import ThoughtFigure

    from paper_repro.datamodules.sudoku_boards import Board
    from paper_repro.probes.thoughts.surface import Surface
    from paper_repro.probes.thoughts.text import Place, TextThought
    from paper_repro.probes.thoughts.trace import Manner
    from paper_repro.training.build import BuiltCell

LARGEST_STEP = 1e30
SUBJECTS = {
    "prompt": ("texts", "--prompt TEXT"),
    "board": ("Sudoku", "--board DIGITS"),
    "image": ("images", "--image FILE"),
}
"""What an EBT may have been trained on, and the option that asks it about one."""
MOST_COLUMNS = 9
"""Steps whose energies a table shows; a figure shows all."""


def main(arguments: Sequence[str]) -> int:
    if not arguments or {"--help", "-h"} & set(arguments):
        print(__doc__)
        return 0 if arguments else 2
    words = _words(arguments)
    folder, record, parts = _load(words)
    steps, manner = _steps(words, parts), _manner(words, parts)
    out = words.out or folder / "thinking"
    try:
        think = {"prompt": _read, "board": _play, "image": _look}
        figures = think[words.subject](words, record, parts, steps, manner)
    except ValueError as error:
        raise error if isinstance(error, UsageError) else UsageError(str(error)) from error
    for name, figure in figures.items():
        for path in _written(figure, out / name):
            print(path, file=sys.stderr)
    return 0


def _words(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Options("think.py")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path)
    parser.add_argument("--prompt")
    parser.add_argument("--board")
    parser.add_argument("--image", type=Path)
    parser.add_argument("--time", type=int)
    parser.add_argument("--steps")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--step-size", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--landscape", action="store_true", default=None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data-root")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    words = parser.read(arguments)
    given = [name for name in SUBJECTS if getattr(words, name) is not None]
    if len(given) != 1:
        raise UsageError(f"think about what? give one of {', '.join(option for _, option in SUBJECTS.values())}")
    words.subject = given[0]
    if words.steps is not None:
        given = words.steps.split(",")
        if not all(part.isdecimal() and int(part) for part in given):
            raise UsageError(f"--steps {words.steps}: give whole numbers of 1 or more with commas, for example 1,2,4")
        words.steps = sorted({int(part) for part in given})
    if words.samples < 1:
        raise UsageError(f"--samples {words.samples}: give 1 or more")
    if words.step_size is not None and not 0 < words.step_size <= LARGEST_STEP:
        raise UsageError(f"--step-size {words.step_size:g}: give a positive number of at most {LARGEST_STEP:g}")
    if not 0 <= words.noise < math.inf:
        raise UsageError(f"--noise {words.noise:g}: give 0 or a positive number")
    if words.tokens is not None and words.tokens < 0:
        raise UsageError(f"--tokens {words.tokens}: give 0 or more")
    for option, subjects in (("tokens", ["prompt"]), ("time", ["image"]), ("landscape", ["prompt", "board"])):
        if getattr(words, option) is not None and words.subject not in subjects:
            raise UsageError(f"--{option}: --{words.subject} has none; it goes with --{' or --'.join(subjects)}")
    if words.out is not None and words.out.suffix in (".png", ".svg", ".csv"):
        raise UsageError(f"--out {words.out}: give a folder; the files in it are named figure.png, .svg and .csv")
    return words


def _load(words: argparse.Namespace) -> "tuple[Path, Record, BuiltCell]":
    """Return the checkpoint's folder, its record, and the model with its weights."""
    folder, record = trained(words.checkpoint)  # a wrong folder is refused before torch is imported

    from paper_repro.cells.tasks import Cell
    from paper_repro.lightning_modules.prediction_descent import PredictionDescent
    from paper_repro.models.ebt import TransformerPlusPlus
    from paper_repro.probes.serving import KINDS, command_for
    from paper_repro.training.finished import rebuild

    machine = {"accelerator": words.device, "data_root": words.data_root}
    parts = rebuild(folder, Cell(record.cell, {**record.config, "machine": machine}))
    if isinstance(parts.module.model, TransformerPlusPlus):
        raise UsageError(
            f"{folder}: a Transformer++ cannot think, it has no energy to descend: give the cell of an EBT; "
            f"{command_for(parts.module.model)}"
        )
    if not isinstance(parts.module, PredictionDescent):
        name = type(parts.module.model).__name__
        raise UsageError(
            f"{folder}: its model, {name}, is no EBT and has no predictions to optimise: give an EBT's; "
            f"{command_for(parts.module.model)}"
        )
    if not isinstance(parts.module.model, KINDS[words.subject]):
        fitting = [SUBJECTS[name] for name, kind in KINDS.items() if isinstance(parts.module.model, kind)]
        what, option = fitting[0] if fitting else ("frames", "the cell of another one")
        raise UsageError(f"{folder}: this EBT was trained on {what}: give {option}")
    return folder, record, parts


def _steps(words: argparse.Namespace, parts: "BuiltCell") -> list[int]:
    module: Any = parts.module
    steps: list[int] = words.steps or [module.thinking.longest]
    landscapes = module.model.num_landscapes
    if steps[0] < landscapes:
        raise UsageError(
            f"--steps {steps[0]}: the model's predictions pass {landscapes} landscapes one after the other: "
            f"give {landscapes} or more"
        )
    return steps


def _manner(words: argparse.Namespace, parts: "BuiltCell") -> "Manner":
    from dataclasses import replace

    from paper_repro.probes.thoughts.trace import Manner

    module: Any = parts.module
    settings = replace(module.thinking, noise=words.noise)
    return Manner(words.samples, settings, words.step_size, words.seed)


def _heading(parts: "BuiltCell", record: Record, manner: "Manner") -> str:
    model: Any = parts.module.model
    own = f"{float(model.step_size.detach()):.4g}"
    alpha = own if manner.step_size is None else f"{manner.step_size:g} (the model's own is {own})"
    said = [_label(parts, record), f"landscapes {model.num_landscapes}", f"alpha {alpha}"]
    said += [f"samples {manner.num_samples}", f"noise {manner.settings.noise:g}", f"seed {manner.seed}"]
    return ", ".join(said)


def _label(parts: "BuiltCell", record: Record) -> str:
    return f"{type(parts.module.model).__name__} {record.cell}"


def _read(
    words: argparse.Namespace, record: Record, parts: "BuiltCell", steps: Sequence[int], manner: "Manner"
) -> "dict[str, ThoughtFigure]":
    """Print what is thought of a prompt; return the figures, by the name of their folder."""
    from think_figures import TokenEnergies

    from paper_repro.datamodules.trained_tokenizer import trained_tokenizer
    from paper_repro.probes.thoughts.text import Reader

    model: Any = parts.module.model
    tokenizer = trained_tokenizer(parts.data, record.provenance.get("data", {}), record.cell)
    reader = Reader(model, tokenizer, manner)
    ids = reader.encode(words.prompt)
    print(_heading(parts, record, manner))
    found = [reader.read(ids, count) for count in steps]
    new = list(reader.extend(ids, words.tokens or 0, steps[-1]))
    places = [place for thought in found for place in thought.places] + new
    shade = _shader(energy for place in places for energy in place.energies)
    first = tokenizer.decode(ids[:1])
    for thought in found:
        _print_text(thought, first, shade)
    if new:
        _print_continuation(new, manner.num_samples, shade)
    rows = [
        {"place": at, "token": place.name, "new": int(place.token is None), "step": step, "energy": energy}
        for at, place in enumerate(found[-1].places + new, start=1)
        for step, energy in enumerate(place.energies)
    ]
    figures: dict[str, ThoughtFigure] = {
        "energies": TokenEnergies(rows, f"Energies of predictions, {_label(parts, record)}")
    }
    if words.landscape:
        what = "the prediction of the token after the prompt"
        figures["landscape"] = _landscape(reader.around(ids, found[-1]), what, parts, record, manner)
    return figures


def _play(
    words: argparse.Namespace, record: Record, parts: "BuiltCell", steps: Sequence[int], manner: "Manner"
) -> "dict[str, ThoughtFigure]":
    """Print what is thought of each board; return the figures, by the names of their folders."""
    from paper_repro.datamodules.sudoku_boards import check_board, given_boards

    boards = [(name, givens, check_board(givens, name)) for name, givens in given_boards(words.board)]
    for name, givens, _ in boards:
        if 0 not in givens:
            raise UsageError(f"{name}: no blank, so there is nothing to think about: leave some cells out")
    print(_heading(parts, record, manner))
    figures: dict[str, ThoughtFigure] = {}
    for number, (name, givens, solution) in enumerate(boards, start=1):
        if len(boards) > 1:
            print(f"\n{name}")
        folder = f"{number}/" if len(boards) > 1 else ""
        found = _play_one(givens, solution, words.landscape, record, parts, steps, manner)
        figures |= {folder + kind: figure for kind, figure in found.items()}
    return figures


def _play_one(
    givens: "Board",
    solution: "Board",
    landscape: bool,
    record: Record,
    parts: "BuiltCell",
    steps: Sequence[int],
    manner: "Manner",
) -> "dict[str, ThoughtFigure]":
    from think_figures import BoardEnergies

    from paper_repro.probes.thoughts.board import around, print_board, think_of_board

    model: Any = parts.module.model
    found = [think_of_board(model, givens, count, manner) for count in steps]
    shade = _shader(energy for thought in found for energies in thought.energies for energy in energies)
    shown = _spread(steps[-1], MOST_COLUMNS)
    for thought in found:
        print_board(thought, givens, solution, shown if thought is found[-1] else [thought.trace.num_steps], shade)
    rows = [
        {"step": step, "row": cell // 9 + 1, "column": cell % 9 + 1, "digit": digit, "given": int(givens[cell] > 0)}
        | {"energy": found[-1].energies[step][cell]}
        for step in shown
        for cell, digit in enumerate(found[-1].boards[step])
    ]
    figures: dict[str, ThoughtFigure] = {
        "energies": BoardEnergies(rows, f"Energies of a board's cells, givens bold, {_label(parts, record)}")
    }
    if landscape:
        what = "the board's prediction"
        figures["landscape"] = _landscape(around(model, givens, found[-1]), what, parts, record, manner)
    return figures


def _look(
    words: argparse.Namespace, record: Record, parts: "BuiltCell", steps: Sequence[int], manner: "Manner"
) -> "dict[str, ThoughtFigure]":
    """Print what is found in a noised image after each step; return the figure, by the name of its folder."""
    from think_figures import DenoisedImage

    from paper_repro.probes.thoughts.image import read_image, think_of_image

    module: Any = parts.module
    time = module.time if words.time is None else words.time
    image = read_image(words.image, module.model)
    thought = think_of_image(module.model, image, time, steps[-1], manner)
    print(f"{_heading(parts, record, manner)}, noised as at t = {time}")
    print(f"{'step':>5} {'NFE':>5} {'PSNR':>8} {'energy':>10}")
    rows = []
    for step, (energy, psnr) in enumerate(zip(thought.energies, thought.psnr, strict=True)):
        print(f"{step:>5} {step:>5} {psnr:>8.2f} {energy:>10.4g}")
        rows.append({"step": step, "psnr": psnr, "energy": energy})
    title = f"A noised image (t = {time}) after each step, {_label(parts, record)}"
    return {"energies": DenoisedImage(thought.pictures, rows, title)}


def _landscape(
    around: "Sequence[Surface]", what: str, parts: "BuiltCell", record: Record, manner: "Manner"
) -> "ThoughtFigure":
    from think_figures import Surfaces

    from paper_repro.probes.thoughts import surface

    model: Any = parts.module.model
    count = model.num_landscapes
    where = f" on landscape {count} of {count}" if count > 1 else ""
    title = f"Energy{where} around {what}, {_label(parts, record)}"
    return Surfaces(list(surface.rows(around, manner.seed)), title)


def _shader(energies: Iterable[float]) -> Shader:
    shown = list(energies)
    return Shader(min(shown), max(shown), wants_color(sys.stdout))


def _spread(last: int, most: int) -> list[int]:
    """Return the steps 0 to ``last``, or so many of them, evenly."""
    count = min(last + 1, most)
    return sorted({round(index * last / max(count - 1, 1)) for index in range(count)})


def _print_text(thought: "TextThought", first: str, shade: Shader) -> None:
    places, trace = thought.places, thought.trace
    print(f"\nsteps {trace.num_steps}, NFE {trace.num_evaluations}", end="")
    if thought.perplexity is not None:
        print(f", perplexity {thought.perplexity:.5g} of the {len(places) - 1} tokens after the first", end="")
    print()
    colored = [shade(_shown(place.token), place.energies[-1]) for place in places if place.token is not None]
    print("".join([_shown(first), *colored]))
    following = ", ".join(f"{token!r} {probability:.3g}" for token, probability in thought.following)
    print(f"next: {following}")
    if trace.num_landscapes > 1:
        print(_passed(trace.landscapes))
    _print_places(places, shade)


def _passed(landscapes: Sequence[int]) -> str:
    """Say which columns of a table show energies of which landscape."""
    said = []
    for number in sorted(set(landscapes)):
        first, last = landscapes.index(number), len(landscapes) - 1 - landscapes[::-1].index(number)
        said.append(f"E {first}" if first == last else f"E {first} to {last}")
    return f"landscapes, one after the other: {'; '.join(said)}"


def _print_continuation(new: "Sequence[Place]", num_samples: int, shade: Shader) -> None:
    from paper_repro.probes.thoughts.trace import num_evaluations

    steps = len(new[0].energies) - 1
    evaluations = num_evaluations(num_samples, steps)
    print(f"\ncontinuation, steps {steps}, NFE {evaluations} a token, {evaluations * len(new)} in all")
    print("".join(shade(_shown(place.thought), place.energies[-1]) for place in new))
    _print_places(new, shade)


def _print_places(places: "Sequence[Place]", shade: Shader) -> None:
    """Print a table: each token, what was predicted, the chosen sample, and its energies after some of the steps."""
    last = len(places[0].energies) - 1
    columns = _spread(last, MOST_COLUMNS)
    head = [f"{'token':<14} {'p':>8}  {'predicted':<14} {'p':>8} {'sample':>6}"]
    print(" ".join([*head, *(f"{f'E {step}':>9}" for step in columns)]))
    for place in places:
        own = "-" if place.own_probability is None else f"{place.own_probability:.3g}"
        token = "-" if place.token is None else _short(place.token)
        line = [f"{token:<14} {own:>8}  {_short(place.thought):<14} {place.probability:>8.3g} {place.sample:>6}"]
        print(" ".join([*line, *(shade(f"{place.energies[step]:>9.3g}", place.energies[step]) for step in columns)]))


def _short(token: str) -> str:
    shown = repr(token)
    return shown if len(shown) <= 14 else f"{shown[:10]}...{shown[-1]}"


def _shown(token: str) -> str:
    """Return a token for a line of text, line ends and other control characters to be seen."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in token)


def _written(figure: "ThoughtFigure", folder: Path) -> list[Path]:
    try:
        return figure.write(folder)
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot be written to ({error}); give another folder") from error


if __name__ == "__main__":
    sys.exit(run_main(main))

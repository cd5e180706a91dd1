"""Continue prompts with a trained language model.

    generate.py runs/cells/<cell> --prompt "ROMEO:" --prompt "JULIET:" --tokens 500 --seed 5
    generate.py runs/cells/<cell>                      # the paper's kind of four prompts, each with its seed

CHECKPOINT is the folder of a cell (record.json and weights.safetensors), the weights in it, or the cell's id.

    --prompt TEXT       what to continue; several times for several texts
    --tokens N          how many tokens follow each prompt (default 1000)
    --temperature T     0 takes the likeliest token (default 1)
    --seed N            of every prompt given (default 0); a text depends on its own prompt and seed alone
    --crop              let the model see the last tokens of a prompt that its context cannot hold
    --inner-steps S     NRGPT, CEM: so many inner steps down an energy, in the place of those that were trained with
    --settle TOL        NRGPT: stop a token's inner steps when one changes its energy by at most this share
    --data-root DIR     where the data lie from which the vocabulary comes, beside $PAPER_REPRO_DATA
    --device NAME       cpu (default) or gpu

Texts go to the standard output, messages to the standard error.  Exit codes as train.py's.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before what another Python lacks is imported
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import argparse
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.base.command_line import Options, run_main
from paper_repro.base.errors import UsageError
from paper_repro.base.seeds import LARGEST
from paper_repro.cells.records import Record
from paper_repro.tables.view import trained

if TYPE_CHECKING:
    from paper_repro.datamodules.tokenizers import Tokenizer
    from paper_repro.models.generation import Generation, Settle
    from paper_repro.models.gpt import CausalLanguageModel

PROBE = "paper_repro.probes.text_quality.TextQuality"


def main(arguments: Sequence[str]) -> int:
    if not arguments or {"--help", "-h"} & set(arguments):
        print(__doc__)
        return 0 if arguments else 2
    words = _words(arguments)
    model, tokenizer, record = _load(words)
    settle = _set_inner_steps(words, model)
    for prompt, seed in _prompts(words, record, tokenizer):
        ids = _encode(prompt, tokenizer, model.block_length, words.crop)
        generation = _generate(model, tokenizer, ids, seed, words, settle)
        print(f"--- prompt {prompt!r}, seed {seed}", file=sys.stderr)
        print(tokenizer.decode(generation.ids))
        if generation.steps:
            counts = ", ".join(f"{steps}: {tokens}" for steps, tokens in generation.histogram.items())
            print(
                f"inner steps per token: mean {generation.mean_steps:.2f}; tokens by number: {counts}", file=sys.stderr
            )
    return 0


def _words(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Options("generate.py")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path)
    parser.add_argument("--prompt", action="append")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--crop", action="store_true")
    parser.add_argument("--inner-steps", type=int)
    parser.add_argument("--settle", type=float)
    parser.add_argument("--data-root")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    words = parser.read(arguments)
    if words.tokens < 1:
        raise UsageError(f"--tokens {words.tokens}: give 1 or more")
    if words.seed is not None and not 0 <= words.seed <= LARGEST:
        raise UsageError(f"--seed {words.seed}: give a whole number from 0 to {LARGEST}")
    if not 0 <= words.temperature < math.inf:
        raise UsageError(f"--temperature {words.temperature:g}: give 0, which takes the likeliest token, or more")
    return words


def _load(words: argparse.Namespace) -> "tuple[CausalLanguageModel, Tokenizer, Record]":
    """Return the model with its weights, and the vocabulary that it was trained with."""
    folder, record = trained(words.checkpoint)  # a wrong folder is refused before torch is imported

    from paper_repro.cells.tasks import Cell
    from paper_repro.datamodules.trained_tokenizer import trained_tokenizer
    from paper_repro.models.gpt import CausalLanguageModel
    from paper_repro.probes.serving import command_for
    from paper_repro.training.finished import rebuild

    machine = {"accelerator": words.device, "data_root": words.data_root}
    parts = rebuild(folder, Cell(record.cell, {**record.config, "machine": machine}))
    model = parts.module.model
    if not isinstance(model, CausalLanguageModel):
        raise UsageError(
            f"{folder}: its model, {type(model).__name__}, generates no text; give a language model's cell; "
            f"{command_for(model)}"
        )
    return model, trained_tokenizer(parts.data, record.provenance.get("data", {}), record.cell), record


def _set_inner_steps(words: argparse.Namespace, model: "CausalLanguageModel") -> "Settle | None":
    """Set them in a CEM; for NRGPT, which chooses them token by token, give when to stop."""
    from paper_repro.models.generation import Settle
    from paper_repro.models.llama import Llama
    from paper_repro.models.nrgpt import NRGPT

    name = type(model).__name__
    if words.settle is not None and not isinstance(model, NRGPT):
        raise UsageError(f"--settle is for NRGPT, {name} has no energies of a token: leave it out")
    if words.inner_steps is not None and not isinstance(model, NRGPT | Llama):
        raise UsageError(f"--inner-steps is for NRGPT and CEM, {name} makes none: leave it out")
    try:
        if isinstance(model, Llama) and words.inner_steps is not None:
            model.set_inner_steps(words.inner_steps)
        if not isinstance(model, NRGPT) or (words.settle, words.inner_steps) == (None, None):
            return None
        return Settle(words.settle or 0.0, num_steps=words.inner_steps)
    except ValueError as error:
        given = {"--inner-steps": words.inner_steps, "--settle": words.settle}
        said = " ".join(f"{option} {value}" for option, value in given.items() if value is not None)
        raise UsageError(f"{said}: {error}") from error


def _prompts(words: argparse.Namespace, record: Record, tokenizer: "Tokenizer") -> list[tuple[str, int]]:
    """Return what is asked for; else the prompts of the cell's own probe, or of the shipped one for such a
    vocabulary.
    """
    if words.prompt:
        return [(prompt, words.seed or 0) for prompt in words.prompt]
    own = [node for node in (record.config.get("probes") or {}).values() if node and node.get("_target_") == PROBE]
    probe = own[0] if own else _shipped("shakespeare" if tokenizer.end_of_text is None else "owt")
    seeds = probe["seeds"] if words.seed is None else [words.seed] * len(probe["prompts"])
    return list(zip(probe["prompts"], seeds, strict=True))


def _shipped(name: str) -> dict[str, Any]:
    from paper_repro.base import typed_yaml
    from paper_repro.base.config import CONF

    probe: dict[str, Any] = typed_yaml.read(CONF / "probes" / "nrgpt" / f"{name}.yaml").plain()["texts"]
    return probe


def _encode(prompt: str, tokenizer: "Tokenizer", context: int, crop: bool) -> list[int]:
    ids = tokenizer.encode(prompt)
    if len(ids) > context and not crop:
        raise UsageError(
            f"the prompt {prompt[:40]!r} has {len(ids)} tokens, the model's context holds {context}: shorten it, or "
            f"give --crop to let the model see its last {context}"
        )
    return ids


def _generate(
    model: "CausalLanguageModel",
    tokenizer: "Tokenizer",
    ids: list[int],
    seed: int,
    words: argparse.Namespace,
    settle: "Settle | None",
) -> "Generation":
    from paper_repro.models.generation import generate

    allowed = min(tokenizer.vocabulary_size, model.vocabulary_size)
    try:
        return generate(model, ids, words.tokens, words.temperature, seed, settle, allowed)
    except ValueError as error:
        raise UsageError(str(error)) from error


if __name__ == "__main__":
    sys.exit(run_main(main))

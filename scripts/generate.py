"""Continue prompts with a trained language model.

    generate.py ngpt --prompt "The function returns"    # a model that comes with the package
    generate.py runs/cells/<cell> --prompt "ROMEO:" --prompt "JULIET:" --tokens 500 --seed 5

Texts go to the standard output, messages to the standard error.  Exit codes as train.py's.
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

from paper_repro.base.configs import LARGEST
from paper_repro.base.errors import Options, UsageError, number, run_main
from paper_repro.exports.weights import opened

if TYPE_CHECKING:
    from paper_repro.datamodules.tokenizers import Tokenizer
    from paper_repro.models.common import CausalLanguageModel


def main(arguments: Sequence[str]) -> int:
    parser = Options("generate.py", __doc__)
    add = parser.add_argument
    add("checkpoint", help="a name as ngpt, hf://owner/name, folder of a finished cell or an export, or a cell's id")
    add("--prompt", action="append", required=True, help="text to continue; several times for several texts")
    add("--tokens", type=number(int, 1), default=1000, help="number of tokens that follow a prompt (default 1000)")
    add("--temperature", type=number(float, 0), default=1.0, help="0 takes the likeliest token (default 1)")
    add("--top-k", type=number(int, 1), help="draw from so many of the likeliest tokens")
    add("--top-p", type=number(float, 0), help="draw from the likeliest tokens whose probabilities reach this share")
    add("--stop", action="store_true", help="end a text at its end-of-text token")
    add("--cache", action="store_true", help="keep keys and values: several times faster; the context moves by halves")
    add("--seed", type=number(int, 0, LARGEST), default=0, help="of every prompt (default 0)")
    add("--inner-steps", type=int, help="NRGPT, CEM: number of inner steps (default: as in training)")
    add("--data-root", help="folder of the data of the vocabulary, beside $PAPER_REPRO_DATA")
    add("--device", choices=("cpu", "gpu"), default="cpu")
    words = parser.read(arguments)
    model, tokenizer = _load(words)
    from paper_repro.models.generation import generate

    if words.inner_steps is not None:
        _set_inner_steps(words.inner_steps, model)
    if words.stop and tokenizer.end_of_text is None:
        raise UsageError("--stop: the vocabulary of this model has no token that ends a text; leave it out")
    stop = tokenizer.end_of_text if words.stop else None
    allowed = min(tokenizer.vocabulary_size, model.vocabulary_size)
    options = {"top_k": words.top_k, "top_p": words.top_p, "use_cache": words.cache, "stop": stop}
    for prompt in words.prompt:
        ids = tokenizer.encode(prompt)
        if len(ids) > model.block_length:
            raise UsageError(
                f"the prompt {prompt[:40]!r} has {len(ids)} tokens, the model's context holds {model.block_length}: "
                "shorten it"
            )
        try:
            written = generate(model, ids, words.tokens, words.temperature, words.seed, num_allowed=allowed, **options)
        except ValueError as error:
            raise UsageError(str(error)) from error
        print(f"--- prompt {prompt!r}, seed {words.seed}", file=sys.stderr)
        print(tokenizer.decode(written))
    return 0


def _load(words: argparse.Namespace) -> tuple[CausalLanguageModel, Tokenizer]:
    """Return the model with its weights, and the vocabulary that it was trained with."""
    found = opened(words.checkpoint, device=words.device, data_root=words.data_root)

    from paper_repro.models.common import CausalLanguageModel
    from paper_repro.probes.thoughts import command_for

    model = found.module.model
    if not isinstance(model, CausalLanguageModel):
        raise UsageError(
            f"{words.checkpoint}: its model, {type(model).__name__}, generates no text; give a language model's cell; "
            f"{command_for(model)}"
        )
    return model, found.tokenizer()


def _set_inner_steps(count: int, model: Any) -> None:
    if not hasattr(model, "set_inner_steps"):
        raise UsageError(f"--inner-steps is for NRGPT and CEM, {type(model).__name__} makes none: leave it out")
    try:
        model.set_inner_steps(count)
    except ValueError as error:
        raise UsageError(f"--inner-steps {count}: {error}") from error


if __name__ == "__main__":
    sys.exit(run_main(main))

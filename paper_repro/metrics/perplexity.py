"""Perplexity of generated texts under a causal language model, GPT-2 by default (NRGPT, appendix F.2)."""

import functools
from pathlib import Path
from typing import Any

import torch

from paper_repro.base.errors import UsageError
from paper_repro.base.files import DATA_VARIABLE, find_data
from paper_repro.metrics.grammar import UnavailableError, needed, words_of
from paper_repro.metrics.likelihood import summed_negative_log_likelihood

GPT2 = "gpt2"
"""The model of the published values: GPT-2 small."""
MOST_TOKENS = 1024
"""A text is cut to so many of its first tokens, as in the authors' code."""


class TextPerplexity:
    """Calling it with a text gives ``exp(-mean_t log p(token_t | tokens before))``, lower is better, in float32.

    The text is cut to its first 1024 tokens of the scoring model (fewer if the model sees fewer).  Texts scored by
    different models are different quantities and never share a column.

    Args:
        model: "gpt2", another name on the Hugging Face hub, or a folder.  A name is looked for among the data
            ($PAPER_REPRO_DATA/<name>, then data/<name> in the repository), then among what the hub's client has stored;
            nothing is downloaded.
        device: where the model runs.

    Raises:
        UnavailableError: no such model on this machine.
        UsageError: a folder that is not there, holds no weights or damaged or incomplete ones, or no model of text.
    """

    def __init__(self, model: str | Path = GPT2, device: str | torch.device = "cpu") -> None:
        self.name = str(model)
        place = find_model(self.name)
        self._tokenizer, self._model = _load(str(place or self.name), place is not None, torch.device(device))
        positions = getattr(self._model.config, "max_position_embeddings", None)
        self.most_tokens = min(MOST_TOKENS, positions or MOST_TOKENS)

    @torch.no_grad()
    def __call__(self, text: str) -> float:
        """Return the text's perplexity, ``inf`` above 709 nats per token; ValueError: fewer than two tokens."""
        words_of(text)
        ids = self._tokenizer(text, truncation=True, max_length=self.most_tokens)["input_ids"]
        if len(ids) < 2:
            raise ValueError(
                f"perplexity ({self.name}) of a text of {len(ids)} tokens, expected at least 2, as the first is not "
                "predicted: leave the text out"
            )
        inputs = torch.tensor([ids], device=self._model.device)
        logits = self._model(input_ids=inputs).logits
        total, count = summed_negative_log_likelihood(logits[0, :-1], inputs[0, 1:])
        return float(torch.exp(total / count))


def find_model(name: str) -> Path | None:
    """Return the folder that ``name`` means; None for a name that is not among the data, or a tokenizer alone.

    Raises:
        UsageError: a path that is not the folder of a model.
    """
    given = Path(name).expanduser()
    is_path = given.is_absolute() or name.startswith(".") or given.is_dir()
    folder = given if is_path else find_data(name)
    if folder is None or (folder / "config.json").is_file():
        return folder
    if not is_path:
        return None
    raise UsageError(f"{folder}: no config.json there, expected the folder of a language model: {_bring(name)}")


def _bring(name: str) -> str:
    repository = "openai-community/gpt2" if name == GPT2 else name
    target = f"${DATA_VARIABLE}/{name}" if not Path(name).is_absolute() and not name.startswith(".") else name
    return f"`hf download {repository} --local-dir {target}` brings one from the hub"


@functools.lru_cache(maxsize=2)
def _load(source: str, local: bool, device: torch.device) -> tuple[Any, Any]:
    transformers = needed("transformers")
    transformers.utils.logging.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, local_files_only=True)
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True, local_files_only=True
        )
    except Exception as error:  # of the hub, transformers, safetensors and json, which share no base
        detail = " ".join(str(error).split())[:200]
        if local:
            raise UsageError(f"{source}: no whole causal language model ({detail}): {_bring(source)}") from error
        raise UnavailableError(f"needs {source}: {_bring(source)} ({detail})") from error
    if missing := sorted(report["missing_keys"]):
        raise UsageError(
            f"{source}: {len(missing)} weights are missing, {', '.join(missing[:3])} among them; they would be random: "
            "copy the whole model anew"
        )
    return tokenizer, model.eval().to(device)

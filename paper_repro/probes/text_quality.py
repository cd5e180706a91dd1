"""Texts that a trained language model generates, given texts, and their quality (NRGPT, Tables 2 to 5 and 8)."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper_repro.base.configs import instantiate
from paper_repro.base.errors import UsageError, at_least, one_of
from paper_repro.base.files import absent, find_data, sha256_of_bytes
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import FINISHED, Cell, Findings, Outcome, Report, Task
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.text import read_text
from paper_repro.datamodules.tokenizers import Tokenizer
from paper_repro.metrics.perplexity import GPT2, find_model
from paper_repro.metrics.text_scores import TextScorer, TextScores
from paper_repro.models.common import CausalLanguageModel
from paper_repro.models.generation import generate
from paper_repro.training.module import PaperModule

ATTACHMENT = "texts.json"
MOST_CHARACTERS = 60_000
"""The most characters of all texts in the attachment together; each text has an equal share of them."""
BEST, MEAN = "best_perplexity", "mean"
SEEDS = (5, 17, 42, 99)  # the authors', one for each of four prompts
CORPUS = "text"  # the role of a corpus among ``data.files``


@dataclass(frozen=True)
class Written:
    """One generated text, its prompt included, without leading newlines, and its scores."""

    prompt: str
    seed: int
    text: str
    scores: TextScores


@dataclass(frozen=True)
class TextQuality:
    """Generates one text for each prompt and scores it; names of metrics: ``metrics.text_scores.metric_names``.

    The seeds are those of the list, whatever the cell's: cells differ by their weights alone.  ``texts_averaged`` says
    over how many texts a number is a mean; a text for which a metric has no value is left out of its mean.  All texts
    and scores go into the attachment texts.json.

    Args:
        prompts: each stays at the beginning of its text, which is scored as a whole.
        seeds: one for each prompt.
        num_tokens: new ones for each text, drawn at temperature 1 as the authors do.
        within_context: no more new tokens than fit into the context beside the prompt, the authors' way on OWT.
        choose: "best_perplexity" reports the text of the lowest perplexity (Tables 2, 4 and 8), "mean" the mean over
            texts (Table 5).  Without perplexity the first becomes the second, and says so.
        perplexity_model: see TextPerplexity.

    Raises:
        UsageError: a model of perplexity that is there, but damaged.
    """

    prompts: Sequence[str]
    seeds: Sequence[int] = SEEDS
    num_tokens: int = 1000
    within_context: bool = False
    choose: str = BEST
    perplexity_model: str = GPT2

    def __post_init__(self) -> None:
        if len(self.prompts) != len(self.seeds):
            raise ValueError(f"{len(self.prompts)} prompts and {len(self.seeds)} seeds: give a seed for each")
        at_least("num_tokens", self.num_tokens)
        one_of("choose", self.choose, (BEST, MEAN))
        find_model(self.perplexity_model)  # before hours are spent on the training

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        model, tokenizer = module.model, getattr(data, "tokenizer", None)
        if not isinstance(tokenizer, Tokenizer):
            raise UsageError(f"TextQuality needs text: {type(data).__name__} has no tokenizer; leave the probe out")
        if not isinstance(model, CausalLanguageModel):
            raise UsageError(f"TextQuality generates with a CausalLanguageModel, found {type(model).__name__}")
        with closing(TextScorer(self.perplexity_model, device=module.device)) as scorer:
            pairs = zip(self.prompts, self.seeds, strict=True)
            texts = [self._write(model, tokenizer, scorer, prompt, own) for prompt, own in pairs]
        return self._findings(texts, scorer)

    def _write(
        self, model: CausalLanguageModel, tokenizer: Tokenizer, scorer: TextScorer, prompt: str, seed: int
    ) -> Written:
        ids, count = tokenizer.encode(prompt), self.num_tokens
        if self.within_context:
            count = min(count, model.block_length - len(ids))
        if count < 1:
            raise UsageError(
                f"the prompt {prompt[:40]!r} has {len(ids)} tokens, the context holds {model.block_length}, expected "
                "fewer: shorten it, or set within_context=false"
            )
        allowed = min(tokenizer.vocabulary_size, model.vocabulary_size)
        text = tokenizer.decode(generate(model, ids, count, seed=seed, num_allowed=allowed)).lstrip("\n")
        return Written(prompt, seed, text, scorer(text))

    def _findings(self, texts: list[Written], scorer: TextScorer) -> Findings:
        perplexity, findings = scorer.names[0], Findings(unavailable=dict(scorer.unavailable))
        chosen = texts
        if self.choose == BEST:
            judged = [text for text in texts if perplexity in text.scores.values]
            chosen = [min(judged, key=lambda text: text.scores.values[perplexity])] if judged else texts
        for name in scorer.names:
            values = [text.scores.values[name] for text in chosen if name in text.scores.values]
            if values and name not in findings.unavailable:
                findings.metrics[name] = math.fsum(values) / len(values)
            else:
                findings.unavailable.setdefault(name, chosen[0].scores.refused.get(name, "no text has a value"))
        if self.choose == BEST and perplexity in findings.unavailable:
            findings.unavailable[perplexity] += f"; other columns are means over {len(texts)} texts, not of the best"
        findings.metrics["texts_averaged"] = float(len(chosen))
        rows = [
            {
                "prompt": text.prompt,
                "seed": text.seed,
                "text": text.text[: MOST_CHARACTERS // len(texts)],
                "characters": len(text.text),
                "reported": text in chosen,
                "scores": text.scores.values,
                "refused": text.scores.refused,
            }
            for text in texts
        ]
        content = {"unavailable": findings.unavailable, "texts": rows}
        encoded = json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True).encode(errors="replace") + b"\n"
        findings.attachments[ATTACHMENT] = encoded
        return findings


class ReferenceTexts(Task):
    """Scores each cell's text (table 3); where a text is too short, or something is absent, the reason is given."""

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        found = []
        with closing(instantiate(cells[0].config["scorer"])) as score:
            for cell in cells:
                text, hashes = reference_text(cell.config)
                scores: TextScores = score(text)
                refused = {name: f"too short: {reason}" for name, reason in scores.refused.items()}
                unavailable = refused | score.unavailable
                found.append(Outcome(FINISHED, scores.values, unavailable=unavailable, data_hashes=hashes))
        return found


def reference_text(config: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the text of a cell, and the SHA-256 of the corpus that it is a piece of; UsageError: no such corpus.

    A piece has whole lines, at most ``text.characters`` long, from the first line start behind a random place.
    """
    spec, seed, hashes = config["text"], config["seed"], {}
    text = spec["content"]
    if text is None:
        name, root = config["data"]["files"][CORPUS], config.get("machine", {}).get("data_root")
        path = find_data(name, root)
        if path is None:
            raise UsageError(absent(name, root))
        content, needed = read_text(path), spec["characters"]
        if len(content) < 2 * needed:
            raise UsageError(
                f"{path}: {len(content)} characters, expected at least {2 * needed}, for pieces of {needed}"
            )
        hashes[CORPUS] = sha256_of_bytes(content.encode())
        start = content.find("\n", random.Random(mix(seed, "piece")).randrange(len(content) - needed)) + 1
        whole = content[start : start + needed]
        text = whole[: whole.rfind("\n") + 1].strip("\n") or whole
    if spec["shuffle_words"]:
        words = text.split()
        random.Random(mix(seed, "words")).shuffle(words)
        rest = iter(words)
        text = "\n".join(" ".join(next(rest) for _ in line.split()) for line in text.split("\n"))
    return "\n".join([text] * spec["repeat"]), hashes

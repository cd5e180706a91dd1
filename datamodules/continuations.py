"""Continuations: questions of four answers for lm-eval, made from the validation documents of the documentation text.

A document is cut inside a word.  The question is which of four texts goes on there: the true one, or what follows at
three places of other documents.  At all four places the cut comes after the same token and after as many letters of
its word (five and more count as five), and all four texts have equally many tokens, so that counting pairs of tokens
answers no better than chance.
"""

import json
import re
import string
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes, sha256_of_file, write_atomically
from paper_repro.base.identity import mix
from paper_repro.datamodules.counter_based import permutation
from paper_repro.datamodules.token_shards import TokenManifest, TokenStream
from paper_repro.datamodules.tokenizers import BytePairTokenizer

FOLDER = "downstream/continuations-{vocabulary}"
"""Below the data folder, where the probe ``probes.downstream`` looks for task files."""
MANIFEST, FORMAT = "manifest.json", 1
VAL = "val"
LETTERS = (1, 2, 3, 4, 5)
"""Letters of the word before the cut; of the last one, so many or more."""
CHOICES = 4
CONTEXT, CONTINUATION = 16, 6
"""Tokens of a question, at most, and of each answer."""
EXAMPLE_CONTEXT = 6
"""Tokens of an example's question, at most: five examples and a question fit into a context of 128."""
QUESTIONS, EXAMPLES = 500, 5
EXAMPLE_SHARE = 10
"""One document of so many is for examples, the others for questions."""
MOST_OF_A_DOCUMENT = 4
"""Questions of one task from one document."""
SEED = 2357
ALPHABET = frozenset(string.ascii_letters)


Question = Mapping[str, Any]
"""The context, the choices, and the index of the true one as the answer."""


@dataclass(frozen=True)
class Place:
    """A cut inside a word."""

    document: int
    start: int
    """Index of the first token after the cut."""
    group: tuple[int, int]
    """Letters of the word before the cut, and the last token before it."""
    following: tuple[int, ...]


def task_name(letters: int) -> str:
    return f"continuations_{letters}"


def prepare(corpus: Path, folder: Path) -> dict[str, Any]:
    """Write task files and questions from a folder of token shards, and return the manifest.

    The same documents give the same bytes: for each task ``<task>.yaml`` as lm-eval reads it, ``<task>_test.jsonl``
    and ``<task>_dev.jsonl``; and ``manifest.json``.  UsageError: the corpus is damaged or too small.
    """
    manifest = TokenManifest.read(corpus / MANIFEST)
    tokenizer = manifest.tokenizer(corpus)
    stream = TokenStream(manifest, corpus / MANIFEST, VAL)
    ids = stream[:]
    documents = [part[:-1].tolist() for part in np.split(ids, np.flatnonzero(ids == manifest.end_of_text) + 1)[:-1]]
    contents: dict[str, bytes] = {}
    for letters, parts in questions(documents, tokenizer, corpus).items():
        name = task_name(letters)
        for part, found in parts.items():
            contents[f"{name}_{part}.jsonl"] = "".join(f"{json.dumps(one)}\n" for one in found).encode()
        contents[f"{name}.yaml"] = (json.dumps(_task(name), indent=1) + "\n").encode()  # JSON is YAML
    for name, content in contents.items():
        write_atomically(folder / name, content)
    prepared: dict[str, Any] = {
        "format": FORMAT,
        "corpus": {"sha256": sha256_of_file(corpus / MANIFEST), "documents": len(documents)},
        "tokenizer": manifest.fingerprint,
        "tokens": {"context": CONTEXT, "continuation": CONTINUATION, "example_context": EXAMPLE_CONTEXT},
        "files": {name: sha256_of_bytes(content) for name, content in sorted(contents.items())},
    }
    write_atomically(folder / MANIFEST, json.dumps(prepared, indent=1).encode() + b"\n")
    return prepared


def check(folder: Path) -> None:
    """Raise UsageError if a file of a folder that was prepared is missing or altered."""
    mend = "give the command that prepared it again"
    try:
        files = json.loads((folder / MANIFEST).read_bytes())["files"]
        altered = [name for name, digest in files.items() if sha256_of_file(folder / name) != digest]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{folder}: cannot be read ({error}); {mend}") from error
    if altered:
        raise UsageError(f"{folder / altered[0]}: altered since it was prepared; {mend}")


def questions(
    documents: Sequence[Sequence[int]], tokenizer: BytePairTokenizer, corpus: object
) -> dict[int, dict[str, list[Question]]]:
    """Return for each number of letters the questions ("test") and the examples ("dev").

    The true continuation stands at each of the four positions equally often.  UsageError, which names ``corpus``: it
    has too few documents.
    """
    numbers = range(len(documents))
    parts = {
        "dev": ([number for number in numbers if number % EXAMPLE_SHARE == 0], EXAMPLE_CONTEXT, EXAMPLES),
        "test": ([number for number in numbers if number % EXAMPLE_SHARE], CONTEXT, QUESTIONS),
    }
    found: dict[int, dict[str, list[Question]]] = {letters: {} for letters in LETTERS}
    for part, (chosen, context, wanted) in parts.items():
        places = _places(documents, chosen, tokenizer)
        for letters in LETTERS:
            own = list(_asked(places.get(letters, []), documents, tokenizer, context, wanted))
            if len(own) < wanted:
                raise UsageError(
                    f"{corpus}: {len(own)} questions of the task {task_name(letters)} ({part}), expected {wanted}: its "
                    f"{len(documents):,} validation documents are too few"
                )
            found[letters][part] = own
    return found


def _places(
    documents: Sequence[Sequence[int]], chosen: Sequence[int], tokenizer: BytePairTokenizer
) -> dict[int, list[Place]]:
    texts = [tokenizer.decode([token]) for token in range(tokenizer.vocabulary_size)]
    found: defaultdict[int, list[Place]] = defaultdict(list)
    for document in chosen:
        ids, letters = documents[document], 0
        for place in range(len(ids) - CONTINUATION + 1):
            if letters and texts[ids[place]][:1] in ALPHABET:
                group = min(letters, LETTERS[-1]), ids[place - 1]
                found[group[0]].append(Place(document, place, group, tuple(ids[place : place + CONTINUATION])))
            text = texts[ids[place]]
            own = len(text) - len(text.rstrip(string.ascii_letters))  # letters at its end
            letters = letters + own if own == len(text) else own
    return found


def _asked(
    places: Sequence[Place], documents: Sequence[Sequence[int]], tokenizer: BytePairTokenizer, context: int, wanted: int
) -> Iterator[Question]:
    if not places:
        return
    order = [places[index] for index in permutation(len(places), mix(SEED, "continuations", places[0].group[0]))]
    groups: defaultdict[tuple[int, int], list[Place]] = defaultdict(list)
    position = {}
    for place in order:
        position[place] = len(groups[place.group])
        groups[place.group].append(place)
    counts, asked = Counter[int](), 0
    for place in order:
        if asked == wanted:
            return
        if counts[place.document] == MOST_OF_A_DOCUMENT:
            continue
        others = _others(place, groups[place.group], position[place])
        text = _context(documents[place.document][max(0, place.start - context) : place.start], tokenizer)
        found = [place.following, *others]
        if len(found) == CHOICES and text and _keeps_its_tokens(text, found, context, tokenizer):
            answer = asked % CHOICES
            found.insert(answer, found.pop(0))
            yield {"context": text, "choices": [*map(tokenizer.decode, found)], "answer": answer}
            counts[place.document] += 1
            asked += 1


def _others(place: Place, group: Sequence[Place], position: int) -> list[tuple[int, ...]]:
    """Return what follows at the next places of the group, each from a document of its own and each another text."""
    known, found = {place.document}, [place.following]
    for other in [*group[position + 1 :], *group[:position]]:
        if other.document not in known and other.following not in found:
            known.add(other.document)
            found.append(other.following)
        if len(found) == CHOICES:
            break
    return found[1:]


def _context(ids: Sequence[int], tokenizer: BytePairTokenizer) -> str:
    """Return the text of the ids from its first whole word on; empty if the word that is cut is the first."""
    return re.sub(r"^\S*\s*", "", tokenizer.decode(ids))


def _keeps_its_tokens(
    text: str, answers: Sequence[tuple[int, ...]], context: int, tokenizer: BytePairTokenizer
) -> bool:
    """Return whether text and answer, joined and encoded anew, are divided where the document was cut."""
    before = tokenizer.encode(text)
    whole = (tokenizer.encode(text + tokenizer.decode(answer)) for answer in answers)
    return len(before) <= context and all(ids == [*before, *answer] for ids, answer in zip(whole, answers, strict=True))


def _task(name: str) -> Mapping[str, object]:
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {part: f"{name}_{part}.jsonl" for part in ("dev", "test")}},
        "test_split": "test",
        "fewshot_split": "dev",
        "fewshot_config": {"sampler": "first_n"},
        "output_type": "multiple_choice",
        "doc_to_text": "context",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": FORMAT},
    }

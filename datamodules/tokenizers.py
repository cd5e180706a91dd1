"""Text to token ids and back: characters, and byte pairs that no text is lost in (GPT-2's, LLaMA-2's or our own)."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import absent, find_data, sha256_of_bytes
from paper_repro.datamodules.downloads import given

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

    from paper_repro.datamodules.counter_based import CounterBasedDataModule

END_OF_TEXT = "<|endoftext|>"
END_TOKENS = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>")
"""What ends a text in the tokenizers that are known; the first that is there counts."""
GPT2, LLAMA, NEOX = "gpt2", "llama", "gpt-neox"
HUB = {
    GPT2: "openai-community/gpt2",
    LLAMA: "hf-internal-testing/llama-tokenizer",
    NEOX: "EleutherAI/gpt-neox-20b",
}
"""Where the hub has the tokenizers that are known by name; Meta's own LLaMA repositories ask for an account."""
NUM_BYTES, MOST_IDS = 256, 2**16


class CharacterTokenizer:
    """One id a character, in the order of their code points; each of ``characters`` counts once."""

    end_of_text: int | None = None

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = "".join(sorted(set(characters)))
        if not self.characters:
            raise ValueError("characters must hold at least one character, got none")
        self._ids = {character: index for index, character in enumerate(self.characters)}

    @property
    def vocabulary_size(self) -> int:
        return len(self.characters)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides which ids a text gets."""
        return _hash(["characters", self.characters])

    def encode(self, text: str) -> list[int]:
        """Return token ids of a text; UsageError for a character that the vocabulary lacks."""
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            unknown = error.args[0]
            raise UsageError(
                f"the character {unknown!r} (U+{ord(unknown):04X}) at position {text.index(unknown)} is not among the "
                f"{len(self.characters)} of the vocabulary, {self.characters!r}: leave it out"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.characters[index] for index in ids)

    def to_bytes(self) -> bytes:
        """Return the content of the tokenizer.json of an exported model."""
        return json.dumps({"characters": self.characters}).encode() + b"\n"


class BytePairTokenizer:
    """Byte pairs from the tokenizers library: byte-level ones as GPT-2's, or with byte fallback as LLaMA-2's.

    The text of a special token is encoded as ordinary text, so no document can end itself, and ``encode`` adds none.
    Texts are neither truncated nor padded, whatever the tokenizer's file says.
    """

    def __init__(self, library: "Library") -> None:
        self.library = library
        library.encode_special_tokens = True
        library.no_truncation()
        library.no_padding()

    @classmethod
    def load(cls, path: Path) -> "BytePairTokenizer":
        """Load a tokenizer from a tokenizer.json, or a folder with one; UsageError: it is absent, damaged or lossy."""
        from tokenizers import Tokenizer

        whole = path / "tokenizer.json" if path.is_dir() else path
        if not whole.is_file():
            raise UsageError(f"{path}: expected tokenizer.json, found none")
        try:
            tokenizer = cls(Tokenizer.from_file(str(whole)))
        except Exception as error:  # the library raises bare exceptions
            raise UsageError(f"{path}: the tokenizers library cannot read it: {error}; get the file again") from error
        content = json.loads(tokenizer.library.to_str())
        if "ByteLevel" not in json.dumps(content["pre_tokenizer"]) and not content["model"].get("byte_fallback"):
            raise UsageError(
                f"{path}: it is neither byte-level, as GPT-2's, nor has it an id for each byte, as LLaMA-2's, and so "
                "loses characters: give one of these"
            )
        return tokenizer

    @classmethod
    def train(cls, texts: Sequence[str], vocabulary_size: int) -> "BytePairTokenizer":
        """Return the byte pairs of ``texts``, most frequent first; id 0 ends a text, ids 1 to 256 are the bytes."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        library = Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=at_least("vocabulary_size", vocabulary_size, NUM_BYTES + 1),
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            min_frequency=2,
            show_progress=False,
        )
        library.train_from_iterator(texts, trainer)
        return cls(library)

    @property
    def vocabulary_size(self) -> int:
        return int(self.library.get_vocab_size())

    @cached_property
    def end_of_text(self) -> int | None:
        """The first of ``END_TOKENS`` that is there and that no text can hold."""
        for token in END_TOKENS:
            index: int | None = self.library.token_to_id(token)
            if index is not None and index not in self.encode(token):
                return index
        return None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides which ids a text gets; equal for equal tokenizers, whatever file they lie in."""
        content = json.loads(self.library.to_str())
        merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in content["model"]["merges"]]
        splitting = _without(content["pre_tokenizer"], "trim_offsets")
        vocabulary = sorted((index, token) for token, index in self.library.get_vocab().items())
        fallback = ["byte fallback"] if content["model"].get("byte_fallback") else []
        return _hash(["byte pairs", vocabulary, merges, splitting, content["normalizer"], *fallback])

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.library.encode(text, add_special_tokens=False).ids
        return ids

    def encode_many(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Encode each text, on as many cores as there are."""
        for encoding in self.library.encode_batch_fast(list(texts), add_special_tokens=False):
            yield encoding.ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of a document's ids, exactly.

        Where blanks are written as U+2581, a U+2581 of the text comes back as a blank, ids cut from within a text lose
        one leading blank, and a text that follows an end of text has one too many.
        """
        text: str = self.library.decode(list(ids), skip_special_tokens=False)
        return text

    def to_bytes(self) -> bytes:
        """Return the content of its tokenizer.json."""
        return str(self.library.to_str(pretty=True)).encode() + b"\n"


Tokenizer = CharacterTokenizer | BytePairTokenizer
"""Text to token ids and back."""


def end_of_text(tokenizer: BytePairTokenizer) -> int:
    """Return the id that is written after each document; UsageError: there is none, or ids do not fit uint16."""
    if tokenizer.end_of_text is None:
        raise UsageError(
            f"the tokenizer has no token that ends a document, none of {', '.join(END_TOKENS)}: give GPT-2's or "
            "LLaMA-2's, or add one of these to its special tokens"
        )
    size, largest = tokenizer.vocabulary_size, max(tokenizer.library.get_vocab().values())
    if size > MOST_IDS or largest >= size:
        raise UsageError(f"the tokenizer has {size} ids up to {largest}, expected {MOST_IDS} at most and no gaps")
    return tokenizer.end_of_text


def known(name: str, root: str | Path | None = None, download: bool = False) -> BytePairTokenizer:
    """Return a tokenizer of ``HUB`` from a folder of its name among the data, or else, with ``download``, from the hub;
    the UsageError says where it should be and what gets it.
    """
    if (path := find_data(f"{name}/tokenizer.json", root)) is not None:
        return BytePairTokenizer.load(path)
    command = f"hf download {HUB[name]} tokenizer.json --local-dir data/{name}"
    if not download:
        raise UsageError(f"{absent(name, root)} as a folder with tokenizer.json, or run: {command}")
    from tokenizers import Tokenizer

    with given(HUB[name], f"on a machine that it answers, run: {command}"):
        return BytePairTokenizer(Tokenizer.from_pretrained(HUB[name]))


def trained_tokenizer(data: "CounterBasedDataModule", trained: Mapping[str, str], cell: str) -> Tokenizer:
    """Return the tokenizer of a cell's data, built anew, if it is the one that the cell was trained with.

    ``trained`` are the SHA-256 of the data, by name, in the cell's record.  UsageError: the data have no tokenizer, are
    absent, or would give the text other ids.
    """
    tokenizer = getattr(data, "tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise UsageError(f"cell {cell}: its data, {type(data).__name__}, have no vocabulary of text")
    found = {"tokenizer": tokenizer.fingerprint} if "tokenizer" in trained else data.data_hashes()
    for name, value in found.items():
        if trained.get(name) != value:
            raise UsageError(
                f"the {name} found here is {value[:16]}..., cell {cell} was trained with "
                f"{trained.get(name, 'none')[:16]}...: ids would mean other words; bring the data of the training "
                "(--data-root DIR, or $PAPER_REPRO_DATA)"
            )
    return tokenizer


def _without(node: Any, key: str) -> Any:
    if isinstance(node, dict):
        return {name: _without(value, key) for name, value in node.items() if name != key}
    return [_without(value, key) for value in node] if isinstance(node, list) else node


def _hash(content: object) -> str:
    return sha256_of_bytes(json.dumps(content, sort_keys=True).encode())

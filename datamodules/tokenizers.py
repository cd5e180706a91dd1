"""Text to token ids and back: characters, and byte-level byte pairs (GPT-2's or our own)."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paper_repro.arguments import at_least
from paper_repro.data_files import absent, find_data
from paper_repro.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

END_OF_TEXT = "<|endoftext|>"
GPT2 = "gpt2"
NUM_BYTES = 256


@runtime_checkable
class Tokenizer(Protocol):
    """What the data, the generation of text and its metrics ask of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def end_of_text(self) -> int | None:
        """The id that ends a document, if there is one."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides which ids a text gets; equal for equal tokenizers, whatever file they lie in."""


class CharacterTokenizer:
    """One id a character, in the order of their code points.

    Args:
        characters: any text or collection; each character counts once.

    Raises:
        ValueError: no characters.
    """

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
        return _hash(["characters", self.characters])

    def encode(self, text: str) -> list[int]:
        """Token ids of a text.

        Raises:
            UsageError: a character that the vocabulary lacks.
        """
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


class BytePairTokenizer:
    """Byte-level byte pairs from the tokenizers library.

    The text of a special token is encoded as ordinary text, so no document can end itself.

    Args:
        library: a tokenizer of that library.
    """

    def __init__(self, library: "Library") -> None:
        self.library = library
        library.encode_special_tokens = True

    @classmethod
    def load(cls, path: Path) -> "BytePairTokenizer":
        """From a tokenizer.json, or a folder with one or with GPT-2's vocab.json and merges.txt.

        Raises:
            UsageError: neither is there, or the library cannot read it, or it knows no byte level.
        """
        from tokenizers import ByteLevelBPETokenizer, Tokenizer

        whole = path / "tokenizer.json" if path.is_dir() else path
        parts = [path / "vocab.json", path / "merges.txt"]
        try:
            if whole.is_file():
                library = Tokenizer.from_file(str(whole))
            elif all(part.is_file() for part in parts):
                library = ByteLevelBPETokenizer(*map(str, parts))._tokenizer
                library.add_special_tokens([END_OF_TEXT])
            else:
                raise UsageError(f"{path}: expected tokenizer.json, or vocab.json and merges.txt, found none of them")
        except UsageError:
            raise
        except Exception as error:  # the library raises bare exceptions
            raise UsageError(f"{path}: the tokenizers library cannot read it: {error}; get the file again") from error
        if "ByteLevel" not in json.dumps(json.loads(library.to_str())["pre_tokenizer"]):
            raise UsageError(f"{path}: not a byte-level tokenizer; GPT-2's, or one that prepare_data.py trained, is")
        return cls(library)

    @classmethod
    def train(cls, texts: Sequence[str], vocabulary_size: int) -> "BytePairTokenizer":
        """The byte pairs of ``texts``, most frequent first; id 0 ends a text, ids 1 to 256 are the bytes.

        Raises:
            ValueError: ``vocabulary_size`` below 257, which holds the bytes and the end of text.
        """
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

    @property
    def end_of_text(self) -> int | None:
        index: int | None = self.library.token_to_id(END_OF_TEXT)
        return index

    @property
    def fingerprint(self) -> str:
        content = json.loads(self.library.to_str())
        merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in content["model"]["merges"]]
        splitting = _without(content["pre_tokenizer"], "trim_offsets")
        vocabulary = sorted((index, token) for token, index in self.library.get_vocab().items())
        return _hash(["byte pairs", vocabulary, merges, splitting, content["normalizer"]])

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.library.encode(text, add_special_tokens=False).ids
        return ids

    def encode_many(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """``encode`` of each text, on as many cores as there are."""
        for encoding in self.library.encode_batch_fast(list(texts), add_special_tokens=False):
            yield encoding.ids

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self.library.decode(list(ids), skip_special_tokens=False)
        return text

    def to_bytes(self) -> bytes:
        """The content of its tokenizer.json."""
        return str(self.library.to_str(pretty=True)).encode() + b"\n"


def gpt2(root: str | Path | None = None, download: bool = False) -> BytePairTokenizer:
    """GPT-2's tokenizer, from a folder ``gpt2`` among the data, or else, with ``download``, from the hub.

    Raises:
        UsageError: it is in no place; the message says which, what they should hold and what gets it.
    """
    for name in ("tokenizer.json", "vocab.json"):
        if (path := find_data(f"{GPT2}/{name}", root)) is not None:
            return BytePairTokenizer.load(path.parent)
    layout = f"{absent(GPT2, root)} as a folder with tokenizer.json, or with vocab.json and merges.txt"
    command = "hf download openai-community/gpt2 tokenizer.json --local-dir data/gpt2"
    if not download:
        raise UsageError(f"{layout}, or run: {command}")
    from tokenizers import Tokenizer

    try:
        return BytePairTokenizer(Tokenizer.from_pretrained(GPT2))
    except Exception as error:  # whatever the network or the hub's client raises
        raise UsageError(
            f"{layout}; the hub did not answer ({error}); on a machine it answers, run: {command}"
        ) from error


def _without(node: Any, key: str) -> Any:
    if isinstance(node, dict):
        return {name: _without(value, key) for name, value in node.items() if name != key}
    return [_without(value, key) for value in node] if isinstance(node, list) else node


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

"""Texts, as characters or in token ids.

prepare_data.py docstrings                     the docstrings of Python, torch, numpy and scipy
prepare_data.py docstrings --vocabulary 2048   in a folder of its own, docstrings-2048 (default: 4096)
prepare_data.py docstrings --packages torch    of Python and these packages; comma between them, "none" for none
prepare_data.py shakespeare --from PATH        check a copy of tiny Shakespeare and put it in its place
prepare_data.py shakespeare --download         the same, from the network
prepare_data.py openwebtext --download         OpenWebText from the hub, in GPT-2's token ids
prepare_data.py openwebtext --from PATH        parquet, jsonl or txt files, or a folder that datasets saved
prepare_data.py slimpajama --download --max-tokens 1_730_000_000   as much of SlimPajama, in LLaMA's token ids
prepare_data.py slimpajama --from DIR          the same from a folder of parquet or jsonl files
prepare_data.py redpajama --download --max-tokens 1_000_000_000   RedPajama-V2's sample, in GPT-NeoX's token ids
prepare_data.py fineweb --download --max-tokens 1_000_000_000     FineWeb's sample, the same; both also --from DIR
prepare_data.py pg19 --download --tokenizer P  PG19's 100 test books, in the ids of the training data's tokenizer
prepare_data.py pg19 --from DIR --tokenizer P  the same from a folder of .txt files, one for each book
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes
from paper_repro.base.identity import other_text
from paper_repro.datamodules.array_shards import MANIFEST
from paper_repro.datamodules.preparation import Preparation, Request, fetch, put, summary, verify
from paper_repro.datamodules.token_shards import TokenManifest

if TYPE_CHECKING:
    from paper_repro.datamodules.shard_writing import Documents
    from paper_repro.datamodules.tokenizers import BytePairTokenizer

DEFAULT_VOCABULARY = 4096
SHAKESPEARE = "tinyshakespeare/input.txt"
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_CHARACTERS, SHAKESPEARE_VOCABULARY = 1_115_394, 65
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
PG19_TEXTS = "pg19-texts"
VERSIONS = "versions.json"
"""Says beside the docstrings which versions they were read from; the manifest, which ids follow from, does not."""
CORPUS = ("folder", "max-documents", "shard-tokens", "tokenizer")
STREAMED = ("folder", "max-tokens", "shard-documents", "tokenizer", "from")


def shakespeare(request: Request) -> None:
    """Check a copy of tiny Shakespeare and put it in its place."""
    path = request.root / SHAKESPEARE
    if request.source is not None:
        source = request.source / "input.txt" if request.source.is_dir() else request.source
        if not source.is_file():
            raise UsageError(f"{source}: there is no such file")
    else:
        source = path
        if not path.is_file():
            if not request.download or request.verify:
                raise UsageError(
                    f"{path} is not there: give --from PATH, or --download to get it from {SHAKESPEARE_URL}"
                )
            put(path, fetch(SHAKESPEARE_URL))
    from paper_repro.datamodules.text import read_text  # imports torch

    text = read_text(source, SHAKESPEARE_CHARACTERS)
    found = sha256_of_bytes(text.encode())
    if found != SHAKESPEARE_SHA256 or len(set(text)) != SHAKESPEARE_VOCABULARY:
        raise UsageError(
            f"{source}: {len(set(text))} distinct characters and SHA-256 {found[:12]}..., expected "
            f"{SHAKESPEARE_VOCABULARY} and {SHAKESPEARE_SHA256[:12]}...: this is not tiny Shakespeare; "
            "remove it, and give --from PATH or --download"
        )
    if source != path and not request.verify:
        put(path, text.encode())
    print(f"{path if source != path else source}: whole, {len(text):,} characters, {len(set(text))} distinct")


def openwebtext(request: Request) -> None:
    """Write OpenWebText in GPT-2's token ids."""
    folder = request.folder()
    if request.verify:
        verify(folder, TokenManifest)
        return
    request.check_source("give --from PATH, or --download to get it from the hub (about 24 GB)")
    from paper_repro.datamodules import openwebtext, tokenizers

    tokenizer = _tokenizer(request, tokenizers.GPT2)
    print("reading the documents")
    corpus = openwebtext.load(request.source, request.number("max-documents"))
    _write_shards(request, folder, {"train": corpus.train, "val": corpus.val}, corpus.source, tokenizer)


def docstrings(request: Request) -> None:
    """Write the docstrings of installed packages, in the ids of a tokenizer that is trained on them."""
    from paper_repro.datamodules import docstrings
    from paper_repro.datamodules.tokenizers import BytePairTokenizer

    size = request.number("vocabulary") or DEFAULT_VOCABULARY
    folder = request.folder("docstrings" if size == DEFAULT_VOCABULARY else f"docstrings-{size}")
    if request.verify:
        verify(folder, TokenManifest)
        return
    if None not in (request.text("vocabulary"), request.text("tokenizer")):
        raise UsageError("--vocabulary is the size of a tokenizer to train, --tokenizer names a trained one: give one")
    tokenizer = None if request.text("tokenizer") is None else _tokenizer(request)
    given = request.text("packages") or ",".join(docstrings.PACKAGES)
    _make(folder)  # before minutes of reading
    print("reading the docstrings")
    corpus = docstrings.collect([] if given == "none" else given.split(","), request.number("max-documents"))
    if tokenizer is None:
        print(f"training {size} byte pairs on {len(corpus.train):,} documents")
        try:
            tokenizer = BytePairTokenizer.train(corpus.train, size)
        except ValueError as error:
            raise UsageError(f"--vocabulary {size}: {error}") from error
    _write_shards(request, folder, {"train": corpus.train, "val": corpus.val}, corpus.source, tokenizer)
    put(folder / VERSIONS, json.dumps(corpus.versions, indent=1).encode() + b"\n")
    if told := other_text(folder / MANIFEST):
        print(told)


def _make(folder: Path) -> None:
    """Make a folder.

    Raises:
        UsageError: that cannot be done.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: the folder cannot be made ({error.strerror}); give --to DIR") from error


def pg19(request: Request) -> None:
    """Write PG19's test books."""
    folder = request.folder()
    if request.verify:
        verify(folder, TokenManifest)
        return
    request.check_source("give --from DIR, or --download to get the 100 test books (about 40 MB)")
    from paper_repro.datamodules import pg19, tokenizers

    tokenizer = _tokenizer(request, tokenizers.GPT2)
    texts = request.source
    if texts is None:
        texts = request.root / PG19_TEXTS
        pg19.download(texts, fetch)
    books, source = pg19.load(texts, request.number("max-documents"))
    _write_shards(request, folder, {pg19.TEST: books}, source, tokenizer)


def streamed(request: Request) -> None:
    """Write as much of a large corpus as is asked for; several processes may share the work."""
    folder, name = request.folder(), request.name
    if request.verify:
        verify(folder, TokenManifest)
        return
    request.check_source("give --from DIR, or --download to stream it (--max-tokens says how far)")
    from paper_repro.datamodules import slimpajama, stream_shards, tokenizers, web_documents

    rank = stream_shards.Rank(*_rank_and_world())
    most = request.number("max-tokens")
    size = request.number("shard-documents") or stream_shards.SHARD_DOCUMENTS
    usual = tokenizers.LLAMA if name == "slimpajama" else tokenizers.NEOX
    tokenizer = _tokenizer(request, usual)
    if name == "slimpajama":
        parts, source = slimpajama.load(request.source)
    else:
        held_out = request.number("val-documents") or web_documents.VAL_DOCUMENTS
        parts, source = web_documents.load(name, request.source, held_out)
    manifest = stream_shards.write_streams(folder, parts, source, tokenizer, most, size, rank)
    if manifest is None:
        print(f"rank {rank.index} of {rank.count} is done; the last to end writes {folder / 'manifest.json'}")
    else:
        summary(folder, manifest)


def _rank_and_world() -> tuple[int, int]:
    """Read $RANK and $WORLD_SIZE, as torchrun sets them."""
    texts = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not all(text.isascii() and text.isdigit() for text in texts) or int(texts[0]) >= int(texts[1]):
        raise UsageError(
            f"$RANK {texts[0]} and $WORLD_SIZE {texts[1]}: give whole numbers, the rank from 0 below the size"
        )
    return int(texts[0]), int(texts[1])


def _tokenizer(request: Request, usual: str = "") -> "BytePairTokenizer":
    """Return the tokenizer that ``--tokenizer`` names, else the usual one of the data."""
    from paper_repro.datamodules import shard_writing, tokenizers

    given = request.words.settings.get("tokenizer", usual)
    if given in tokenizers.HUB:
        return tokenizers.known(given, request.text("to"), download=request.download)
    tokenizer = tokenizers.BytePairTokenizer.load(Path(given).expanduser())
    try:
        shard_writing.end_of_text(tokenizer)  # before any document is read
    except UsageError as error:
        raise UsageError(f"--tokenizer {given}: {error}") from error
    return tokenizer


def _write_shards(
    request: Request,
    folder: Path,
    splits: "Mapping[str, Documents]",
    source: Mapping[str, object],
    tokenizer: "BytePairTokenizer",
) -> None:
    from paper_repro.datamodules import shard_writing

    size = request.number("shard-tokens") or shard_writing.SHARD_TOKENS
    summary(folder, shard_writing.write_shards(folder, splits, source, tokenizer, size))


PREPARATIONS = {
    "docstrings": Preparation(docstrings, (*CORPUS, "vocabulary", "packages")),
    "shakespeare": Preparation(shakespeare, ("from",)),
    "openwebtext": Preparation(openwebtext, (*CORPUS, "from")),
    "slimpajama": Preparation(streamed, STREAMED),
    "redpajama": Preparation(streamed, (*STREAMED, "val-documents")),
    "fineweb": Preparation(streamed, (*STREAMED, "val-documents")),
    "pg19": Preparation(pg19, (*CORPUS, "from")),
}

"""All preparations of data, by their names in the command.

prepare_data.py celeba --download          CelebA; --from DIR: img_align_celeba/ and list_eval_partition.txt, or parquet
prepare_data.py coco --download            COCO 2014; --from DIR: train2014/ and val2014/, or parquet files
prepare_data.py imagenet --download        ImageNet-1k with labels; --from DIR: train/ and val/ with a folder for each
                                           class, or parquet files
prepare_data.py continuations              questions made from documentation-512 (--vocabulary 257: from that)
prepare_data.py documentation --download   the documentation of 145 Python projects, 42 MB of English prose;
                                           --from DIR: a folder of their source distributions
prepare_data.py openwebtext --download     OpenWebText, in GPT-2's token ids; --from PATH: parquet, jsonl or txt files,
                                           or a folder that datasets saved
prepare_data.py pg19 --download            PG19's 100 test books, in the ids of --tokenizer, that of the training data;
                                           --from DIR: a folder of .txt files, one for each book
prepare_data.py slimpajama --download      SlimPajama, in LLaMA's token ids; --from DIR: parquet or jsonl files
prepare_data.py redpajama --download       RedPajama-V2's sample, in GPT-NeoX's; fineweb: FineWeb's; --from DIR as above
prepare_data.py shakespeare --download     tiny Shakespeare; --from PATH: a copy of it
prepare_data.py something-something --from DIR   Something-Something V2 as latents of every frame, from the official
                                           clips and lists, or from train/ and validation/ with clips
prepare_data.py sudoku --from DIR          SATNet's features.pt and labels.pt and RRN's test.csv, anywhere below DIR
"""

import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, get_args

from paper_repro.base.errors import UsageError, Words
from paper_repro.base.files import DATA, DATA_VARIABLE, absent, find_data, sha256_of_bytes
from paper_repro.datamodules.array_shards import MANIFEST, Manifest
from paper_repro.datamodules.downloads import fetch, put
from paper_repro.datamodules.prepared_clips import LatentManifest
from paper_repro.datamodules.prepared_images import ImageManifest
from paper_repro.datamodules.token_shards import (
    SHARD_DOCUMENTS,
    SHARD_TOKENS,
    Rank,
    TokenManifest,
    write_shards,
    write_streams,
)

if TYPE_CHECKING:
    from paper_repro.datamodules.tokenizers import BytePairTokenizer

TO, FROM, FOLDER = "to", "from", "folder"
DEFAULT_VOCABULARY, QUESTIONS_VOCABULARY = 4096, 512
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
PG19_TEXTS = "pg19-texts"
SOURCES_FOLDER, SOURCES = "documentation-sources", "sources.json"
"""The folder of the source distributions, and the file beside the shards that lists them."""


@dataclass(frozen=True)
class Request:
    """What the command was asked for."""

    name: str
    root: Path
    folder: Path
    """Where these data belong."""
    source: Path | None
    download: bool
    verify: bool

    def check_source(self, where: str) -> None:
        """Raise UsageError if neither ``--from`` nor ``--download`` was given."""
        if self.source is None and not self.download:
            raise UsageError(f"{self.name}: {where}")


@dataclass(frozen=True)
class Preparation:
    """Prepares, or verifies, the data of one name."""

    make: Callable[..., None]
    """Prepares the data; its keyword parameters are the options.  Without a ``kind`` it also verifies them."""
    kind: type[Manifest] | None = None
    sized: str | None = None
    """The option that is part of the folder's name where its value is not the usual one."""
    reads: bool = True

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        found = inspect.signature(self.make).parameters.values()
        return {one.name.replace("_", "-"): one for one in found if one.kind is one.KEYWORD_ONLY}

    @property
    def options(self) -> list[str]:
        """The options that take a value."""
        common = [TO, *([FOLDER] if self.kind else []), *([FROM] if self.reads else [])]
        return [*common, *self.parameters]

    def run(self, name: str, words: Words) -> None:
        """Do what the command asks for."""
        values = {
            key: _value(key, words.settings[key], one) for key, one in self.parameters.items() if key in words.settings
        }
        place = words.settings.get(FOLDER, name)
        if self.sized and FOLDER not in words.settings:
            usual = self.parameters[self.sized].default
            size = values.get(self.sized, usual)
            place += "" if size == usual else f"-{size}"
        root = _root(words.settings.get(TO))
        source = Path(words.settings[FROM]).expanduser() if FROM in words.settings else None
        asked = Request(name, root, root / place, source, "--download" in words.flags, "--verify" in words.flags)
        if asked.verify and self.kind is not None:
            verify(asked.folder, self.kind)
        else:
            self.make(asked, **{key.replace("-", "_"): value for key, value in values.items()})


def _value(key: str, text: str, parameter: inspect.Parameter) -> int | str:
    """Return the value of an option; UsageError where a whole number above 0 is expected and something else found."""
    if int not in (parameter.annotation, *get_args(parameter.annotation)):
        return text
    plain = text.replace("_", "")
    if not plain.isdecimal() or not int(plain):
        raise UsageError(f"--{key} {text}: give a whole number above 0")
    return int(plain)


def _root(given: str | None) -> Path:
    """Return the folder of all data: ``--to``, else $PAPER_REPRO_DATA if that can be written, else data/ here."""
    if given is not None:
        return Path(given).expanduser()
    shared = os.environ.get(DATA_VARIABLE)
    return Path(shared) if shared and os.access(shared, os.W_OK) else DATA


def usage() -> str:
    """Return how all preparations are called: this module's docstring after its first paragraph."""
    return indent((__doc__ or "").partition("\n\n")[2], "    ").rstrip()


def verify(folder: Path, kind: type[Manifest]) -> None:
    """Read again what a manifest of a kind names, and print what it holds; UsageError if it is not what it says."""
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder / MANIFEST} is not there: give the command without --verify to prepare the data")
    try:
        manifest = kind.read(folder / MANIFEST)
        manifest.verify(folder)
    except UsageError as error:
        raise UsageError(f"{error}; give the command without --verify to make it again") from error
    summary(folder, manifest)


def summary(folder: Path, manifest: Manifest) -> None:
    """Print what a folder that was prepared holds."""
    print("\n".join(manifest.summary()))
    print(f"{folder / MANIFEST}: whole, {len(manifest.shards)} shards")


# Texts.


def shakespeare(request: Request) -> None:
    """Check a copy of tiny Shakespeare and put it in its place."""
    path = request.root / "tinyshakespeare" / "input.txt"
    source = request.source or path
    if source == path and not path.is_file():
        if not request.download or request.verify:
            raise UsageError(f"{path} is not there: give --from PATH, or --download to get it from {SHAKESPEARE_URL}")
        put(path, fetch(SHAKESPEARE_URL))
    if not source.is_file():
        raise UsageError(f"{source}: there is no such file")
    content = source.read_bytes()
    if (found := sha256_of_bytes(content)) != SHAKESPEARE_SHA256:
        raise UsageError(
            f"{source}: {len(content):,} bytes of SHA-256 {found[:12]}..., expected {SHAKESPEARE_SHA256[:12]}...: this "
            "is not tiny Shakespeare; remove it, and give --from PATH or --download"
        )
    if source != path and not request.verify:
        put(path, content)
    print(f"{path}: whole, {len(content):,} characters")


def openwebtext(
    request: Request, *, max_documents: int | None = None, shard_tokens: int = SHARD_TOKENS, tokenizer: str = "gpt2"
) -> None:
    """Write OpenWebText in GPT-2's token ids."""
    request.check_source("give --from PATH, or --download to get it from the hub (about 24 GB)")
    from paper_repro.datamodules import text_sources

    encoder = _tokenizer(request, tokenizer)
    print("reading the documents")
    documents = text_sources.openwebtext(request.source, max_documents)
    summary(request.folder, write_shards(request.folder, *documents, encoder, shard_tokens))


def documentation(
    request: Request,
    *,
    vocabulary: int = DEFAULT_VOCABULARY,
    shard_tokens: int = SHARD_TOKENS,
    tokenizer: str | None = None,
) -> None:
    """Write the documentation of pinned projects, in the ids of a tokenizer that is trained on its training split."""
    request.check_source("give --download to get the source distributions (650 MB), or --from DIR with them")
    from paper_repro.datamodules import documentation
    from paper_repro.datamodules.tokenizers import BytePairTokenizer

    if tokenizer is not None and vocabulary != DEFAULT_VOCABULARY:
        raise UsageError("--vocabulary is the size of a tokenizer to train, --tokenizer names a trained one: give one")
    encoder = None if tokenizer is None else _tokenizer(request, tokenizer)
    sources = request.source or request.root / SOURCES_FOLDER
    print(f"reading the source distributions in {sources}")
    corpus = documentation.collect(documentation.read_pins(), sources, request.download)
    if encoder is None:
        documents = corpus.splits["train"]
        print(f"training {vocabulary} byte pairs on {len(documents):,} documents")
        try:
            encoder = BytePairTokenizer.train(documents, vocabulary)
        except ValueError as error:
            raise UsageError(f"--vocabulary {vocabulary}: {error}") from error
    manifest = write_shards(request.folder, corpus.splits, corpus.source, encoder, shard_tokens)
    summary(request.folder, manifest)
    put(request.folder / SOURCES, json.dumps(corpus.projects, indent=1).encode() + b"\n")
    for split, share in corpus.source["13-grams in train"].items():
        print(f"{100 * share:.3f} % of the 13-grams of {split} occur in train")
    print(f"{request.folder / SOURCES}: projects, files and licences")


def pg19(
    request: Request, *, max_documents: int | None = None, shard_tokens: int = SHARD_TOKENS, tokenizer: str = "gpt2"
) -> None:
    """Write PG19's test books."""
    request.check_source("give --from DIR, or --download to get the 100 test books (about 40 MB)")
    from paper_repro.datamodules import text_sources

    encoder = _tokenizer(request, tokenizer)
    texts = request.source
    if texts is None:
        texts = request.root / PG19_TEXTS
        text_sources.download_books(texts)
    documents = text_sources.books(texts, max_documents)
    summary(request.folder, write_shards(request.folder, *documents, encoder, shard_tokens))


def slimpajama(
    request: Request, *, max_tokens: int | None = None, shard_documents: int = SHARD_DOCUMENTS, tokenizer: str = "llama"
) -> None:
    """Write as much of SlimPajama as is asked for; several processes may share the work."""
    from paper_repro.datamodules.text_sources import slimpajama

    _stream(request, partial(slimpajama, request.source), tokenizer, max_tokens, shard_documents)


def web_documents(
    request: Request,
    *,
    max_tokens: int | None = None,
    shard_documents: int = SHARD_DOCUMENTS,
    tokenizer: str = "gpt-neox",
    val_documents: int | None = None,
) -> None:
    """Write as much of RedPajama or FineWeb as is asked for; several processes may share the work."""
    from paper_repro.datamodules import text_sources

    held_out = val_documents or text_sources.VAL_DOCUMENTS
    read = partial(text_sources.web_documents, request.name, request.source, held_out)
    _stream(request, read, tokenizer, max_tokens, shard_documents)


def _stream(request: Request, read: Callable[[], Any], tokenizer: str, most: int | None, size: int) -> None:
    request.check_source("give --from DIR, or --download to stream it (--max-tokens says how far)")
    rank, encoder = _rank(), _tokenizer(request, tokenizer)
    parts, source = read()
    manifest = write_streams(request.folder, parts, source, encoder, most, size, rank)
    if manifest is None:
        print(f"rank {rank.index} of {rank.count} is done; the last to end writes {request.folder / MANIFEST}")
    else:
        summary(request.folder, manifest)


def _rank() -> Rank:
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not rank.isdecimal() or not size.isdecimal() or int(rank) >= int(size):
        raise UsageError(f"$RANK {rank} and $WORLD_SIZE {size}: give whole numbers, the rank from 0 below the size")
    return Rank(int(rank), int(size))


def _tokenizer(request: Request, name: str) -> "BytePairTokenizer":
    """Return the tokenizer of a name that is known, or of a file or folder."""
    from paper_repro.datamodules import tokenizers

    if name in tokenizers.HUB:
        return tokenizers.known(name, request.root, download=request.download)
    tokenizer = tokenizers.BytePairTokenizer.load(Path(name).expanduser())
    try:
        tokenizers.end_of_text(tokenizer)  # before any document is read
    except UsageError as error:
        raise UsageError(f"--tokenizer {name}: {error}") from error
    return tokenizer


# Images and clips.


def celeba(request: Request, *, hub: str | None = None, on_corrupt: str = "refuse", workers: int = 1) -> None:
    """Write CelebA's faces."""
    from paper_repro.datamodules.media_preparation import SHARD_FACES
    from paper_repro.datamodules.pixels import AlignedSquare

    _images(request, hub, on_corrupt, AlignedSquare(), workers, SHARD_FACES)


def squares(
    request: Request, *, hub: str | None = None, on_corrupt: str = "refuse", size: int = 128, workers: int = 1
) -> None:
    """Write the central squares of COCO's or ImageNet's images."""
    from paper_repro.datamodules.pixels import CentralSquare

    _images(request, hub, on_corrupt, CentralSquare(size), workers)


def _images(
    request: Request, hub: str | None, on_corrupt: str, crop: Any, workers: int, shard_images: int | None = None
) -> None:
    from paper_repro.datamodules.media_preparation import load_images, write_images

    skip = _skip(on_corrupt)
    if (request.source is None) == (not request.download) or (request.source is not None and hub):
        raise UsageError(
            f"{request.name}: give either --from DIR, or --download to get it from the hub (--hub names a copy)"
        )
    source = load_images(request.name, request.source, hub)
    summary(request.folder, write_images(request.folder, source, crop, skip, shard_images, workers=workers))


def something_something(
    request: Request,
    *,
    on_corrupt: str = "refuse",
    size: int = 224,
    vae: str = "stabilityai/sd-vae-ft-mse",
    workers: int = 1,
) -> None:
    """Write the latents of every frame of Something-Something V2."""
    if request.source is None:
        raise UsageError(f"{request.name}: give --from DIR, a folder with the clips; their site asks for an account")
    from paper_repro.datamodules import media_preparation as media

    skip = _skip(on_corrupt)
    source = media.load_clips(request.source)
    encoder = media.load_vae(vae, size, request.download)
    summary(request.folder, media.write_clips(request.folder, source, encoder, skip, workers=workers))


def _skip(on_corrupt: str) -> bool:
    if on_corrupt not in ("refuse", "skip"):
        raise UsageError(f"--on-corrupt {on_corrupt}: give refuse or skip")
    return on_corrupt == "skip"


# Boards and questions.


def sudoku(request: Request) -> None:
    """Check SATNet's and RRN's boards and put them in their place."""
    from paper_repro.datamodules import sudoku

    source = request.folder if request.verify else request.source
    if source is None:
        raise UsageError("sudoku: give --from DIR, a folder with SATNet's and RRN's files")
    found = sudoku.install(source, request.folder)
    for name, boards in found.items():
        givens = (boards[:, 0] > 0).sum(axis=1)
        print(f"{name}: {len(boards):,} boards of {givens.min()} to {givens.max()} givens")
    print(f"{request.folder}: whole, every solution checked")


def continuations(request: Request, *, vocabulary: int = QUESTIONS_VOCABULARY) -> None:
    """Write the questions of continuations and the files by which lm-eval finds them."""
    from paper_repro.datamodules import continuations

    folder = request.root / continuations.FOLDER.format(vocabulary=vocabulary)
    if request.verify:
        manifest = continuations.check(folder)
    else:
        name = f"documentation-{vocabulary}/{MANIFEST}"
        corpus = find_data(name, request.root)
        if corpus is None:
            command = f"python scripts/prepare_data.py documentation --download --vocabulary {vocabulary}"
            raise UsageError(absent(name, request.root, command))
        manifest = continuations.prepare(corpus.parent, folder)
    count = len(continuations.LETTERS)
    print(f"{count} tasks of {continuations.QUESTIONS} questions, from {manifest['corpus']['documents']:,} documents")
    print(f"{folder / MANIFEST}: whole, {len(manifest['files'])} files")


PREPARATIONS = {
    "sudoku": Preparation(sudoku),
    "continuations": Preparation(continuations, reads=False),
    "celeba": Preparation(celeba, ImageManifest),
    "coco": Preparation(squares, ImageManifest, sized="size"),
    "imagenet": Preparation(squares, ImageManifest, sized="size"),
    "documentation": Preparation(documentation, TokenManifest, sized="vocabulary"),
    "shakespeare": Preparation(shakespeare),
    "openwebtext": Preparation(openwebtext, TokenManifest),
    "slimpajama": Preparation(slimpajama, TokenManifest),
    "redpajama": Preparation(web_documents, TokenManifest),
    "fineweb": Preparation(web_documents, TokenManifest),
    "pg19": Preparation(pg19, TokenManifest),
    "something-something": Preparation(something_something, LatentManifest, sized="size"),
}

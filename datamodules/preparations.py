"""All preparations of data, by their names in the command.

prepare_data.py sudoku --from DIR              SATNet's features.pt and labels.pt and RRN's test.csv (sudoku-hard),
                                               anywhere below DIR
prepare_data.py continuations                     docstring continuations, from the validation documents of
                                                  docstrings-512; --vocabulary 2048: from docstrings-2048
prepare_data.py celeba --from DIR              CelebA from img_align_celeba/ and list_eval_partition.txt, or from
                                               the hub's parquet files, to 19 GB of pixels
prepare_data.py celeba --download              the same from the hub
prepare_data.py coco --from DIR --workers 16   COCO 2014 from train2014/ and val2014/, or from parquet files, as
                                               squares of --size 128; or --download
prepare_data.py imagenet --from DIR            ImageNet-1k with labels, from train/ and val/ with a folder for each
                                               class, or from parquet files; or --download
prepare_data.py documentation --download       the documentation of 145 Python projects, 42 MB of English prose;
                                               --vocabulary 512 in documentation-512 (default: 4096)
prepare_data.py documentation --from DIR       the same from a folder of source distributions
prepare_data.py docstrings                     the docstrings of Python, torch, numpy and scipy
prepare_data.py docstrings --vocabulary 2048   in a folder of its own, docstrings-2048 (default: 4096)
prepare_data.py docstrings --packages torch    of Python and these packages; comma between them, "none" for none
prepare_data.py shakespeare --from PATH        check a copy of tiny Shakespeare and put it in its place
prepare_data.py shakespeare --download         the same, from the network
prepare_data.py openwebtext --download         OpenWebText from the hub, in GPT-2's token ids
prepare_data.py openwebtext --from PATH        parquet, jsonl or txt files, or a folder that datasets saved
prepare_data.py slimpajama --download --max-tokens 3_260_000_000   as much of SlimPajama, in LLaMA's token ids
prepare_data.py slimpajama --from DIR          the same from a folder of parquet or jsonl files
prepare_data.py redpajama --download --max-tokens 1_000_000_000   RedPajama-V2's sample, in GPT-NeoX's token ids
prepare_data.py fineweb --download --max-tokens 1_000_000_000     FineWeb's sample, the same; both also --from DIR
prepare_data.py pg19 --download --tokenizer P  PG19's 100 test books, in the ids of the training data's tokenizer
prepare_data.py pg19 --from DIR --tokenizer P  the same from a folder of .txt files, one for each book
prepare_data.py something-something --from DIR --vae PATH   Something-Something V2 as latents of every frame, from
                                               the official clips and lists, or from train/ and validation/ with
                                               clips; without --vae the encoder of EBT's code from the hub, with
                                               --download (the clips ask for an account: get them otherwise)
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from paper_repro.base.errors import UsageError
from paper_repro.base.files import absent, find_data, sha256_of_bytes
from paper_repro.base.identity import other_text
from paper_repro.datamodules.array_shards import MANIFEST, Manifest
from paper_repro.datamodules.preparation import Request, fetch, put, summary, verify
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

DEFAULT_VOCABULARY, QUESTIONS_VOCABULARY = 4096, 512
DEFAULT_SIDE, DEFAULT_FRAME_SIDE = 128, 224
DEFAULT_VAE = "stabilityai/sd-vae-ft-mse"
SHAKESPEARE = "tinyshakespeare/input.txt"
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_CHARACTERS, SHAKESPEARE_VOCABULARY = 1_115_394, 65
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
PG19_TEXTS = "pg19-texts"
SOURCES_FOLDER, SOURCES = "documentation-sources", "sources.json"
"""The folder of the source distributions, and the file beside the shards that lists them."""
VERSIONS = "versions.json"
"""Says beside the docstrings which versions they were read from; the manifest, which ids follow from, does not."""


@dataclass(frozen=True)
class Preparation:
    """Prepares, or verifies, the data of one name."""

    make: Callable[[Request, Path], None]
    """Prepares the data in the folder; without a ``kind`` it also verifies them."""
    options: tuple[str, ...] = ()
    """The options that take a value, beside ``--to``."""
    kind: type[Manifest] | None = None
    """The manifest by which the data are verified."""
    folder: Callable[[Request], Path] = Request.folder

    def run(self, request: Request) -> None:
        """Do what the command asks for."""
        folder = self.folder(request)
        if request.verify and self.kind is not None:
            verify(folder, self.kind)
        else:
            self.make(request, folder)


def known() -> dict[str, Preparation]:
    """Return every preparation by its name."""
    return PREPARATIONS


def usage() -> str:
    """Return how all preparations are called: this module's docstring after its first paragraph."""
    return indent((__doc__ or "").partition("\n\n")[2], "    ").rstrip()


def shakespeare(request: Request, path: Path) -> None:
    """Check a copy of tiny Shakespeare and put it in its place."""
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
    found, characters = sha256_of_bytes(text.encode()), len(set(text))
    if found != SHAKESPEARE_SHA256 or characters != SHAKESPEARE_VOCABULARY:
        raise UsageError(
            f"{source}: {characters} distinct characters and SHA-256 {found[:12]}..., expected "
            f"{SHAKESPEARE_VOCABULARY} and {SHAKESPEARE_SHA256[:12]}...: this is not tiny Shakespeare; "
            "remove it, and give --from PATH or --download"
        )
    if source != path and not request.verify:
        put(path, text.encode())
    print(f"{path}: whole, {len(text):,} characters, {characters} distinct")


def openwebtext(request: Request, folder: Path) -> None:
    """Write OpenWebText in GPT-2's token ids."""
    request.check_source("give --from PATH, or --download to get it from the hub (about 24 GB)")
    from paper_repro.datamodules import text_sources, tokenizers

    tokenizer = _tokenizer(request, tokenizers.GPT2)
    print("reading the documents")
    documents, source = text_sources.openwebtext(request.source, request.number("max-documents"))
    _write_shards(request, folder, documents, source, tokenizer)


def documentation(request: Request, folder: Path) -> None:
    """Write the documentation of pinned projects, in the ids of a tokenizer that is trained on its training split."""
    request.check_source("give --download to get the source distributions (650 MB), or --from DIR with them")
    from paper_repro.datamodules import documentation

    tokenizer = _given_tokenizer(request, folder)
    sources = request.source or request.root / SOURCES_FOLDER
    print(f"reading the source distributions in {sources}")
    corpus = documentation.collect(documentation.read_pins(), sources, request.download)
    tokenizer = tokenizer or _trained(request, corpus.splits["train"])
    _write_shards(request, folder, corpus.splits, corpus.source, tokenizer)
    put(folder / SOURCES, json.dumps(corpus.projects, indent=1).encode() + b"\n")
    for split, share in corpus.source["13-grams in train"].items():
        print(f"{100 * share:.3f} % of the 13-grams of {split} occur in train")
    largest = max(corpus.projects, key=lambda one: one["characters"])
    whole = sum(one["characters"] for one in corpus.projects)
    print(f"{whole:,} characters, {100 * largest['characters'] / whole:.1f} % of them of {largest['project']}")
    print(f"{folder / SOURCES}: projects, files and licences")


def docstrings(request: Request, folder: Path) -> None:
    """Write the docstrings of installed packages, in the ids of a tokenizer that is trained on them."""
    from paper_repro.datamodules import docstrings

    tokenizer = _given_tokenizer(request, folder)
    given = request.text("packages") or ",".join(docstrings.PACKAGES)
    print("reading the docstrings")
    corpus = docstrings.collect([] if given == "none" else given.split(","), request.number("max-documents"))
    tokenizer = tokenizer or _trained(request, corpus.train)
    _write_shards(request, folder, {"train": corpus.train, "val": corpus.val}, corpus.source, tokenizer)
    put(folder / VERSIONS, json.dumps(corpus.versions, indent=1).encode() + b"\n")
    if told := other_text(folder / MANIFEST):
        print(told)


def _given_tokenizer(request: Request, folder: Path) -> "BytePairTokenizer | None":
    """Return the tokenizer that ``--tokenizer`` names, None where one is to be trained; make the folder of the data."""
    if None not in (request.text("vocabulary"), request.text("tokenizer")):
        raise UsageError("--vocabulary is the size of a tokenizer to train, --tokenizer names a trained one: give one")
    tokenizer = None if request.text("tokenizer") is None else _tokenizer(request)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # before minutes of reading
    except OSError as error:
        raise UsageError(f"{folder}: the folder cannot be made ({error.strerror}); give --to DIR") from error
    return tokenizer


def _trained(request: Request, documents: Sequence[str]) -> "BytePairTokenizer":
    """Return a tokenizer of ``--vocabulary`` byte pairs that is trained on documents."""
    from paper_repro.datamodules.tokenizers import BytePairTokenizer

    size = request.number("vocabulary") or DEFAULT_VOCABULARY
    print(f"training {size} byte pairs on {len(documents):,} documents")
    try:
        return BytePairTokenizer.train(documents, size)
    except ValueError as error:
        raise UsageError(f"--vocabulary {size}: {error}") from error


def pg19(request: Request, folder: Path) -> None:
    """Write PG19's test books."""
    request.check_source("give --from DIR, or --download to get the 100 test books (about 40 MB)")
    from paper_repro.datamodules import text_sources, tokenizers

    tokenizer = _tokenizer(request, tokenizers.GPT2)
    texts = request.source
    if texts is None:
        texts = request.root / PG19_TEXTS
        text_sources.download_books(texts)
    _write_shards(request, folder, *text_sources.books(texts, request.number("max-documents")), tokenizer)


def streamed(request: Request, folder: Path) -> None:
    """Write as much of a large corpus as is asked for; several processes may share the work."""
    request.check_source("give --from DIR, or --download to stream it (--max-tokens says how far)")
    from paper_repro.datamodules import text_sources, tokenizers

    slimpajama = request.name == "slimpajama"
    rank = _rank()
    most, size = request.number("max-tokens"), request.number("shard-documents") or SHARD_DOCUMENTS
    tokenizer = _tokenizer(request, tokenizers.LLAMA if slimpajama else tokenizers.NEOX)
    if slimpajama:
        parts, source = text_sources.slimpajama(request.source)
    else:
        held_out = request.number("val-documents") or text_sources.VAL_DOCUMENTS
        parts, source = text_sources.web_documents(request.name, request.source, held_out)
    manifest = write_streams(folder, parts, source, tokenizer, most, size, rank)
    if manifest is None:
        print(f"rank {rank.index} of {rank.count} is done; the last to end writes {folder / MANIFEST}")
    else:
        summary(folder, manifest)


def _rank() -> Rank:
    """Read $RANK and $WORLD_SIZE, as torchrun sets them."""
    texts = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not all(text.isascii() and text.isdigit() for text in texts) or int(texts[0]) >= int(texts[1]):
        raise UsageError(
            f"$RANK {texts[0]} and $WORLD_SIZE {texts[1]}: give whole numbers, the rank from 0 below the size"
        )
    return Rank(*map(int, texts))


def _tokenizer(request: Request, usual: str = "") -> "BytePairTokenizer":
    """Return the tokenizer that ``--tokenizer`` names, else the usual one of the data."""
    from paper_repro.datamodules import tokenizers

    given = request.text("tokenizer") or usual
    if given in tokenizers.HUB:
        return tokenizers.known(given, request.text("to"), download=request.download)
    tokenizer = tokenizers.BytePairTokenizer.load(Path(given).expanduser())
    try:
        tokenizers.end_of_text(tokenizer)  # before any document is read
    except UsageError as error:
        raise UsageError(f"--tokenizer {given}: {error}") from error
    return tokenizer


def _write_shards(request: Request, folder: Path, documents: Any, source: Any, tokenizer: "BytePairTokenizer") -> None:
    size = request.number("shard-tokens") or SHARD_TOKENS
    summary(folder, write_shards(folder, documents, source, tokenizer, size))


def images(request: Request, folder: Path) -> None:
    """Write CelebA's faces, or the central squares of COCO's or ImageNet's images."""
    from paper_repro.datamodules import image_preparation as preparing
    from paper_repro.datamodules.pixels import AlignedSquare, CentralSquare

    skip, workers, source, hub = _skip(request), request.number("workers") or 1, request.source, request.text("hub")
    if (source is None) == (not request.download) or (source is not None and hub):
        raise UsageError(
            f"{request.name}: give either --from DIR, or --download to get it from the hub (--hub names a copy)"
        )
    faces = request.name == "celeba"
    crop = AlignedSquare() if faces else CentralSquare(request.number("size") or DEFAULT_SIDE)
    found = preparing.load(request.name, source, hub)
    size = preparing.SHARD_FACES if faces else None
    summary(folder, preparing.write(folder, found, crop, skip, size, workers=workers))


def something_something(request: Request, folder: Path) -> None:
    """Write the latents of every frame of Something-Something V2."""
    if request.source is None:
        raise UsageError(f"{request.name}: give --from DIR, a folder with the clips; their site asks for an account")
    from paper_repro.datamodules import clip_preparation

    skip, workers = _skip(request), request.number("workers") or 1
    source = clip_preparation.load(request.source)
    side = request.number("size") or DEFAULT_FRAME_SIDE
    vae = clip_preparation.load_vae(request.text("vae") or DEFAULT_VAE, side, request.download)
    summary(folder, clip_preparation.write(folder, source, vae, skip, workers=workers))


def _skip(request: Request) -> bool:
    """Return whether unfit images and clips are left out."""
    found = request.text("on-corrupt") or "refuse"
    if found not in ("refuse", "skip"):
        raise UsageError(f"--on-corrupt {found}: give refuse or skip")
    return found == "skip"


def sudoku(request: Request, folder: Path) -> None:
    """Check SATNet's and RRN's boards and put them in their place."""
    from paper_repro.datamodules import sudoku

    if request.verify:
        found = sudoku.check(folder)
    elif request.source is None:
        raise UsageError("sudoku: give --from DIR, a folder with SATNet's and RRN's files")
    else:
        found = sudoku.install(request.source, folder)
    for name, boards in found.items():
        givens = (boards[:, 0] > 0).sum(axis=1)
        print(f"{name}: {len(boards):,} boards of {givens.min()} to {givens.max()} givens")
    print(f"{folder}: whole, every solution checked")


def continuations(request: Request, root: Path) -> None:
    """Write the questions of docstring continuations and the files by which lm-eval finds them."""
    from paper_repro.datamodules import continuations

    size = request.number("vocabulary") or QUESTIONS_VOCABULARY
    folder = root / continuations.FOLDER.format(vocabulary=size)
    if request.verify:
        manifest = continuations.check(folder)
    else:
        name = f"docstrings-{size}/{MANIFEST}"
        corpus = find_data(name, root)
        if corpus is None:
            raise UsageError(absent(name, root, f"python scripts/prepare_data.py docstrings --vocabulary {size}"))
        manifest = continuations.prepare(corpus.parent, folder)
    count = len(continuations.LETTERS)
    print(f"{count} tasks of {continuations.QUESTIONS} questions, from {manifest['corpus']['documents']:,} documents")
    print(f"{folder / MANIFEST}: whole, {len(manifest['files'])} files")


def _by_size(option: str, usual: int) -> Callable[[Request], Path]:
    """Return the function that names the folder of data: another size than the usual one is part of its name."""

    def folder(request: Request) -> Path:
        size = request.number(option) or usual
        return request.folder(request.name if size == usual else f"{request.name}-{size}")

    return folder


CORPUS = ("folder", "max-documents", "shard-tokens", "tokenizer")
STREAMED = ("folder", "max-tokens", "shard-documents", "tokenizer", "from")
CLIPS = ("folder", "from", "on-corrupt", "workers")
IMAGES = (*CLIPS, "hub")
SQUARES = Preparation(images, (*IMAGES, "size"), ImageManifest, _by_size("size", DEFAULT_SIDE))
WEB = Preparation(streamed, (*STREAMED, "val-documents"), TokenManifest)
PREPARATIONS = {
    "sudoku": Preparation(sudoku, ("from",), folder=lambda request: request.root / "sudoku"),
    "continuations": Preparation(continuations, ("vocabulary",), folder=lambda request: request.root),
    "celeba": Preparation(images, IMAGES, ImageManifest),
    "coco": SQUARES,
    "imagenet": SQUARES,
    "documentation": Preparation(
        documentation,
        ("folder", "shard-tokens", "tokenizer", "vocabulary", "from"),
        TokenManifest,
        _by_size("vocabulary", DEFAULT_VOCABULARY),
    ),
    "docstrings": Preparation(
        docstrings, (*CORPUS, "vocabulary", "packages"), TokenManifest, _by_size("vocabulary", DEFAULT_VOCABULARY)
    ),
    "shakespeare": Preparation(shakespeare, ("from",), folder=lambda request: request.root / SHAKESPEARE),
    "openwebtext": Preparation(openwebtext, (*CORPUS, "from"), TokenManifest),
    "slimpajama": Preparation(streamed, STREAMED, TokenManifest),
    "redpajama": WEB,
    "fineweb": WEB,
    "pg19": Preparation(pg19, (*CORPUS, "from"), TokenManifest),
    "something-something": Preparation(
        something_something, (*CLIPS, "size", "vae"), LatentManifest, _by_size("size", DEFAULT_FRAME_SIDE)
    ),
}

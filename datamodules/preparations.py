"""All preparations of data, by their names in the command.

celeba --download          CelebA; --from DIR: img_align_celeba/ and list_eval_partition.txt, or the hub's files
coco --download            COCO 2014; --from DIR: train2014/ and val2014/ with images, or the hub's files
imagenet --download        ImageNet-1k with labels; --from DIR: train/ and val/ with a folder of images for each class,
                           or the hub's files
continuations              questions made from documentation-512 (--vocabulary 257: from that)
documentation --download   the documentation of 145 Python projects, 42 MB of English prose; --from DIR: a folder of
                           their source distributions (650 MB)
openwebtext --download     OpenWebText (24 GB), in GPT-2's token ids; --from DIR: parquet or jsonl files
pg19 --download            PG19's 100 test books, in the ids of --tokenizer, that of the training data; --from DIR: as
                           above, a file called test.parquet or test.jsonl
slimpajama --download      SlimPajama, in LLaMA's token ids; --from DIR: parquet or jsonl files
redpajama --download       RedPajama-V2's sample, in GPT-NeoX's; fineweb: FineWeb's; --from DIR as above
shakespeare --download     tiny Shakespeare; --from PATH: a copy of it
something-something --from DIR   Something-Something V2 as latents of every frame, from the official clips and lists
"""

import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from paper_repro.base.errors import UsageError
from paper_repro.base.files import DATA, DATA_VARIABLE, absent, find_data, sha256_of_bytes
from paper_repro.datamodules.array_shards import MANIFEST, Manifest
from paper_repro.datamodules.downloads import fetch, put
from paper_repro.datamodules.token_shards import (
    SHARD_DOCUMENTS,
    SHARD_TOKENS,
    TokenManifest,
    write_shards,
    write_streams,
)

if TYPE_CHECKING:
    from paper_repro.datamodules.tokenizers import BytePairTokenizer

DEFAULT_VOCABULARY, QUESTIONS_VOCABULARY = 4096, 512
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
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


@dataclass(frozen=True)
class Preparation:
    """Prepares, or verifies, the data of one name."""

    make: Callable[..., Manifest | None]
    """Prepares the data; its keyword parameters are the options."""
    kind: type[Manifest] | None = None
    """The class of the manifest; None: there is none, so ``--folder`` and ``--verify`` are refused."""
    sized: str | None = None
    """The option that is part of the folder's name where its value is not the usual one."""

    def run(
        self,
        name: str,
        to: Path | None = None,
        folder: str | None = None,
        source: Path | None = None,
        download: bool = False,
        verify: bool = False,
        **options: Any,
    ) -> None:
        """Do what the command asks for; UsageError: an option that these data do not take."""
        taken = {key: one.default for key, one in inspect.signature(self.make).parameters.items() if key != "request"}
        common = {} if self.kind else {key: None for key, on in (("folder", folder), ("verify", verify)) if on}
        if refused := [key for key in {**options, **common} if key not in taken]:
            valid = ", ".join(f"--{key.replace('_', '-')}" for key in taken) or "no options of its own"
            raise UsageError(f"{name} takes no --{refused[0].replace('_', '-')} (valid: {valid})")
        size = options.get(self.sized, taken[self.sized]) if self.sized else None
        usual = not self.sized or size == taken[self.sized]
        root = to.expanduser() if to else _writable()
        place = root / (folder or (name if usual else f"{name}-{size}"))
        asked = Request(name, root, place, source and source.expanduser(), download)
        if self.kind and not (verify or source or download):
            raise UsageError(f"{name}: give --from PATH, or --download where its line in --help has it")
        manifest = check(place, self.kind) if verify and self.kind else self.make(asked, **options)
        if manifest is not None:
            print("\n".join(manifest.summary()))
            print(f"{place / MANIFEST}: whole, {len(manifest.shards)} shards")


def _writable() -> Path:
    """Return the folder of all data: $PAPER_REPRO_DATA if that can be written, else data/ here."""
    shared = os.environ.get(DATA_VARIABLE)
    return Path(shared) if shared and os.access(shared, os.W_OK) else DATA


def usage() -> str:
    """Return how all preparations are called: this module's docstring after its first paragraph."""
    return indent((__doc__ or "").partition("\n\n")[2], "    ").rstrip()


def check(folder: Path, kind: type[Manifest]) -> Manifest:
    """Read again what a manifest of a kind names, and return it; UsageError if something is not what it says."""
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder / MANIFEST} is not there: give the command without --verify to prepare the data")
    try:
        manifest = kind.read(folder / MANIFEST)
        manifest.verify(folder)
    except UsageError as error:
        raise UsageError(f"{error}; give the command without --verify to make it again") from error
    return manifest


# Texts.


def shakespeare(request: Request) -> None:
    """Check a copy of tiny Shakespeare and put it in its place."""
    path = request.root / "tinyshakespeare" / "input.txt"
    if request.source is not None and request.source.is_file():
        content = request.source.read_bytes()
    elif request.source is None and request.download:
        content = fetch(SHAKESPEARE_URL)
    else:
        raise UsageError(f"shakespeare: give --from FILE, or --download to get it from {SHAKESPEARE_URL}")
    if (found := sha256_of_bytes(content)) != SHAKESPEARE_SHA256:
        raise UsageError(
            f"{request.source or SHAKESPEARE_URL}: {len(content):,} bytes of SHA-256 {found[:12]}..., expected "
            f"{SHAKESPEARE_SHA256[:12]}...: this is not tiny Shakespeare"
        )
    put(path, content)
    print(f"{path}: whole, {len(content):,} characters")


def openwebtext(request: Request, *, tokenizer: str = "gpt2") -> Manifest:
    """Write OpenWebText in GPT-2's token ids."""
    from paper_repro.datamodules import text_sources

    encoder = _tokenizer(request, tokenizer)
    print("reading the documents")
    return write_shards(request.folder, *text_sources.openwebtext(request.source), encoder, SHARD_TOKENS)


def documentation(request: Request, *, vocabulary: int = DEFAULT_VOCABULARY) -> Manifest:
    """Write the documentation of pinned projects, in the ids of a tokenizer that is trained on its training split."""
    from paper_repro.datamodules import documentation
    from paper_repro.datamodules.tokenizers import BytePairTokenizer

    sources = request.source or request.root / SOURCES_FOLDER
    print(f"reading the source distributions in {sources}")
    corpus = documentation.collect(documentation.read_pins(), sources, request.download)
    documents = corpus.splits["train"]
    print(f"training {vocabulary} byte pairs on {len(documents):,} documents")
    try:
        encoder = BytePairTokenizer.train(documents, vocabulary)
    except ValueError as error:
        raise UsageError(f"--vocabulary {vocabulary}: {error}") from error
    manifest = write_shards(request.folder, corpus.splits, corpus.source, encoder, SHARD_TOKENS)
    put(request.folder / SOURCES, json.dumps(corpus.projects, indent=1).encode() + b"\n")
    for split, share in corpus.source["13-grams in train"].items():
        print(f"{100 * share:.3f} % of the 13-grams of {split} occur in train")
    print(f"{request.folder / SOURCES}: projects, files and licences")
    return manifest


def pg19(request: Request, *, tokenizer: str = "gpt2") -> Manifest:
    """Write PG19's test books."""
    from paper_repro.datamodules import text_sources

    encoder = _tokenizer(request, tokenizer)
    return write_shards(request.folder, *text_sources.books(request.source), encoder, SHARD_TOKENS)


def streams(request: Request, *, max_tokens: int | None = None, tokenizer: str | None = None) -> Manifest:
    """Write as much of SlimPajama, RedPajama or FineWeb as is asked for."""
    from paper_repro.datamodules import text_sources

    slimpajama = request.name == "slimpajama"
    encoder = _tokenizer(request, tokenizer or ("llama" if slimpajama else "gpt-neox"))
    if slimpajama:
        parts, source = text_sources.slimpajama(request.source)
    else:
        parts, source = text_sources.web_documents(request.name, request.source)
    return write_streams(request.folder, parts, source, encoder, max_tokens, SHARD_DOCUMENTS)


def _tokenizer(request: Request, name: str) -> "BytePairTokenizer":
    """Return the tokenizer of a name that is known, or of a file or folder."""
    from paper_repro.datamodules import tokenizers

    if name in tokenizers.HUB:
        return tokenizers.known(name, request.root, download=request.download)
    tokenizer = tokenizers.BytePairTokenizer.load(Path(name).expanduser())
    tokenizers.end_of_text(tokenizer)  # before any document is read
    return tokenizer


# Images and clips.


def celeba(request: Request, *, workers: int = 1) -> Manifest:
    """Write CelebA's faces."""
    from paper_repro.datamodules import media_preparation as media
    from paper_repro.datamodules.pixels import CELEBA_SIDE, aligned_square

    source = media.load_images(request.name, request.source)
    return media.write_images(request.folder, source, aligned_square, CELEBA_SIDE, workers)


def squares(request: Request, *, size: int = 128, workers: int = 1) -> Manifest:
    """Write the central squares of COCO's or ImageNet's images."""
    from paper_repro.datamodules import media_preparation as media
    from paper_repro.datamodules.pixels import central_square

    source = media.load_images(request.name, request.source)
    return media.write_images(request.folder, source, partial(central_square, size=size), size, workers)


def something_something(
    request: Request,
    *,
    size: int = 224,
    vae: str = "stabilityai/sd-vae-ft-mse",
    workers: int = 1,
) -> Manifest:
    """Write the latents of every frame of Something-Something V2."""
    if request.source is None:
        raise UsageError(f"{request.name}: give --from DIR, a folder with the clips; their site asks for an account")
    from paper_repro.datamodules import media_preparation as media

    source = media.load_clips(request.source)
    encoder = media.load_vae(vae, size, request.download)
    return media.write_clips(request.folder, source, encoder, workers)


# Questions.


def continuations(request: Request, *, vocabulary: int = QUESTIONS_VOCABULARY) -> None:
    """Write the questions of continuations and the files by which lm-eval finds them."""
    from paper_repro.datamodules import continuations

    if request.source is not None:
        raise UsageError("continuations takes no --from: it reads the documentation that was prepared")
    name = f"documentation-{vocabulary}/{MANIFEST}"
    corpus = find_data(name, request.root)
    if corpus is None:
        command = f"python scripts/prepare_data.py documentation --download --vocabulary {vocabulary}"
        raise UsageError(absent(name, request.root, command))
    folder = request.root / continuations.FOLDER.format(vocabulary=vocabulary)
    manifest = continuations.prepare(corpus.parent, folder)
    count = len(continuations.LETTERS)
    print(f"{count} tasks of {continuations.QUESTIONS} questions, from {manifest['corpus']['documents']:,} documents")
    print(f"{folder / MANIFEST}: whole, {len(manifest['files'])} files")


PREPARATIONS = {
    "continuations": Preparation(continuations),
    "celeba": Preparation(celeba, Manifest),
    "coco": Preparation(squares, Manifest, sized="size"),
    "imagenet": Preparation(squares, Manifest, sized="size"),
    "documentation": Preparation(documentation, TokenManifest, sized="vocabulary"),
    "shakespeare": Preparation(shakespeare),
    "openwebtext": Preparation(openwebtext, TokenManifest),
    "slimpajama": Preparation(streams, TokenManifest),
    "redpajama": Preparation(streams, TokenManifest),
    "fineweb": Preparation(streams, TokenManifest),
    "pg19": Preparation(pg19, TokenManifest),
    "something-something": Preparation(something_something, Manifest, sized="size"),
}

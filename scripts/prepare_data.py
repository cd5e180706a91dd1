"""Prepare the data that a table needs.

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
    prepare_data.py celeba --from DIR              CelebA from img_align_celeba/ and list_eval_partition.txt, or from
                                                   the hub's parquet files, to 19 GB of pixels
    prepare_data.py celeba --download              the same from the hub
    prepare_data.py coco --from DIR --workers 16   COCO 2014 from train2014/ and val2014/, or from parquet files, as
                                                   squares of --size 128; or --download
    prepare_data.py imagenet --from DIR            ImageNet-1k with labels, from train/ and val/ with a folder for each
                                                   class, or from parquet files; or --download
    prepare_data.py sudoku --from DIR              SATNet's features.pt and labels.pt and RRN's test.csv (sudoku-hard),
                                                   anywhere below DIR
    prepare_data.py docstrings --verify            read everything again that was prepared; changes nothing

    --to DIR            the folder of all data; without it $PAPER_REPRO_DATA if that can be written, else data/ here
    --folder NAME       of this preparation below DIR, where several tokenizers are in use  (all but shakespeare)
    --max-documents N   the first N documents only          (openwebtext, docstrings, pg19)
    --shard-tokens N    tokens of a file, about 67 million  (openwebtext, docstrings, pg19)
    --max-tokens N      the training documents up to the one that brings their tokens, an end of text after each, to N;
                        may be raised later; without it the whole stream        (slimpajama, redpajama, fineweb)
    --shard-documents N documents of a file, 65,536                             (slimpajama, redpajama, fineweb)
    --val-documents N   held-out documents, 2,048 of 0.05 %; 2,000 N are read for them       (redpajama, fineweb)
    --tokenizer PATH    tokenizer.json (byte-level as GPT-2's, or with byte fallback as LLaMA-2's), or a folder with one
                        or with vocab.json and merges.txt; or gpt2, the default of openwebtext and pg19, or llama,
                        that of slimpajama, or gpt-neox, that of redpajama and fineweb; docstrings trains its own
    --hub NAME          the data set's name on the hub          (celeba, coco, imagenet, as are the next two)
    --on-corrupt WHAT   of images that are damaged, or cannot be RGB without a change of colours: refuse or skip them
    --workers N         processes that decode images, 1; the files do not depend on it
    --size N            side of an image in pixels, 128; others lie in folders of their own, coco-64    (coco, imagenet)

What is streamed (slimpajama, redpajama, fineweb) may be prepared by several processes that see one folder: torchrun
--nproc-per-node 4 scripts/prepare_data.py slimpajama ...; each encodes its share of the blocks ($RANK of $WORLD_SIZE),
and the files do not depend on how many.
An interrupted preparation goes on with the same command, and a missing or damaged file is made again by it.
Exit codes: 0 done, 2 wrong usage or data, 130 interrupted.
"""

import os
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paper_repro.base.command_line import Words, parse, run_main
from paper_repro.base.data_files import DATA, DATA_VARIABLE
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.files import sha256_of_bytes, write_atomically

if TYPE_CHECKING:
    from paper_repro.datamodules.array_shards import Manifest
    from paper_repro.datamodules.shard_writing import Documents
    from paper_repro.datamodules.tokenizers import BytePairTokenizer

FLAGS = ("--verify", "--download", "--help", "-h")
COMMON = ("to",)
IMAGES = (*COMMON, "folder", "from", "hub", "on-corrupt", "workers")
CORPUS = (*COMMON, "folder", "max-documents", "shard-tokens", "tokenizer")
STREAMED = (*COMMON, "folder", "max-tokens", "shard-documents", "tokenizer", "from")
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "openwebtext": (*CORPUS, "from"),
    "shakespeare": (*COMMON, "from"),
    "docstrings": (*CORPUS, "vocabulary", "packages"),
    "pg19": (*CORPUS, "from"),
    "slimpajama": STREAMED,
    "redpajama": (*STREAMED, "val-documents"),
    "fineweb": (*STREAMED, "val-documents"),
    "celeba": IMAGES,
    "coco": (*IMAGES, "size"),
    "imagenet": (*IMAGES, "size"),
    "sudoku": (*COMMON, "from"),
}
SETTINGS = tuple(dict.fromkeys(name for names in OPTIONS.values() for name in names))
DEFAULT_VOCABULARY = 4096
SHAKESPEARE = "tinyshakespeare/input.txt"
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_CHARACTERS, SHAKESPEARE_VOCABULARY = 1_115_394, 65
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
DEFAULT_SIDE = 128
PG19_TEXTS = "pg19-texts"
SECONDS_OF_SILENCE = 60


def main(arguments: Sequence[str]) -> int:
    words = parse(list(_joined(arguments)), FLAGS, SETTINGS)
    if words.flags & {"--help", "-h"} or not arguments:
        print(__doc__)
        return 0 if arguments else 2
    if len(words.names) != 1:
        raise UsageError(f"give one of {', '.join(OPTIONS)}, got {' '.join(words.names) or 'none'}")
    name = words.names[0]
    if name not in OPTIONS:
        raise UsageError(f"unknown data {name!r}{nearest(name, OPTIONS)}")
    if words.overrides:
        raise UsageError(f"unknown word {words.overrides[0]!r}{nearest(words.overrides[0], SETTINGS)}")
    for key in words.settings:
        if key not in OPTIONS[name]:
            valid = ", ".join(f"--{option}" for option in OPTIONS[name])
            raise UsageError(f"{name} takes no --{key} (valid: {valid})")
    root = _root(words)
    prepare: Mapping[str, Callable[[Words, Path], None]] = {
        "openwebtext": _openwebtext,
        "shakespeare": _shakespeare,
        "docstrings": _docstrings,
        "pg19": _pg19,
        "sudoku": _sudoku,
        **{corpus: partial(_streamed, corpus) for corpus in ("slimpajama", "redpajama", "fineweb")},
        **{images: partial(_images, images) for images in ("celeba", "coco", "imagenet")},
    }
    prepare[name](words, root)
    return 0


def _joined(arguments: Sequence[str]) -> Iterator[str]:
    """Join ``--key value`` and ``--key=value`` to the word ``key=value``."""
    words = iter(arguments)
    for word in words:
        key, equals, _ = word.removeprefix("--").partition("=")
        if not word.startswith("--") or key not in SETTINGS:
            if word.startswith("-") and word not in FLAGS:
                raise UsageError(f"unknown option {word}{nearest(word, [*FLAGS, *(f'--{name}' for name in SETTINGS)])}")
            yield word
        elif equals:
            yield word.removeprefix("--")
        else:
            value = next(words, "--")
            if value.startswith("--"):
                raise UsageError(f"{word} needs a value")
            yield f"{key}={value}"


def _root(words: Words) -> Path:
    if "to" in words.settings:
        return Path(words.settings["to"]).expanduser()
    shared = os.environ.get(DATA_VARIABLE)
    return Path(shared) if shared and os.access(shared, os.W_OK) else DATA


def _number(words: Words, name: str, default: int | None) -> int | None:
    text = words.settings.get(name)
    if text is None:
        return default
    plain = text.replace("_", "")
    if not plain.isascii() or not plain.isdigit() or not int(plain):
        raise UsageError(f"--{name} {text}: give a whole number above 0")
    return int(plain)


def _shakespeare(words: Words, root: Path) -> None:
    from paper_repro.datamodules.text import read_text

    path = root / SHAKESPEARE
    given = words.settings.get("from")
    if given is not None:
        source = Path(given).expanduser()
        source = source / "input.txt" if source.is_dir() else source
        if not source.is_file():
            raise UsageError(f"{source}: there is no such file")
    else:
        source = path
        if not path.is_file():
            if "--download" not in words.flags or "--verify" in words.flags:
                raise UsageError(
                    f"{path} is not there: give --from PATH, or --download to get it from {SHAKESPEARE_URL}"
                )
            _write(path, _fetch(SHAKESPEARE_URL))
    text = read_text(source, SHAKESPEARE_CHARACTERS)
    found = sha256_of_bytes(text.encode())
    if found != SHAKESPEARE_SHA256 or len(set(text)) != SHAKESPEARE_VOCABULARY:
        raise UsageError(
            f"{source}: {len(set(text))} distinct characters and SHA-256 {found[:12]}..., expected "
            f"{SHAKESPEARE_VOCABULARY} and {SHAKESPEARE_SHA256[:12]}...: this is not tiny Shakespeare; "
            "remove it, and give --from PATH or --download"
        )
    if source != path and "--verify" not in words.flags:
        _write(path, text.encode())
    print(f"{path if source != path else source}: whole, {len(text):,} characters, {len(set(text))} distinct")


def _fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_OF_SILENCE) as answer:
            content: bytes = answer.read()
    except OSError as error:
        raise UsageError(f"{url} did not answer ({error}): get the file elsewhere and give --from PATH") from error
    return content


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UsageError(f"{path}: could not be written ({error.strerror}): make room, or give another --to") from error


def _openwebtext(words: Words, root: Path) -> None:
    folder = root / words.settings.get("folder", "openwebtext")
    if "--verify" in words.flags:
        _verify(folder)
        return
    given = words.settings.get("from")
    if given is None and "--download" not in words.flags:
        raise UsageError("openwebtext: give --from PATH, or --download to get it from the hub (about 24 GB)")
    from paper_repro.datamodules import openwebtext, tokenizers

    tokenizer = _tokenizer(words) or tokenizers.known(tokenizers.GPT2, root, download="--download" in words.flags)
    print("reading the documents")
    corpus = openwebtext.load(Path(given).expanduser() if given else None, _number(words, "max-documents", None))
    _write_shards(words, folder, {"train": corpus.train, "val": corpus.val}, corpus.source, tokenizer)


def _docstrings(words: Words, root: Path) -> None:
    from paper_repro.datamodules import docstrings
    from paper_repro.datamodules.tokenizers import BytePairTokenizer

    size = _number(words, "vocabulary", DEFAULT_VOCABULARY) or DEFAULT_VOCABULARY
    usual = "docstrings" if size == DEFAULT_VOCABULARY else f"docstrings-{size}"
    folder = root / words.settings.get("folder", usual)
    if "--verify" in words.flags:
        _verify(folder)
        return
    given = words.settings.get("packages", ",".join(docstrings.PACKAGES))
    print("reading the docstrings")
    corpus = docstrings.collect([] if given == "none" else given.split(","), _number(words, "max-documents", None))
    tokenizer = _tokenizer(words)
    if tokenizer is None:
        print(f"training {size} byte pairs on {len(corpus.train):,} documents")
        try:
            tokenizer = BytePairTokenizer.train(corpus.train, size)
        except ValueError as error:
            raise UsageError(f"--vocabulary {size}: {error}") from error
    elif "vocabulary" in words.settings:
        raise UsageError("--vocabulary is the size of a tokenizer to train, --tokenizer names a trained one: give one")
    _write_shards(words, folder, {"train": corpus.train, "val": corpus.val}, corpus.source, tokenizer)


def _pg19(words: Words, root: Path) -> None:
    folder = root / words.settings.get("folder", "pg19")
    if "--verify" in words.flags:
        _verify(folder)
        return
    given = words.settings.get("from")
    if given is None and "--download" not in words.flags:
        raise UsageError("pg19: give --from DIR, or --download to get the 100 test books (about 40 MB)")
    from paper_repro.datamodules import pg19, tokenizers

    tokenizer = _tokenizer(words) or tokenizers.known(tokenizers.GPT2, root, download="--download" in words.flags)
    texts = root / PG19_TEXTS if given is None else Path(given).expanduser()
    if given is None:
        pg19.download(texts, _fetch)
    books, source = pg19.load(texts, _number(words, "max-documents", None))
    _write_shards(words, folder, {pg19.TEST: books}, source, tokenizer)


def _streamed(name: str, words: Words, root: Path) -> None:
    folder = root / words.settings.get("folder", name)
    if "--verify" in words.flags:
        _verify(folder)
        return
    given = words.settings.get("from")
    if given is None and "--download" not in words.flags:
        raise UsageError(f"{name}: give --from DIR, or --download to stream it (--max-tokens says how far)")
    from paper_repro.datamodules import slimpajama, stream_shards, tokenizers, web_documents

    rank = stream_shards.Rank(*_rank_and_world())
    most = _number(words, "max-tokens", None)
    size = _number(words, "shard-documents", None) or stream_shards.SHARD_DOCUMENTS
    usual = tokenizers.LLAMA if name == "slimpajama" else tokenizers.NEOX
    tokenizer = _tokenizer(words) or tokenizers.known(usual, root, download="--download" in words.flags)
    path = Path(given).expanduser() if given else None
    if name == "slimpajama":
        parts, source = slimpajama.load(path)
    else:
        held_out = _number(words, "val-documents", None) or web_documents.VAL_DOCUMENTS
        parts, source = web_documents.load(name, path, held_out)
    manifest = stream_shards.write_streams(folder, parts, source, tokenizer, most, size, rank)
    if manifest is None:
        print(f"rank {rank.index} of {rank.count} is done; the last to end writes {folder / 'manifest.json'}")
    else:
        _summary(folder, manifest)


def _images(name: str, words: Words, root: Path) -> None:
    from paper_repro.datamodules import celeba_preparation, encoded_images, image_preparation
    from paper_repro.datamodules.image_decoding import CentralSquare
    from paper_repro.datamodules.image_shards import ImageManifest

    side = _number(words, "size", None) or DEFAULT_SIDE
    folder = root / words.settings.get("folder", name if side == DEFAULT_SIDE else f"{name}-{side}")
    if "--verify" in words.flags:
        _verify(folder, ImageManifest)
        return
    given, hub = words.settings.get("from"), words.settings.get("hub")
    on_corrupt = words.settings.get("on-corrupt", image_preparation.REFUSE)
    if on_corrupt not in image_preparation.ON_CORRUPT:
        raise UsageError(f"--on-corrupt {on_corrupt}: give {' or '.join(image_preparation.ON_CORRUPT)}")
    if (given is None) == ("--download" not in words.flags) or (given is not None and hub is not None):
        raise UsageError(f"{name}: give either --from DIR, or --download to get it from the hub (--hub names a copy)")
    path = None if given is None else Path(given).expanduser()
    skip, workers = on_corrupt == image_preparation.SKIP, _number(words, "workers", None) or 1
    if name == "celeba":
        source = celeba_preparation.load(path, hub)
        manifest = celeba_preparation.write(folder, source, skip, workers=workers)
    else:
        source = encoded_images.load(name, path, hub)
        manifest = image_preparation.write(folder, source, CentralSquare(side), skip, workers=workers)
    _summary(folder, manifest)


def _sudoku(words: Words, root: Path) -> None:
    from paper_repro.datamodules import sudoku_files

    folder, given = root / sudoku_files.FOLDER, words.settings.get("from")
    if "--verify" in words.flags:
        found = sudoku_files.check(folder)
    elif given is None:
        raise UsageError("sudoku: give --from DIR, a folder with SATNet's and RRN's files")
    else:
        found = sudoku_files.install(Path(given).expanduser(), folder)
    for name, boards in found.items():
        givens = (boards[:, 0] > 0).sum(axis=1)
        print(f"{name}: {len(boards):,} boards of {givens.min()} to {givens.max()} givens")
    print(f"{folder}: whole, every solution checked")


def _rank_and_world() -> tuple[int, int]:
    """Read $RANK and $WORLD_SIZE, as torchrun sets them."""
    texts = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not all(text.isascii() and text.isdigit() for text in texts) or int(texts[0]) >= int(texts[1]):
        raise UsageError(
            f"$RANK {texts[0]} and $WORLD_SIZE {texts[1]}: give whole numbers, the rank from 0 below the size"
        )
    return int(texts[0]), int(texts[1])


def _tokenizer(words: Words) -> "BytePairTokenizer | None":
    from paper_repro.datamodules import shard_writing, tokenizers

    given = words.settings.get("tokenizer")
    if given is None:
        return None
    if given in tokenizers.HUB:
        return tokenizers.known(given, words.settings.get("to"), download="--download" in words.flags)
    tokenizer = tokenizers.BytePairTokenizer.load(Path(given).expanduser())
    try:
        shard_writing.end_of_text(tokenizer)  # before any document is read
    except UsageError as error:
        raise UsageError(f"--tokenizer {given}: {error}") from error
    return tokenizer


def _write_shards(
    words: Words,
    folder: Path,
    splits: "Mapping[str, Documents]",
    source: Mapping[str, object],
    tokenizer: "BytePairTokenizer",
) -> None:
    from paper_repro.datamodules import shard_writing

    size = _number(words, "shard-tokens", None) or shard_writing.SHARD_TOKENS
    _summary(folder, shard_writing.write_shards(folder, splits, source, tokenizer, size))


def _verify(folder: Path, kind: "type[Manifest] | None" = None) -> None:
    """Read again what a manifest of token shards, or of another kind, names."""
    from paper_repro.datamodules.array_shards import MANIFEST
    from paper_repro.datamodules.token_shards import TokenManifest

    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder / MANIFEST} is not there: give the command without --verify to prepare the data")
    try:
        manifest = (kind or TokenManifest).read(folder / MANIFEST)
        manifest.verify(folder)
    except UsageError as error:
        raise UsageError(f"{error}; give the command without --verify to make it again") from error
    _summary(folder, manifest)


def _summary(folder: Path, manifest: "Manifest") -> None:
    print("\n".join(manifest.summary()))
    print(f"{folder / 'manifest.json'}: whole, {len(manifest.shards)} shards")


if __name__ == "__main__":
    sys.exit(run_main(main))

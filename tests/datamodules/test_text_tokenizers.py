"""Tokenizers: of characters, of byte pairs, and of LLaMA-2's structure: blanks as U+2581, bytes for what is no id."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paper_repro.base import files
from paper_repro.base.errors import UsageError
from paper_repro.datamodules import preparations
from paper_repro.datamodules.text import TokenData
from paper_repro.datamodules.tokenizers import (
    END_OF_TEXT,
    END_TOKENS,
    GPT2,
    BytePairTokenizer,
    CharacterTokenizer,
    known,
)
from paper_repro.scripts import prepare_data
from paper_repro.tests.support.prepared import texts as written

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


TEXTS = ["the cat sat on the mat", "the dog sat on the log", "ein Mädchen saß dort"] * 5


@pytest.fixture
def trained() -> BytePairTokenizer:
    return BytePairTokenizer.train(TEXTS, 300)


def test_characters_get_ids_in_their_order_and_an_unknown_one_is_named_with_its_place() -> None:
    tokenizer = CharacterTokenizer("hello\nwörld")
    assert tokenizer.characters == "\ndehlorwö" and tokenizer.encode("hello") == [3, 2, 4, 4, 5]
    assert tokenizer.decode(tokenizer.encode("wörld\n")) == "wörld\n"
    with pytest.raises(UsageError, match=r"'%' \(U\+0025\) at position 2 .* 2 of the vocabulary, 'ab'"):
        CharacterTokenizer("ab").encode("ab%")
    with pytest.raises(ValueError, match="at least one character"):
        CharacterTokenizer("")


def test_byte_pairs_give_back_every_text(trained: BytePairTokenizer) -> None:
    assert trained.end_of_text == 0 and 257 < trained.vocabulary_size <= 300
    for text in ("the cat", "  two  blanks\n\n", "日本語 ünï", "\x00\x7f", "", f"a{END_OF_TEXT}b"):
        assert trained.decode(trained.encode(text)) == text and trained.end_of_text not in trained.encode(text)
    assert len(trained.encode("the cat sat")) < len("the cat sat")
    assert list(trained.encode_many(TEXTS[:3])) == [trained.encode(text) for text in TEXTS[:3]]


def test_the_fingerprint_is_of_the_content(trained: BytePairTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "any name.json"
    path.write_bytes(trained.to_bytes())
    assert BytePairTokenizer.load(path).fingerprint == trained.fingerprint
    assert BytePairTokenizer.train(TEXTS, 300).fingerprint == trained.fingerprint
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = (token for token, index in vocabulary.items() if index in (1, 2))
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(content))
    assert BytePairTokenizer.load(path).fingerprint != trained.fingerprint
    assert CharacterTokenizer("ab").fingerprint != CharacterTokenizer("ac").fingerprint


def test_gpt2_is_found_among_the_data_or_its_places_are_told(trained, tmp_path, monkeypatch):
    monkeypatch.setenv(files.DATA_VARIABLE, str(tmp_path / "shared"))
    monkeypatch.setattr(files, "DATA", tmp_path / "data")
    with pytest.raises(UsageError, match="run: hf download") as caught:
        known(GPT2, tmp_path / "root")
    assert all(str(tmp_path / place / "gpt2") in str(caught.value) for place in ("root", "shared", "data"))
    (tmp_path / "data" / "gpt2").mkdir(parents=True)
    (tmp_path / "data" / "gpt2" / "tokenizer.json").write_bytes(trained.to_bytes())
    assert known(GPT2, tmp_path / "root").fingerprint == trained.fingerprint


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    with pytest.raises(UsageError, match=r"expected tokenizer.json, found none"):
        BytePairTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b'{"model": 1}')
    with pytest.raises(UsageError, match="cannot read it"):
        BytePairTokenizer.load(tmp_path)
    Library(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UsageError, match="loses characters"):
        BytePairTokenizer.load(tmp_path)


DOCUMENTS = [
    f"Document {index} of the corpus,  with two blanks.\n\n\tIt {'says more ' * (index % 5)}and ends </s> here: ü 日 🙂"
    for index in range(40)
]
SPECIAL = ("<unk>", "<s>", "</s>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def library(special: tuple[str, ...] = SPECIAL) -> "Library":
    """The structure of LLaMA-2's tokenizer.json, with two merges and the documents' characters but for two."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    letters = sorted(set("".join(DOCUMENTS).replace(" ", "▁")) - set("日🙂\n\t"))
    names = [*special, *BYTES, *letters, "▁c", "▁co"]
    built = Tokenizer(
        models.BPE(
            {name: index for index, name in enumerate(names)},
            [("▁", "c"), ("▁c", "o")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    built.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    built.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    built.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    if "<s>" in special:
        start = ("<s>", built.token_to_id("<s>"))
        built.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", special_tokens=[start])
    return built


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BytePairTokenizer:
    path = tmp_path_factory.mktemp("llama") / "tokenizer.json"
    library().save(str(path))
    return BytePairTokenizer.load(path)


def test_texts_come_back_whole_and_nothing_is_added(tokenizer: BytePairTokenizer) -> None:
    assert tokenizer.end_of_text == SPECIAL.index("</s>")
    blanks = ["  Two  blanks,\ttab\r\n\n\uff21\u00c9e\u0301", "", " ", "\n", " a "]
    texts = [*DOCUMENTS[:5], *blanks, "<s>", "</s>", "<unk>", "<0x0A>", "\x00🙂"]
    for text in texts:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text and not {0, 1, 2} & set(ids)
    assert list(tokenizer.encode_many(texts)) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.library.encode("ends").ids[0] == 1, "without add_special_tokens=False there is a <s>"


def test_a_character_without_an_id_becomes_its_bytes(tokenizer: BytePairTokenizer) -> None:
    first = tokenizer.library.token_to_id("<0x00>")
    blank = tokenizer.library.token_to_id("▁")
    assert tokenizer.encode("日\n") == [blank, *(first + byte for byte in "日\n".encode())]
    assert len(tokenizer.encode("ü")) == 2 and len(tokenizer.encode("corpus")) < len("corpus")


def prepare(folder: Path) -> Path:
    lines = [json.dumps({"text": text}) for text in DOCUMENTS]
    (folder / "corpus").mkdir()
    (folder / "corpus" / "part.jsonl").write_text("\n".join(lines) + "\n")
    given = ["--from", str(folder / "corpus"), "--tokenizer", str(folder / "tokenizer.json"), "--to", str(folder)]
    assert prepare_data.main(["openwebtext", *given, "--folder", "openwebtext-llama2"]) == 0
    return folder / "openwebtext-llama2"


def test_a_prepared_corpus_is_read_in_its_ids(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(preparations, "SHARD_TOKENS", 900)
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.to_bytes())
    folder = prepare(tmp_path)
    assert prepare_data.main(["openwebtext", "--verify", "--folder", folder.name, "--to", str(tmp_path)]) == 0
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["tokenizer"]["end_of_text"] == 2 and len(manifest["shards"]) > 2
    size = tokenizer.vocabulary_size
    data = TokenData({"manifest": f"{folder.name}/manifest.json"}, 2, 16, 1, vocabulary_size=size, data_root=tmp_path)
    assert data.tokenizer.fingerprint == tokenizer.fingerprint == data.data_hashes()["tokenizer"]
    assert sorted(written(folder, "train", tokenizer) + written(folder, "val", tokenizer)) == sorted(DOCUMENTS)


def test_a_tokenizer_that_cannot_end_a_text_is_refused_before_the_corpus_is_read(tmp_path: Path) -> None:
    library(special=("<unk>",)).save(str(tmp_path / "tokenizer.json"))
    assert BytePairTokenizer.load(tmp_path).end_of_text is None
    words = ["openwebtext", "--from", str(tmp_path / "absent.jsonl"), "--tokenizer", str(tmp_path / "tokenizer.json")]
    with pytest.raises(UsageError, match="no token that ends a document") as caught:
        prepare_data.main([*words, "--to", str(tmp_path)])
    assert all(token in str(caught.value) for token in END_TOKENS)

import json
from pathlib import Path

import pytest

from paper_repro.base import files
from paper_repro.base.errors import UsageError
from paper_repro.datamodules.tokenizers import (
    END_OF_TEXT,
    GPT2,
    BytePairTokenizer,
    CharacterTokenizer,
    Tokenizer,
    known,
)

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
    assert isinstance(trained, Tokenizer)
    assert trained.end_of_text == 0 and 257 < trained.vocabulary_size <= 300
    for text in ("the cat", "  two  blanks\n\n", "日本語 ünï", "\x00\x7f", ""):
        assert trained.decode(trained.encode(text)) == text
    assert len(trained.encode("the cat sat")) < len("the cat sat")
    assert list(trained.encode_many(TEXTS[:3])) == [trained.encode(text) for text in TEXTS[:3]]


def test_the_name_of_the_end_of_text_within_a_document_is_ordinary_text(trained: BytePairTokenizer) -> None:
    ids = trained.encode(f"a{END_OF_TEXT}b")
    assert trained.end_of_text not in ids and trained.decode(ids) == f"a{END_OF_TEXT}b"


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


def test_gpt2_is_found_among_the_data_or_its_places_are_told(
    trained: BytePairTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with pytest.raises(UsageError, match=r"neither a byte-level tokenizer.* nor one with byte_fallback"):
        BytePairTokenizer.load(tmp_path)

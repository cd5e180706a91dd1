"""Tokenizers of LLaMA-2's structure: blanks as U+2581, one before each text, bytes for what is no id, </s> as end."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.text import TokenData
from paper_repro.datamodules.tokenizers import END_TOKENS, ROUND_TRIP, BytePairTokenizer
from paper_repro.scripts import prepare_data
from paper_repro.tests.support.prepared import texts as written

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

DOCUMENTS = [
    f"Document {index} of the corpus,  with two blanks.\n\n\tIt {'says more ' * (index % 5)}and ends </s> here: ü 日 🙂"
    for index in range(40)
]
SPECIAL = ("<unk>", "<s>", "</s>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def library(special: tuple[str, ...] = SPECIAL, spelled: tuple[str, ...] = BYTES) -> "Library":
    """The structure of LLaMA-2's tokenizer.json, its merges learnt from the documents' ASCII."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.Metaspace()
    plain = [" ".join(text.encode("ascii", "ignore").decode().replace("</s>", "").split()) for text in DOCUMENTS]
    learnt.train_from_iterator(plain, trainers.BpeTrainer(vocab_size=120, show_progress=False))
    found = json.loads(learnt.to_str())["model"]
    names = [*special, *spelled, *found["vocab"], "ü"]
    built = Tokenizer(
        models.BPE(
            {name: index for index, name in enumerate(names)},
            [(first, second) for first, second in found["merges"]],
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
    texts = [*DOCUMENTS[:5], ROUND_TRIP, "", " ", "\n", " a ", "<s>", "</s>", "<unk>", "<0x0A>", "\x00🙂"]
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
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    given = ["--from", str(folder / "corpus.jsonl"), "--tokenizer", str(folder / "tokenizer.json"), "--to", str(folder)]
    more = ["--folder", "openwebtext-llama2", "--shard-tokens", "900"]
    assert prepare_data.main(["openwebtext", *given, *more]) == 0
    return folder / "openwebtext-llama2"


def test_a_prepared_corpus_is_read_in_its_ids(tmp_path: Path, tokenizer: BytePairTokenizer) -> None:
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
    assert all(token in str(caught.value) for token in (*END_TOKENS, "tokenizer.json"))


def test_a_tokenizer_that_loses_text_is_refused(tmp_path: Path) -> None:
    from tokenizers import normalizers

    path = tmp_path / "tokenizer.json"
    library(spelled=BYTES[:-1]).save(str(path))
    with pytest.raises(UsageError, match=r"characters would be lost \(no <0xFF>\)"):
        BytePairTokenizer.load(path)
    folding = library()
    folding.normalizer = normalizers.Sequence([normalizers.NFKC(), folding.normalizer])
    folding.save(str(path))
    with pytest.raises(UsageError, match="its normalizer or decoder alters texts"):
        BytePairTokenizer.load(path)

from pathlib import Path

import numpy as np
import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.text import CharacterData, TokenData
from paper_repro.datamodules.token_shards import TokenManifest, write_shards
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.tests.support.prepared import said_of

PROSE = "".join(f"Line {index}: to be, or not to be.\n" for index in range(60))
DOCUMENTS = [f"Document {index} says {'word ' * (index % 7)}and ends." for index in range(80)]
TOKENIZER = BytePairTokenizer.train(DOCUMENTS, 300)


def prose(root: Path, content: bytes = PROSE.encode(), **others: object) -> CharacterData:
    root.mkdir(exist_ok=True)
    (root / "input.txt").write_bytes(content)
    sizes = {"batch_size": 4, "window": 16, "num_evaluation_batches": 3}
    return CharacterData({"text": "input.txt"}, data_root=root, **{**sizes, **others})  # type: ignore[arg-type]


def shards(root: Path, shard_tokens: int = 100, **others: object) -> TokenData:
    splits = {"train": DOCUMENTS[:60], "val": DOCUMENTS[60:]}
    write_shards(root / "corpus", splits, {"name": "test"}, TOKENIZER, shard_tokens)
    return opened(root, **others)


def opened(root: Path, **others: object) -> TokenData:
    sizes = {"batch_size": 4, "window": 16, "num_evaluation_batches": 3, "prepare": "python prepare.py corpus"}
    return TokenData({"manifest": "corpus/manifest.json"}, data_root=root, **{**sizes, **others})  # type: ignore[arg-type]


def test_the_first_nine_tenths_of_the_characters_train(tmp_path: Path) -> None:
    data = prose(tmp_path)
    train, val = (data.tokenizer.decode(data.streams[split][:].tolist()) for split in data.splits)
    assert train + val == PROSE and len(train) == int(0.9 * len(PROSE))
    assert data.tokenizer.characters == "".join(sorted(set(PROSE)))
    ids, following = data.train_batch(3)
    assert ids.shape == following.shape == (4, 16) and ids.dtype == following.dtype == torch.int64
    assert torch.equal(ids[:, 1:], following[:, :-1])
    for row in torch.cat([ids, following[:, -1:]], 1).tolist():
        assert data.tokenizer.decode(row) in train
    for ids, _ in data.evaluation_batches("val"):
        assert all(data.tokenizer.decode(row) in val for row in ids.tolist())


def test_a_whole_split_is_evaluated_token_by_token_and_of_train_a_tenth_as_much(tmp_path: Path) -> None:
    splits = {"train": DOCUMENTS[:60], "val": DOCUMENTS[60:70], "test": DOCUMENTS[70:]}
    write_shards(tmp_path / "corpus", splits, {"name": "test"}, TOKENIZER, 100)
    data = opened(tmp_path, num_evaluation_batches=None, test=True)
    assert data.splits == ("train", "val", "test")
    sizes = {}
    for split in data.splits:
        ids, following = (torch.cat(parts).flatten() for parts in zip(*data.evaluation_batches(split), strict=True))
        stream = data.streams[split][: len(ids) + 1].tolist()
        assert ids.tolist() == stream[:-1] and following.tolist() == stream[1:]
        sizes[split] = len(ids)
    for split in ("val", "test"):
        assert len(data.streams[split]) - 1 - data.window < sizes[split] <= len(data.streams[split]) - 1
    assert sizes["train"] == max(16, sizes["val"] // 160 * 16)


def test_the_second_half_of_the_validation_characters_is_the_test_split(tmp_path: Path) -> None:
    two, three = prose(tmp_path).streams, prose(tmp_path, test=True, num_evaluation_batches=None)
    assert three.streams["train"].tolist() == two["train"].tolist()
    halves = [three.streams[split].tolist() for split in ("val", "test")]
    assert halves[0] + halves[1] == two["val"].tolist() and 0 <= len(halves[1]) - len(halves[0]) <= 1
    assert next(iter(three.evaluation_batches("test")))[0].flatten().tolist() == halves[1][: 4 * 16]


def test_chunks_are_read_once_an_epoch_in_an_order_that_the_seed_gives(tmp_path: Path) -> None:
    data = shards(tmp_path, chunks=True, seed=3)
    count = (len(data.streams["train"]) - 1) // 16
    steps = 2 * count // 4 + 1
    rows = torch.cat([torch.cat([ids, nexts[:, -1:]], 1) for ids, nexts in map(data.train_batch, range(steps))])
    ids = torch.from_numpy(data.streams["train"][: count * 16 + 1].astype(np.int64))
    wanted = [ids[start : start + 17].tolist() for start in range(0, count * 16, 16)]
    first, second = rows[:count].tolist(), rows[count : 2 * count].tolist()
    assert sorted(first) == sorted(second) == sorted(wanted) and first not in (second, wanted)
    other = opened(tmp_path, chunks=True, seed=4)
    assert not torch.equal(other.train_batch(0)[0], data.train_batch(0)[0])


def test_a_part_of_a_papers_corpus_is_refused(tmp_path: Path) -> None:
    data = shards(tmp_path)
    found = sum(map(len, data.streams.values()))
    opened(tmp_path, least_tokens=found).prepare_data()
    assert f"{found + 1:,} or more" in said_of(opened(tmp_path, least_tokens=found + 1).prepare_data)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "the file is empty"),
        (b"abc\xe9def" * 99, "not UTF-8"),
        (PROSE[:-7].encode(), "it is truncated"),
        (PROSE.replace("\n", "\r\n").encode(), "line ends"),
    ],
)
def test_a_wrong_text_is_refused_with_its_path_and_the_command(tmp_path: Path, content: bytes, part: str) -> None:
    message = said_of(prose(tmp_path, content, tokens=len(PROSE), prepare="python prepare.py prose").prepare_data)
    assert part in message and str(tmp_path / "input.txt") in message and message.endswith("python prepare.py prose")


def test_data_that_do_not_fit_the_model_or_the_window_are_refused(tmp_path: Path) -> None:
    size, val = len(set(PROSE)), len(PROSE) - int(0.9 * len(PROSE))
    prose(tmp_path, vocabulary_size=size).prepare_data()
    assert f"vocabulary_size is {size - 1}" in said_of(prose(tmp_path, vocabulary_size=size - 1).prepare_data)
    assert f"{TOKENIZER.vocabulary_size} token ids" in said_of(shards(tmp_path, vocabulary_size=200).prepare_data)
    assert f"a window of {val} needs more" in said_of(prose(tmp_path, window=val).prepare_data)
    assert "needs input.txt" in said_of(CharacterData({"text": "input.txt"}, data_root=tmp_path / "other").prepare_data)


def test_where_shards_end_changes_no_batch(tmp_path: Path) -> None:
    many, one = shards(tmp_path / "a", 50), shards(tmp_path / "b", 10**6)
    assert len(many.manifest.of("train")) > 8 and len(one.manifest.of("train")) == 1
    ends = [[*TOKENIZER.encode(text), 0] for text in DOCUMENTS[:60]]
    whole = [token for ids in ends for token in ids]
    stream = many.streams["train"]
    assert len(stream) == len(whole)
    for start in range(len(whole) - 150):
        assert stream[start : start + 150].tolist() == whole[start : start + 150]
    for step in range(20):
        assert torch.equal(many.train_batch(step)[0], one.train_batch(step)[0])
    assert many.tokenizer.fingerprint == TOKENIZER.fingerprint


def test_damaged_shards_are_refused_with_what_mends_them(tmp_path: Path) -> None:
    shards(tmp_path).prepare_data()
    (first, *_) = TokenManifest.read(tmp_path / "corpus" / "manifest.json").of("train")
    path = tmp_path / "corpus" / first.file
    path.write_bytes(path.read_bytes()[:-2])
    message = said_of(opened(tmp_path).prepare_data)
    assert (
        message.startswith(str(path)) and "truncated" in message and message.endswith("run: python prepare.py corpus")
    )


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "corpus" / "tokenizer.json").write_bytes(BytePairTokenizer.train(DOCUMENTS, 280).to_bytes())
    with pytest.raises(UsageError, match="another tokenizer than the one"):
        _ = opened(tmp_path).tokenizer

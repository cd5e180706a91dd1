import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paper_repro.datamodules import documentation, preparations, text_sources
from paper_repro.datamodules.documentation import Corpus
from paper_repro.datamodules.text import BookData
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.scripts import prepare_data
from paper_repro.tests.support.prepared import content, refusal, texts

DOCUMENTS = [f"Document {index} of the corpus {'says more ' * (index % 5)}and ends here." for index in range(300)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with the documents as jsonl and a tokenizer."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "part.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    (tmp_path / "tokenizer.json").write_bytes(BytePairTokenizer.train(DOCUMENTS, 300).to_bytes())
    return tmp_path


@pytest.fixture(autouse=True)
def own_places_and_small_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(preparations, "SHARD_TOKENS", 500)


def openwebtext(folder: Path, to: Path, *words: str, source: str = "corpus") -> int:
    given = ["--from", str(folder / source), "--tokenizer", str(folder / "tokenizer.json"), "--to", str(to)]
    return prepare_data.main(["openwebtext", *given, *words])


def test_every_document_is_written_once_with_its_end_and_split_as_nanogpt_does(corpus: Path) -> None:
    from datasets import Dataset

    assert openwebtext(corpus, corpus / "out") == 0
    folder = corpus / "out" / "openwebtext"
    manifest = json.loads((folder / "manifest.json").read_bytes())
    parts = Dataset.from_dict({"text": DOCUMENTS}).train_test_split(test_size=0.0005, seed=2357, shuffle=True)
    tokenizer = BytePairTokenizer.load(folder)
    for split, name in (("train", "train"), ("val", "test")):
        found = texts(folder, split, tokenizer)
        assert found == parts[name]["text"]
        assert manifest["totals"][split]["documents"] == len(found)
        assert manifest["totals"][split]["bytes"] == sum(len(text.encode()) for text in found)
    assert len(manifest["shards"]) > 10
    assert prepare_data.main(["openwebtext", "--verify", "--to", str(corpus / "out")]) == 0


def test_books_are_the_split_test(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    tokenizer = corpus / "tokenizer.json"
    rows = {"test": datasets.Dataset.from_dict({"text": DOCUMENTS[:5]})}
    words = ["pg19", "--tokenizer", str(tokenizer), "--to", str(corpus), "--folder", "books"]
    assert "splits train, expected one called 'test'" in refusal(*words, "--from", str(corpus / "corpus"))
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {text_sources.BOOKS: rows}[name])
    assert prepare_data.main([*words, "--download"]) == 0
    data = BookData({"manifest": "books/manifest.json"}, window=8, data_root=corpus)
    assert list(data.streams) == ["test"] and data.data_hashes().keys() == {"manifest", "tokenizer"}
    assert texts(corpus / "books", "test", BytePairTokenizer.load(tokenizer)) == DOCUMENTS[:5]


def test_the_same_command_mends_and_other_settings_are_refused(corpus, capsys, monkeypatch):
    to = corpus / "out"
    openwebtext(corpus, to)
    folder = to / "openwebtext"
    before = content(folder)
    kept = (folder / "train-00003.bin").stat().st_mtime_ns
    (folder / "train-00000.bin").unlink()
    (folder / "train-00001.bin").write_bytes(before["train-00001.bin"][:-2])
    (folder / "train-00002.bin").write_bytes(before["train-00002.bin"][::-1])
    message = refusal("openwebtext", "--verify", "--to", str(to))
    assert "train-00000.bin: this shard is missing; give the command without --verify" in message
    openwebtext(corpus, to)
    assert content(folder) == before and (folder / "train-00003.bin").stat().st_mtime_ns == kept
    assert "train-00002.bin: this shard is altered" in capsys.readouterr().out
    monkeypatch.setattr(preparations, "SHARD_TOKENS", 600)
    with pytest.raises(prepare_data.UsageError, match="was prepared with shard_tokens 500, asked for is 600"):
        openwebtext(corpus, to)
    assert content(folder) == before


PREPARE = """
import resource, sys, time
from pathlib import Path
from paper_repro.datamodules import token_shards
from paper_repro.datamodules.tokenizers import BytePairTokenizer
class Slow(list):
    def __getitem__(self, places):
        time.sleep(0.004)
        return super().__getitem__(places)
folder = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
documents = [f"Document {index} of the corpus {'says more ' * (index % 5)}and ends here." for index in range(300)]
splits = {"train": Slow(documents[:280]), "val": Slow(documents[280:])}
tokenizer = BytePairTokenizer.load(folder / "given.json")
if sys.argv[3] == "shards":
    token_shards.write_shards(folder / "out", splits, {"name": "test"}, tokenizer, 100)
else:
    read = lambda first: (splits["train"][place] for place in range(first, 280))
    parts = [token_shards.Part("train", read)]
    token_shards.write_streams(folder / "out", parts, {"name": "test"}, tokenizer, 3_000, 8)
"""


def preparation(folder: Path, kind: str = "shards", bytes_of_a_file: int | None = None) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    if not (folder / "given.json").exists():
        (folder / "given.json").write_bytes(BytePairTokenizer.train(DOCUMENTS, 300).to_bytes())
    command = [sys.executable, "-c", PREPARE, str(folder), str(bytes_of_a_file or resource.RLIM_INFINITY), kind]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shards", "streams"])
def test_a_preparation_that_was_killed_goes_on_and_ends_in_the_same_bytes(tmp_path: Path, kind: str) -> None:
    assert preparation(tmp_path / "whole", kind).wait(60) == 0
    expected = content(tmp_path / "whole" / "out")
    assert len(expected) > 20
    dice, finished = random.Random(3), dict[str, int]()
    for _ in range(6):
        process = preparation(tmp_path / "killed", kind)
        deadline = time.monotonic() + 30
        while len(shards(tmp_path)) <= len(finished) + 1 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(dice.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        now = shards(tmp_path)
        noted = json.loads((tmp_path / "killed" / "out" / "progress.json").read_bytes())["shards"]
        assert {name: now[name] for name in finished} == finished, "a finished shard was written again"
        finished = {shard["file"]: now[shard["file"]] for shard in noted}
    assert preparation(tmp_path / "killed", kind).wait(60) == 0
    assert content(tmp_path / "killed" / "out") == expected


def shards(folder: Path) -> dict[str, int]:
    """The time of change of each shard that has its name."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "killed" / "out").glob("*.bin")}


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_told_and_what_is_finished_stays(tmp_path: Path) -> None:
    assert preparation(tmp_path / "whole").wait(60) == 0
    expected = content(tmp_path / "whole" / "out")
    process = preparation(tmp_path / "full", bytes_of_a_file=max(len(expected["tokenizer.json"]), 2_000))
    errors = process.communicate(timeout=60)[1]
    last = errors.strip().splitlines()[-1]
    assert process.returncode == 1 and "UsageError" in last and "could not be written (File too large)" in last
    assert "give the same command again" in last
    assert 0 < len(list((tmp_path / "full" / "out").glob("*.bin"))) < len(expected) - 2
    assert preparation(tmp_path / "full").wait(60) == 0
    assert content(tmp_path / "full" / "out") == expected


def test_the_tokenizer_of_the_documentation_sees_the_training_documents_alone(tmp_path, monkeypatch):
    found = {split: [f"The {split} text {index} says more." for index in range(40)] for split in ("train", "val")}
    source = {"name": "documentation", "13-grams in train": {"val": 0.0}}
    made = Corpus(found, source, [{"project": "one", "characters": 9}])
    monkeypatch.setattr(documentation, "collect", lambda *_: made)
    words = ["documentation", "--to", str(tmp_path), "--from", str(tmp_path), "--vocabulary", "300"]
    assert prepare_data.main(words) == 0
    folder = tmp_path / "documentation-300"
    assert BytePairTokenizer.load(folder).fingerprint == BytePairTokenizer.train(found["train"], 300).fingerprint
    before = content(folder)
    assert prepare_data.main(words) == 0 and content(folder) == before
    assert prepare_data.main([*words[:3], *words[5:], "--verify"]) == 0


def test_shakespeare_is_checked_and_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, source, to = "To be, or not to be.\n" * 50, tmp_path / "mine.txt", ["--to", str(tmp_path / "data")]
    source.write_text(text)
    assert "shakespeare: give --from FILE, or --download" in refusal("shakespeare", *to)
    assert "this is not tiny Shakespeare" in refusal("shakespeare", *to, "--from", str(source))
    monkeypatch.setattr(preparations, "SHAKESPEARE_SHA256", hashlib.sha256(text.encode()).hexdigest())
    monkeypatch.setattr(preparations, "SHAKESPEARE_URL", source.as_uri())
    copy = tmp_path / "data" / "tinyshakespeare" / "input.txt"
    for given in (["--from", str(source)], ["--download"]):
        assert prepare_data.main(["shakespeare", *to, *given]) == 0 and copy.read_text() == text
        copy.unlink()
    source.unlink()
    assert "did not answer" in refusal("shakespeare", *to, "--download")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["shakespear"], "unknown data 'shakespear' (did you mean 'shakespeare'?)"),
        (["openwebtext", "--tokeniser", "x"], "unknown option --tokeniser (did you mean '--tokenizer'?)"),
        (["documentation", "--tokenizer", "x"], "documentation takes no --tokenizer (valid: --vocabulary)"),
        (["shakespeare", "--folder", "x"], "shakespeare takes no --folder (valid: no options of its own)"),
        (["continuations", "--verify"], "continuations takes no --verify (valid: --vocabulary)"),
        (["openwebtext", "--download", "--tokenizer", "/absent"], "expected tokenizer.json"),
        (["documentation", "--vocabulary", "many"], "--vocabulary: invalid int value: 'many'"),
        (["documentation", "--verify", "--to", "/nonexistent"], "give the command without --verify"),
        (["openwebtext"], "openwebtext: give --from PATH, or --download"),
    ],
)
def test_wrong_words_are_answered_with_the_right_ones(words: list[str], part: str) -> None:
    assert part in refusal(*words)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("empty.jsonl", b"", "cannot be read"),
        ("one.jsonl", b'{"text": "alone"}\n', "1 documents, expected at least 2"),
        ("cut.parquet", b"PAR1 and no more", "cannot be read"),
        ("other.jsonl", b'{"body": "a"}\n' * 3, "columns body, expected one called 'text'"),
    ],
)
def test_a_wrong_corpus_is_refused(corpus: Path, name: str, content: bytes, part: str) -> None:
    (corpus / "wrong").mkdir()
    (corpus / "wrong" / name).write_bytes(content)
    with pytest.raises(prepare_data.UsageError) as caught:
        openwebtext(corpus, corpus / "out", source="wrong")
    assert part in str(caught.value) and "wrong" in str(caught.value)
    assert not (corpus / "out").exists()


def test_a_part_of_the_hubs_corpus_is_refused(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    openwebtext(corpus, corpus / "local")
    rows = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": DOCUMENTS})})
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {text_sources.OPENWEBTEXT: rows}[name])
    words = ["openwebtext", "--download", "--tokenizer", str(corpus / "tokenizer.json"), "--to", str(corpus / "hub")]
    assert f"300 documents, expected {text_sources.OPENWEBTEXT_DOCUMENTS:,}" in refusal(*words)
    monkeypatch.setattr(text_sources, "OPENWEBTEXT_DOCUMENTS", 300)
    assert prepare_data.main(words) == 0
    shards = [content(corpus / place / "openwebtext")["train-00000.bin"] for place in ("hub", "local")]
    assert shards[0] == shards[1]

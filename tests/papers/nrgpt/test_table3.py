from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paper_repro.artifacts import catalogue, tables, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement
from paper_repro.artifacts.claims import judge as judge_claim
from paper_repro.artifacts.views import View
from paper_repro.base import data_files
from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import FINISHED, Cell, Outcome
from paper_repro.probes.reference_texts import ReferenceTexts, reference_text
from paper_repro.tests.support.synthetic import fill, finished

CORPUS = "".join(f"Line {number} has words {number * 7} and {'long ' * (number % 4)}ends.\n" for number in range(200))
NAME = "tinyshakespeare/input.txt"
GOOD = {"perplexity": 20.0, "distinct_1": 0.7, "distinct_2": 0.9, "gqs_paper": 0.9, "apcs_lines": 0.4}


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data" / NAME
    path.parent.mkdir(parents=True)
    path.write_text(CORPUS)
    monkeypatch.setenv("PAPER_REPRO_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(data_files, "DATA", tmp_path / "none")  # the repository's own data/ may hold the corpus
    return path


def _config(seed: int = 0, files: dict[str, str] | None = None, **text: Any) -> dict[str, Any]:
    spec = {"content": None, "characters": 300, "shuffle_words": False, "repeat": 1, **text}
    return {"text": spec, "seed": seed, "data": {"files": {"text": NAME} if files is None else files}}


def _text(*args: Any, **options: Any) -> str:
    return reference_text(_config(*args, **options))[0]


def test_a_piece_is_whole_lines_from_a_place_that_the_seed_draws() -> None:
    texts = [_text(seed) for seed in range(20)]
    for text in texts:
        assert f"\n{text}\n" in f"\n{CORPUS}"
        assert 200 < len(text) <= 300
    assert len(set(texts)) > 15
    assert texts[3] == _text(3)
    assert reference_text(_config())[1] == {"text": sha256_of_bytes(CORPUS.encode())}


def test_shuffling_keeps_the_words_of_the_piece_and_how_many_each_line_has() -> None:
    for seed in range(5):
        plain, shuffled = _text(seed), _text(seed, shuffle_words=True)
        assert Counter(shuffled.split()) == Counter(plain.split())
        assert [len(line.split()) for line in shuffled.split("\n")] == [len(line.split()) for line in plain.split("\n")]
        assert shuffled.split() != plain.split()


def test_a_given_text_needs_no_corpus() -> None:
    assert reference_text(_config(files={}, content="One line.", repeat=3)) == ("One line.\nOne line.\nOne line.", {})
    assert _text(files={}, content="") == ""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"short", "5 characters, expected at least 600"),
        (b"\xff" + CORPUS.encode(), "not UTF-8 at byte 0"),
        (None, f"needs {NAME}"),
    ],
)
def test_a_corpus_that_cannot_be_cut_is_refused(data: Path, content: bytes | None, expected: str) -> None:
    data.unlink()
    if content is not None:
        data.write_bytes(content)
    with pytest.raises(UsageError, match=expected):
        _text()


def test_neither_a_text_nor_a_corpus_is_refused() -> None:
    with pytest.raises(UsageError, match=r"text\.content is null and data\.files has no 'text'"):
        _text(files={})


def test_the_task_scores_what_it_can_and_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    scorer = {
        "_target_": "paper_repro.metrics.text_scores.TextScorer",
        "gqs_engines": ["paper"],
        "similarity_model": "./absent",
    }
    texts = ["The dog sees the dog.", "", None]
    cells = [Cell(str(index), {**_config(content=text), "scorer": scorer}) for index, text in enumerate(texts)]
    plain, empty, piece = ReferenceTexts().run(cells, tmp_path, None)  # type: ignore[arg-type]
    assert {outcome.status for outcome in (plain, empty, piece)} == {FINISHED}
    assert plain.metrics["distinct_1"] == 1.0 and plain.metrics["gqs_paper"] > 0.5
    assert plain.unavailable["apcs_lines"].startswith("needs all-MiniLM-L6-v2")
    assert empty.metrics == {} and empty.unavailable["distinct_1"].startswith("too short: distinct-1")
    assert plain.data_hashes == {} and piece.data_hashes == {"text": sha256_of_bytes(CORPUS.encode())}


def _view(folder: Path, made: dict[str, dict[str, float]]) -> View:
    """Records for the texts of ``made``, a little apart from seed to seed."""
    plan = plans.make(catalogue.load("nrgpt/table3"), "exact")

    def outcome(cell: PlannedCell) -> Outcome | None:
        values = made.get(dict(cell.key)["text"])
        return None if values is None else finished(**{name: v + 1e-4 * cell.seed for name, v in values.items()})

    fill(folder, plan, outcome)
    return views.build(plan, folder, None)


def _judged(view: View) -> dict[str, Judgement]:
    return {claim.id: judge_claim(claim, view) for claim in view.artifact.claims}


def _table(view: View) -> tables.Table:
    companion = view.artifact.companions()[0]
    table: tables.Table = companion.Table3(view)
    return table


def test_the_table_has_the_printed_ranges_and_names_what_is_outside(tmp_path: Path) -> None:
    made = {
        "shakespeare": GOOD,
        "prose": {**GOOD, "distinct_2": 0.97, "apcs_lines": 0.2},
        "one_word": {"gqs_paper": 0.8},
    }
    grid = _table(_view(tmp_path, made)).grid()
    rows = {row[0]: row[1:] for row in grid.rows}
    ideal = rows["Ideal range (paper)"]
    assert ideal == ["15 to 50", "0.6 to 0.9", "0.8 to 0.95", "0.8 to 1", "0.3 to 0.6", "", "", "", "", ""]
    assert {len(row) for row in grid.rows} == {len(grid.headers)}
    assert rows["Shakespeare, 1,000 characters"][-1] == "none (of 5 measured)"
    assert rows["plain English prose"][-1] == "Distinct-2, Avg. cosine similarity (lines) (of 5 measured)"
    assert rows["one word"][-1] == "none (of 1 measured)"
    assert rows["the empty text"][-1] == "not run"
    one = _table(_view(tmp_path, made)).grid(chosen=["gqs_paper"])
    assert one.headers == ["Text", "GQS", "Outside its ideal range"] and one.rows[0][1] == "0.8 to 1"


def test_claims_follow_the_records(tmp_path: Path) -> None:
    high = {"shuffled": {**GOOD, "gqs_paper": 0.92}, "shakespeare": {**GOOD, "gqs_paper": 0.93}}
    nonsense = {"repeated": {"gqs_paper": 0.9}, "one_word": {"gqs_paper": 0.8}}
    judged = _judged(_view(tmp_path / "high", {**high, **nonsense, "prose": {"distinct_1": 0.7}}))
    assert {name: judgement.verdict for name, judgement in judged.items()} == {
        "shuffled_words_score_high": HOLDS,
        "shuffling_costs_little": HOLDS,
        "gqs_is_good_for_nonsense": HOLDS,
        "shakespeare_is_ideal": HOLDS,
        "prose_is_ideal": UNDECIDED,
    }
    low = {"shuffled": {"gqs_paper": 0.7}, "shakespeare": {"gqs_paper": 0.93}, "prose": {"distinct_1": 0.2}}
    verdicts = {name: judgement.verdict for name, judgement in _judged(_view(tmp_path / "low", low)).items()}
    assert verdicts == {**dict.fromkeys(judged, FAILS), "shakespeare_is_ideal": UNDECIDED}
    empty = _judged(_view(tmp_path / "empty", {}))
    assert {judgement.verdict for judgement in empty.values()} == {UNDECIDED}

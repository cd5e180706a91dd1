import math
import re
import shutil
from pathlib import Path

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.base.files import DATA_VARIABLE
from paper_repro.probes import mmlu
from paper_repro.probes.mmlu import MMLU
from paper_repro.tests.probes import doubles
from paper_repro.tests.probes.doubles import SIZES, Module, Reciting, Silent, Text

COLUMNS = {"food": {"fruit": SIZES["fruit"]}, "earth": {"small_rivers": SIZES["small_rivers"]}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    monkeypatch.setattr(mmlu, "NUM_TOKENS", 12)
    return tmp_path


def share(letter: str, subject: str) -> float:
    answers = [row[5] for row in doubles.questions(subject, "test")]
    return 100 * answers.count(letter) / len(answers)


def test_a_model_that_always_means_b_and_writes_c_gets_both_shares(folder: Path) -> None:
    doubles.write_mmlu(folder / "mmlu")
    # After "Answer:" it says " B"; what it writes after the instruction names C in one way, an article in the other.
    model = Reciting("Answer:", " B", 4096)
    found = MMLU(COLUMNS, instruction="").measure(Module(model), Text(), 0)
    expected = {"food": share("B", "fruit"), "earth": share("B", "small_rivers")}
    for prefix in ("mmlu", "mmlu_generated"):
        for name, value in expected.items():
            assert found.metrics[f"{prefix}_{name}"] == pytest.approx(value, abs=1e-9)
        average = math.fsum(expected.values()) / 2
        assert found.metrics[f"{prefix}_average"] == pytest.approx(average, abs=1e-9)
    assert found.metrics["mmlu_cropped"] == found.metrics["mmlu_generated_fallbacks"] == 0
    written = MMLU(COLUMNS).measure(Module(Reciting("needed.", " on a tree", 4096)), Text(), 0)
    assert written.metrics["mmlu_generated_articles"] == 100
    assert written.metrics["mmlu_generated_food"] == pytest.approx(share("A", "fruit"), abs=1e-9)
    with pytest.raises(UsageError, match="7 test questions on fruit, expected 6"):
        MMLU({"food": {"fruit": 6}})  # before anything is trained
    with pytest.raises(UsageError, match="Silent has no tokenizer"):
        MMLU(COLUMNS).measure(Module(model), Silent(), 0)
    shutil.rmtree(folder / "mmlu")
    absent = MMLU(COLUMNS).measure(Module(model), Text(), 0)
    assert not absent.metrics and absent.unavailable.keys() == found.metrics.keys()
    assert all(re.match("needs mmlu: .*hf download cais/mmlu", reason) for reason in absent.unavailable.values())


# Questions and answers.


def test_the_prompt_is_that_of_the_original_paper() -> None:
    example = mmlu.Question("One and one?", ("1", "2", "3", "4"), 1)
    question = mmlu.Question(" Two and one?\n", ("1", "2", "3", "4"), 2)
    assert mmlu.prompt("small_sums", [example], question) == (
        "The following are multiple choice questions (with answers) about small sums.\n\n"
        "One and one?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: B\n\n"
        "Two and one?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The answer is C, not A.", mmlu.Reading("C")),
        ("A guess: the ANSWER IS: (d)", mmlu.Reading("D")),
        ("I take B) but answer: c", mmlu.Reading("C")),
        ("A thing (D) B.", mmlu.Reading("D")),
        ("the word a decides", mmlu.Reading("A", article=True)),
        ("A time", mmlu.Reading("A", article=True)),
        ("Abcd bad cab", mmlu.Reading("A", fallback=True)),
        ("I'd go", mmlu.Reading("D")),
        (" A\n\nThe next", mmlu.Reading("A")),
        ("b time", mmlu.Reading("B")),
    ],
)
def test_the_first_pattern_found_decides_from_a_full_answer_to_a_lone_letter(text: str, found: mmlu.Reading) -> None:
    assert mmlu.read_answer(text) == found


def test_damaged_files_are_refused_with_the_command(tmp_path: Path) -> None:
    doubles.write_mmlu(tmp_path)
    path = tmp_path / "all" / "test-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"no parquet file of MMLU: .*; run: hf download"):
        mmlu.read(tmp_path, SIZES)

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import IGNORED
from paper_repro.datamodules.listops import ListOps
from paper_repro.datamodules.text_sets import DYCK_PROMPT, SOURCES, TextSet, dyck_pair, dyck_texts, functions, passages
from paper_repro.datamodules.tokenizers import BytePairTokenizer, CharacterTokenizer
from paper_repro.tests.support.prepared import said_of

TOKENIZER = BytePairTokenizer.train(["Question: what is it?\nAnswer: this"], 260)
QUESTIONS = [
    {"question": f"What is {index} + 1?", "answer": f"It is {index}+1.\n#### {index + 1}"} for index in range(9)
]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_questions_and_answers_are_texts_of_the_papers_form(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k" / "test.jsonl", QUESTIONS)
    write(tmp_path / "gsm8k" / "train.jsonl", [{"question": "not", "answer": "read"}])
    write(tmp_path / "gsm8k" / "socratic" / "test.jsonl", [{"question": "not", "answer": "read"}])
    texts = TextSet("gsm8k").texts(tmp_path)
    assert sorted(texts) == [f"Question: What is {n} + 1?\nAnswer: It is {n}+1.\n#### {n + 1}" for n in range(9)]
    some = TextSet("gsm8k", limit=4)
    assert len(set(some.texts(tmp_path))) == 4 and set(some.texts(tmp_path)) < set(texts)


def test_squad_is_context_question_and_first_answer_of_the_answerable(tmp_path: Path) -> None:
    from datasets import Dataset

    rows = [
        {"context": "A b.", "question": "Who?", "answers": {"text": ["A", "A b"], "answer_start": [0, 0]}},
        {"context": "C d.", "question": "Why?", "answers": {"text": [], "answer_start": []}},
    ]
    path = tmp_path / "squad_v2" / "squad_v2" / "validation-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    Dataset.from_list(rows).to_parquet(str(path))
    assert TextSet("squad").texts(tmp_path) == ["Question: A b.\nWho?\nAnswer: A"]


@pytest.mark.parametrize(
    ("name", "task"), [("bigbench-math", "elementary_math_qa"), ("bigbench-dyck", "dyck_languages")]
)
def test_bigbench_is_inputs_without_their_cue_and_the_first_target(tmp_path: Path, name: str, task: str) -> None:
    row = {"inputs": "What is 1 + 1? Answer:", "targets": ["2", "two"], "idx": 0}
    write(tmp_path / "bigbench" / task / "validation.jsonl", [row])
    write(tmp_path / "bigbench" / task / "train.jsonl", [{}])
    write(tmp_path / "bigbench" / "another_task" / "validation.jsonl", [{}])
    assert TextSet(name).texts(tmp_path) == ["Question: What is 1 + 1?\nAnswer: 2"]


@pytest.mark.parametrize("name", SOURCES)
def test_a_set_that_is_absent_is_named_with_the_command_that_gets_it(tmp_path: Path, name: str) -> None:
    message = said_of(lambda: TextSet(name).texts(tmp_path))
    assert f"needs {SOURCES[name].folder}/" in message and message.endswith(f"run: {SOURCES[name].command}")


def test_damaged_files_are_refused_with_their_path(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k" / "test.jsonl"
    write(path, [{"question": "Who?"}])
    message = said_of(lambda: TextSet("gsm8k").texts(tmp_path))
    assert message.startswith(f"{path}: cannot be read: 'answer'; expected question, answer")
    path.write_text("{not json")
    assert said_of(lambda: TextSet("gsm8k").texts(tmp_path)).startswith(f"{path}: cannot be read")


def closes(word: str) -> bool:
    """Whether brackets match, by removing pairs until none is left."""
    while (shorter := re.sub(r"\(\)|\[\]|\{\}|<>", "", word)) != word:
        word = shorter
    return not word


def test_generated_dyck_questions_are_closed_by_their_answers() -> None:
    texts = dyck_texts(300, 0)
    assert len(set(texts)) == 300 and texts[:50] == dyck_texts(50, 0) != dyck_texts(50, 1)
    lengths = []
    for text in texts:
        found = re.fullmatch(r"Question: (.+?)Input: (.+)\nAnswer: (.+)", text)
        assert found is not None and f"{found[1]}Input: " == DYCK_PROMPT
        start, rest = found[2].split(" "), found[3].split(" ")
        assert closes("".join(start + rest)) and not closes("".join(start))
        assert start[-1] in "([{<" and set(rest) <= set(")]}>")
        lengths.append(len(start) + len(rest))
    assert min(lengths) == 4 and 30 < max(lengths) <= 60
    assert dyck_pair("([]{<>})") == ("([]{<", ">})")


def test_listops_texts_are_expressions_and_what_they_are_worked_out_to() -> None:
    task = ListOps(10)
    for text in TextSet("listops", 40).texts():
        question, answer = text.removeprefix("Question: ").split("\nAnswer: ")
        steps = [question, *answer.split(" = ")]
        assert set(question.split(" ")) <= set(task.vocabulary) and steps[-1].isdigit()
        assert all(len(longer) > len(shorter) for longer, shorter in itertools.pairwise(steps))


@pytest.mark.slow
def test_python_texts_are_functions_without_docstrings() -> None:
    source = '''
class A:
    def documented(self):
        """Say."""
        a = 1
        b = 2
        c = 3
        return a + b + c

    def short(self):
        return 1

    async def kept(self):
        # One.
        a = 1
        b = 2
        c = 3
        return a + b + c
'''
    (text,) = functions(source)
    assert text.startswith("async def kept(self):\n    # One.\n") and text.endswith("return a + b + c")
    found = TextSet("python", 50).texts()
    assert len(found) == 50 and all(re.match(r"(async )?def ", text) for text in found)


def test_shakespeare_is_cut_into_passages_of_whole_speeches(tmp_path: Path) -> None:
    speeches = [f"Speaker {index}:\n{'word ' * 20}end." for index in range(11)]
    play = "\n\n".join(speeches)
    found = list(passages(play))
    assert found == ["\n\n".join(speeches[:4]), "\n\n".join(speeches[4:8])] and len(found[0]) >= 400
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text(play)
    assert sorted(TextSet("shakespeare").texts(tmp_path)) == sorted(found)


def test_texts_become_batches_of_whole_texts() -> None:
    chosen = TextSet("dyck-generated", 7)
    batches = list(chosen.batches(TOKENIZER, 24, 3))
    assert [len(ids) for ids, _ in batches] == [3, 3, 1]
    ids, following = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert ids.shape == following.shape == (7, 24) and ids.dtype == following.dtype == torch.int64
    for text, row, targets in zip(chosen.texts(), ids.tolist(), following.tolist(), strict=True):
        expected = TOKENIZER.encode(text)[:25]
        assert [row[0], *(target for target in targets if target != IGNORED)] == expected


def test_a_character_that_the_tokenizer_lacks_is_named() -> None:
    letters = CharacterTokenizer("Question: what is it?\nAnswer (this")
    with pytest.raises(UsageError, match=re.escape("text set 'dyck-generated': the character 'C' (U+0043)")):
        list(TextSet("dyck-generated", 3).batches(letters, 8, 2))

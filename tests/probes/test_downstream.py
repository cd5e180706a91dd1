import json
import math
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paper_repro.base.errors import UsageError
from paper_repro.base.files import DATA_VARIABLE
from paper_repro.cells.tasks import FINISHED, Cell, Findings, Outcome, task_of
from paper_repro.datamodules import continuations
from paper_repro.datamodules.text import TokenData
from paper_repro.metrics.counts import Counts
from paper_repro.probes import downstream, mmlu
from paper_repro.probes.causal_evaluator import Evaluator
from paper_repro.probes.downstream import INSTALL, Downstream
from paper_repro.probes.floors import BigramFloor, BigramModel
from paper_repro.probes.mmlu import MMLU
from paper_repro.tests.datamodules import test_continuations as made
from paper_repro.tests.probes import doubles
from paper_repro.tests.probes.doubles import SIZES, Bytes, Module, Reciting, Silent, Text, small_gpt, write_task

ANSWERS = ["yes", "no", "yes", "yes", "no"]
TASKS = {"own_words": "words", "own_endings": "endings"}


class Saying(Reciting):
    """Without the surplus id that Reciting likes best of all."""

    def forward(self, ids: Tensor) -> Tensor:
        logits = super().forward(ids)
        logits[..., 259] = 0.0
        return logits


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with task files of our own over local JSON lines, where ``Downstream`` looks first."""
    pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'paper-repro[eval]'")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    rows = [json.dumps({"question": f"Is {index} so?", "answer": word}) for index, word in enumerate(ANSWERS)]
    words = {"doc_to_choice": ["yes", "no"], "doc_to_target": "{{['yes', 'no'].index(answer)}}"}
    kinds: dict[str, dict[str, Any]] = {
        "own_words": {"output_type": "multiple_choice", "metrics": ["acc", "acc_norm"], **words},
        "own_endings": {"output_type": "loglikelihood", "doc_to_target": "{{' ' + answer}}"},
    }
    for name, group in TASKS.items():
        folder = tmp_path / "downstream" / group
        folder.mkdir(parents=True)
        (folder / "test.jsonl").write_text("\n".join(rows))
        write_task(folder, name, {"test": folder / "test.jsonl"}, doc_to_text="{{question}}", **kinds[name])
    return tmp_path


def measured(probe: Downstream, model: nn.Module, tokenizer: Any = None) -> Findings:
    module, data = SimpleNamespace(model=model), SimpleNamespace(tokenizer=tokenizer or Bytes())
    return probe.measure(module, data, 0)  # type: ignore[arg-type]


def test_a_model_that_says_yes_gets_the_share_of_yes(data: Path) -> None:
    found = measured(Downstream(TASKS, ["own_words"]), Saying("?", " yes", 64))
    share = 100 * ANSWERS.count("yes") / len(ANSWERS)
    expected = dict.fromkeys(["own_words", "own_words_norm", "own_endings", "downstream_mean"], share)
    assert found.metrics == pytest.approx({**expected, "downstream_cropped": 0.0}, abs=1e-9)
    assert found.unavailable == {} and found.attachments == {}


def test_a_task_without_its_data_is_unavailable_and_so_is_the_mean(data: Path) -> None:
    (data / "downstream" / "endings" / "test.jsonl").unlink()
    found = measured(Downstream(TASKS, ["own_words"]), Saying("?", " yes", 64))
    assert found.metrics.keys() == {"own_words", "own_words_norm"}
    assert found.unavailable.keys() == {"own_endings", "downstream_mean", "downstream_cropped"}
    (reason,) = set(found.unavailable.values())
    assert reason.startswith("needs the task's data: ")
    assert reason.endswith("run: lm-eval run --model dummy --limit 1 --tasks own_words,own_endings")


def test_without_lm_eval_everything_is_unavailable_and_no_tokenizer_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    found = Downstream(TASKS, ["own_words"]).measure(SimpleNamespace(model=None), SimpleNamespace(), 0)  # type: ignore[arg-type]
    names = {*TASKS, "own_words_norm", "downstream_mean", "downstream_cropped"}
    assert found.metrics == {} and found.unavailable == dict.fromkeys(names, INSTALL)
    assert INSTALL == "needs lm-eval: pip install 'paper-repro[eval]'"


def test_a_user_error_is_named(data: Path) -> None:
    model = Saying("?", " yes", 64)
    with pytest.raises(UsageError, match="has no tokenizer"):
        Downstream(TASKS).measure(SimpleNamespace(model=model), SimpleNamespace(), 0)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no acc_norm"):
        measured(Downstream(TASKS, ["own_endings"]), model)
    with pytest.raises(UsageError, match="lm-eval knows no task 'own_word'"):
        measured(Downstream({"own_word": "words"}), model)


CHOICES = "\n".join(f"{letter}. {{{{choices[{index}]}}}}" for index, letter in enumerate("ABCD"))


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Task files for our small MMLU, as the harness's own are written, over local JSON lines."""
    pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'paper-repro[eval]'")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    for subject, size in SIZES.items():
        files = {split: tmp_path / f"{subject}_{split}.jsonl" for split in ("dev", "test")}
        for split, path in files.items():
            rows = doubles.questions(subject, split)[:size]
            lines = [{"question": row[0], "choices": row[1:5], "answer": "ABCD".index(row[5])} for row in rows]
            path.write_text("\n".join(map(json.dumps, lines)))
        own: dict[str, Any] = {
            "fewshot_split": "dev",
            "fewshot_config": {"sampler": "first_n"},
            "num_fewshot": 5,
            "description": f"The following are multiple choice questions (with answers) about "
            f"{subject.replace('_', ' ')}.\n\n",
            "output_type": "multiple_choice",
            "doc_to_text": "{{question.strip()}}\n" + CHOICES + "\nAnswer:",
            "doc_to_choice": list("ABCD"),
            "doc_to_target": "answer",
        }
        doubles.write_task(tmp_path, f"own_{subject}", files, **own)
    return tmp_path


def test_the_harness_and_our_own_scoring_agree_on_mmlu(tasks: Path) -> None:
    evaluator = Evaluator(small_gpt(block_length=512), Bytes())
    found = downstream.run_tasks(evaluator, [f"own_{subject}" for subject in SIZES], 5, None, tasks)
    own = Evaluator(small_gpt(block_length=512), Bytes())
    for name, subject in mmlu.read(doubles.write_mmlu(tasks / "mmlu"), SIZES).items():
        expected = mmlu.accuracy(subject, mmlu.by_log_likelihood(own, subject.prompts(name)))
        assert found[f"own_{name}"]["acc,none"] == pytest.approx(expected, abs=1e-12)
    assert (evaluator.num_requests, evaluator.num_cropped) == (own.num_requests, own.num_cropped)
    assert 0 < evaluator.num_cropped <= evaluator.num_requests == 4 * sum(SIZES.values())


@pytest.mark.parametrize(("written", "shown"), [(0, 0), (5, 3)])
def test_a_task_shows_the_examples_asked_for_unless_its_file_says_none(tasks: Path, written: int, shown: int) -> None:
    task: dict[str, Any] = json.loads((tasks / "own_fruit.yaml").read_text())
    (tasks / "own_fruit.yaml").write_text(json.dumps({**task, "num_fewshot": written}))
    model = Reciting("Answer:", " B", 4096)
    downstream.run_tasks(Evaluator(model, Bytes()), ["own_fruit"], 3, 1, tasks)
    assert {bytes(min(item, 255) for item in ids).count(b"Answer:") for ids in model.seen} == {shown + 1}


CONTINUATIONS = {f"continuations_{letters}": "continuations-512" for letters in continuations.LETTERS}
MANIFEST = {"manifest": "documentation-512/manifest.json"}
COMMAND = "python scripts/prepare_data.py continuations"
COMMON: dict[str, Any] = {"tasks": CONTINUATIONS, "name": "continuations", "prepare": COMMAND}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(continuations, "QUESTIONS", made.WANTED)
    made.corpus(tmp_path, made.VAL)
    return tmp_path


def tokens_of(root: Path) -> TokenData:
    return TokenData(MANIFEST, 8, 64, 3, data_root=root)


def outcome(root: Path) -> Outcome:
    section = {"_target_": "paper_repro.datamodules.text.TokenData", "files": MANIFEST}
    task = {"_target_": "paper_repro.probes.floors.DownstreamFloor", **COMMON}
    config = {"task": task, "data": {**section, "window": 64}, "machine": {"data_root": str(root)}, "seed": 0}
    (found,) = task_of(config).run([Cell("0" * 16, config)], root / "cells", SimpleNamespace())  # type: ignore[arg-type]
    return found


def test_the_model_is_the_count() -> None:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 7, (200,), generator=draw)
    counts = Counts((ids[:-1], ids[1:]), 9, [0.8])  # two ids are never seen
    asked = torch.randint(0, 9, (3, 5), generator=draw)
    logits = BigramModel(counts, 5)(asked)
    assert logits.shape == (3, 5, 9)
    assert torch.allclose(logits.exp().sum(dim=-1), torch.ones(3, 5, dtype=torch.float64), atol=1e-12)
    following = torch.randint(0, 9, (3, 5), generator=draw)
    expected = counts.probabilities((asked.flatten(), following.flatten())).log()
    assert torch.allclose(logits.gather(-1, following[..., None]).flatten(), expected, atol=1e-12)


def test_the_count_knows_little_more_than_chance_and_is_right_where_it_is_by_hand(root: Path) -> None:
    pytest.importorskip("lm_eval", reason=INSTALL)
    folder = made.prepare(root)
    found = outcome(root)
    assert found.status == FINISHED and set(found.data_hashes) == {"manifest", "tokenizer"}
    assert (root / "cells" / ("0" * 16) / "continuations-512.json").read_bytes() == (
        folder / "manifest.json"
    ).read_bytes()
    counts = BigramFloor().counts(tokens_of(root))
    for letters in continuations.LETTERS:
        right = 0
        for row in made.rows(folder, letters):
            scores = []
            for text in row["choices"]:
                ids = torch.tensor(made.TOKENIZER.encode(row["context"] + text))[-continuations.CONTINUATION - 1 :]
                scores.append(float(counts.probabilities((ids[:-1], ids[1:])).log().sum()))
            right += scores.index(max(scores)) == row["answer"]
        assert found.metrics[f"continuations_{letters}"] == pytest.approx(100 * right / made.WANTED, abs=1e-9)
    assert found.metrics["continuations_cropped"] == 0.0
    assert abs(found.metrics["continuations_mean"] - 25.0) < 4 * 100 * (0.25 * 0.75 / (5 * made.WANTED)) ** 0.5


def test_questions_that_are_lacking_or_altered_are_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downstream, "_shipped_tasks", lambda: root)
    found = outcome(root)
    assert found.metrics == {}
    assert found.unavailable.keys() == {*CONTINUATIONS, "continuations_mean", "continuations_cropped"}
    (reason,) = set(found.unavailable.values())
    assert reason.startswith("needs downstream/continuations-512: ") and reason.endswith(f"run: {COMMAND}")
    altered = made.prepare(root) / "continuations_1_test.jsonl"
    altered.write_bytes(altered.read_bytes()[1:])
    with pytest.raises(UsageError, match="altered since it was prepared"):
        Downstream(**COMMON).of_model(small_gpt(), tokens_of(root))
    monkeypatch.setenv(DATA_VARIABLE, str(root))
    with pytest.raises(UsageError, match="altered since it was prepared"):  # before a training
        Downstream(**COMMON)


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


ROUNDING = 1e-10
"""Float64 sums of some dozen log-likelihoods, in another order."""


@torch.no_grad()
def by_definition(model: torch.nn.Module, context: list[int], continuation: list[int], length: int) -> float:
    """One token at a time, from the last ``length`` tokens, without a batch."""
    total = 0.0
    whole = context + continuation
    for place in range(len(context), len(whole)):
        logits = model(torch.tensor([whole[max(0, place - length) : place]]))[0, -1]
        total += float(logits.log_softmax(-1)[whole[place]])
    return total


@pytest.mark.parametrize("batch_tokens", [1, 70, 8192])
def test_a_log_likelihood_is_the_sum_of_the_tokens_one_by_one_whatever_the_batch(batch_tokens: int) -> None:
    model = small_gpt()
    texts = [("The sun", " rises"), ("A", "b"), ("The sun", " rise!"), ("x" * 40, "yz" * 9), ("The sun ", "rises")]
    evaluator = Evaluator(model, Bytes(), batch_tokens=batch_tokens)
    pairs = [evaluator.pair(*text) for text in texts]
    found = evaluator.log_likelihoods(pairs)
    for (context, continuation), (log_likelihood, _) in zip(pairs, found, strict=True):
        expected = by_definition(model, list(context), list(continuation), 64)
        assert log_likelihood == pytest.approx(expected, abs=ROUNDING)
    assert found[0] == found[4]  # a blank at the end of the context belongs to the continuation
    assert (evaluator.num_requests, evaluator.num_cropped) == (5, 0)


def test_a_context_that_does_not_fit_is_cropped_from_the_left_and_counted() -> None:
    model = small_gpt(block_length=16)
    evaluator = Evaluator(model, Bytes())
    long, short = evaluator.pair("y" + "x" * 40, "abc"), evaluator.pair("x" * 14, "abc")
    cropped, whole = evaluator.log_likelihoods([long, short])
    assert cropped == whole
    assert (evaluator.num_requests, evaluator.num_cropped) == (2, 1)


def test_greedy_says_whether_every_token_is_the_likeliest() -> None:
    model = small_gpt()
    evaluator = Evaluator(model, Bytes())
    with torch.no_grad():
        first = int(model(torch.tensor([[65, 66]]))[0, -1].argmax())
        second = int(model(torch.tensor([[65, 66, first]]))[0, -1].argmax())
    ids = (65, 66)
    found = evaluator.log_likelihoods([(ids, (first, second)), (ids, (first, (second + 1) % 260)), (ids, ())])
    assert [greedy for _, greedy in found] == [True, False, True]
    assert found[2][0] == 0.0


def test_continuations_are_those_of_each_prompt_alone_with_a_sliding_context() -> None:
    model = small_gpt(block_length=12)
    tokenizer = Bytes()
    prompts = ["a", "The sun rises in the east", "xy", "twelve bytes"]
    found = Evaluator(model, tokenizer).continuations(prompts, 9)
    for prompt, text in zip(prompts, found, strict=True):
        ids = tokenizer.encode(prompt)
        for _ in range(9):
            ids.append(int(model(torch.tensor([ids[-12:]]))[0, -1, :257].argmax()))
        assert text == tokenizer.decode(ids[len(prompt) :])


def test_what_cannot_be_evaluated_is_refused() -> None:
    without_end = Evaluator(small_gpt(block_length=4), Bytes(end_of_text=None))
    with pytest.raises(UsageError, match="empty context"):
        without_end.pair("", "text")
    with pytest.raises(UsageError, match="a continuation of 5 tokens"):
        without_end.log_likelihoods([((1,), (1, 2, 3, 4, 5))])

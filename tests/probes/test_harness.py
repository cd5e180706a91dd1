import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.probes import downstream, mmlu
from paper_repro.probes.causal_evaluator import Evaluator
from paper_repro.tests.probes import doubles
from paper_repro.tests.probes.doubles import SIZES, Bytes, Reciting, small_gpt

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
    tallies = mmlu.by_log_likelihood(own, mmlu.read(doubles.write_mmlu(tasks / "mmlu"), SIZES))
    expected = {f"own_{subject}/acc": pytest.approx(tally.accuracy, abs=1e-12) for subject, tally in tallies.items()}
    assert {name: value for name, value in found.items() if name in expected} == expected
    assert (evaluator.num_requests, evaluator.num_cropped) == (own.num_requests, own.num_cropped)
    assert 0 < evaluator.num_cropped <= evaluator.num_requests == 4 * sum(SIZES.values())


@pytest.mark.parametrize(("written", "shown"), [(0, 0), (5, 3)])
def test_a_task_shows_the_examples_asked_for_unless_its_file_says_none(tasks: Path, written: int, shown: int) -> None:
    task: dict[str, Any] = json.loads((tasks / "own_fruit.yaml").read_text())
    (tasks / "own_fruit.yaml").write_text(json.dumps({**task, "num_fewshot": written}))
    model = Reciting("Answer:", " B", 4096)
    downstream.run_tasks(Evaluator(model, Bytes()), ["own_fruit"], 3, 1, tasks)
    assert {bytes(min(item, 255) for item in ids).count(b"Answer:") for ids in model.seen} == {shown + 1}


def test_a_task_that_asks_for_generated_texts_is_refused(tasks: Path) -> None:
    files = {"test": tasks / "fruit_test.jsonl"}
    own = {"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "D"}
    doubles.write_task(tasks, "own_text", files, ["exact_match"], **own)
    with pytest.raises(UsageError, match="a task asks for generated texts"):
        downstream.run_tasks(Evaluator(Reciting("?", "x", 4096), Bytes()), ["own_text"], 0, 1, tasks)


def test_what_tasks_draw_is_the_same_each_time_and_nobody_else_s_draws_change() -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    expected = draws()
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    with downstream._seeded():
        first = draws()
    assert draws() == expected
    with downstream._seeded():
        assert draws() == first != expected

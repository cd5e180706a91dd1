import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.evaluation import harness, mmlu
from paper_repro.evaluation.causal import Evaluator
from paper_repro.tests.evaluation import doubles
from paper_repro.tests.evaluation.doubles import SIZES, Bytes, Reciting, small_gpt

CHOICES = "\n".join(f"{letter}. {{{{choices[{index}]}}}}" for index, letter in enumerate("ABCD"))


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Task files for our small MMLU, as the harness's own are written, over local JSON lines."""
    pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'paper-repro[eval]'")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    for subject, size in SIZES.items():
        files = {}
        for split in ("dev", "test"):
            files[split] = str(tmp_path / f"{subject}_{split}.jsonl")
            rows = doubles.questions(subject, split)[:size]
            lines = [{"question": row[0], "choices": row[1:5], "answer": "ABCD".index(row[5])} for row in rows]
            Path(files[split]).write_text("\n".join(map(json.dumps, lines)))
        task: dict[str, Any] = {
            "task": f"own_{subject}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": files, "cache_dir": str(tmp_path / "cache")},
            "test_split": "test",
            "fewshot_split": "dev",
            "fewshot_config": {"sampler": "first_n"},
            "num_fewshot": 5,
            "description": f"The following are multiple choice questions (with answers) about "
            f"{subject.replace('_', ' ')}.\n\n",
            "output_type": "multiple_choice",
            "doc_to_text": "{{question.strip()}}\n" + CHOICES + "\nAnswer:",
            "doc_to_choice": list("ABCD"),
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        }
        (tmp_path / f"{subject}.yaml").write_text(json.dumps(task))  # JSON is YAML
    return tmp_path


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_harness_and_our_own_scoring_agree_on_mmlu(tasks: Path, seed: int) -> None:
    evaluator = Evaluator(small_gpt(block_length=512, seed=seed), Bytes())
    found = harness.run_tasks(evaluator, [f"own_{subject}" for subject in SIZES], folder=tasks)
    own = Evaluator(small_gpt(block_length=512, seed=seed), Bytes())
    tallies = mmlu.by_log_likelihood(own, mmlu.read(doubles.write_csv(tasks / "csv"), SIZES))
    expected = {f"own_{subject}/acc": pytest.approx(tally.accuracy, abs=1e-12) for subject, tally in tallies.items()}
    assert {name: value for name, value in found.metrics.items() if name in expected} == expected
    assert (found.num_requests, found.num_cropped) == (own.num_requests, own.num_cropped)
    assert 0 < found.num_cropped <= found.num_requests == 4 * sum(SIZES.values())


def test_a_model_that_says_b_gets_the_share_of_b_and_a_limit_is_kept(tasks: Path) -> None:
    evaluator = Evaluator(Reciting("Answer:", " B", 4096), Bytes())
    letters = [row[5] for row in doubles.questions("fruit", "test")]
    found = harness.run_tasks(evaluator, ["own_fruit"], folder=tasks)
    assert found.metrics["own_fruit/acc"] == pytest.approx(letters.count("B") / len(letters), abs=1e-12)
    limited = harness.run_tasks(evaluator, ["own_fruit"], folder=tasks, limit=2)
    assert limited.num_requests == 2 * 4


def test_generation_and_rolling_tasks_run(tasks: Path) -> None:
    common: dict[str, Any] = json.loads((tasks / "fruit.yaml").read_text())
    for key in ("doc_to_choice", "num_fewshot", "fewshot_split", "fewshot_config", "description"):
        del common[key]
    generate = common | {
        "task": "own_generation",
        "output_type": "generate_until",
        "doc_to_target": "{{['A', 'B', 'C', 'D'][answer]}}",
        "generation_kwargs": {"until": ["."], "do_sample": False, "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    rolling = common | {
        "task": "own_rolling",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    }
    for task in (generate, rolling):
        (tasks / f"{task['task']}.yaml").write_text(json.dumps(task))
    evaluator = Evaluator(Reciting("Answer:", "D. or", 4096), Bytes())
    found = harness.run_tasks(evaluator, ["own_generation"], folder=tasks)
    letters = [row[5] for row in doubles.questions("fruit", "test")]
    assert found.metrics["own_generation/exact_match"] == pytest.approx(letters.count("D") / len(letters), abs=1e-12)
    model = small_gpt(block_length=16)
    found = harness.run_tasks(Evaluator(model, Bytes()), ["own_rolling"], folder=tasks)
    texts = [row[0] for row in doubles.questions("fruit", "test")]
    total = sum(Evaluator(model, Bytes()).rolling_log_likelihoods(texts))
    expected = pytest.approx(2.718281828459045 ** (-total / sum(len(text.encode()) for text in texts)), rel=1e-9)
    assert found.metrics["own_rolling/byte_perplexity"] == expected


def test_answers_go_back_in_the_order_of_the_requests_each_with_its_own_options(tasks: Path) -> None:
    model = harness.harness_model(Evaluator(Reciting("?", "one two", 64), Bytes()))
    asked: list[Any] = [("a?", {"max_gen_toks": 2}), ("b?", {"until": " "}), ("c?", {"max_gen_toks": 2})]
    requests: Any = [SimpleNamespace(args=arguments) for arguments in asked]
    assert model.generate_until(requests) == ["on", "one", "on"]
    sampling: Any = [SimpleNamespace(args=("a?", {"do_sample": True}))]
    with pytest.raises(UsageError, match="a task asks for sampling"):
        model.generate_until(sampling)


@pytest.mark.parametrize(
    ("written", "asked", "shown"),
    [(None, None, 0), (None, 3, 3), (0, None, 0), (0, 3, 0), (5, None, 5), (5, 3, 3), (5, 0, 0)],
)
def test_as_many_examples_are_shown_as_the_harness_shows(written: int | None, asked: int | None, shown: int) -> None:
    class Task:
        number, seed = written, None

        def get_config(self, key: str) -> int | None:
            return {"num_fewshot": self.number}[key]

        def set_config(self, key: str, value: int) -> None:
            assert key == "num_fewshot"
            self.number = value

        def set_fewshot_seed(self, seed: int) -> None:
            self.seed = seed

    task = Task()
    harness._set_shots(task, asked)
    assert (task.number, task.seed) == (shown, 1234)


def test_what_tasks_draw_is_the_same_each_time_and_nobody_else_s_draws_change() -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    expected = draws()
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    with harness._seeded():
        first = draws()
    assert draws() == expected
    with harness._seeded():
        assert draws() == first != expected


def test_no_task_is_refused() -> None:
    pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'paper-repro[eval]'")
    with pytest.raises(UsageError, match="at least one"):
        harness.run_tasks(Evaluator(small_gpt(block_length=8), Bytes()), [])


def test_an_unknown_task_and_absent_data_are_refused(tasks: Path) -> None:
    evaluator = Evaluator(Reciting("?", "x", 64), Bytes())
    with pytest.raises(UsageError, match=r"lm-eval knows no task 'own_fruits' \(did you mean 'own_fruit'\?\)"):
        harness.run_tasks(evaluator, ["own_fruits"], folder=tasks)
    (tasks / "fruit_test.jsonl").unlink()
    with pytest.raises(UsageError, match="lm-eval cannot load the data of own_fruit: "):
        harness.run_tasks(evaluator, ["own_fruit"], folder=tasks)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lm_eval", "lm_eval.tasks", "lm_eval.api.model"):
        monkeypatch.setitem(sys.modules, name, None)
    evaluator = Evaluator(Reciting("?", "x", 64), Bytes())
    for call in (lambda: harness.run_tasks(evaluator, ["mmlu"]), lambda: harness.harness_model(evaluator)):
        with pytest.raises(UsageError, match=r"needs lm-eval: pip install 'paper-repro\[eval\]'"):
            call()

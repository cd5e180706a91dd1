import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paper_repro.base.errors import UsageError
from paper_repro.base.files import DATA_VARIABLE
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.probes.mmlu import MMLU
from paper_repro.tests.evaluation import doubles
from paper_repro.tests.evaluation.doubles import SIZES, Bytes, Reciting
from paper_repro.training.module import PaperModule
from paper_repro.training.schedules import Cosine

COLUMNS = {"food": {"fruit": SIZES["fruit"]}, "earth": {"small_rivers": SIZES["small_rivers"]}}


class Text(CounterBasedDataModule):
    splits = ("val",)
    tokenizer: Bytes | None = Bytes()

    def train_batch(self, step: int) -> tuple[Tensor, Tensor]:
        raise AssertionError("a probe draws no training batch")

    def evaluation_batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        raise AssertionError("nor an evaluation batch")


class Silent(Text):
    tokenizer = None


class Module(PaperModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, torch.optim.AdamW, Cosine())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    return tmp_path


def share(letter: str, subject: str) -> float:
    answers = [row[5] for row in doubles.questions(subject, "test")]
    return 100 * answers.count(letter) / len(answers)


def test_a_model_that_always_means_b_and_writes_c_gets_both_shares(folder: Path) -> None:
    doubles.write_csv(folder / "mmlu")
    # After "Answer:" it says " B"; what it writes after the instruction names C in one way, an article in the other.
    model = Reciting("Answer:", " B", 4096)
    found = MMLU(COLUMNS, num_tokens=4, instruction="").measure(Module(model), Text(), 0)
    expected = {"food": share("B", "fruit"), "earth": share("B", "small_rivers")}
    for prefix in ("mmlu", "mmlu_generated"):
        for name, value in expected.items():
            assert found.metrics[f"{prefix}_{name}"] == pytest.approx(value, abs=1e-9)
        average = math.fsum(expected.values()) / 2
        assert found.metrics[f"{prefix}_average"] == pytest.approx(average, abs=1e-9)
    assert found.metrics["mmlu_cropped"] == found.metrics["mmlu_generated_fallbacks"] == 0
    written = MMLU(COLUMNS, num_tokens=12).measure(Module(Reciting("needed.", " on a tree", 4096)), Text(), 0)
    assert written.metrics["mmlu_generated_articles"] == 100
    assert written.metrics["mmlu_generated_food"] == pytest.approx(share("A", "fruit"), abs=1e-9)
    assert written.metrics["mmlu_always_a_food"] == written.metrics["mmlu_generated_food"]
    assert found.metrics["mmlu_always_a_average"] == written.metrics["mmlu_generated_average"]
    content = json.loads(found.attachments["mmlu.json"])
    assert content["subjects"]["fruit"]["generated"]["questions"] == SIZES["fruit"]
    assert content["questions_sha256"] == json.loads(written.attachments["mmlu.json"])["questions_sha256"]


def test_prompts_that_the_context_cannot_hold_are_reported(folder: Path) -> None:
    doubles.write_csv(folder / "mmlu")
    found = MMLU(COLUMNS, num_tokens=1).measure(Module(doubles.small_gpt(block_length=64).float()), Text(), 0)
    assert found.metrics["mmlu_cropped"] == 100


def test_every_metric_is_measured_or_lacks_the_questions(folder: Path) -> None:
    probe, module = MMLU(COLUMNS, num_tokens=1), Module(Reciting("Answer:", " B", 4096))
    absent = probe.measure(module, Text(), 0)
    assert not absent.metrics and not absent.attachments
    assert {reason.partition(":")[0] for reason in absent.unavailable.values()} == {"needs mmlu"}
    assert all("hf download cais/mmlu" in reason for reason in absent.unavailable.values())
    doubles.write_csv(folder / "mmlu")
    assert probe.measure(module, Text(), 0).metrics.keys() == absent.unavailable.keys()


def test_the_configured_folder_comes_first(tmp_path: Path) -> None:
    data = Text()
    data.data_root = str(tmp_path)  # type: ignore[attr-defined]
    doubles.write_parquet(tmp_path / "mmlu")
    found = MMLU(COLUMNS, num_tokens=1).measure(Module(Reciting("Answer:", " B", 4096)), data, 0)
    assert found.metrics["mmlu_food"] == pytest.approx(share("B", "fruit"), abs=1e-9)


def test_wrong_columns_damaged_questions_and_data_without_text_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"columns must name at least one subject each, got \['food'\]"):
        MMLU({"food": {}})
    with pytest.raises(ValueError, match=r"columns.food.fruit must be a whole number of at least 1, got 0"):
        MMLU({"food": {"fruit": 0}})
    doubles.write_csv(folder / "mmlu")
    with pytest.raises(UsageError, match="7 test questions on fruit, expected 6"):
        MMLU({"food": {"fruit": 6}})  # before anything is trained
    with pytest.raises(UsageError, match=r"Silent has no tokenizer; leave probes.mmlu out"):
        MMLU(COLUMNS).measure(Module(Reciting("Answer:", " B", 4096)), Silent(), 0)

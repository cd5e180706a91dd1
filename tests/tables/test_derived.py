"""Metrics that follow from others: their values, and why there is none."""

import pytest

from paper_repro.cells import records
from paper_repro.cells.tasks import FINISHED, Outcome
from paper_repro.tables.spec import Metric
from paper_repro.tables.view import with_derived

METRICS = {
    "perplexity": Metric("Perplexity", "", "lower", derived={"exp": ["val_loss"]}),
    "logarithm": Metric("Logarithm", "", "lower", derived={"log": ["val_loss"]}),
    "ratio": Metric("Ratio", "", "lower", derived={"ratio": ["val_loss", "score"]}),
    "wrong": Metric("Wrong", "", "lower", derived={"complement": ["right"]}),
}
OF_THE_LOSS = {"perplexity", "logarithm", "ratio"}


def found(metrics: dict[str, float], **unavailable: str) -> records.Record:
    outcome = Outcome(FINISHED, metrics, unavailable=unavailable)
    return with_derived(records.from_outcome("cell", {}, outcome, {}), METRICS)


def test_what_follows_from_what_was_measured() -> None:
    record = found({"val_loss": 2.0, "score": 4.0, "right": 0.75})
    assert record.metrics["wrong"] == 0.25
    assert record.metrics["perplexity"] == pytest.approx(7.38905609893)
    assert record.metrics["ratio"] == 0.5 and not record.unavailable


def test_what_lacks_a_source_lacks_what_that_lacks() -> None:
    record = found({"val_loss": 2.0}, score="needs gpt2")
    assert record.unavailable == {"score": "needs gpt2", "ratio": "needs gpt2"} and "perplexity" in record.metrics
    assert found({"score": 1.0}).unavailable == {}, "never asked for"


@pytest.mark.parametrize(
    ("loss", "wrong"),
    [(1e4, {"perplexity"}), (0.0, {"logarithm"}), (-1.0, {"logarithm"}), (float("nan"), {*OF_THE_LOSS, "val_loss"})],
)
def test_what_is_not_finite_says_so(loss: float, wrong: set[str]) -> None:
    assert found({"val_loss": loss, "score": 4.0}).unavailable == dict.fromkeys(sorted(wrong), "not finite")
    assert found({"val_loss": 1.0, "score": 0.0}).unavailable == {"ratio": "not finite"}

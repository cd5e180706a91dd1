"""Parameter counts of EBT's sizes, and the FLOPs of a step against the paper's rule."""

from collections.abc import Mapping
from typing import Any

import pytest

from paper_repro.tables import plan as plans
from paper_repro.tables import spec
from paper_repro.tables.table import table_of
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made, Place
from paper_repro.training.step_time import parameters

PLAN = plans.make(spec.load("ebt/tableD2"), "exact")
TRANSFORMER = {
    "xxs": 6_198_144,
    "xs": 12_395_904,
    "small": 49_564_416,
    "medium": 176_210_944,
    "large": 396_436_992,
    "xl": 704_743_424,
}
TIME_EMBED = {"xxs": 6_199_296, "xs": 12_397_056, "small": 49_566_720, "xl": 704_749_568}
ADALN = {"xxs": 11.8, "xs": 23.3, "small": 93.3, "medium": 329.5, "large": 741.1, "xl": 1317.4}
TOTALS = {"xxs": 44.81, "xs": 51.01, "small": 126.79, "medium": 279.18, "large": 550.89, "xl": 910.68}


def test_the_counts_are_those_of_the_published_code() -> None:
    found: dict[str, dict[str, Any]] = {}
    for cell in PLAN.cells:
        place = dict(cell.key)
        found.setdefault(place["size"], {})[place["model"]] = {**cell.config["model"], **parameters(cell.config)}
    for size, number in TRANSFORMER.items():
        counts = {model: own["parameters"] for model, own in found[size].items()}
        width = found[size]["transformer"]["width"]
        assert counts["transformer"] == number
        assert counts["one_step"] == counts["two_steps"] == number + width
        assert counts["time_embed"] == TIME_EMBED.get(size, number + 3 * width)
        assert round(counts["adaln"] / 1e6, 1) == ADALN[size]
        assert round(found[size]["transformer"]["parameters_total"] / 1e6, 2) == TOTALS[size]


@pytest.mark.parametrize(("share", "word"), [(1.04, "holds"), (1.06, "fails"), (0.9, "fails")])
def test_each_step_has_to_cost_as_the_rule_says(share: float, word: str) -> None:
    def weights(place: Place, seed: int) -> Mapping[str, float]:
        steps = {"one_step": 1.0, "two_steps": 2.0}.get(place["model"], 0.0)
        return {"weights_concatenated": share * steps * 20 / 6}

    table = table_of(made_up.view("ebt/tableD2", Made(weights, noise=0.0, known=True)))
    (judgement,) = table.judgements
    assert judgement.word == word
    assert {label: part.mean for label, part in judgement.estimate.parts}["EBT, default, 2 steps, XL"] == pytest.approx(
        share
    )
    assert table.summary() == pytest.approx({"rule_one_step": 10 / 3, "rule_two_steps": 20 / 3})

"""nGPT's ablations, tables 4 to 6: the change of the loss against the default."""

from collections.abc import Mapping

import pytest

from paper_repro.papers.ngpt.bases.ablation import CHANGE, with_changes
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made


def test_a_change_is_against_the_default_of_the_same_seed() -> None:
    def metrics(place: Mapping[str, str], seed: int) -> dict[str, float]:
        if place["setting"] == "default" and seed == 2:
            return {}
        return {"val_loss": (2.0 + seed) * (1.01 if place["setting"] == "no_qk_norm" else 1.0)}

    view = made_up.view("ngpt/table6", Made(metrics=metrics, noise=0.0, seeds=(0, 1, 2)))
    changed = with_changes(view)
    assert changed.samples(CHANGE, {"setting": "no_qk_norm"}) == pytest.approx({0: 1.0, 1: 1.0})
    assert changed.samples(CHANGE, {"setting": "default"}) == {0: 0.0, 1: 0.0}
    assert not view.samples(CHANGE, {"setting": "no_qk_norm"})

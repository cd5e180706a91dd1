from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, judge
from paper_repro.artifacts.views import View
from paper_repro.base import config as configs
from paper_repro.base.errors import UsageError
from paper_repro.base.targets import instantiate
from paper_repro.cells import planned
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Cell, Outcome
from paper_repro.probes.model_size import ModelSize, count
from paper_repro.tests.support.synthetic import fill, finished

PLAN = plans.make(catalogue.load("ngpt/table2"), "exact")
SIZES = {"small": (24, 1024), "large": (36, 1280)}


def by_formula(model: str, vocabulary: int, layers: int, width: int) -> int:
    """2 V d + 16 L d^2, and GPT's gains or nGPT's scales: alpha_A, alpha_M, s_qk (d), s_u, s_nu (4 d), s_z (V)."""
    own = (2 * layers + 1) * width if model == "gpt" else (3 + 2 * 4) * layers * width + vocabulary
    return 2 * vocabulary * width + 16 * layers * width**2 + own


def counted(cell: PlannedCell) -> Outcome:
    (outcome,) = ModelSize().run([Cell(cell.id, cell.config)], Path(), None)  # type: ignore[arg-type]
    return outcome


def judged(view: View) -> dict[str, Judgement]:
    return {claim.id: judge(claim, view) for claim in view.artifact.claims}


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    root = tmp_path_factory.mktemp("runs")
    fill(root, PLAN, counted)
    return views.build(PLAN, root, None)


def test_every_count_is_the_formulas(view: View) -> None:
    for key in view.points:
        place = dict(key)
        layers, width = SIZES[place["size"]]
        whole = by_formula(place["model"], 32000, layers, width)
        later = width if place["model"] == "gpt" else 32000
        assert view.samples("parameters", place) == {0: whole}
        assert view.samples("parameters_counted_early", place) == {0: whole - later}
        other = by_formula(place["model"], 50304, layers, width)
        assert view.samples("parameters_other_vocabulary", place) == {0: other}
    assert len(view.points) == 4


def test_the_counts_stand_in_the_digits_of_the_paper_cut_off_and_not_rounded(view: View) -> None:
    found = judged(view)
    assert {name: judgement.verdict for name, judgement in found.items()} == {
        "printed_counts_are_truncated": HOLDS,
        "printed_counts_are_rounded": FAILS,
        "early_counts_are_rounded": FAILS,
    }
    wrong = {name: [label for label, part in found[name].parts if part.verdict == FAILS] for name in found}
    assert wrong["printed_counts_are_rounded"] == ["0.5B, nGPT", "1B, nGPT"]
    assert wrong["early_counts_are_rounded"] == ["0.5B, nGPT"]


def test_a_verdict_follows_the_records(view: View, tmp_path: Path) -> None:
    empty = views.build(PLAN, tmp_path / "empty", None)
    assert {judgement.verdict for judgement in judged(empty).values()} == {UNDECIDED}

    def larger(cell: PlannedCell) -> Outcome:
        (count,) = view.samples("parameters", dict(cell.key)).values()
        return finished(parameters=count + 1e5)

    fill(tmp_path, PLAN, larger)
    assert judged(views.build(PLAN, tmp_path, None))["printed_counts_are_truncated"].verdict == FAILS


@pytest.mark.parametrize("model", ["gpt", "ngpt"])
def test_what_is_counted_is_what_is_trained(model: str, view: View) -> None:
    trained = configs.compose("ngpt/speedup", [f"model=ngpt/{model}"])["model"]
    assert {0: count(trained)} == view.samples("parameters", {"size": "small", "model": model})


def test_the_meta_device_counts_what_a_built_model_has() -> None:
    cell = planned.single("ngpt/sizes", ["model.width=24", "model.num_heads=2", "model.num_layers=3"], 0)
    node: dict[str, Any] = {**cell.config["counted"], "vocabulary_size": 10}
    built = instantiate(node)
    assert count(node) == sum(parameter.numel() for parameter in built.parameters()) == by_formula("ngpt", 10, 3, 24)
    assert all(parameter.device.type == "cpu" for parameter in built.parameters())


def test_another_thing_than_a_language_model_is_refused() -> None:
    with pytest.raises(UsageError, match="a CausalLanguageModel was expected, found Cosine"):
        count({"_target_": "paper_repro.training.schedules.Cosine"})
    assert torch.get_default_device().type == "cpu"

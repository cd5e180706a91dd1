"""EBT's artifacts about thinking: what they run, and what they say of made-up records."""

import csv
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from paper_repro.artifacts import catalogue, render, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement
from paper_repro.artifacts.claims import judge as judge_claim
from paper_repro.artifacts.derived import gain
from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.base.files import sha256_of_bytes, write_atomically
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import FINISHED, Outcome
from paper_repro.papers.ebt.thinking import PAPER_SETS, VALIDATION, evaluations
from paper_repro.tests.support.synthetic import apart, write_record

NAMES = ("table2", "table3", "fig6", "fig7", "figB3", "figB4")
ARTIFACTS = {name: catalogue.load(f"ebt/{name}") for name in NAMES}
PLANS = {name: plans.make(artifact, "cpu") for name, artifact in ARTIFACTS.items()}
SETS = {VALIDATION: 3.5, "gsm8k": 3.8, "python": 4.2, "shakespeare": 4.5, "listops": 4.8, "dyck-generated": 5.4}
"""Losses with one step and one sample."""
STEPS, SAMPLES = (1, 2, 3, 4, 6, 8), (1, 2, 4, 10)
FLOOR = 4.0
Place = Mapping[str, str]
Thought = Callable[[str, int, int], float]
"""By how much a loss falls, of a set, with so many steps and samples."""


def outcome_of(thought: Thought, loss: float = 0.0, **others: float) -> tuple[dict[str, float], dict[str, bytes]]:
    """Metrics and attachment of a model whose losses lie ``loss`` above those of SETS and fall as said."""
    metrics, lines = dict(others), ["set,steps,samples,loss,oracle"]
    for name, own in SETS.items():
        at = {(s, n): own + loss - thought(name, s, n) for s in STEPS for n in SAMPLES}
        lines += [f"{name},{s},{n},{value:.8g},{value - 0.2:.8g}" for (s, n), value in at.items()]
        kinds = {"loss": (3, 1), "first_loss": (1, 1), "longer_loss": (8, 1), "best_loss": (8, 10)}
        metrics |= {f"{name}_{kind}": at[place] for kind, place in kinds.items()}
    metrics["val_loss"] = metrics["validation_loss"]
    return metrics, {"thinking.csv": ("\n".join(lines) + "\n").encode()}


def thought(longer: float = 0.0, verified: float = 0.0, further: float = 1.0) -> Thought:
    """Three steps gain ``longer`` nats, later ones ``further`` times as much; ten samples gain ``verified``."""

    def fall(name: str, steps: int, samples: int) -> float:
        share = min(steps - 1, 2) / 2 + (further - 1) * max(steps - 3, 0) / 5
        return longer * share + verified * math.log10(samples)

    return fall


def fill(root: Path, name: str, made: Callable[[Place, int], tuple[dict[str, float], dict[str, bytes]]]) -> views.View:
    """Records of every cell; the floor has 4 nats on every set, the seeds differ by a hundredth of a nat."""
    for floor in PLANS[name].floors:
        for cell in floor.cells.values():
            write_record(root, cell, Outcome(FINISHED, _floors()))
    for cell in PLANS[name].cells:
        metrics, files = made(dict(cell.key), cell.seed)
        for file, content in files.items():
            write_atomically(record_path(root, cell.id).parent / file, content)
        digests = {file: sha256_of_bytes(content) for file, content in files.items()}
        write_record(root, cell, apart(cell, Outcome(FINISHED, metrics, parameters=7, attachments=digests)))
    return views.build(PLANS[name], root, None)


def _floors() -> dict[str, float]:
    return {f"{name}_loss": FLOOR for name in SETS} | {"val_loss": FLOOR}


def judged(root: Path, name: str, made: Any) -> dict[str, Judgement]:
    view = fill(root, name, made)
    return {claim.id: judge_claim(claim, view) for claim in ARTIFACTS[name].claims}


def verdicts(root: Path, name: str, made: Any) -> dict[str, str]:
    return {claim: judgement.verdict for claim, judgement in judged(root, name, made).items()}


def noise(seed: int) -> float:
    return 0.001 * seed


# What is run


def test_every_claim_of_the_catalogue_about_thinking_is_here() -> None:
    found = {claim.catalogue for artifact in ARTIFACTS.values() for claim in artifact.claims} - {None}
    assert found == {
        *("ood_generalisation", "thinking_helps", "verification_helps", "thinking_more_ood", "langevin_tradeoff"),
        *("random_step_size_critical", "energy_is_uncertainty", "ood_energy", "less_adversarial_with_data"),
    }


@pytest.mark.parametrize("scale", ["smoke", "cpu", "gpu", "paper"])
def test_a_model_that_several_artifacts_show_is_trained_once(scale: str) -> None:
    cells: dict[tuple[str, str, int], set[str]] = {}
    for artifact in ARTIFACTS.values():
        for cell in plans.make(artifact, scale).cells:
            place = dict(cell.key)
            if place.get("technique", "full") == "full" and place.get("length", "one") == "one":
                cells.setdefault((place["model"], "", cell.seed), set()).add(cell.settings)
    shares = {f"transformer_{share}" for share in ("half", "quarter", *([] if scale == "smoke" else ["fifth"]))}
    models = {"transformer", "recurrent", "s1", "s2", *shares}
    assert {model for model, _, _ in cells} == models and all(len(ids) == 1 for ids in cells.values())


def test_each_row_of_table_2_differs_from_the_full_configuration_in_one_technique() -> None:
    changed = {
        "fixed_step_size": {"step_size_spread": 1.0},
        "fixed_steps": {"most_steps": None},
        "no_noise": {"noise": 0.0},
        "all_steps": {"truncate": False},
        "listing": {"rule": "listing"},
    }
    for scale in ("smoke", "cpu", "gpu", "paper"):
        found = {dict(cell.key)["technique"]: cell for cell in _of_seed(plans.make(ARTIFACTS["table2"], scale).cells)}
        full = found.pop("full").config
        assert full["module"]["replay"]["rows"] > 0 and full["module"]["thinking"]["truncate"]
        for name, cell in found.items():
            own = json.loads(json.dumps(cell.config))
            own["module"]["thinking"] |= {key: full["module"]["thinking"].get(key) for key in changed.get(name, {})}
            for key, value in changed.get(name, {}).items():
                assert cell.config["module"]["thinking"][key] == value
            if name == "no_replay":
                assert own["module"].pop("replay") is None
                own["module"]["replay"] = full["module"]["replay"]
            if name == "listing":
                assert own["model"]["step_size"] == 100 * full["model"]["step_size"]
                own["model"]["step_size"] = full["model"]["step_size"]
            if name == "all_steps" and scale == "cpu":  # it diverges at the others' rate
                assert own["optimizer"]["lr"] == pytest.approx(0.6 * full["optimizer"]["lr"])
                own["optimizer"]["lr"] = full["optimizer"]["lr"]
            assert own == full


def _of_seed(cells: Any) -> list[PlannedCell]:
    first = cells[0].seed
    return [cell for cell in cells if cell.seed == first and dict(cell.key)["model"] == "s2"]


def test_evaluations_and_gains_are_counted_as_said() -> None:
    assert (evaluations(1, 1), evaluations(8, 10)) == (2, 81)
    assert gain(math.log(20), math.log(15)) == pytest.approx(25)


# What is said


def test_table_2_holds_on_the_papers_gains_and_fails_without_them(tmp_path: Path) -> None:
    gains = {
        "fixed_step_size": (0.0, 0.002),
        "fixed_steps": (0.0, 0.1),
        "no_noise": (0.19, 0.0),
        "no_replay": (0.16, 0.03),
        "full": (0.07, 0.14),
        "all_steps": (0.1, 0.2),
        "listing": (0.0, 0.0),
    }

    def made(place: Place, seed: int) -> Any:
        longer, verified = gains[place["technique"]]
        return outcome_of(thought(longer + noise(seed), verified))

    assert verdicts(tmp_path / "a", "table2", made) == {
        "random_step_size_critical": HOLDS,
        "langevin_tradeoff": HOLDS,
        "all_techniques_are_best": HOLDS,
        "backpropagation_through_all_steps_gains_more": HOLDS,
    }
    gains["fixed_step_size"], gains["no_noise"], gains["all_steps"] = (0.07, 0.15), (0.02, 0.3), (0.0, 0.0)
    assert set(verdicts(tmp_path / "b", "table2", made).values()) == {FAILS}
    gains["full"] = (-0.1, 0.0)
    assert verdicts(tmp_path / "c", "table2", made)["random_step_size_critical"] == FAILS


def test_figure_7_holds_where_thinking_gains_and_fails_where_it_does_not(tmp_path: Path) -> None:
    def made(place: Place, seed: int) -> Any:
        trained = {"one": 0.25, "twice": 0.5, "fourfold": 1.0}[place["length"]]
        if place["model"] == "recurrent":
            return outcome_of(thought(0.3 + noise(seed), further=0.0), loss=0.3)
        return outcome_of(thought(0.2 + noise(seed), (0.1 + noise(seed)) * trained, further=1.5))

    expected = {"thinking_helps", "verification_helps", "thinking_helps_beyond_training"}
    expected |= {"below_a_recurrent_transformer", "passing_again_does_not_help"}
    assert verdicts(tmp_path / "a", "fig7", made) == dict.fromkeys(expected, HOLDS)

    def opposite(place: Place, seed: int) -> Any:
        trained = {"one": 0.25, "twice": 0.5, "fourfold": 1.0}[place["length"]]
        if place["model"] == "recurrent":
            return outcome_of(thought(0.3 + noise(seed), further=2.0))
        return outcome_of(thought(-0.2 + noise(seed), (noise(seed) - 0.1) * trained, further=2.0))

    assert verdicts(tmp_path / "b", "fig7", opposite) == dict.fromkeys(expected, FAILS)


def test_figure_7_without_the_steps_of_training_is_undecided(tmp_path: Path) -> None:
    def made(place: Place, seed: int) -> Any:
        metrics, files = outcome_of(thought(0.2 + noise(seed), 0.1, further=1.5), loss=-0.1)
        kept = [line for line in files["thinking.csv"].decode().splitlines() if line.split(",")[1] != "3"]
        return metrics, {"thinking.csv": "\n".join(kept).encode()}

    found = judged(tmp_path, "fig7", made)
    for claim in ("thinking_helps_beyond_training", "below_a_recurrent_transformer", "passing_again_does_not_help"):
        assert (found[claim].verdict, "no losses after 3 steps" in found[claim].because) == (UNDECIDED, True)
    assert found["thinking_helps"].verdict == HOLDS


def test_figure_6_judges_the_slope_over_the_shift(tmp_path: Path) -> None:
    def made(sign: float) -> Any:
        def more(place: Place, seed: int) -> Any:
            return outcome_of(lambda name, s, n: sign * (SETS[name] - 3.4 + noise(seed)) * 0.02 * (s - 1))

        return more

    assert verdicts(tmp_path / "a", "fig6", made(1)) == {"thinking_more_ood": HOLDS}
    assert verdicts(tmp_path / "b", "fig6", made(-1)) == {"thinking_more_ood": FAILS}


def test_figure_b4_judges_what_ten_samples_add_to_two_over_training(tmp_path: Path) -> None:
    def made(sign: float) -> Any:
        def more(place: Place, seed: int) -> Any:
            trained = {"one": 0.0, "twice": 0.5, "fourfold": 1.0}[place["length"]]
            return outcome_of(thought(0.1, 0.1 + sign * (0.05 + noise(seed)) * trained))

        return more

    assert verdicts(tmp_path / "a", "figB4", made(1)) == {"less_adversarial_with_data": HOLDS}
    assert verdicts(tmp_path / "b", "figB4", made(-1)) == {"less_adversarial_with_data": FAILS}


def uncertain(rank: float, auroc: float) -> Any:
    def made(place: Place, seed: int) -> Any:
        kinds = {"energy": (rank, auroc), "entropy": (0.1, 0.6)} if place["model"] == "s2" else {"entropy": (0.5, 0.7)}
        metrics = {f"{kind}_rank": value + noise(seed) for kind, (value, _) in kinds.items() for _ in "x"}
        for name in SETS:
            metrics |= {f"{name}_{kind}_auroc": value + 2 * noise(seed) for kind, (_, value) in kinds.items()}
            metrics |= {f"{name}_loss_auroc": 0.8}
        found, files = outcome_of(thought(0.1), **metrics)
        texts = [
            {
                "set": name,
                "tokens": ["the", " qu", "ick\n", " $x$"],
                "loss": [1.0, 5.0, 2.0, 3.0],
                "energies": [[1.0, 4.0, 2.0, 3.0], [0.2, 3.9, 1.0, 2.0], [0.0, 3.5, 0.5, 2.0]],
                "trained": 2,
            }
            for name in (VALIDATION, "gsm8k")
        ]
        return found, {**files, "token_energies.json": json.dumps({"texts": texts}).encode()}

    return made


def test_figure_b3_judges_ranks_and_areas(tmp_path: Path) -> None:
    claims = {claim.id for claim in ARTIFACTS["figB3"].claims}
    assert verdicts(tmp_path / "a", "figB3", uncertain(0.6, 0.9)) == dict.fromkeys(claims, HOLDS)
    assert verdicts(tmp_path / "b", "figB3", uncertain(-0.2, 0.3)) == dict.fromkeys(claims, FAILS)


def test_table_3_counts_the_sets_on_which_ebt_is_better(tmp_path: Path) -> None:
    def made(own: float, foreign: float) -> Any:
        def lossy(place: Place, seed: int) -> Any:
            if place["model"].startswith("transformer"):
                return outcome_of(thought(), loss=later[place["model"]])
            return outcome_of(lambda name, s, n: noise(seed) - (own if name == VALIDATION else foreign))

        return lossy

    later = {"transformer": 0.0, "transformer_half": 0.05, "transformer_quarter": 0.3, "transformer_fifth": 0.4}
    claims = {claim.id for claim in ARTIFACTS["table3"].claims}
    assert len(claims) == 3
    assert verdicts(tmp_path / "a", "table3", made(0.1, -0.1)) == dict.fromkeys(claims, HOLDS)
    assert verdicts(tmp_path / "b", "table3", made(0.1, 0.2)) == dict.fromkeys(claims, FAILS)
    lower = judged(tmp_path / "c", "table3", made(0.45, -0.1))["lower_at_equal_pretraining"]
    assert (lower.verdict, lower.because) == (UNDECIDED, "not run")  # beyond the shortest run nothing is said


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_judged_below_the_floor_or_without_records(tmp_path: Path, name: str) -> None:
    def above(place: Place, seed: int) -> Any:
        metrics, files = uncertain(0.6, 0.9)(place, seed)
        found, grid = outcome_of(thought(0.2 + noise(seed), 0.1), loss=2.0)
        return {**metrics, **found}, {**files, **grid}

    for judgement in judged(tmp_path / "above", name, above).values():
        assert judgement.verdict == NOT_JUDGED
        assert all("Bigram count 4.0" in leaf.because for leaf in judgement.leaves())
    view = views.build(PLANS[name], tmp_path / "empty", None)
    assert {judge_claim(claim, view).verdict for claim in ARTIFACTS[name].claims} == {UNDECIDED}


def test_models_of_every_length_that_is_judged_have_to_be_below_the_floor(tmp_path: Path) -> None:
    """After the shortest training, and after a fifth of that of Transformer++, a model is above the floor."""

    def made(place: Place, seed: int) -> Any:
        short = {"one": 1.0}.get(place.get("length", ""), 0.0)
        trained = {"one": 0.25, "twice": 0.5}.get(place.get("length", ""), 1.0)
        return outcome_of(thought(0.2, (0.1 + noise(seed)) * trained), loss=short)

    found = judged(tmp_path / "fig7", "fig7", made)["verification_helps"]
    assert found.verdict == NOT_JUDGED and [part.verdict for _, part in found.parts] == [HOLDS, NOT_JUDGED]
    assert judged(tmp_path / "figB4", "figB4", made)["less_adversarial_with_data"].verdict == NOT_JUDGED

    def loss(place: Place, seed: int, ours: float) -> Any:
        own = {"transformer": 0.0, "transformer_half": 0.05, "transformer_quarter": 0.3, "transformer_fifth": 1.0}
        return outcome_of(thought(), loss=own.get(place["model"], ours + noise(seed)))

    for ours, verdict in ((0.2, HOLDS), (0.4, NOT_JUDGED)):  # between a half and a quarter; a quarter and a fifth
        root = tmp_path / str(ours)
        lower = judged(root, "table3", lambda place, seed, ours=ours: loss(place, seed, ours))
        assert (lower["lower_at_equal_pretraining"].verdict == NOT_JUDGED) == (verdict == NOT_JUDGED)


# What is shown


@pytest.mark.parametrize("name", NAMES)
def test_tables_and_figures_are_rendered_from_records_and_from_none(tmp_path: Path, name: str) -> None:
    def made(place: Place, seed: int) -> Any:
        trained = {"one": 0.25, "twice": 0.5}.get(place.get("length", ""), 1.0)
        metrics, files = uncertain(0.6, 0.9)(place, seed)
        if place["model"] == "transformer":
            return {key: value for key, value in metrics.items() if not key.endswith("t_loss")}, {}
        found, grid = outcome_of(thought(0.2 + 10 * noise(seed), 0.1 * trained), loss=0.3 * (1 - trained))
        return {**metrics, **found}, {**files, **grid}

    view = fill(tmp_path / "runs", name, made)
    for folder, seen in (("full", view), ("empty", views.build(PLANS[name], tmp_path / "nothing", None))):
        render.table_of(seen).write(tmp_path / folder)
        figure = render.figure_of(seen)
        if figure is not None:
            figure.write(tmp_path / folder)
    text = (tmp_path / "full" / "table.md").read_text()
    assert "Bigram count" in text and "not run" not in text
    assert "not run" in (tmp_path / "empty" / "table.md").read_text()
    if name.startswith("fig"):
        rows = list(csv.DictReader((tmp_path / "full" / "figure.csv").open()))
        assert rows and (tmp_path / "full" / "figure.png").is_file()
        assert not list(csv.DictReader((tmp_path / "empty" / "figure.csv").open()))


def test_the_papers_numbers_stand_beside_its_sets_and_ours_under_their_own_names(tmp_path: Path) -> None:
    def made(place: Place, seed: int) -> Any:
        metrics, files = outcome_of(thought(0.1 + noise(seed)))
        return metrics, files

    fill(tmp_path, "table2", made)
    for name in ("table2", "table3"):
        artifact = ARTIFACTS[name]
        printed = {metric for metric, spec in artifact.metrics.items() if spec.published}
        assert printed and all(metric.startswith((*PAPER_SETS, VALIDATION)) for metric in printed)

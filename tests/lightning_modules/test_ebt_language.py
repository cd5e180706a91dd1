"""EBT's training on tokens: S1, S2 and Transformer++ through Fit, the replay buffer, and what is refused."""

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from paper_repro.base.configs import compose
from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, StopRequestedError
from paper_repro.kernels import words_in_pieces
from paper_repro.kernels.preferences import prefer
from paper_repro.lightning_modules import ebt_language
from paper_repro.lightning_modules.ebt_language import EBTLanguage
from paper_repro.tests.support.cycles import Cycles
from paper_repro.tests.support.ops import assert_same
from paper_repro.tests.support.reports import Recorder
from paper_repro.tests.training.doubles import assert_same_runs
from paper_repro.training.build import build
from paper_repro.training.counting import peak_bytes
from paper_repro.training.fit import Fit

WORDS, BATCH, WINDOW = 7, 4, 6
SIZES = f"words:{WORDS},batch_size:{BATCH},window:{WINDOW}"
DATA = f"data={{_target_:paper_repro.tests.support.cycles.Cycles,{SIZES},seed:${{seed}}}}"
SMALL = [
    DATA,
    f"model.vocabulary_size={WORDS}",
    "model.width=16",
    "model.num_heads=2",
    "model.num_layers=2",
    "optimizer.lr=0.01",
    "training.steps=4",
    "training.evaluate_every=null",
    "machine.progress_every_seconds=0.0",
]
EBT = ["model.step_size=1.0", "module.step_size_multiplier=3.0"]
S2 = ["model=ebt/s2", "model.step_size=1.0", "module.replay.capacity=8", "module.replay.rows=3", "module.replay.kept=4"]


def cell(*overrides: str) -> Cell:
    return Cell("cell", compose("ebt/language", [*SMALL, *overrides]))


def run(folder: Path, *overrides: str, stop_at: int | None = None) -> Outcome:
    (outcome,) = Fit().run([cell(*overrides)], folder, Recorder(stop_at))
    return outcome


def module_of(*overrides: str) -> EBTLanguage:
    module = build(cell(*overrides)).module
    assert isinstance(module, EBTLanguage)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "below"),
    [
        (["model=ebt/transformer"], 0.3),
        (EBT, 0.8),
        ([*EBT, "module.thinking.rule=listing"], 1.7),
        ([*S2, "module.thinking.noise=0.5"], 1.6),
    ],
    ids=["transformer", "s1", "listing", "s2"],
)
def test_training_learns_to_count(overrides: list[str], below: float, tmp_path: Path) -> None:
    outcome = run(tmp_path, *overrides, "training.steps=120")
    assert outcome.status == FINISHED
    assert outcome.metrics["val_loss"] < below < math.log(WORDS)


@pytest.mark.parametrize("overrides", [EBT, S2], ids=["s1", "s2"])
def test_a_stopped_run_goes_on_to_the_same_weights(overrides: list[str], tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", *overrides)
    with pytest.raises(StopRequestedError):
        run(tmp_path / "stopped", *overrides, "machine.checkpoint_every_steps=1", stop_at=2)
    resumed = run(tmp_path / "stopped", *overrides)
    assert_same_runs([resumed], [whole], [cell(*overrides)], (tmp_path / "stopped", tmp_path / "whole"))


def test_metrics_are_those_of_thinking_by_hand() -> None:
    module = module_of(*EBT, "model.num_landscapes=1")
    batch = next(Cycles(WORDS, BATCH, WINDOW).evaluation_batches("val"))
    metrics = module.new_metrics()
    assert set(metrics) == {"loss", "first_loss"}
    torch.manual_seed(5)
    with torch.no_grad():
        module.update_metrics(metrics, batch)
    torch.manual_seed(5)
    ids, targets = batch
    start = torch.randn(1, BATCH, WINDOW, WORDS)
    *_, first, last = ebt_language.think(module.model, ids, start, 2)
    for name, considered in (("first_loss", first), ("loss", last)):
        expected = functional.cross_entropy(considered.predictions[0].flatten(0, 1), targets.flatten())
        assert float(metrics[name].compute()) == pytest.approx(float(expected), rel=1e-5)


def test_replayed_rows_start_where_they_were_left_and_fresh_rows_alone_are_kept() -> None:
    module = module_of(*S2, "module.replay.kept=null", "module.thinking.noise=0.0")
    batches = [Cycles(WORDS, BATCH, WINDOW).train_batch(step) for step in range(2)]
    draws = [module.draws_of(batch, step, 0, torch.device("cpu")) for step, batch in enumerate(batches)]
    _, carry = module.loss_and_carry(batches[0], draws[0], module.initial_carry(batches[0]))
    assert int(carry["written"]) == BATCH
    step = module._with_replayed(batches[1], draws[1], carry)
    assert step.context.shape == (BATCH + 3, WINDOW)
    for row in range(BATCH, BATCH + 3):
        (place,) = [i for i in range(BATCH) if torch.equal(carry["entries"]["ids"][i], step.context[row])][:1]
        kept = carry["entries"]["prediction"]["all"][place].float()
        torch.testing.assert_close(step.start[row], kept, rtol=0, atol=0)
    _, carry = module.loss_and_carry(batches[1], draws[1], carry)
    assert int(carry["written"]) == 2 * BATCH


def test_alpha_has_a_rate_of_its_own_that_ends_where_the_others_end() -> None:
    module = module_of(*EBT, "optimizer.lr=0.02", "schedule.warmup_fraction=0")
    groups, (base, own) = module.groups_and_schedules()
    assert [len(group["params"]) for group in groups][1] == 1 and groups[1]["weight_decay"] == 0.0
    assert own.factor(0, 100) == pytest.approx(3 * base.factor(0, 100))
    assert own.factor(100, 100) == pytest.approx(base.factor(100, 100)) == pytest.approx(0.1)
    assert len(module_of(*S2).parameter_groups()) == 1


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "in pieces"])
@pytest.mark.parametrize(
    "overrides",
    [
        [*S2, "module.thinking.noise=0.5"],
        [*EBT, "+module.thinking.detach=false"],
        [*EBT, "module.thinking.rule=listing"],
        [*EBT, "model.variant=adaln", "model.num_landscapes=2"],
    ],
)
def test_recomputation_changes_neither_loss_nor_gradients(overrides, pieces, monkeypatch):
    if pieces:
        monkeypatch.setattr(words_in_pieces, "LEAST_WORDS", 2)
    found = []
    for again in (False, True):
        torch.manual_seed(0)
        module = module_of(*overrides).double()
        batch = Cycles(WORDS, BATCH, WINDOW).train_batch(0)
        drawn = module.draws_of(batch, 0, 0, torch.device("cpu"))
        draws = {name: value.double() if torch.is_floating_point(value) else value for name, value in drawn.items()}
        torch.manual_seed(1)
        with prefer(recompute=again):
            loss, _ = module.loss_and_carry(batch, draws, module.initial_carry(batch))
            loss.backward()
        found.append([loss.detach(), *(one.grad for one in module.parameters() if one.grad is not None)])
    assert_same(found[1], found[0], 1e-12)


@pytest.mark.parametrize(("words", "layers", "most"), [(8192, 1, 0.5), (7, 6, 0.65)])
def test_recomputation_takes_less_memory_for_many_words_and_for_many_layers(words, layers, most):
    data = DATA.replace(f"words:{WORDS}", f"words:{words}").replace(f"window:{WINDOW}", "window:256")
    sizes = [data, f"model.vocabulary_size={words}", f"model.num_layers={layers}", "model.block_length=256"]
    module = module_of(*EBT, *sizes)
    batch = Cycles(words, BATCH, 256).train_batch(0)
    draws, peaks = module.draws_of(batch, 0, 0, torch.device("cpu")), []

    def step() -> None:
        loss, _ = module.loss_and_carry(batch, draws, {})
        loss.backward()
        module.zero_grad()

    for again in (False, True):
        with prefer(recompute=again):
            peaks.append(peak_bytes(step))
    assert peaks[1] < most * peaks[0]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["module.thinking.num_steps=1"], "more than the 1 steps of a prediction"),
        ([*S2, "module.replay.rows=9"], "capacity of 8"),
        ([*S2, "module.replay.capacity=100_000_000_000"], "lower it"),
        (["model.variant=adalm"], "variant"),
    ],
)
def test_settings_that_are_refused(overrides: list[str], message: str) -> None:
    batch = Cycles(WORDS, BATCH, WINDOW).train_batch(0)
    with pytest.raises(UsageError, match=message):
        module_of(*overrides).initial_carry(batch)

"""Accuracies of a trained model on tasks of EleutherAI's lm-evaluation-harness, which the extra ``[eval]`` installs
(nGPT, figures 3, 8 and 9, tables 4 to 6).

The paper's tasks come from the hub; ours, continuations, from local files (``datamodules.continuations``).
"""

import contextlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from torch import nn

from paper_repro.base.errors import UsageError, at_least, nearest
from paper_repro.base.files import find_data
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules import continuations
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.tokenizers import Tokenizer
from paper_repro.probes.causal_evaluator import Evaluator
from paper_repro.training.module import PaperModule

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM

FOLDER = "downstream"
SWITCHES = ("datasets.config.HF_HUB_OFFLINE", "huggingface_hub.constants.HF_HUB_OFFLINE")
"""What two libraries read from the environment when they are imported."""
NOT_CACHED = "Couldn't find cache"
"""The message of the data sets library for a missing part of a set that it has other parts of."""
INSTALL = "needs lm-eval: pip install 'paper-repro[eval]'"


@dataclass(frozen=True)
class Downstream:
    """Measures ``<task>``, the share (%) of questions whose likeliest answer is right, and their mean.

    ``<task>_norm`` is the same by log-likelihood per byte of the answer, for the tasks in ``normalized``; the paper
    does not say which of both it has.  The mean is ``<name>_mean``; ``<name>_cropped`` is the share (%) of requests
    longer than the context.

    A task's file is looked for in ``downstream/<its folder>/`` below the data folder, then among those of lm-eval.
    Nothing is downloaded: a task whose data are not in Hugging Face's cache is unavailable, and with it the mean;
    without lm-eval everything is.  The data module needs a ``tokenizer``.  Where a folder of task files has a manifest,
    its files are checked against it, and it goes beside the record as ``<folder>.json``.

    Args:
        tasks: task of the harness to the folder of task files that holds it.
        normalized: those of them with a normalised accuracy.
        num_fewshot: worked examples before each question.
        limit: only so many questions of each task; None: all.
        name: what the metrics of all tasks together begin with.
        prepare: the command that makes the task files, where lm-eval has none of its own.

    Raises:
        UsageError: prepared questions are there, but damaged.
    """

    tasks: Mapping[str, str]
    normalized: Sequence[str] = ()
    num_fewshot: int = 0
    limit: int | None = None
    name: str = "downstream"
    prepare: str = ""

    def __post_init__(self) -> None:
        at_least("num_fewshot", self.num_fewshot, 0)
        for group in self.tasks.values():
            if (folder := find_data(f"{FOLDER}/{group}")) is not None:
                self._manifest(folder)  # before hours are spent on the training

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        return self.of_model(module.model, data)

    def of_model(self, model: nn.Module, data: CounterBasedDataModule) -> Findings:
        """Measure a model that maps ids (B, T) to logits (B, T, V) and has a ``block_length``."""
        mean, cropped = f"{self.name}_mean", f"{self.name}_cropped"
        found, together = Findings(), (mean, cropped)
        everything = [*self._kinds(self.tasks), *together]
        shipped = _shipped_tasks()
        if shipped is None:
            return Findings(unavailable=dict.fromkeys(everything, INSTALL))
        tokenizer: Tokenizer | None = getattr(data, "tokenizer", None)
        if tokenizer is None:
            raise UsageError(
                f"the tasks need text: {type(data).__name__} has no tokenizer; leave probes.downstream out"
            )
        evaluator = Evaluator(model, tokenizer)
        for group in dict.fromkeys(self.tasks.values()):
            folder = f"{FOLDER}/{group}"
            own = find_data(folder, getattr(data, "data_root", None))
            if own is None and self.prepare:
                lack = f"needs {folder}: prepare its questions, then use --fill; run: {self.prepare}"
                return Findings(unavailable=dict.fromkeys(everything, lack))
            if own is not None and (manifest := self._manifest(own)) is not None:
                found.attachments[f"{group}.json"] = manifest
            tasks = [task for task, place in self.tasks.items() if place == group]
            self._add(found, tasks, evaluator, own or shipped / group)
        lacking = next((found.unavailable[task] for task in self.tasks if task in found.unavailable), None)
        if lacking is not None:
            found.unavailable |= dict.fromkeys(together, lacking)
            return found
        found.metrics[mean] = sum(found.metrics[task] for task in self.tasks) / len(self.tasks)
        found.metrics[cropped] = 100 * evaluator.num_cropped / evaluator.num_requests
        return found

    def _kinds(self, tasks: Sequence[str] | Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Map each metric of tasks to the task and the harness's name of the metric."""
        normalized = {f"{task}_norm": (task, "acc_norm") for task in tasks if task in self.normalized}
        return {task: (task, "acc") for task in tasks} | normalized

    def _manifest(self, folder: Path) -> bytes | None:
        """Return the manifest of prepared questions, whose files are what it says; None for task files without one."""
        if not (folder / continuations.MANIFEST).is_file():
            return None
        try:
            continuations.check(folder)
        except UsageError as error:
            raise UsageError(f"{error}: {self.prepare}" if self.prepare else str(error)) from error
        return (folder / continuations.MANIFEST).read_bytes()

    def _add(self, found: Findings, tasks: Sequence[str], evaluator: Evaluator, folder: Path) -> None:
        """Run the tasks of one folder."""
        try:
            with mock.patch(SWITCHES[0], True), mock.patch(SWITCHES[1], True):
                scores = run_tasks(evaluator, tasks, self.num_fewshot, self.limit, folder)
        except ValueError as error:
            if not isinstance(error.__cause__, OSError) and NOT_CACHED not in str(error):
                raise
            command = f"lm-eval run --model dummy --limit 1 --tasks {','.join(self.tasks)}"
            lack = f"needs the task's data: fill Hugging Face's cache, then use --fill; run: {command}"
            found.unavailable |= dict.fromkeys(self._kinds(tasks), lack)
            return
        for metric, (task, kind) in self._kinds(tasks).items():
            if (share := scores[task].get(f"{kind},none")) is None:
                raise UsageError(f"probes.downstream: {task} in {folder} has no {kind}, only {', '.join(scores[task])}")
            found.metrics[metric] = 100 * share


def _shipped_tasks() -> Path | None:
    """Return the folder where lm-eval keeps its task files; None if it is not installed."""
    spec = importlib.util.find_spec("lm_eval")
    return Path(spec.origin).parent / "tasks" if spec is not None and spec.origin else None


# The harness.


def run_tasks(
    evaluator: Evaluator, tasks: Sequence[str], num_fewshot: int, limit: int | None, folder: Path
) -> dict[str, dict[str, Any]]:
    """Run tasks of the harness; return each task's metrics, as ``acc,none``, by its name.

    Args:
        num_fewshot: worked examples before each question, unless the task's file says 0.
        limit: only so many documents of each task; None: all.
        folder: of task files (YAML); data files that they name by a relative path are beside them.

    Raises:
        UsageError: a task is unknown, or its data cannot be loaded.
    """
    from lightning.pytorch.utilities.seed import isolate_rng
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    folder = folder.resolve()
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    for name in tasks:
        if name not in manager.all_tasks:
            raise UsageError(f"lm-eval knows no task {name!r}{nearest(name, manager.all_tasks)}")
    given: dict[str, Any] = {"num_fewshot": num_fewshot, "limit": limit, "bootstrap_iters": 0, "log_samples": False}
    try:
        with isolate_rng(), contextlib.chdir(folder):  # some tasks shuffle; data files may have relative paths
            found = simple_evaluate(_adapter(evaluator), tasks=list(tasks), task_manager=manager, **given)
    except OSError as error:  # also what the data sets library raises without a network
        raise UsageError(f"lm-eval cannot load the data of {', '.join(tasks)}: {error}") from error
    assert found is not None  # None is for the other processes of a distributed run
    return dict(found["results"])


def _adapter(evaluator: Evaluator) -> "LM":
    """Return the model as the harness's ``LM``, which chooses among answers and generates none."""
    from lm_eval.api.model import LM

    class Adapter(LM):
        def loglikelihood(self, requests: "list[Instance]") -> list[tuple[float, bool]]:
            return evaluator.log_likelihoods([evaluator.pair(*request.args) for request in requests])

        def generate_until(self, requests: "list[Instance]") -> Any:
            raise UsageError("probes.downstream: a task asks for a text; only given answers are scored")

        loglikelihood_rolling = generate_until

    return Adapter()

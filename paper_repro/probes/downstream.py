"""Accuracies of a trained model on tasks of EleutherAI's lm-evaluation-harness, which the extra ``[eval]`` installs
(nGPT, figures 3, 8 and 9, tables 4 to 6).

The paper's tasks come from the hub; ours, continuations, from local files (``datamodules.continuations``).
"""

import contextlib
import importlib.util
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
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
    from lm_eval.tasks import TaskManager

FOLDER = "downstream"
SWITCHES = ("datasets.config.HF_HUB_OFFLINE", "huggingface_hub.constants.HF_HUB_OFFLINE")
"""What two libraries read from the environment when they are imported."""
NOT_CACHED = "Couldn't find cache"
"""The message of the data sets library for a missing part of a set that it has other parts of."""
INSTALL = "needs lm-eval: pip install 'paper-repro[eval]'"
SEED = 1234  # the harness's seed of the examples that it draws, of numpy and of torch; that of Python is 0


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

    def __init__(
        self,
        tasks: Mapping[str, str],
        normalized: Sequence[str] = (),
        num_fewshot: int = 0,
        limit: int | None = None,
        name: str = "downstream",
        prepare: str = "",
    ) -> None:
        strange = [name for name in normalized if name not in tasks]
        if not tasks or strange:
            raise ValueError(f"tasks must name one task or more, and all of normalized, got {strange or 'none'}")
        self.tasks, self.normalized = dict(tasks), list(normalized)
        self.num_fewshot = at_least("num_fewshot", num_fewshot, 0)
        self.limit = None if limit is None else at_least("limit", limit)
        self.mean, self.cropped, self.prepare = f"{name}_mean", f"{name}_cropped", prepare
        for group in self.tasks.values():
            if (folder := find_data(f"{FOLDER}/{group}")) is not None:
                self._manifest(folder)  # before hours are spent on the training

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        return self.of_model(module.model, data)

    def of_model(self, model: nn.Module, data: CounterBasedDataModule) -> Findings:
        """Measure a model that maps ids (B, T) to logits (B, T, V) and has a ``block_length``."""
        found, together = Findings(), (self.mean, self.cropped)
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
        found.metrics[self.mean] = sum(found.metrics[task] for task in self.tasks) / len(self.tasks)
        found.metrics[self.cropped] = 100 * evaluator.num_cropped / evaluator.num_requests
        return found

    def _kinds(self, tasks: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
        """Map each metric of tasks to the harness's name of it."""
        normalized = {f"{task}_norm": f"{task}/acc_norm" for task in tasks if task in self.normalized}
        return {task: f"{task}/acc" for task in tasks} | normalized

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
        for metric, name in self._kinds(tasks).items():
            if name not in scores:
                task, _, kind = name.partition("/")
                raise UsageError(f"probes.downstream: {task} in {folder} has no {kind}, only {', '.join(scores)}")
            found.metrics[metric] = 100 * scores[name]


def _shipped_tasks() -> Path | None:
    """Return the folder where lm-eval keeps its task files; None if it is not installed."""
    spec = importlib.util.find_spec("lm_eval")
    return Path(spec.origin).parent / "tasks" if spec is not None and spec.origin else None


# The harness.


def run_tasks(
    evaluator: Evaluator, tasks: Sequence[str], num_fewshot: int, limit: int | None, folder: Path
) -> dict[str, float]:
    """Run tasks of the harness; return ``<task>/<metric>``, and ``<task>/<metric>/<filter>`` where a task filters its
    answers.

    Args:
        num_fewshot: worked examples before each question, unless the task's file says 0.
        limit: only so many documents of each task; None: all.
        folder: of task files (YAML); data files that they name by a relative path are beside them.

    Raises:
        UsageError: a task is unknown, or its data cannot be loaded.
    """
    from lm_eval import evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    for name in tasks:
        if name not in manager.all_tasks:
            raise UsageError(f"lm-eval knows no task {name!r}{nearest(name, manager.all_tasks)}")
    try:
        # Not simple_evaluate, which asks pip for all packages and so takes half a second more.
        with _seeded():
            loaded = manager.load([_specification(manager, name) for name in tasks])
            for task in loaded["tasks"].values():
                if task.get_config("num_fewshot") != 0:
                    task.set_config(key="num_fewshot", value=num_fewshot)
                task.set_fewshot_seed(seed=SEED)
            found = evaluate(_adapter(evaluator), task_dict=loaded, limit=limit, bootstrap_iters=0, log_samples=False)
    except OSError as error:  # also what the data sets library raises without a network
        raise UsageError(f"lm-eval cannot load the data of {', '.join(tasks)}: {error}") from error
    assert found is not None  # None is for the other processes of a distributed run
    return _flat(found["results"])


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Seed the process's generators as ``simple_evaluate`` does, because some tasks shuffle; then restore them."""
    import numpy as np

    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        random.seed(0)
        np.random.seed(SEED)
        torch.manual_seed(SEED)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def _specification(manager: "TaskManager", name: str) -> str | dict[str, Any]:
    """Return a task's name, or where it has data files by relative paths, its file's content with the whole paths."""
    import yaml

    path = manager.task_index[name].yaml_path
    try:
        said: Any = yaml.safe_load(path.read_bytes()) if path is not None else None
    except yaml.YAMLError:  # the harness's own files may name functions
        return name
    options: Any = said.get("dataset_kwargs") if isinstance(said, dict) else None
    files: Any = options.get("data_files") if isinstance(options, dict) else None
    if path is None or not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        return name
    whole = {split: str(path.resolve().parent / file) for split, file in files.items()}
    return {**said, "dataset_kwargs": {**options, "data_files": whole}}


def _adapter(evaluator: Evaluator) -> "LM":
    """Return the model as the harness's ``LM``, which chooses among answers and generates none."""
    from lm_eval.api.model import LM

    class Adapter(LM):
        def loglikelihood(self, requests: "list[Instance]") -> list[tuple[float, bool]]:
            scores = evaluator.log_likelihoods([evaluator.pair(*request.args) for request in requests])
            return [(score.log_likelihood, score.greedy) for score in scores]

        def loglikelihood_rolling(self, requests: "list[Instance]") -> list[float]:
            raise UsageError("probes.downstream: a task asks for whole texts' likelihood; only answers are scored")

        def generate_until(self, requests: "list[Instance]") -> list[str]:
            raise UsageError("probes.downstream: a task asks for generated texts; only given answers are scored")

    return Adapter()


def _flat(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    flat = {}
    for task, metrics in results.items():
        for key, value in metrics.items():
            name, _, kind = key.partition(",")
            if kind and isinstance(value, int | float) and not name.endswith("_stderr"):
                flat[f"{task}/{name}" if kind == "none" else f"{task}/{name}/{kind}"] = float(value)
    return flat

"""Accuracies of a trained model on tasks of the lm-evaluation-harness (nGPT, figures 3, 8 and 9, tables 4 to 6).

The paper's tasks come from the hub; ours, docstring continuations, from local files (``datamodules.continuations``).
"""

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch import nn

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import find_data
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules import continuations
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.tokenizers import Tokenizer
from paper_repro.evaluation import harness
from paper_repro.evaluation.causal import Evaluator
from paper_repro.training.module import PaperModule

FOLDER = "downstream"
NAME = "downstream"
SWITCHES = ("datasets.config", "huggingface_hub.constants")
"""Modules that read HF_HUB_OFFLINE when they are imported, and keep it under that name."""

NOT_CACHED = "Couldn't find cache"
"""The message of the data sets library for a missing part of a set that it has other parts of."""


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
        ValueError: no task, one in ``normalized`` that is not in ``tasks``, or a number out of range.
        UsageError: prepared questions are there, but damaged.
    """

    def __init__(
        self,
        tasks: Mapping[str, str],
        normalized: Sequence[str] = (),
        num_fewshot: int = 0,
        limit: int | None = None,
        name: str = NAME,
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
        found = Findings()
        shipped = _shipped_tasks()
        if shipped is None:
            return Findings(unavailable=dict.fromkeys(self._names(), harness.INSTALL))
        tokenizer: Tokenizer | None = getattr(data, "tokenizer", None)
        if tokenizer is None:
            raise UsageError(
                f"the tasks need text: {type(data).__name__} has no tokenizer; leave probes.downstream out"
            )
        evaluator = Evaluator(model, tokenizer)
        groups: dict[str, list[str]] = {}
        for task, group in self.tasks.items():
            groups.setdefault(group, []).append(task)
        for group, tasks in groups.items():
            folder, root = f"{FOLDER}/{group}", getattr(data, "data_root", None)
            own = find_data(folder, root)
            if own is None and self.prepare:
                lack = f"needs {folder}: prepare its questions, then use --fill; run: {self.prepare}"
                return Findings(unavailable=dict.fromkeys(self._names(), lack))
            if own is not None and (manifest := self._manifest(own)) is not None:
                found.attachments[f"{group}.json"] = manifest
            self._add(found, tasks, evaluator, own or shipped / group)
        lacking = next((found.unavailable[task] for task in self.tasks if task in found.unavailable), None)
        if lacking is not None:
            found.unavailable |= dict.fromkeys((self.mean, self.cropped), lacking)
            return found
        found.metrics[self.mean] = sum(found.metrics[task] for task in self.tasks) / len(self.tasks)
        found.metrics[self.cropped] = 100 * evaluator.num_cropped / evaluator.num_requests
        return found

    def _names(self) -> list[str]:
        return [*self.tasks, *(f"{task}_norm" for task in self.normalized), self.mean, self.cropped]

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
        kinds = {task: {"": "acc", **({"_norm": "acc_norm"} if task in self.normalized else {})} for task in tasks}
        try:
            with _without_downloads():
                scores = harness.run_tasks(evaluator, tasks, self.num_fewshot, self.limit, folder).metrics
        except ValueError as error:
            if not isinstance(error.__cause__, OSError) and NOT_CACHED not in str(error):
                raise
            names = [task + ending for task in tasks for ending in kinds[task]]
            found.unavailable |= dict.fromkeys(names, self._lack())
            return
        for task in tasks:
            for ending, kind in kinds[task].items():
                if f"{task}/{kind}" not in scores:
                    raise UsageError(f"probes.downstream: {task} in {folder} has no {kind}, only {', '.join(scores)}")
                found.metrics[task + ending] = 100 * scores[f"{task}/{kind}"]

    def _lack(self) -> str:
        command = f"lm-eval run --model dummy --limit 1 --tasks {','.join(self.tasks)}"
        return f"needs the task's data: fill Hugging Face's cache, then use --fill; run: {command}"


def _shipped_tasks() -> Path | None:
    """Return the folder where lm-eval keeps its task files; None if it is not installed."""
    spec = importlib.util.find_spec("lm_eval")
    return Path(spec.origin).parent / "tasks" if spec is not None and spec.origin else None


@contextlib.contextmanager
def _without_downloads() -> Iterator[None]:
    modules = [importlib.import_module(name) for name in SWITCHES]
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value  # type: ignore[attr-defined]

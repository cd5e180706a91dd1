"""Our causal language models in EleutherAI's lm-evaluation-harness, in process (the extra ``[eval]``)."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paper_repro.base.errors import UsageError, nearest
from paper_repro.evaluation.causal import Evaluator

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

INSTALL = "needs lm-eval: pip install 'paper-repro[eval]'"
DEFAULT_NEW_TOKENS = 256
"""The number of tokens that the harness generates where a task names none."""
SEED = 1234
"""The harness's seed of the examples that it draws, of numpy and of torch; that of Python is 0."""


@dataclass(frozen=True)
class HarnessScores:
    """What the harness found."""

    metrics: dict[str, float]
    """``<task>/<metric>``, and ``<task>/<metric>/<filter>`` where a task filters its answers."""
    num_requests: int
    num_cropped: int
    """Requests whose context was longer than the model's."""


def run_tasks(
    evaluator: Evaluator,
    tasks: Sequence[str],
    num_fewshot: int | None = None,
    limit: int | None = None,
    folder: Path | None = None,
) -> HarnessScores:
    """Run tasks of the harness.

    Args:
        evaluator: the model and its tokenizer.
        tasks: their names.
        num_fewshot: None: what each task says.
        limit: only so many documents of each task.
        folder: task files (YAML) to choose from instead of the harness's own; data files that they name by a relative
            path lie beside them.

    Raises:
        UsageError: lm-eval is not installed, there is no task, a task is unknown, or its data cannot be loaded.
    """
    try:
        from lm_eval import evaluate
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise UsageError(f"{INSTALL} ({error})") from error
    if not tasks:
        raise UsageError("no task is named, lm-eval needs at least one")
    manager = TaskManager(include_path=str(folder) if folder else None, include_defaults=folder is None)
    for name in tasks:
        if name not in manager.all_tasks:
            raise UsageError(f"lm-eval knows no task {name!r}{nearest(name, manager.all_tasks)}")
    before = evaluator.num_requests, evaluator.num_cropped
    try:
        # Not simple_evaluate, which asks pip for all packages and so takes half a second more.
        with _seeded():
            loaded = manager.load([_specification(manager, name) for name in tasks])
            for task in loaded["tasks"].values():
                _set_shots(task, num_fewshot)
            found = evaluate(
                harness_model(evaluator), task_dict=loaded, limit=limit, bootstrap_iters=0, log_samples=False
            )
    except OSError as error:  # also what the data sets library raises without a network
        raise UsageError(
            f"lm-eval cannot load the data of {', '.join(tasks)}: {error}; run it once with a network, or bring the "
            "data and name it in the task's file"
        ) from error
    assert found is not None  # None is for the other processes of a distributed run
    return HarnessScores(_flat(found["results"]), evaluator.num_requests - before[0], evaluator.num_cropped - before[1])


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Seed the generators of the process as ``simple_evaluate`` does, for some tasks shuffle with them; what they had
    before comes back.
    """
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


def _set_shots(task: Any, number: int | None) -> None:
    """Set how many examples a task shows before its question, as ``simple_evaluate`` does: 0 in its file stays 0."""
    written = task.get_config("num_fewshot")
    if written is None or (number is not None and written != 0):
        task.set_config(key="num_fewshot", value=number or 0)
    task.set_fewshot_seed(seed=SEED)


def _specification(manager: "TaskManager", name: str) -> str | dict[str, Any]:
    """Return what the harness loads a task from: its name, or where it has data files by relative paths, which would
    be looked for in the working folder, what its file says with the whole paths.
    """
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


def harness_model(evaluator: Evaluator) -> "LM":
    """Return the model as the harness's ``LM``.

    Its ``generate_until`` is greedy and refuses tasks that sample.

    Raises:
        UsageError: lm-eval is not installed.
    """
    try:
        from lm_eval.api.model import LM
    except ImportError as error:
        raise UsageError(f"{INSTALL} ({error})") from error

    class Adapter(LM):
        def loglikelihood(self, requests: "list[Instance]") -> list[tuple[float, bool]]:
            scores = evaluator.log_likelihoods([evaluator.pair(*request.args) for request in requests])
            return [(score.log_likelihood, score.greedy) for score in scores]

        def loglikelihood_rolling(self, requests: "list[Instance]") -> list[float]:
            return evaluator.rolling_log_likelihoods([request.args[0] for request in requests])

        def generate_until(self, requests: "list[Instance]") -> list[str]:
            # Requests with the same options form batches; the answers go back in the order of the requests.
            groups: dict[tuple[int, tuple[str, ...]], list[int]] = {}
            for index, request in enumerate(requests):
                groups.setdefault(_options(request.args[1]), []).append(index)
            texts = [""] * len(requests)
            for (num_tokens, until), indices in groups.items():
                prompts = [requests[index].args[0] for index in indices]
                found = evaluator.continuations(prompts, num_tokens, until)
                for index, text in zip(indices, found, strict=True):
                    texts[index] = text
            return texts

    return Adapter()


def _options(given: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Return the number of new tokens and the stopping texts of a request."""
    if given.get("do_sample") or given.get("temperature"):
        raise UsageError(
            f"a task asks for sampling, {given}: generation for the harness is greedy; set do_sample: false"
        )
    until = given.get("until") or ()
    return int(given.get("max_gen_toks", DEFAULT_NEW_TOKENS)), (until,) if isinstance(until, str) else tuple(until)


def _flat(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    flat = {}
    for task, metrics in results.items():
        for key, value in metrics.items():
            name, _, kind = key.partition(",")
            if kind and isinstance(value, int | float) and not name.endswith("_stderr"):
                flat[f"{task}/{name}" if kind == "none" else f"{task}/{name}/{kind}"] = float(value)
    return flat

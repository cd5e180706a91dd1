"""NRGPT, section 3.2: how many ListOps questions a trained model answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, one_of
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.listops import Item, ListOpsData, answers, choose, pad_left
from paper_repro.training.module import PaperModule

WAYS = ("accuracy", "accuracy_padded", "accuracy_greedy", "accuracy_greedy_padded")


@dataclass(frozen=True)
class ListOpsAccuracy:
    """Share of right answers on held-out questions, higher is better, between 0 and 1.

    * ``accuracy``: answers sampled at temperature 1, prompt at position 0 (the authors' final accuracy).
    * ``accuracy_padded``: sampled, with training text before the prompt (the authors' accuracy while training).
    * ``accuracy_greedy``, ``accuracy_greedy_padded``: the likeliest token instead.
    * ``accuracy_<function>``: greedy, at position 0, on questions of one function alone.

    Args:
        ways: which of the first four are measured; a model of many recurrences answers slowly.
        num_items: questions; the authors take 100, a binomial spread of 4 points at 80 %.
        num_single_items: questions of each function alone; 0 for none.
    """

    ways: Sequence[str] = WAYS
    num_items: int = 500
    num_single_items: int = 200

    def __post_init__(self) -> None:
        for way in self.ways:
            one_of("ways", way, WAYS)

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        if not isinstance(data, ListOpsData):
            raise UsageError(f"probes.accuracy asks ListOps questions, the data are {type(data).__name__}")
        corpus, device = data.corpus, module.device

        def logits(ids: Tensor) -> Tensor:
            found: Tensor = module.model(ids.to(device))
            return found

        def share(name: str, items: list[Item], sampled: bool, padded: bool = False) -> float:
            own = mix(seed, "listops", name)
            padding = pad_left(items, corpus, own) if padded else None
            options: Any = {"sampled": sampled, "padding": padding, "context": data.window, "seed": own}
            given = answers(logits, items, num_tokens=corpus.longest, **options)
            return float((given == torch.tensor([item.result for item in items])).double().mean())

        items = choose(corpus.test, self.num_items, mix(seed, "listops", "items"))
        with torch.no_grad():
            found = {way: share(way, items, sampled="greedy" not in way, padded="padded" in way) for way in self.ways}
            for function, single in corpus.single.items() if self.num_single_items else ():
                chosen = choose(single, self.num_single_items, mix(seed, "listops", function))
                found[f"accuracy_{function}"] = share(function, chosen, sampled=False)
        return Findings(found)

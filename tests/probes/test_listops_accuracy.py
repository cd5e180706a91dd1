from collections.abc import Iterable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from paper_repro.datamodules.listops import EOS, EQUALS, FIRST_NUMBER, Item, ListOps, ListOpsData
from paper_repro.lightning_modules.nrgpt_listops import NRGPTListOps
from paper_repro.probes.listops_accuracy import WAYS, ListOpsAccuracy
from paper_repro.training.schedules import Constant

MODULUS, VOCABULARY, WINDOW = 10, 20, 128
CERTAIN = 60.0
"""A logit above all others by this much is drawn but for a chance of 20 exp(-60)."""
SINGLE = {"accuracy_max", "accuracy_median", "accuracy_add"}


class Oracle(nn.Module):
    """Goes on as the item does whose prompt it sees; an ``unsure`` one takes a wrong answer for a little likelier."""

    def __init__(self, items: Iterable[Item], unsure: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.known = {tuple(item.prompt): item.tokens for item in items}
        self.unsure = unsure
        self.contexts: set[int] = set()
        """Lengths of the padding before prompts."""

    def forward(self, ids: Tensor) -> Tensor:
        logits = torch.zeros(*ids.shape, VOCABULARY)
        for row, tokens in enumerate(ids.tolist()):
            start = 0
            for place, token in enumerate(tokens):
                text = tuple(tokens[start : place + 1])
                if token == EOS:
                    start = place + 1
                elif EQUALS in text:
                    logits[row, place] = self._next(text, start)
        return logits

    def _next(self, text: tuple[int, ...], start: int) -> Tensor:
        prompt = text[: text.index(EQUALS) + 1]
        logits = torch.zeros(VOCABULARY)
        tokens = self.known.get(prompt, [])
        if tokens and len(text) == len(prompt):
            self.contexts.add(start)
        if len(text) >= len(tokens) - 1:
            logits[EOS] = CERTAIN
        elif len(text) == len(tokens) - 2:
            logits[tokens[-2]] = CERTAIN
            if self.unsure:
                logits[FIRST_NUMBER + (tokens[-2] - FIRST_NUMBER + 1) % MODULUS] = CERTAIN + 1e-3
        else:
            logits[tokens[len(text)]] = CERTAIN
        return logits


@pytest.fixture(scope="module")
def data() -> ListOpsData:
    task = ListOps(MODULUS, max_children=3, num_train=100, num_test=40)
    return ListOpsData(task, batch_size=2, window=WINDOW, num_evaluation_batches=1)


def module_of(data: ListOpsData, unsure: bool = False) -> NRGPTListOps:
    items = [*data.corpus.test, *(item for single in data.corpus.single.values() for item in single)]
    return NRGPTListOps(Oracle(items, unsure), partial(torch.optim.AdamW, lr=1e-3), Constant()).eval()


def test_who_always_answers_right_scores_one(data: ListOpsData) -> None:
    found = ListOpsAccuracy(num_items=6, num_single_items=3).measure(module_of(data), data, seed=0)
    assert found.metrics == dict.fromkeys({*WAYS, *SINGLE}, 1.0)
    with pytest.raises(ValueError, match="at most the 40 items that there are, got 41"):
        ListOpsAccuracy(["accuracy"], num_items=41, num_single_items=1).measure(module_of(data), data, 0)


def test_two_equally_likely_answers_are_drawn_evenly_and_the_likelier_is_taken_greedily(data: ListOpsData) -> None:
    module = module_of(data, unsure=True)
    found = ListOpsAccuracy(num_items=40, num_single_items=0).measure(module, data, seed=0).metrics
    assert found["accuracy_greedy"] == found["accuracy_greedy_padded"] == 0
    for way in ("accuracy", "accuracy_padded"):
        assert 0.25 < found[way] < 0.75  # three standard deviations of 40 fair draws


@pytest.mark.parametrize("way", WAYS)
def test_only_the_padded_ways_put_text_before_the_prompt(data: ListOpsData, way: str) -> None:
    module = module_of(data)
    ListOpsAccuracy([way], num_items=8, num_single_items=0).measure(module, data, seed=0)
    found = module.model.contexts
    if "padded" in way:
        assert 0 < max(found) <= data.corpus.longest and len(found) > 1
    else:
        assert found == {0}

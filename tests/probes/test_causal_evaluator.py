import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.probes.causal_evaluator import Evaluator
from paper_repro.tests.probes.doubles import Bytes, small_gpt

ROUNDING = 1e-10
"""Float64 sums of some dozen log-likelihoods, in another order."""


@torch.no_grad()
def by_definition(model: torch.nn.Module, context: list[int], continuation: list[int], length: int) -> float:
    """One token at a time, from the last ``length`` tokens, without a batch."""
    total = 0.0
    whole = context + continuation
    for place in range(len(context), len(whole)):
        logits = model(torch.tensor([whole[max(0, place - length) : place]]))[0, -1]
        total += float(logits.log_softmax(-1)[whole[place]])
    return total


@pytest.mark.parametrize("batch_tokens", [1, 70, 8192])
def test_a_log_likelihood_is_the_sum_of_the_tokens_one_by_one_whatever_the_batch(batch_tokens: int) -> None:
    model = small_gpt()
    texts = [("The sun", " rises"), ("A", "b"), ("The sun", " rise!"), ("x" * 40, "yz" * 9), ("The sun ", "rises")]
    evaluator = Evaluator(model, Bytes(), batch_tokens=batch_tokens)
    pairs = [evaluator.pair(*text) for text in texts]
    found = evaluator.log_likelihoods(pairs)
    for (context, continuation), score in zip(pairs, found, strict=True):
        expected = by_definition(model, list(context), list(continuation), 64)
        assert score.log_likelihood == pytest.approx(expected, abs=ROUNDING)
    assert found[0] == found[4]  # a blank at the end of the context belongs to the continuation
    assert (evaluator.num_requests, evaluator.num_cropped) == (5, 0)


def test_a_context_that_does_not_fit_is_cropped_from_the_left_and_counted() -> None:
    model = small_gpt(block_length=16)
    evaluator = Evaluator(model, Bytes())
    long, short = evaluator.pair("y" + "x" * 40, "abc"), evaluator.pair("x" * 14, "abc")
    cropped, whole = evaluator.log_likelihoods([long, short])
    assert cropped == whole
    assert (evaluator.num_requests, evaluator.num_cropped) == (2, 1)


def test_greedy_says_whether_every_token_is_the_likeliest() -> None:
    model = small_gpt()
    evaluator = Evaluator(model, Bytes())
    with torch.no_grad():
        first = int(model(torch.tensor([[65, 66]]))[0, -1].argmax())
        second = int(model(torch.tensor([[65, 66, first]]))[0, -1].argmax())
    ids = (65, 66)
    found = evaluator.log_likelihoods([(ids, (first, second)), (ids, (first, (second + 1) % 260)), (ids, ())])
    assert [score.greedy for score in found] == [True, False, True]
    assert found[2].log_likelihood == 0.0


def test_continuations_are_those_of_each_prompt_alone_with_a_sliding_context() -> None:
    model = small_gpt(block_length=12)
    tokenizer = Bytes()
    prompts = ["a", "The sun rises in the east", "xy", "twelve bytes"]
    found = Evaluator(model, tokenizer).continuations(prompts, 9)
    for prompt, text in zip(prompts, found, strict=True):
        ids = tokenizer.encode(prompt)
        for _ in range(9):
            ids.append(int(model(torch.tensor([ids[-12:]]))[0, -1, :257].argmax()))
        assert text == tokenizer.decode(ids[len(prompt) :])


def test_what_cannot_be_evaluated_is_refused() -> None:
    without_end = Evaluator(small_gpt(block_length=4), Bytes(end_of_text=None))
    with pytest.raises(UsageError, match="empty context"):
        without_end.pair("", "text")
    with pytest.raises(UsageError, match="a continuation of 5 tokens"):
        without_end.log_likelihoods([((1,), (1, 2, 3, 4, 5))])

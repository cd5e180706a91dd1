import copy

import pytest
import torch

from paper_repro.metrics.likelihood import CrossEntropy
from paper_repro.metrics.pooled import Largest, Mean

CONVERSIONS = {
    "half": lambda module: module.half(),
    "bfloat16": lambda module: module.bfloat16(),
    "float": lambda module: module.float(),
    "to half": lambda module: module.to(torch.float16),
    "to bfloat16": lambda module: module.to(dtype=torch.bfloat16),
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_changing_the_precision_of_the_model_loses_nothing_of_the_sum(conversion):
    metric = CrossEntropy()
    model = torch.nn.ModuleDict({"layer": torch.nn.Linear(1, 1), "metric": metric})
    CONVERSIONS[conversion](model)
    assert metric.pooled_sum.dtype is torch.float64
    metric.update(1e8 + 1, 1)
    CONVERSIONS[conversion](model)
    assert model["layer"].weight.dtype is not torch.float64
    assert metric.compute().item() == 1e8 + 1
    metric.reset()
    assert metric.pooled_sum.dtype is torch.float64


def test_asking_for_another_precision_by_name_is_obeyed():
    assert CrossEntropy().set_dtype(torch.float32).pooled_sum.dtype is torch.float32


def test_moving_to_another_device_moves_sum_and_count():
    metric = CrossEntropy().to("meta")
    assert (metric.pooled_sum.device.type, metric.count.device.type) == ("meta", "meta")
    assert metric.pooled_sum.dtype is torch.float64


def test_copy_and_state_dict_carry_the_sum():
    metric = CrossEntropy()
    metric.persistent(True)
    metric.update(6.0, 4)
    restored = CrossEntropy()
    restored.persistent(True)
    restored.load_state_dict(metric.state_dict())
    restored.update(0.0, 2)
    assert restored.compute().item() == 1.0
    assert copy.deepcopy(metric).compute().item() == 1.5


def test_a_mean_weighs_each_number():
    metric = Mean()
    metric.update(torch.tensor(1.0), 3)
    metric.update(torch.tensor([5.0, 7.0]))
    assert metric.compute().item() == (3 * 1 + 5 + 7) / 5
    assert metric.compute().dtype is torch.float64


def test_the_largest_of_all_batches():
    metric = Largest()
    for values in ([-3.0, -2.0], [-7.0]):
        metric.update(torch.tensor(values))
    assert metric.compute().item() == -2
    metric.update(torch.tensor([5.0, 1.0], dtype=torch.float64))
    assert metric.compute().item() == 5


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", [Mean, Largest])
@pytest.mark.parametrize("place", range(3))
def test_what_is_not_finite_passes_into_the_result(kind, wrong, place):
    metric = kind()
    for step in range(3):
        metric.update(torch.tensor([1.0, wrong if step == place else 2.0]))
    assert metric.compute().item() == pytest.approx(wrong, nan_ok=True)


@pytest.mark.parametrize("kind", [Mean, Largest])
def test_no_number_is_refused(kind):
    with pytest.raises(ValueError, match=f"{kind.__name__} has seen no numbers"):
        kind().compute()
    with pytest.raises(ValueError, match="no number in this update"):
        kind().update(torch.zeros(0))
    with pytest.raises(ValueError, match="weight must be a whole number of at least 1, got 0"):
        Mean().update(torch.zeros(1), 0)

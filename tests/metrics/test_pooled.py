import copy

import pytest
import torch

from paper_repro.metrics.likelihood import CrossEntropy

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

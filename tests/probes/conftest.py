from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def without_gradients() -> Iterator[None]:
    """No gradients are recorded, as where a trained model is probed."""
    with torch.no_grad():
        yield

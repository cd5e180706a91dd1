from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every buffer that is asked for without values starts as NaN: what is not written is seen."""

    def spoil(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*arguments: Any, **options: Any) -> Tensor:
            out = make(*arguments, **options)
            return out.fill_(torch.nan) if out.is_floating_point() else out

        return made

    with torch.device("cpu"):  # at its first such block torch keeps the functions that blocks redirect: unspoiled
        torch.empty(0)
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, spoil(getattr(owner, name)))

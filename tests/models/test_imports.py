import pytest

from paper_repro import models


def test_models_are_imported_by_their_names() -> None:
    from paper_repro.models import CET, EBT, GPT, NGPT, NRGPT_H_FF2W, CEMAttention, Llama

    found = (CET, EBT, GPT, NGPT, NRGPT_H_FF2W, CEMAttention, Llama)
    assert {kind.__name__ for kind in found} <= {*models.NAMES} <= {*dir(models)}
    assert all(getattr(models, name).__name__ == name for name in models.NAMES)
    with pytest.raises(AttributeError, match="no attribute 'NGTP'"):
        _ = models.NGTP

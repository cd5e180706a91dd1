import subprocess
import sys

import pytest

from paper_repro import models


def test_models_are_imported_by_their_names() -> None:
    from paper_repro.models import CET, EBT, GPT, NGPT, NRGPT_H_FF2W, CEMAttention, Llama

    found = (CET, EBT, GPT, NGPT, NRGPT_H_FF2W, CEMAttention, Llama)
    assert {kind.__name__ for kind in found} <= {*models.NAMES} <= {*dir(models)}
    assert all(getattr(models, name).__name__ == name for name in models.NAMES)
    with pytest.raises(AttributeError, match="no attribute 'NGTP'"):
        _ = models.NGTP


@pytest.mark.slow
def test_a_model_brings_its_own_family_alone() -> None:
    code = "from paper_repro.models import NGPT; import sys; print(*sorted(n for n in sys.modules if '.models.' in n))"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in names if name.startswith("paper_repro.")] == [
        "paper_repro.models.common",
        "paper_repro.models.llama",
        "paper_repro.models.ngpt",
    ]

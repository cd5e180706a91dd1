"""Each paper's model without the package: its file and at most three others, in an empty folder, train there."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paper_repro import models
from paper_repro.base.errors import ROOT

SHARED = ("base/errors.py", "models/common.py")
BEGIN = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
import torch
from torch.nn import functional
torch.manual_seed(0)
torch.set_num_threads(1)
ids = torch.arange(24).remainder(5).view(2, 12)

def train(model, loss, steps=60, lr=1e-2):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        found = loss()
        if found.requires_grad:
            found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    print(losses[0], losses[-1])
    assert losses[-1] < 0.7 * losses[0], losses
"""
LANGUAGE = "train(model, lambda: model.cross_entropy(ids[:, :-1], ids[:, 1:]))"
MODELS = {
    "ngpt": (("models/llama.py",), f"model = NGPT(5, 11, 16, 2, num_layers=2)\n{LANGUAGE}"),
    "nrgpt": (("models/descent.py",), f"model = NRGPT_H_FF2W(5, 11, 16, 1, num_steps=2)\n{LANGUAGE}"),
    "cem": (
        ("models/descent.py",),
        """
parts = CEMAttention(16, 2, num_steps=2), CEMMLP(16, 24, num_steps=2)
model = torch.nn.Sequential(torch.nn.Embedding(5, 16), *parts, torch.nn.Linear(16, 5))
train(model, lambda: functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))
""",
    ),
    "cet": (
        ("models/descent.py",),
        """
model = CET(1, 8, 4, 2, width=16, num_heads=2, head_width=8, num_memories=16)
images = torch.linspace(0, 1, 64).view(1, 1, 8, 8).expand(4, -1, -1, -1)
masked = images * (torch.arange(8) < 6)
train(model, lambda: equilibrium_propagation(model, masked, images, Phases(20, 5, 0.1, 0.5)).cost.mean())
""",
    ),
    "ebt": (
        ("models/descent.py",),
        """
model = EBT(5, 11, 16, 2, num_layers=2, step_size=5.0)

def loss():
    start = torch.randn(2, 11, 5, generator=torch.Generator().manual_seed(1))
    step = PredictionStep(model.energies(ids[:, :-1]), model.prediction_embedding.weight, model.step_size_parameter, 2)
    *_, last = thoughts(step, start)
    return functional.cross_entropy(last.prediction.flatten(0, 1), ids[:, 1:].flatten())

train(model, loss)
""",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_copied_with_three_files_and_trains_without_kernels(name: str, tmp_path: Path) -> None:
    others, code = MODELS[name]
    for path in (f"models/{name}.py", *others, *SHARED):
        (tmp_path / "paper_repro" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "paper_repro" / path, tmp_path / "paper_repro" / path)
    (tmp_path / "paper_repro" / "__init__.py").touch()
    ours = 'print(*(n for n in sys.modules if n.startswith("paper_repro.kernels")))'
    script = f"{BEGIN}\nfrom paper_repro.models.{name} import *\n{code}\n{ours}\n"
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    found = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[1].strip() == ""


def test_models_are_imported_by_their_names() -> None:
    assert {*models.NAMES} <= {*dir(models)}
    assert all(getattr(models, name).__name__ == name for name in models.NAMES)
    with pytest.raises(AttributeError, match="no attribute 'NGTP'"):
        _ = models.NGTP

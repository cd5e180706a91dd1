"""nGPT's ablations, tables 4 to 6: the rows' models, and the change of the loss against the default."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from paper_repro.base.configs import instantiate
from paper_repro.models.llama import Scale
from paper_repro.models.ngpt import NGPT
from paper_repro.papers.ngpt.bases.ablation import CHANGE, with_changes
from paper_repro.tables import plan as plans
from paper_repro.tables import spec
from paper_repro.tables.plan import Plan
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made

ROOT = math.sqrt(1024)


def planned(name: str, scale: str = "cpu") -> Plan:
    return plans.make(spec.load(f"ngpt/{name}"), scale, overrides=["data.files={}"])


def models(name: str) -> dict[str, NGPT]:
    """Return the model of every row at the paper's scale, on the meta device."""
    found = {}
    for cell in planned(name, "paper").cells:
        with torch.device("meta"):
            found[dict(cell.key)["setting"]] = instantiate({**cell.config["model"], "num_layers": 1})
    return found


def parts(model: NGPT) -> dict[str, Scale]:
    block: Any = model.blocks[0]
    rates = {"alpha_A": block.attention_rate, "alpha_M": block.feed_forward_rate}
    feed_forward = {"s_u": block.feed_forward.scale_u, "s_nu": block.feed_forward.scale_nu}
    return {**rates, "s_qk": block.attention.scale, **feed_forward, "s_z": model.scale_z}


DEFAULTS = {
    "alpha_A": (0.05, 1 / ROOT),
    "alpha_M": (0.05, 1 / ROOT),
    "s_qk": (1.0, 1 / ROOT),
    "s_u": (1.0, 1.0),
    "s_nu": (1.0, 1.0),
    "s_z": (1.0, 1 / ROOT),
}
CHANGED = {
    "qk_033": {"s_qk": (0.33, 1 / ROOT)},
    "qk_005": {"s_qk": (0.05, 1 / ROOT)},
    "qk_1_slow": {"s_qk": (1.0, 1.0)},
    "qk_033_slow": {"s_qk": (0.33, 1.0)},
    "qk_005_slow": {"s_qk": (0.05, 1.0)},
    "uv_small": dict.fromkeys(("s_u", "s_nu"), (1 / ROOT, 1.0)),
    "uv_fast": dict.fromkeys(("s_u", "s_nu"), (1.0, 1 / ROOT)),
    "uv_small_fast": dict.fromkeys(("s_u", "s_nu"), (1 / ROOT, 1 / ROOT)),
    "z_large": {"s_z": (ROOT, 1 / ROOT)},
    "z_slow": {"s_z": (1.0, 1.0)},
    "z_large_slow": {"s_z": (ROOT, 1.0)},
    "alpha_init": dict.fromkeys(("alpha_A", "alpha_M"), (0.1, 1 / ROOT)),
    "alpha_scale": dict.fromkeys(("alpha_A", "alpha_M"), (0.05, 0.1)),
}
"""Table 4: init and scale of the vectors that are not the default's."""


def test_every_row_of_table_4_changes_init_and_scale_as_printed_and_nothing_else() -> None:
    found = models("table4")
    assert found.keys() == {"default", *CHANGED}
    for setting, model in found.items():
        for name, part in parts(model).items():
            init, scale = CHANGED.get(setting, {}).get(name, DEFAULTS[name])
            assert part.factor == pytest.approx(init / scale, rel=1e-12), (setting, name)
            assert part.learned and part.stored.numel() > 1


def test_the_scale_of_the_eigen_rates_is_as_far_from_the_default_at_every_width() -> None:
    for scale in ("cpu", "gpu", "paper"):
        cells = [cell for cell in planned("table4", scale).cells if dict(cell.key)["setting"] == "alpha_scale"]
        model = cells[0].config["model"]
        assert model["alpha_A"] == model["alpha_M"]
        assert model["alpha_A"]["scale"] * math.sqrt(model["width"]) == pytest.approx(3.2, abs=0.05)


SCALARS = {
    "scalar_qk": ["s_qk"],
    "scalar_uv": ["s_u", "s_nu"],
    "scalar_z": ["s_z"],
    "scalar_alpha": ["alpha_A", "alpha_M"],
    "scalar_qk_uv": ["s_qk", "s_u", "s_nu"],
    "scalar_qk_uv_z": ["s_qk", "s_u", "s_nu", "s_z"],
    "scalar_all": list(DEFAULTS),
    "fixed_qk_uv_scalar_z": ["s_z"],
}
FIXED = {
    "fixed_qk": ["s_qk"],
    "fixed_uv": ["s_u", "s_nu"],
    "fixed_qk_uv": ["s_qk", "s_u", "s_nu"],
    "fixed_qk_uv_scalar_z": ["s_qk", "s_u", "s_nu"],
}


def test_every_row_of_table_5_has_the_vectors_scalars_and_constants_that_it_names() -> None:
    found = models("table5")
    own = {"signed_alpha", "riemannian", "published_rope", "bf16_storage"}
    assert found.keys() == {"default", *SCALARS, *FIXED, *own}
    for setting, model in found.items():
        for name, part in parts(model).items():
            fixed = name in FIXED.get(setting, ())
            assert part.learned != fixed, (setting, name)
            assert (part.stored.numel() == 1) == (fixed or name in SCALARS.get(setting, ())), (setting, name)
            if not fixed:
                init, scale = DEFAULTS[name]
                assert part.factor == pytest.approx(init / scale, rel=1e-12), (setting, name)
        block: Any = model.blocks[0]
        shared = block.feed_forward.scale_u is block.feed_forward.scale_nu
        assert shared == (setting.startswith("scalar") and "s_u" in SCALARS.get(setting, ()))
    assert found["published_rope"].rope == "published"
    assert found["bf16_storage"].blocks[0].feed_forward.up.weight.dtype == torch.bfloat16  # type: ignore[union-attr]
    assert "bf16_storage" not in {dict(cell.key)["setting"] for cell in planned("table5").cells}


def test_a_change_is_against_the_default_of_the_same_seed() -> None:
    def metrics(place: Mapping[str, str], seed: int) -> dict[str, float]:
        if place["setting"] == "default" and seed == 2:
            return {}
        return {"val_loss": (2.0 + seed) * (1.01 if place["setting"] == "no_qk_norm" else 1.0)}

    view = made_up.view("ngpt/table6", Made(metrics=metrics, noise=0.0, seeds=(0, 1, 2)))
    changed = with_changes(view)
    assert changed.samples(CHANGE, {"setting": "no_qk_norm"}) == pytest.approx({0: 1.0, 1: 1.0})
    assert changed.samples(CHANGE, {"setting": "default"}) == {0: 0.0, 1: 0.0}
    assert not view.samples(CHANGE, {"setting": "no_qk_norm"})

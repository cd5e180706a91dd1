import math
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.artifacts import catalogue, render, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, judge
from paper_repro.artifacts.judgements import OTHER_SCALE
from paper_repro.artifacts.plan import Plan
from paper_repro.artifacts.tables import Table
from paper_repro.artifacts.views import View
from paper_repro.base.targets import instantiate
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Outcome
from paper_repro.models.ngpt import NGPT
from paper_repro.models.rotary import Scale
from paper_repro.papers.ngpt.bases.ablation import CHANGE, with_changes
from paper_repro.tests.support.synthetic import fill, finished

ROOT = math.sqrt(1024)
NAMES = ("table4", "table5", "table6")


def planned(name: str, scale: str = "cpu") -> Plan:
    return plans.make(catalogue.load(f"ngpt/{name}"), scale, overrides=["data.files={}"])


PLANS = {name: planned(name) for name in NAMES}


def filled(name: str, root: Path, percent: dict[str, float], noise: float = 1e-4) -> View:
    """Losses 2 (1 + percent / 100) with a little of the seed's own, of the settings named and the default."""

    def outcome(cell: PlannedCell) -> Outcome | None:
        setting = dict(cell.key)["setting"]
        if setting not in {"default": 0.0, **percent}:
            return None
        loss = 2 * (1 + percent.get(setting, 0.0) / 100 + noise * (cell.seed - 1) * (len(setting) % 3 - 1))
        return finished(val_loss=loss * (1 + 0.01 * cell.seed))

    fill(root, PLANS[name], outcome)
    return views.build(PLANS[name], root, None)


def verdict(view: View, claim: str) -> str:
    (found,) = [judge(item, view).verdict for item in view.artifact.claims if item.id == claim]
    return found


def table_of(view: View) -> Table:
    table = render.table_of(view)
    assert type(table).__name__ == "AblationTable"
    return table


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
        (cell,) = [
            cell
            for cell in planned("table4", scale).cells
            if (dict(cell.key)["setting"], cell.seed) == ("alpha_scale", 0)
        ]
        model = cell.config["model"]
        assert model["alpha_A"] == model["alpha_M"]
        assert model["alpha_A"]["scale"] * math.sqrt(model["width"]) == pytest.approx(3.2, abs=0.05)


SIZES = {
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
    assert found.keys() == {"default", *SIZES, *FIXED, *own}
    for setting, model in found.items():
        for name, part in parts(model).items():
            fixed = name in FIXED.get(setting, ())
            assert part.learned != fixed, (setting, name)
            assert (part.stored.numel() == 1) == (fixed or name in SIZES.get(setting, ())), (setting, name)
            if not fixed:
                init, scale = DEFAULTS[name]
                assert part.factor == pytest.approx(init / scale, rel=1e-12), (setting, name)
        block: Any = model.blocks[0]
        shared = block.feed_forward.scale_u is block.feed_forward.scale_nu
        assert shared == (setting.startswith("scalar") and "s_u" in SIZES.get(setting, ()))
    assert found["published_rope"].rope == "published"
    assert found["bf16_storage"].blocks[0].feed_forward.up.weight.dtype == torch.bfloat16  # type: ignore[union-attr]
    assert "bf16_storage" not in {dict(cell.key)["setting"] for cell in PLANS["table5"].cells}


@pytest.mark.parametrize("scale", ["smoke", "cpu", "gpu", "paper"])
def test_the_default_is_trained_once_for_tables_of_one_budget(scale: str) -> None:
    ids = {}
    for name in NAMES:
        ids[name] = {cell.id for cell in planned(name, scale).cells if dict(cell.key)["setting"] == "default"}
    assert ids["table5"] == ids["table6"]
    assert (ids["table4"] == ids["table5"]) == (scale != "cpu")  # where table 4 trains for longer


@pytest.mark.parametrize("name", NAMES)
def test_the_paper_prints_a_change_for_each_of_its_rows_and_none_for_ours(name: str) -> None:
    artifact = PLANS[name].artifact
    settings = artifact.axes["setting"].values.keys()
    printed = {setting: artifact.printed((("setting", setting),), CHANGE) for setting in settings}
    ours = {"alpha_init", "alpha_scale", "signed_alpha", "riemannian", "published_rope", "bf16_storage"}
    assert {setting for setting, number in printed.items() if number} == settings - ours - {"default"}


def test_a_change_is_against_the_default_of_the_same_seed(tmp_path: Path) -> None:
    view = filled("table6", tmp_path, {"no_qk_norm": 0.12}, noise=0.0)
    changed = with_changes(view)
    assert changed.samples(CHANGE, {"setting": "no_qk_norm"}) == pytest.approx({0: 0.12, 1: 0.12, 2: 0.12}, abs=2e-4)
    assert set(changed.samples(CHANGE, {"setting": "default"}).values()) == {0.0}
    assert not view.samples(CHANGE, {"setting": "no_qk_norm"})  # the records that were read are left as they are
    table = table_of(view)
    grid = table.grid(chosen=[CHANGE])
    assert grid.rows[1][:3] == ["nGPT without QK norm", "0.12", "0.12 ± 0.00"]


def test_without_the_default_there_is_no_change_and_what_is_lacking_is_said(tmp_path: Path) -> None:
    def outcome(cell: PlannedCell) -> Outcome | None:
        if dict(cell.key)["setting"] == "default":
            return None
        found = finished(val_loss=2.0)
        found.unavailable["downstream_mean"] = "needs lm-eval: pip install it"
        return found

    fill(tmp_path, PLANS["table4"], outcome)
    table = table_of(views.build(PLANS["table4"], tmp_path, None))
    assert table.grid(chosen=[CHANGE]).rows[1][1:] == ["-0.33", "not run", "not run"]
    assert table.grid(chosen=["downstream_mean"]).rows[1][1:3] == ["54.67", "n/a: needs lm-eval"]


SECTIONS = {"qk_005_slow": 1.0, "qk_033": -0.2, "uv_small": 0.5, "z_slow": 2.0}


@pytest.mark.parametrize(
    ("percent", "expected"),
    [
        (SECTIONS, HOLDS),
        ({**SECTIONS, "z_slow": 0.7}, FAILS),  # above s_u's, below s_qk's
        ({**SECTIONS, "z_slow": 1.0}, UNDECIDED),
        ({"z_slow": 2.0, "uv_small": 0.5}, UNDECIDED),
        ({**SECTIONS, "z_slow": 0.1, "z_large": 2.0}, HOLDS),  # the worst counts
    ],
)
def test_sz_matters_where_its_worst_row_costs_more_than_the_others(
    tmp_path: Path, percent: dict[str, float], expected: str
) -> None:
    assert (
        verdict(filled("table4", tmp_path, percent, noise=1e-3 if expected == UNDECIDED else 1e-4), "sz_init_matters")
        == expected
    )


FREE = {"fixed_qk": 0.1, "fixed_uv": 0.0, "fixed_qk_uv": 0.2}


@pytest.mark.parametrize(
    ("name", "claim", "percent", "expected"),
    [
        ("table5", "fixed_scales_ok", FREE, HOLDS),
        ("table5", "fixed_scales_ok", {**FREE, "fixed_uv": 0.4}, FAILS),
        ("table5", "fixed_scales_ok", {**FREE, "fixed_uv": -2.0}, HOLDS),
        ("table5", "fixed_scales_ok", {"fixed_qk": 0.1}, UNDECIDED),
        ("table5", "signed_alpha_same", {"signed_alpha": -0.2}, HOLDS),
        ("table5", "signed_alpha_same", {"signed_alpha": -0.4}, FAILS),
        ("table5", "riemannian_same", {"riemannian": 0.2}, HOLDS),
        ("table5", "riemannian_same", {"riemannian": 0.4}, FAILS),
        ("table5", "all_scalars_cost", {"scalar_all": 0.6}, HOLDS),
        ("table5", "all_scalars_cost", {"scalar_all": 0.2}, FAILS),
        ("table5", "published_rope_costs", {"published_rope": 1.0}, HOLDS),
        ("table5", "published_rope_costs", {"published_rope": -1.0}, FAILS),
        ("table5", "bf16_storage_costs", {}, OTHER_SCALE),
        ("table6", "qknorm_optional", {"no_qk_norm": 0.2}, HOLDS),
        ("table6", "qknorm_optional", {"no_qk_norm": -0.4}, FAILS),
    ],
)
def test_claims_hold_and_fail_at_their_thresholds(
    tmp_path: Path, name: str, claim: str, percent: dict[str, float], expected: str
) -> None:
    assert verdict(filled(name, tmp_path, percent, noise=1e-5), claim) == expected

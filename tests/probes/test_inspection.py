import copy
import json
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.cells.tasks import Findings
from paper_repro.lightning_modules.ngpt_speedup import NGPTSpeedup
from paper_repro.models.llama import RotaryLanguageModel
from paper_repro.models.ngpt import NGPT, BaselineGPT
from paper_repro.probes import inspection
from paper_repro.probes.inspection import (
    ATTENTION,
    FEED_FORWARD,
    Embeddings,
    Matrices,
    Scales,
    attention_slices,
    branches,
    counts,
    effective_scales,
    feed_forward_matrices,
    shares,
)
from paper_repro.training.schedules import Constant

pytestmark = pytest.mark.usefixtures("without_gradients")
SIZES = {"vocabulary_size": 30, "block_length": 8, "width": 12, "num_heads": 2, "num_layers": 3}
WIDTH, HEAD = 12, 6
NO_DATA: Any = None


def build(kind: Any = NGPT, **options: Any) -> Any:
    torch.manual_seed(1)
    return kind(**{**SIZES, **options})


def measure(probe: Any, model: Any, seed: int = 0) -> Findings:
    module = NGPTSpeedup(model, partial(torch.optim.AdamW, lr=1e-3), Constant()).eval()
    found: Findings = probe.measure(module, NO_DATA, seed)
    return found


def content(findings: Findings) -> dict[str, Any]:
    (found,) = findings.attachments.values()
    document: dict[str, Any] = json.loads(found)
    return document


def orthonormal(rows: int, width: int) -> Tensor:
    """Orthonormal rows, (rows, width)."""
    return torch.linalg.qr(torch.randn(width, rows))[0].T


def test_bins_are_fixed_and_what_is_beyond_them_counts_at_the_ends() -> None:
    edges = [0.0, 1.0, 2.0, 4.0]
    found = counts(torch.tensor([[-5.0, 0.5], [1.5, 3.0], [9.0, 3.5]]), edges)
    assert found.tolist() == [2, 1, 3]
    assert shares(found) == [0.33333, 0.16667, 0.5]
    assert counts(torch.empty(0), edges).tolist() == [0, 0, 0]


@pytest.mark.parametrize("model", [NGPT, partial(NGPT, storage="bfloat16"), partial(BaselineGPT, qk_norm=True)])
def test_one_group_serves_all_models_leaves_them_alone_and_repeats_itself(model: Any) -> None:
    built = build(model)
    before, state = copy.deepcopy(built.state_dict()), torch.get_rng_state()
    names: list[str] = []
    for probe in (Embeddings(), Matrices([1]), Scales()):
        found = measure(probe, built)
        assert all(math.isfinite(value) for value in found.metrics.values())
        assert measure(probe, built) == found
        names += [*found.metrics, *found.attachments]
    assert len(names) == len(set(names))  # they go into one record
    assert torch.equal(state, torch.get_rng_state())
    for name, tensor in built.state_dict().items():
        assert torch.equal(tensor, before[name]) and tensor.dtype == before[name].dtype


def test_norms_eigenvalues_and_dot_products_of_a_known_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "CHUNK", 7)
    model = build(BaselineGPT, vocabulary_size=2 * WIDTH)
    lengths = torch.arange(1.0, WIDTH + 1)
    axes = torch.diag(lengths)
    model.token_embedding.weight.copy_(torch.cat([axes, -axes]))
    model.output.weight.mul_(3)
    findings = measure(Embeddings(), model)
    found, document = findings.metrics, content(findings)
    norms = torch.cat([lengths, lengths])
    assert found["in_norm_mean"] == 6.5
    assert found["in_norm_variation"] == pytest.approx(float(norms.std()) / 6.5, rel=1e-6)
    assert found["in_norm_error"] == 11.0
    # The mean of the rows is zero and the covariance diagonal: 1, 4, 9 ... 144 times a constant; the median is 42.5.
    ratios = [length**2 / 42.5 for length in range(WIDTH, 0, -1)]
    assert document["in"]["eigenvalues"] == pytest.approx(ratios, rel=1e-4)
    assert found["in_spread_max"] == pytest.approx(144 / 42.5, rel=1e-9)
    assert found["in_spread_95"] == pytest.approx((121 + 0.45 * 23) / 42.5, rel=1e-9)
    # Of the 276 pairs the 12 of opposite rows have -length^2, all others 0.
    assert found["in_dot_mean"] == pytest.approx(-650 / 276, rel=1e-12)
    assert sum(document["in"]["dots"]) == pytest.approx(1, abs=1e-3)
    assert max(document["in"]["dots"]) == pytest.approx(264 / 276, rel=1e-4)
    rows = model.output.weight.double()
    dots = torch.stack([rows[i] @ rows[j] for i in range(len(rows)) for j in range(i)])
    assert found["out_dot_mean"] == pytest.approx(float(dots.mean()), rel=1e-9)
    assert found["out_dot_std"] == pytest.approx(float(dots.std(correction=0)), rel=1e-9)
    edges = document["edges"]["dot"]
    assert document["out"]["dots"] == shares(counts(dots, edges))
    expected = shares(counts(model.output.weight.detach().norm(dim=1), document["edges"]["norm"]))
    assert document["out"]["norms"] == expected


def plant(model: RotaryLanguageModel, layer: int, ratio: float) -> None:
    """Give the heads of a layer's W_q slices the condition numbers ratio, 3 ratio and unequal rows to W_k's."""
    attention = branches(model)[layer][0]
    for head, largest in enumerate((ratio, 3 * ratio)):
        rows = slice(head * HEAD, (head + 1) * HEAD)
        values = torch.linspace(1.0, largest, HEAD)
        attention.query_key_value.weight[rows] = orthonormal(HEAD, HEAD) @ torch.diag(values) @ orthonormal(HEAD, WIDTH)
        keys = slice(WIDTH + head * HEAD, WIDTH + (head + 1) * HEAD)
        attention.query_key_value.weight[keys] = torch.diag(values) @ orthonormal(HEAD, WIDTH)


def test_condition_numbers_are_medians_over_heads_by_layer() -> None:
    model = build(BaselineGPT)
    for layer, ratio in enumerate((2.0, 4.0, 8.0)):
        plant(model, layer, ratio)
    findings = measure(Matrices(), model)
    curves = content(findings)["conditions"]
    # Of two heads the median is the mean: 2 ratio.  Float32 weights keep it to about 1e-5.
    assert curves["plain"]["query"] == pytest.approx([4, 8, 16], rel=1e-4)
    assert curves["plain"]["key"] == pytest.approx([4, 8, 16], rel=1e-4)
    # W_k has orthogonal rows of unequal length: renormalised, it is perfectly conditioned.
    assert curves["renormalized"]["key"] == pytest.approx([1, 1, 1], rel=1e-4)
    found = findings.metrics
    assert found["condition_query"] == pytest.approx(8, rel=1e-4)
    assert set(curves["plain"]) == set(curves["renormalized"]) == {*ATTENTION, *FEED_FORWARD}
    assert all(len(values) == 3 for kind in curves.values() for values in kind.values())
    for group, names in (("attention", ATTENTION), ("mlp", FEED_FORWARD)):
        for suffix, kind in (("", "plain"), ("_renormalized", "renormalized")):
            logs = [math.log(value) for name in names for value in curves[kind][name]]
            expected = math.exp(sum(logs) / len(logs))
            assert found[f"condition_{group}{suffix}"] == pytest.approx(expected, rel=1e-4)


def test_a_slice_is_what_one_head_computes_with() -> None:
    model = build(BaselineGPT)
    attention, feed_forward = branches(model)[0]
    slices = attention_slices(attention)
    assert {name: tuple(found.shape) for name, found in slices.items()} == dict.fromkeys(ATTENTION, (2, HEAD, WIDTH))
    ids = torch.arange(8)[None]
    attention.output.weight[:HEAD] = 0  # nothing of the first head is written
    assert attention_slices(attention)["output"][0].abs().max() == 0
    before = model(ids)
    for part, name in enumerate(ATTENTION[:3]):
        own = slice(part * WIDTH, part * WIDTH + HEAD)
        assert torch.equal(attention.query_key_value.weight[own].double(), slices[name][0])
        attention.query_key_value.weight[own] += torch.randn(HEAD, WIDTH)
    torch.testing.assert_close(model(ids), before, rtol=0, atol=1e-6)
    attention.query_key_value.weight[2 * WIDTH + HEAD :] += torch.randn(HEAD, WIDTH)
    assert (model(ids) - before).abs().max() > 1e-4
    # u enters the MLP linearly, nu through SiLU.
    x = torch.randn(3, WIDTH)
    matrices = feed_forward_matrices(feed_forward)
    u, nu, down = (matrices[name][0].float() for name in FEED_FORWARD)
    expected = (x @ u.T * torch.nn.functional.silu(x @ nu.T)) @ down
    torch.testing.assert_close(feed_forward(x), expected, rtol=1e-4, atol=1e-6)


def test_scales_are_effective_values_by_layer() -> None:
    model = build(alpha_A={"init": 0.2, "scale": 0.01}, s_nu={"init": 2, "scale": "sqrt(d)"}, s_qk={"init": 1.5})
    model.blocks[1].attention_rate.stored.mul_(-3)
    model.blocks[2].attention.scale.stored.mul_(-2)
    model.blocks[0].feed_forward.scale_nu.stored.mul_(5)
    model.scale_z.stored[0] *= 31
    findings = measure(Scales(), model)
    found, document = findings.metrics, content(findings)
    expected = {"alpha_A": (0.2 + 0.6 + 0.2) / 3, "alpha_M": 0.05, "s_qk": 0.0, "s_u": 1.0, "s_nu": 14 / 3, "s_z": 2.0}
    assert {name: found[f"mean_{name}"] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert document["means"]["alpha_A"] == pytest.approx([0.2, 0.6, 0.2], rel=1e-4)
    assert document["means"]["s_qk"] == pytest.approx([1.5, 1.5, -3.0], rel=1e-4)
    assert len(document["means"]["s_z"]) == 1
    assert found["mean_abs_s_qk"] == pytest.approx(2.0) and document["means"]["|s_qk|"] == [1.5, 1.5, 3.0]
    assert found["sqk_spread"] == pytest.approx(2.0, rel=1e-6)  # the sign has no effect
    for name, edges in document["edges"].items():
        assert len(edges) == len(document["shares"][name]) + 1
        assert sum(document["shares"][name]) == pytest.approx(1, abs=1e-3)
    values = torch.cat(effective_scales(model)["s_nu"])
    assert document["shares"]["s_nu"] == shares(counts(values, document["edges"]["s_nu"]))
    assert sorted(set(document["shares"]["s_nu"])) == [0.0, 0.33333, 0.66667]

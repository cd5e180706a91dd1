"""The shapes that ops declare are those of the papers' configs at scale paper."""

from collections.abc import Iterator
from typing import Any

import pytest

from paper_repro.base.config import compose_seeds
from paper_repro.kernels.static.shapes import declared
from paper_repro.tables import spec

pytest.importorskip("triton")


def sizes(op: str) -> str:
    """What the op declares, a line for each shape."""
    return "\n".join(f"{shape.model}: {shape.size}" for shape in declared()[op].shapes)


def configs(name: str, **values: list[str]) -> Iterator[dict[str, Any]]:
    """The config of the first point of each combination of these values of an artifact's axes, at scale paper."""
    artifact = spec.load(name)
    _, scale = artifact.scale("paper")
    seen = set()
    for key in artifact.points(scale):
        place = dict(key)
        combination = tuple(place[axis] for axis in values)
        if combination not in seen and all(place[axis] in wanted for axis, wanted in values.items()):
            seen.add(combination)
            yield compose_seeds(artifact.experiment, artifact.overrides(key, scale), [0])[0]
    assert len(seen) > 0, (name, values)


def test_ngpts_shapes_are_those_of_figure_2() -> None:
    found = list(configs("ngpt/fig2", size=["small", "large"], context=["c1k", "c4k", "c8k"], model=["gpt", "ngpt"]))
    assert len(found) == 12
    for config in found:
        model, data = config["model"], config["data"]
        tokens, heads = data["batch_size"] * data["window"], model["num_heads"]
        assert config["training"]["precision"] == "bf16-mixed" and config["machine"]["tf32"]
        assert f": {tokens:,} tokens, D={model['width']}" in sizes("sphere_step")
        assert f": {tokens:,} tokens, M={model['hidden_factor'] * model['width']}" in sizes("scaled_swiglu")
        assert f"of {tokens:,} tokens, {model['vocabulary_size']:,} words" in sizes("linear_ce")
        assert f"tokens, H={heads}, Y={model['width'] // heads}, bfloat16" in sizes("qk_rotary")
        tensors = 2 + 4 * model["num_layers"]
        assert f"matrices: {tensors} tensors, float32" in sizes("unit_adam")
    windows = {(config["data"]["batch_size"], config["data"]["window"]) for config in found}
    assert windows == {(8, 1024), (2, 4096), (1, 8192)}
    assert all(
        f"nGPT 0.5B{more}: {size} tokens" in sizes("qk_rotary")
        for more, size in (("", "8 x 1,024"), (", 8k context", "1 x 8,192"))
    )


def test_cems_shapes_are_those_of_figure_2a() -> None:
    found = list(configs("cem/fig2a", size=["m86", "m108", "m134", "m162"], model=["llama"]))
    assert len(found) == 4
    for config in found:
        model, data = config["model"], config["data"]
        batch, window, heads = data["batch_size"], data["window"], model["num_heads"]
        place = f"{batch} x {window:,} tokens, H={heads}, Y={model['width'] // heads}"
        assert f": {place}, bfloat16" in sizes("qk_rotary") and f": {place}" in sizes("tied_attention")
        assert f": {batch * window:,} tokens, M={model['hidden']}" in sizes("scaled_swiglu")
        assert f"of {batch * window:,} tokens, {model['vocabulary_size']:,} words" in sizes("linear_ce")


def test_cets_shapes_are_those_of_table_1() -> None:
    config = next(configs("cet/table1", method=["ep"]))
    model, images = config["model"], config["data"]["batch_size"]
    side = (model["size"] - model["patch"]) // model["stride"] + 1
    blocks, numbers = model["size"] // model["stride"], model["channels"] * model["stride"] ** 2
    place = f": {images} x {side**2} tokens, "
    assert f"{place}H={model['num_heads']}, Y={model['head_width']}" in sizes("energy_attention")
    assert f"{place}D={model['width']}" in sizes("projected_step")
    assert f": {images} images of {blocks}² blocks of {numbers}" in sizes("projected_step")


def test_ebts_shapes_are_those_of_its_sizes() -> None:
    found = list(configs("ebt/tableD2", size=["xxs", "small", "large", "xl"], model=["one_step"]))
    for config in found:
        model, data = config["model"], config["data"]
        heads = f"H={model['num_heads']}, Y={model['width'] // model['num_heads']}"
        assert f": {data['batch_size']} x {data['window']} tokens, {heads}" in sizes("self_slot_attention")
    frames = next(configs("ebt/figB1", width=["one"], model=["ebt"]))
    batch, tokens = frames["data"]["batch_size"], frames["model"]["block_length"]
    assert f": {batch} x {tokens} tokens, H={frames['model']['num_heads']}" in sizes("self_slot_attention")

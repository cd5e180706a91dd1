"""The models of CEM's Table 3, from their shipped configs: trained together they end where each ends alone."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from paper_repro.base.configs import compose
from paper_repro.cells.tasks import FINISHED, Cell
from paper_repro.training.fit import Fit

STEPS = 25  # two and a half epochs
SMALL = [f"training.steps={STEPS}", "data.num_train=400", "data.num_test=100", "data.num_features=64"]
SMALL += ["data.batch_size=40"]
MODELS = {
    "plain": ["model=cem/gp_plain"],
    "gated": ["model=cem/gp_gated"],
    "t1": ["model=cem/gp_recursive"],
    "t2": ["model=cem/gp_recursive", "model.block.num_steps=2"],
}
PLACES = [(0, "rbf", 0.005), (1, "matern", 0.002), (2, "periodic", 0.005)]
"""Seed, kernel and learning rate of each model of the stack."""


class Silent:
    stop_requested = False

    saves = False

    def check_lease(self) -> None:
        """There is none."""

    def progress(self, step: int, steps: int, loss: float) -> None:
        return


def _cells(model: str, *overrides: str) -> list[Cell]:
    texts = [*SMALL, *MODELS[model], *overrides]
    cells = []
    for seed, kernel, rate in PLACES:
        config = compose("cem/gaussian_process", [*texts, f"data.kernel={kernel}", f"optimizer.lr={rate}"], seed)
        cells.append(Cell(f"cell{seed}", config))
    return cells


# Float32 rounds differently in a batched product; in float64 the same steps differ by rounding too, 2^-29 of it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "tolerance"),
    [((), 1e-5), (("training.precision=64-true", "+data.dtype=float64"), 1e-10)],
    ids=["float32", "float64"],
)
@pytest.mark.parametrize("model", MODELS)
def test_a_stack_ends_where_each_model_ends_alone(
    model: str, overrides: tuple[str, ...], tolerance: float, tmp_path: Path
) -> None:
    cells = _cells(model, *overrides)
    together = Fit().run(cells, tmp_path / "together", Silent())
    for cell, outcome in zip(cells, together, strict=True):
        (alone,) = Fit().run([cell], tmp_path / f"alone-{cell.id}", Silent())
        assert alone.status == outcome.status == FINISHED
        assert alone.data_hashes == outcome.data_hashes
        for name, value in alone.metrics.items():
            assert outcome.metrics[name] == pytest.approx(value, rel=10 * tolerance), name
        own = load_file(tmp_path / f"alone-{cell.id}" / cell.id / "weights.safetensors")
        stacked = load_file(tmp_path / "together" / cell.id / "weights.safetensors")
        assert own.keys() == stacked.keys()
        distance = sum(float((own[name] - stacked[name]).double().square().sum()) for name in own) ** 0.5
        size = sum(float(own[name].double().square().sum()) for name in own) ** 0.5
        assert distance <= tolerance * size

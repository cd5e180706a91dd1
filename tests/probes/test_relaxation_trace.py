import copy
import io
import json
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.image_sources import Digits
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.lightning_modules.cet_celeba import CETCelebA
from paper_repro.models.cet import CET
from paper_repro.probes import completion
from paper_repro.probes.attachments import PIXELS, png
from paper_repro.probes.completion import (
    EVERY,
    METRICS,
    EstimateOrder,
    GradientPrecision,
    Reconstructions,
    RelaxationTrace,
    Traced,
    first_images,
    recorded,
)
from paper_repro.training.schedules import Constant

pytestmark = pytest.mark.usefixtures("without_gradients")
SIZES = {"channels": 1, "size": 8, "patch": 4, "stride": 2, "width": 12, "num_heads": 2, "head_width": 4}


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "NUM_IMAGES", 4)


@pytest.fixture
def module() -> CETCelebA:
    torch.manual_seed(0)
    model = CET(**SIZES, num_memories=16, init_std=0.1)  # type: ignore[arg-type]
    return CETCelebA(model, partial(torch.optim.AdamW, lr=0.01), Constant()).eval()


@pytest.fixture(scope="module")
def data() -> MaskedImageData:
    return MaskedImageData(Digits(), cell=2, batch_size=4, evaluation_batch_size=3, num_evaluation_images=8)


def traced(*images: list[float], trained: int = 2) -> Traced:
    """Energies given image by image, at every step, of terms that sum up to 1 in magnitude."""
    energies = torch.tensor(images, dtype=torch.float64).T
    steps = list(range(len(energies)))
    errors = torch.tensor([[0.5] * len(images), [0.75] * len(images)], dtype=torch.float64)
    return Traced(steps, [trained, steps[-1]], trained, energies, torch.ones_like(energies), errors)


def test_rises_count_beyond_rounding_alone() -> None:
    found = traced([5.0, 4, 4.5, 3], [5.0, 4, 4 + 5e-8, 4]).metrics()
    assert (found["rises"], found["rise_largest"], found["intervals"]) == (1, 0.5, 6)
    assert traced([5.0, 4, 3, 3]).metrics()["rise_largest"] == 0
    assert (found["mse_trained"], found["mse_end"]) == (0.5, 0.75)
    assert found["energy_end"] == 3.5


def test_an_image_that_falls_late_has_left_a_plateau_only_if_there_was_one() -> None:
    plateau = [10.0, 5, 5, 5, 5, 2]
    settled, sliding = [10.0, 5, 5, 5, 5, 4.9], [10.0, 9, 8, 7, 6, 5]
    assert traced(plateau, settled, sliding, trained=4).late().tolist() == [True, False, False]


def test_recorded_steps_are_all_of_the_first_and_pairs_later() -> None:
    found = recorded([10, 5000])
    assert found[: EVERY + 1] == list(range(EVERY + 1)) and found[-2:] == [4999, 5000]
    later = [step for step in found if EVERY < step < 4999]
    assert later and all({step + 1, step - 1} & set(found) for step in later)
    assert recorded([2, 7]) == list(range(8))


def test_the_trace_is_the_model_s_own_relaxation(module: CETCelebA, data: MaskedImageData) -> None:
    before = copy.deepcopy(module.model.state_dict())
    found = RelaxationTrace("long", [2, 20], free_steps=5, step_size=0.5).measure(module, data, 0)
    content = json.loads(found.attachments["long.json"])
    assert content["trained"] == 10 and content["shown"] == [2, 10, 20] and content["steps"] == list(range(21))
    masked, images = first_images(data, module.device)
    clamped = module.model.clamp(masked)
    relaxed = module.model.relax(module.model.first(clamped), clamped, 20, 0.5, energies_at=range(21))
    # float32 energies beside float64's
    torch.testing.assert_close(torch.tensor(content["energies"]), relaxed.energies, rtol=1e-4, atol=1e-4)
    errors = (module.model.patches.images(relaxed.state.y) - images).square().flatten(1).mean(1)
    torch.testing.assert_close(torch.tensor(content["errors"][-1]), errors, rtol=1e-3, atol=0)
    assert found.metrics.keys() == {f"long_{name}" for name in METRICS}
    assert found.attachments.keys() == {"long.json", "long_2.png", "long_10.png", "long_20.png"}
    assert all(torch.equal(value, before[name]) for name, value in module.model.state_dict().items())


def test_a_relaxation_that_diverges_is_said_so(module: CETCelebA, data: MaskedImageData) -> None:
    module.model.decoder.weight.fill_(1e30)
    found = RelaxationTrace("long", [9], free_steps=5).measure(module, data, 0)
    assert not found.metrics
    assert found.unavailable == {f"long_{name}": "diverged: an energy was not finite" for name in METRICS}


def test_reconstructions_are_the_completed_images(module: CETCelebA, data: MaskedImageData) -> None:
    found = Reconstructions(5).measure(module, data, 0)
    masked, images = first_images(data, module.device)
    completed = module.model(masked, 5)
    assert found.metrics["completed_mse"] == pytest.approx(float((completed - images).square().mean()), rel=1e-5)
    assert found.attachments["images.png"] == png(images) and found.attachments["completed.png"] == png(completed)


def test_a_png_holds_the_colours_and_shrinks_what_is_large() -> None:
    images = torch.rand(3, 3, 6, 6) * 2.4 - 1.2
    pixels = np.asarray(Image.open(io.BytesIO(png(images))))
    expected = ((images.clamp(-1, 1) + 1) * 127.5).round().byte().permute(2, 0, 3, 1).flatten(1, 2)
    assert np.array_equal(pixels, expected.numpy())
    large = Image.open(io.BytesIO(png(torch.rand(16, 3, 120, 120))))
    assert large.size == (960, 60) and large.size[0] * large.size[1] <= PIXELS


@pytest.mark.slow
def test_the_estimate_is_of_second_order(module: CETCelebA, data: MaskedImageData) -> None:
    found = EstimateOrder().measure(module, data, 0).metrics
    assert found["estimate_order"] == pytest.approx(2.0, abs=0.01)
    assert 0 < found["estimate_error"] < 0.01


def test_gradients_with_other_products_are_compared(module: CETCelebA, data: MaskedImageData) -> None:
    before = torch.get_float32_matmul_precision()
    found = GradientPrecision(("bfloat16", "tf32"), 20, 5, 0.01).measure(module, data, 0)
    assert torch.get_float32_matmul_precision() == before and module.model.precision == "float32"
    assert found.metrics["gradient_cosine_float64"] == pytest.approx(1.0, abs=1e-4)
    assert "needs a GPU" in found.unavailable["gradient_cosine_tf32"]
    assert 0.5 < found.metrics["gradient_cosine_bfloat16"] < 1 - 1e-7, "rounded on every processor"


def test_too_few_images_are_refused(data: MaskedImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "NUM_IMAGES", 9)
    with pytest.raises(UsageError, match="9 test images are completed, 8 are evaluated"):
        first_images(data, torch.device("cpu"))

import subprocess
import sys

import pytest

from paper_repro.metrics import images, likelihood, quantities, regression
from paper_repro.metrics.learning_rate import LearningRateOptimum
from paper_repro.metrics.quantities import Quantity
from paper_repro.metrics.scaling import ExponentGap, PowerLaw
from paper_repro.metrics.speedup import Speedup


@pytest.mark.parametrize(
    ("owner", "name", "unit", "higher_is_better"),
    [
        (regression.MeanSquaredError, "MSE", "target unit squared", False),
        (regression.RootMeanSquaredError, "RMSE", "target unit", False),
        (images.PooledPSNR, "PSNR", "dB", True),
        (images.MeanImagePSNR, "PSNR", "dB", True),
        (likelihood.CrossEntropy, "cross-entropy", "nat/token", False),
        (likelihood.Perplexity, "perplexity", "", False),
        (likelihood.BitsPerByte, "bits per byte", "bit/byte", False),
        (LearningRateOptimum, "optimal learning rate", "", None),
        (PowerLaw, "scaling exponent", "", True),
        (ExponentGap, "scaling exponent gap", "%", True),
        (Speedup, "tokens-to-same-loss speedup", "x", True),
    ],
)
def test_every_metric_says_its_name_unit_and_direction(owner, name, unit, higher_is_better):
    assert owner.quantity == Quantity(name, unit, higher_is_better)
    assert getattr(owner, "higher_is_better", higher_is_better) is higher_is_better


def test_heading_has_unit_and_arrow_only_where_there_are_any():
    assert quantities.PSNR.heading == "PSNR (dB) ↑"
    assert quantities.PERPLEXITY.heading == "perplexity ↓"
    assert quantities.OPTIMAL_LEARNING_RATE.heading == "optimal learning rate"


def test_better_follows_the_direction_and_never_holds_for_nan():
    assert quantities.PSNR.is_better(30.0, 29.0)
    assert not quantities.PSNR.is_better(29.0, 29.0)
    assert quantities.RMSE.is_better(0.1, 0.2)
    assert not quantities.RMSE.is_better(0.2, 0.1)
    assert not quantities.RMSE.is_better(float("nan"), 0.2)
    assert not quantities.RMSE.is_better(0.2, float("nan"))
    with pytest.raises(ValueError, match="no better direction"):
        quantities.OPTIMAL_LEARNING_RATE.is_better(1e-3, 2e-3)


def test_what_tables_import_loads_neither_torch_nor_scipy():
    program = (
        "import sys\n"
        "import paper_repro.metrics.quantities, paper_repro.metrics.learning_rate\n"
        "import paper_repro.metrics.scaling, paper_repro.metrics.speedup\n"
        "print(sorted({'torch', 'scipy', 'torchmetrics', 'lightning'} & set(sys.modules)))\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"

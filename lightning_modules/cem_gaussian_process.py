"""CEM, Table 3: regression of Gaussian-process draws by models of one block."""

from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric

from paper_repro.metrics.pooled import RootMeanSquaredError
from paper_repro.training.module import PaperModule

Pair = tuple[Tensor, Tensor]


class CEMGaussianProcess(PaperModule):
    """Mean squared error on (inputs, targets); RMSE of each split, in the units of the standardised target (Table 3).

    Shape: inputs (B, num_inputs), targets (B,); the model maps the first to the shape of the second.
    """

    def loss(self, batch: Pair) -> Tensor:
        inputs, targets = batch
        return F.mse_loss(self.model(inputs), targets)

    def new_metrics(self) -> dict[str, Metric]:
        return {"rmse": RootMeanSquaredError()}

    def update_metrics(self, metrics: dict[str, Metric], batch: Pair) -> None:
        inputs, targets = batch
        metrics["rmse"].update(self.model(inputs), targets)

"""The losses of a run, thinned while it trains, and the step at which one stopped being a number."""

from typing import Any

import torch
from torch import Tensor

from paper_repro.cells.tasks import LOSS_POINTS, loss_point


class LossLog:
    """Mean losses over each hundredth of the run and the first non-finite loss, for S models at once.

    Everything stays on the device: adding a step does not wait for it.

    Args:
        models: S.
        steps: length of the run; a run of fewer than 100 steps has a point per step.

    ``end`` is the last step, an earlier one where a callback has ended the run.
    """

    def __init__(self, models: int, steps: int, device: torch.device) -> None:
        self.steps = self.end = steps
        self.points = min(LOSS_POINTS, steps)
        self.latest = torch.full((models,), torch.nan, device=device)
        self._sums = torch.zeros(self.points, models, dtype=torch.float64, device=device)
        self._first_bad = torch.full((models,), -1, dtype=torch.int64, device=device)

    def add(self, step: int, losses: Tensor) -> None:
        """Keep the losses, (S,), of step ``step`` (0-based)."""
        self.latest = losses
        self._sums[loss_point(step, self.steps)] += losses
        bad = ~torch.isfinite(losses) & (self._first_bad < 0)
        self._first_bad.masked_fill_(bad, step)

    def diverged(self) -> list[int | None]:
        """Return, for each model, the first step (0-based) with a non-finite loss; waits for the device."""
        return [step if step >= 0 else None for step in self._first_bad.tolist()]

    def mean_latest(self) -> float:
        """Return the latest loss, mean over the models that have a finite one; NaN if none has. Waits for the
        device.
        """
        finite = self.latest[torch.isfinite(self.latest)]
        return float(finite.double().mean()) if finite.numel() else float("nan")

    def curve(self, model: int) -> list[tuple[int, float]]:
        """Return (steps done, mean loss over the steps since the point before) of one model, up to where it
        diverged.
        """
        first_bad = int(self._first_bad[model])
        end = first_bad if first_bad >= 0 else self.end
        sums = self._sums[:, model].tolist()
        edges = [-(-point * self.steps // self.points) for point in range(self.points + 1)]
        return [
            (edges[point + 1], sums[point] / (edges[point + 1] - edges[point]))
            for point in range(self.points)
            if edges[point + 1] <= end
        ]

    def state_dict(self) -> dict[str, Tensor]:
        return {"sums": self._sums, "first_bad": self._first_bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums.copy_(state["sums"])
        self._first_bad.copy_(state["first_bad"])

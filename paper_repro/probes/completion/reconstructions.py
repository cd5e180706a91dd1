"""CET, figure 2: some test images, masked and completed."""

import json
from dataclasses import dataclass

from paper_repro.base.errors import at_least
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.cet import Phases
from paper_repro.probes.completion.tools import completing, first_images
from paper_repro.probes.pictures import png
from paper_repro.training.module import PaperModule

IMAGES, MASKED, COMPLETED, ERRORS = "images.png", "masked.png", "completed.png", "completed.json"


@dataclass(frozen=True)
class Reconstructions:
    """Leaves the first test images, what the model sees of them and what it makes of that as strips.

    ``completed_mse`` is their mean squared error over all pixels, ``completed.json`` holds that of each.

    Args:
        free_steps, step_size: of the relaxation.
        num_images: 16 in the paper.
    """

    free_steps: int
    step_size: float = 1.0
    num_images: int = 16

    def __post_init__(self) -> None:
        Phases(free_steps=self.free_steps, step_size=self.step_size)
        at_least("num_images", self.num_images)

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Complete the images.

        Raises:
            UsageError: a model that is no CET, or too few test images.
        """
        model = completing(module, "reconstructions")
        masked, images = first_images(data, self.num_images, module.device)
        completed = model(masked, self.free_steps, self.step_size)  # (B, C, H, H)
        errors = (completed - images).square().flatten(1).mean(1)  # (B,)
        strips = {IMAGES: png(images), MASKED: png(masked), COMPLETED: png(completed)}
        numbers = json.dumps([float(f"{error:.5g}") for error in errors.tolist()]).encode()
        return Findings({"completed_mse": float(errors.mean())}, {**strips, ERRORS: numbers})

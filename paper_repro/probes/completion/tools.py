"""What CET's probes share: the model and the images that they look at."""

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.cet import CET
from paper_repro.training.module import PaperModule

SPLIT = "test"


def completing(module: PaperModule, probe: str) -> CET:
    """Return the module's model.

    Raises:
        UsageError: it is no CET.
    """
    if not isinstance(module.model, CET):
        raise UsageError(f"probes.{probe}: {type(module.model).__name__} does not relax; it measures a CET")
    return module.model


def first_images(data: CounterBasedDataModule, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the first masked images and images of the test split, (count, C, H, H) each.

    Raises:
        UsageError: the split has fewer.
    """
    masked, images = [], []
    for some, whole in data.evaluation_batches(SPLIT):
        masked.append(some)
        images.append(whole)
        if sum(map(len, masked)) >= count:
            break
    found = sum(map(len, masked))
    if found < count:
        raise UsageError(
            f"{count} test images were asked for and {found} are evaluated: raise data.num_evaluation_images, or lower "
            "num_images of the probe"
        )
    first, second = (torch.cat(parts)[:count].to(device) for parts in (masked, images))
    return first, second

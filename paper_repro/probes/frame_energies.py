"""EBT, figure B.2: the energies of predicted frames, where a clip goes on, stands still, or is cut.

Letters: B windows, T frames, V numbers of a frame's state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.videos import VideoData
from paper_repro.metrics.ranks import rank_correlation
from paper_repro.models.ebt import LatentEBT, think
from paper_repro.probes.attachments import png
from paper_repro.probes.thinking import normal_start, settings_of
from paper_repro.training.module import PaperModule

ATTACHMENT = "frames.csv"
GOES_ON, STILL, CUT = "goes_on", "still", "cut"


def stopped(windows: Tensor) -> Tensor:
    """Return windows (B, T, V) that show their first frame throughout."""
    return windows[:, :1].expand_as(windows)


def cut(windows: Tensor) -> Tensor:
    """Return windows (B, T, V) that go on, from their middle, as the second half of the next window."""
    middle = windows.shape[1] // 2
    return torch.cat([windows[:, :middle], windows.roll(-1, 0)[:, middle:]], 1)


KINDS: Mapping[str, Callable[[Tensor], Tensor]] = {GOES_ON: lambda windows: windows, STILL: stopped, CUT: cut}


@dataclass(frozen=True)
class FrameEnergies:
    """Measures the energy of each predicted frame after the steps of training, in three kinds of windows.

    Windows of the last split go on as they are, stand still (the first frame again and again), or are cut in their
    middle (then the second half of another window).  Metrics:

    * ``energy_rank``: Spearman's correlation of energy and loss over the predicted frames of windows that go on.
    * ``<kind>_energy`` and ``<kind>_frame_loss``: means over the last half of the frames.
    * ``cut_rise``: the energy of the first frame that is predicted after a cut was seen, less that of the same frame
      without the cut; ``still_fall``: the energy of the last frame of windows that go on, less of those that stand
      still.

    ``frames.csv`` has the mean energy and loss of each frame and kind.  Where states are pictures, ``<kind>.png`` shows
    the first window of each kind.

    Args:
        num_windows: so many are measured, at most those that are evaluated.
    """

    num_windows: int = 256

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        model = module.model
        if not isinstance(model, LatentEBT) or not isinstance(data, VideoData):
            what = f"{type(model).__name__} on {type(data).__name__}"
            raise UsageError(f"probes.frames: {what} has no energies of frames")
        batches = list(data.evaluation_batches(data.splits[-1]))
        windows = torch.cat(batches)[: self.num_windows]  # (B, T, V)
        found, rows, energies = Findings(), ["kind,frame,energy,loss"], {}
        settings, (count, frames, size) = settings_of(module), windows.shape
        for kind, change in KINDS.items():
            changed = change(windows)
            known = changed.to(module.device)
            start = normal_start((1, count, frames - 1, size), model, torch.Generator().manual_seed(0))
            *_, last = think(model, known[:, :-1], start, settings.longest, replace(settings, noise=0.0))
            errors = functional.smooth_l1_loss(last.predictions[0], known[:, 1:], reduction="none")  # (B, T - 1, V)
            energies[kind], losses = last.energies[0].cpu(), errors.mean(-1).cpu()  # (B, T - 1) each
            late = energies[kind].shape[1] // 2
            found.metrics[f"{kind}_energy"] = float(energies[kind][:, late:].mean())
            found.metrics[f"{kind}_frame_loss"] = float(losses[:, late:].mean())
            means = zip(energies[kind].mean(0).tolist(), losses.mean(0).tolist(), strict=True)
            rows += [f"{kind},{frame},{energy:.8g},{loss:.8g}" for frame, (energy, loss) in enumerate(means, 2)]
            if kind == GOES_ON:
                found.metrics["energy_rank"] = rank_correlation(energies[kind].flatten(), losses.flatten())
            pictures = data.source.pictures(changed[0].numpy())
            if pictures is not None:
                found.attachments[f"{kind}.png"] = png(torch.from_numpy(pictures))
        seen = windows.shape[1] // 2  # the prediction after the first frame of the other half
        found.metrics["cut_rise"] = float((energies[CUT] - energies[GOES_ON])[:, seen].mean())
        found.metrics["still_fall"] = float((energies[GOES_ON] - energies[STILL])[:, -1].mean())
        found.attachments[ATTACHMENT] = ("\n".join(rows) + "\n").encode()
        return found

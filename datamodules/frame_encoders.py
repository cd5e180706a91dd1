"""The frozen encoder of frames: a variational autoencoder of diffusers, of which the mean of each latent is taken.

Letters: F frames, H side of a frame, C channels and S side of a latent.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.image_decoding import Pixels
from paper_repro.datamodules.prepared_clips import LATENT

BATCH = 32
"""Frames that are encoded at a time."""


class FrozenVAE:
    """Encodes frames as the mean of an AutoencoderKL's posterior, as EBT's code does for appendix D.2: not scaled.

    Args:
        vae: a diffusers AutoencoderKL.
        size: H.

    Raises:
        UsageError: the network cannot encode a frame of this size.
    """

    def __init__(self, vae: nn.Module, size: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.vae, self.size = vae.eval().requires_grad_(False).to(self.device), size
        try:
            self.shape = self.encode(np.zeros((1, size, size, 3), np.uint8)).shape[1:]
        except RuntimeError as error:
            raise UsageError(f"the autoencoder cannot encode a frame of 3 x {size} x {size} ({error})") from error

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that a latent depends on, beside the frame."""
        digest = sha256()
        for name, tensor in sorted(self.vae.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.float().cpu().numpy().tobytes())
        return {"weights": digest.hexdigest(), "latent": "mean, not scaled", "pixels": "-1 to 1"}

    @torch.no_grad()
    def encode(self, frames: Pixels) -> NDArray[np.float16]:
        """Return the latents of frames (F, H, H, 3), (F, C, S, S)."""
        found = []
        for first in range(0, len(frames), BATCH):
            some = torch.from_numpy(np.array(frames[first : first + BATCH])).to(self.device)
            pixels = some.permute(0, 3, 1, 2).float() / 127.5 - 1  # (F, 3, H, H)
            found.append(self.vae.encode(pixels).latent_dist.mean.cpu())  # type: ignore[operator]
        return torch.cat(found).numpy().astype(LATENT)


def load(name: str, size: int, download: bool) -> FrozenVAE:
    """Return the autoencoder of a folder, or of the hub.

    Args:
        name: a folder that diffusers saved, or a name on the hub.
        size: the side of the frames.
        download: whether the hub may be asked; otherwise only what was fetched before is used.

    Raises:
        UsageError: diffusers is not installed, or there is no such autoencoder.
    """
    try:
        from diffusers import AutoencoderKL
    except ImportError as error:
        raise UsageError("latents are made by diffusers: run: pip install diffusers") from error
    path = Path(name).expanduser()
    local = path.is_dir()
    settings: dict[str, Any] = {"local_files_only": local or not download, "low_cpu_mem_usage": False}
    try:
        vae = AutoencoderKL.from_pretrained(str(path) if local else name, **settings)
    except Exception as error:  # whatever the hub's client, the reader of weights or a wrong config raises
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"--vae {name}: no autoencoder of diffusers could be read ({reason}): give the folder of one, or its name "
            "on the hub and --download"
        ) from error
    return FrozenVAE(vae, size)

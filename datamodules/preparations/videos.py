"""Clips, as latents of a frozen encoder.

prepare_data.py something-something --from DIR --vae PATH   Something-Something V2 as latents of every frame, from
                                               the official clips and lists, or from train/ and validation/ with
                                               clips; without --vae the encoder of EBT's code from the hub, with
                                               --download (the clips ask for an account: get them otherwise)
"""

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.latent_shards import LatentManifest
from paper_repro.datamodules.preparation import Preparation, Request, summary, verify

DEFAULT_VAE, DEFAULT_SIDE = "stabilityai/sd-vae-ft-mse", 224


def something_something(request: Request) -> None:
    """Write the latents of every frame of Something-Something V2."""
    side = request.number("size") or DEFAULT_SIDE
    folder = request.folder(request.name if side == DEFAULT_SIDE else f"{request.name}-{side}")
    if request.verify:
        verify(folder, LatentManifest)
        return
    if request.source is None:
        raise UsageError(f"{request.name}: give --from DIR, a folder with the clips; their site asks for an account")
    from paper_repro.datamodules import clip_preparation, frame_encoders
    from paper_repro.datamodules.encoded_files import ON_CORRUPT, SKIP

    skip, workers = request.choice("on-corrupt", ON_CORRUPT) == SKIP, request.number("workers") or 1
    source = clip_preparation.load(request.source)
    vae = frame_encoders.load(request.text("vae") or DEFAULT_VAE, side, request.download)
    summary(folder, clip_preparation.write(folder, source, vae, skip, workers=workers))


PREPARATIONS = {
    "something-something": Preparation(something_something, ("folder", "from", "on-corrupt", "size", "vae", "workers"))
}

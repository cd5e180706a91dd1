"""Images, decoded to pixels.

prepare_data.py celeba --from DIR              CelebA from img_align_celeba/ and list_eval_partition.txt, or from
                                               the hub's parquet files, to 19 GB of pixels
prepare_data.py celeba --download              the same from the hub
prepare_data.py coco --from DIR --workers 16   COCO 2014 from train2014/ and val2014/, or from parquet files, as
                                               squares of --size 128; or --download
prepare_data.py imagenet --from DIR            ImageNet-1k with labels, from train/ and val/ with a folder for each
                                               class, or from parquet files; or --download
"""

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.image_shards import ImageManifest
from paper_repro.datamodules.preparation import Preparation, Request, summary, verify

DEFAULT_SIDE = 128
OPTIONS = ("folder", "from", "hub", "on-corrupt", "workers")


def celeba(request: Request) -> None:
    """Write CelebA's squares of faces."""
    folder = request.folder()
    if request.verify:
        verify(folder, ImageManifest)
        return
    from paper_repro.datamodules import celeba_preparation

    skip, workers = _skip(request), request.number("workers") or 1
    source = celeba_preparation.load(request.source, request.text("hub"))
    summary(folder, celeba_preparation.write(folder, source, skip, workers=workers))


def squares(request: Request) -> None:
    """Write the central squares of COCO's or ImageNet's images."""
    side = request.number("size") or DEFAULT_SIDE
    folder = request.folder(request.name if side == DEFAULT_SIDE else f"{request.name}-{side}")
    if request.verify:
        verify(folder, ImageManifest)
        return
    from paper_repro.datamodules import encoded_images, image_preparation
    from paper_repro.datamodules.image_decoding import CentralSquare

    skip, workers = _skip(request), request.number("workers") or 1
    source = encoded_images.load(request.name, request.source, request.text("hub"))
    summary(folder, image_preparation.write(folder, source, CentralSquare(side), skip, workers=workers))


def _skip(request: Request) -> bool:
    """Check the options that all images share; return whether damaged ones are left out."""
    from paper_repro.datamodules.encoded_files import ON_CORRUPT, SKIP

    found = request.choice("on-corrupt", ON_CORRUPT)
    if (request.source is None) == (not request.download) or (request.source is not None and request.text("hub")):
        raise UsageError(
            f"{request.name}: give either --from DIR, or --download to get it from the hub (--hub names a copy)"
        )
    return found == SKIP


PREPARATIONS = {
    "celeba": Preparation(celeba, OPTIONS),
    "coco": Preparation(squares, (*OPTIONS, "size")),
    "imagenet": Preparation(squares, (*OPTIONS, "size")),
}

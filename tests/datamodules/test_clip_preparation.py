"""Clips to latents of a frozen autoencoder: what is written, what is read, what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.array_shards import Manifest
from paper_repro.datamodules.prepared_clips import PreparedClips
from paper_repro.datamodules.video_sources import decode_clip
from paper_repro.datamodules.videos import VideoData
from paper_repro.scripts import prepare_data
from paper_repro.tests.support.prepared import clip_of, content, refusal

SIZE, LATENT = 16, (4, 2, 2)
PREPARE = "python scripts/prepare_data.py something-something --from DIR"


def save_vae(folder: Path, **changes: int) -> Path:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    sizes = {"block_out_channels": (8, 8, 8, 8), "norm_num_groups": 4, "layers_per_block": 1, "latent_channels": 4}
    kinds = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    AutoencoderKL(**{**sizes, **kinds, **changes}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vae(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vae(tmp_path_factory.mktemp("vae"))


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Official lists and clips: seven for training, two for testing; number 3 has a varying rate."""
    folder = tmp_path / "clips"
    lists = {"train": range(1, 8), "validation": range(8, 10)}
    for split, numbers in lists.items():
        for number in numbers:
            place = folder / "20bn-something-something-v2" / f"{number}.webm"
            place.parent.mkdir(parents=True, exist_ok=True)
            times = [0, 1, 5, 9] if number == 3 else None
            place.write_bytes(clip_of([number * 20 + frame for frame in range(4)], times))
        entries = [{"id": str(number), "label": "moving", "template": "Moving"} for number in numbers]
        (folder / f"something-something-v2-{split}.json").write_text(json.dumps(entries))
    return folder


def words(clips: Path, vae: Path, *more: str) -> list[str]:
    given = ["--from", str(clips), "--vae", str(vae), "--size", str(SIZE), "--to", str(clips.parent / "data")]
    return ["something-something", *given, *more]


def prepared(folder: Path, **settings: int) -> PreparedClips:
    source = PreparedClips({"manifest": "manifest.json"}, PREPARE, **{"state_size": 16, **settings})
    source.find(folder, None)
    return source


def test_every_frame_is_stored_as_the_mean_of_its_latent(clips, vae, capsys):
    from diffusers import AutoencoderKL

    assert prepare_data.main(words(clips, vae)) == 0
    folder = clips.parent / "data" / f"something-something-{SIZE}"
    assert "train: 28 latents, 7 clips" in capsys.readouterr().out
    manifest = Manifest.read(folder / "manifest.json")
    assert manifest.arrays["latents"].shape == LATENT and manifest.totals()["test"] == {"latents": 8, "clips": 2}
    source = prepared(folder)
    assert source.counts == {"train": 7, "test": 2} and source.duration("train", 2) == pytest.approx(0.9, abs=2e-3)
    found = source.states("train", 2, [0.0, 0.3, 0.5, 0.95], [0.0] * 3)  # (T, V)
    network = AutoencoderKL.from_pretrained(str(vae), low_cpu_mem_usage=False).eval()
    whole = decode_clip((clips / "20bn-something-something-v2" / "3.webm").read_bytes(), size=SIZE)
    pixels = torch.from_numpy(whole.frames[[0, 1, 2, 3]]).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        expected = network.encode(pixels).latent_dist.mean.reshape(4, 16)
    np.testing.assert_allclose(found, expected.numpy(), rtol=2e-3, atol=1e-3)
    assert found.dtype == np.float32
    data = VideoData(source, 3, spacing=0.1, batch_size=5, num_evaluation_windows=4, data_root=folder)
    assert data.train_batch(0).shape == (5, 3, 16) and data.data_hashes().keys() == {"manifest"}
    assert prepare_data.main([*words(clips, vae)[:1], "--verify", *words(clips, vae)[5:]]) == 0
    assert prepare_data.main(words(clips, vae, "--folder", "again", "--workers", "2")) == 0
    assert content(clips.parent / "data" / "again") == content(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "give a folder with the clips in 20bn-something-something-v2/"),
        ("[]", "no clips"),
        ('[{"id": "../1"}]', "no list of clips"),
    ],
)
def test_wrong_lists_are_refused(clips: Path, vae: Path, change: str | None, message: str) -> None:
    path = clips / "something-something-v2-train.json"
    path.unlink() if change is None else path.write_text(change)
    assert message in refusal(*words(clips, vae))


def test_a_wrong_encoder_is_refused(clips: Path, vae: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no autoencoder" in refusal(*words(clips, tmp_path / "empty"))
    assert "give --from DIR" in refusal("something-something", "--download")
    assert prepare_data.main(words(clips, vae)) == 0
    other = save_vae(tmp_path / "other", latent_channels=8)
    assert "was prepared with encoder.weights" in refusal(*words(clips, other))
    assert prepare_data.main(words(clips, other, "--folder", "other")) == 0
    for folder, message in ((clips.parent / "data" / "other", "latents of 8 x 2 x 2"), (clips, f"run: {PREPARE}")):
        with pytest.raises(UsageError, match=message):
            _ = prepared(folder).counts

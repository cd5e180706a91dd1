import errno
import random
import re
import resource
import warnings

import pytest
import torch
from torch import nn

from paper_repro.base.errors import UsageError
from paper_repro.base.files import digest_path
from paper_repro.training import checkpoints
from paper_repro.training.checkpoints import checkpoint_path, load_weights, save_weights

ID = ["abc123"]


def save(folder, step, identity=ID):
    path = checkpoint_path(folder, step)
    checkpoints.save(
        path, {"step": step, "weights": torch.full((50,), float(step)), "more": [1, (2.5, None)]}, identity
    )
    return path


def newest(folder, identity=ID):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return checkpoints.newest(folder, identity)


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << (position % 8)
    path.write_bytes(bytes(content))


def test_the_last_two_are_kept_and_left_overs_of_a_kill_are_removed(tmp_path):
    (tmp_path / ".step-000000003.ckpt.xyz.part").write_bytes(b"half")
    digest_path(checkpoint_path(tmp_path, 2)).write_bytes(b"no file for this digest")
    for step in (10, 20, 30):
        save(tmp_path, step)
    expected = {f"step-0000000{step}.ckpt{suffix}" for step in (20, 30) for suffix in ("", ".sha256")}
    assert {path.name for path in tmp_path.iterdir()} == expected


def test_damaged_checkpoints_are_noticed_and_set_aside_and_the_one_before_is_used(tmp_path):
    assert checkpoints.newest(tmp_path / "absent", ID) is None
    save(tmp_path, 10)
    path = save(tmp_path, 20)
    good, digest = path.read_bytes(), digest_path(path).read_bytes()
    flipped = [(position, None) for position in random.Random(0).sample(range(len(good)), 100)]
    for position, length in [*flipped, *((None, length) for length in (0, 1, 100, -1))]:
        path.write_bytes(good[:length])
        digest_path(path).write_bytes(digest)
        if position is not None:
            flip(path, position)
        assert newest(tmp_path) == 10
    flip(digest_path(save(tmp_path, 20)), 5)
    with pytest.warns(UserWarning, match=re.escape(str(path))):
        assert checkpoints.newest(tmp_path, ID) == 10
    assert path.with_name(path.name + ".damaged").is_file()
    digest_path(path).write_bytes(b"0" * 64)  # a kill between digest and file
    path.with_name(f".{path.name}.abc.part").write_bytes(b"half")
    assert newest(tmp_path) == 10
    flip(checkpoint_path(tmp_path, 10), 99)
    with pytest.warns(UserWarning) as caught:
        assert checkpoints.newest(tmp_path, ID) is None
    assert "training starts anew" in str(caught[-1].message)


@pytest.mark.parametrize("numbers", [60_000, 5_000_000])
def test_a_disk_that_takes_no_more_is_an_os_error_and_costs_nothing_earlier(numbers, tmp_path):
    before = save(tmp_path, 10)
    content = {"weights": torch.rand(numbers)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            checkpoints.save(checkpoint_path(tmp_path, 20), content, ID)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert newest(tmp_path) == 10
    assert {path.name for path in tmp_path.iterdir()} == {before.name, digest_path(before).name}


def test_a_checkpoint_of_another_cell_is_refused_with_both_ids(tmp_path):
    save(tmp_path, 10, ["other1", "other2"])
    with pytest.raises(UsageError, match=r"other1, other2, expected abc123.*another folder"):
        newest(tmp_path)


def test_weights_of_another_model_are_refused_and_nothing_is_copied(tmp_path):
    save_weights(tmp_path / "w", nn.Sequential(nn.Linear(3, 2)), "abc123")
    model = nn.Sequential(nn.Linear(5, 2, bias=False), nn.Linear(2, 1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(
        UsageError,
        match=r"0\.bias \(2,\) \(expected none\), 0\.weight \(2, 3\) \(expected \(2, 5\)\), 1\.bias is missing",
    ):
        load_weights(tmp_path / "w", model)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_weights_of_another_cell_or_damaged_ones_are_refused(tmp_path):
    path, model = tmp_path / "w", nn.Linear(3, 2)
    save_weights(path, model, "abc123")
    with pytest.raises(UsageError, match="cell abc123, expected cell def456"):
        load_weights(path, model, "def456")
    good = path.read_bytes()
    for length in (0, 8, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(UsageError, match="damaged"):
            load_weights(path, model)
    path.write_bytes(good)
    digest_path(path).unlink()
    with pytest.raises(UsageError, match="says nothing"):
        load_weights(path, model)
    with pytest.raises(FileNotFoundError):
        load_weights(tmp_path / "absent", model)

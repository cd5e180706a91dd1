import pytest
import torch

from paper_repro.training import tensors as carry

ENTRIES = {"ids": torch.arange(6).view(3, 2), "y": torch.arange(3.0)}


def entries(first, count=3):
    return {"ids": torch.arange(first, first + count)[:, None].expand(-1, 2), "y": torch.arange(float(count)) + first}


def test_a_ring_keeps_the_last_entries_in_bfloat16_and_whole_numbers_as_they_are():
    ring = carry.empty_ring(5, ENTRIES)
    for first in (10, 13, 16):
        ring = carry.add(ring, entries(first))
    assert ring["entries"]["y"].dtype == torch.bfloat16 and ring["entries"]["ids"].dtype == torch.int64
    assert sorted(ring["entries"]["y"].tolist()) == [14, 15, 16, 17, 18]
    assert ring["entries"]["ids"].tolist() == [[15] * 2, [16] * 2, [17] * 2, [18] * 2, [14] * 2]
    assert int(ring["written"]) == 9


def test_different_entries_are_chosen_and_only_those_that_are_there():
    ring = carry.add(carry.empty_ring(5, ENTRIES), entries(10))
    keys = torch.tensor([0.9, 0.1, 0.5, 0.0, 0.2])
    found, there = carry.choose(ring, keys, 2, torch.float64)
    assert found["y"].tolist() == [11, 12] and found["y"].dtype == torch.float64 and found["ids"].dtype == torch.int64
    assert there.tolist() == [True, True]
    found, there = carry.choose(ring, keys, 4)
    assert found["y"][:3].tolist() == [11, 12, 10] and there.tolist() == [True, True, True, False]


def test_more_entries_at_once_than_the_ring_keeps_are_refused():
    with pytest.raises(ValueError, match="capacity=2: entries are added 3 at once"):
        carry.empty_ring(2, ENTRIES)
    with pytest.raises(ValueError, match="capacity"):
        carry.empty_ring(0, ENTRIES)


def test_the_largest_probabilities_come_back_and_the_rest_is_shared():
    probabilities = torch.tensor([[0.5, 0.1, 0.25, 0.15], [0.0, 0.0, 1.0, 0.0]])
    kept = carry.largest(probabilities, 2)
    assert {name: tensor.dtype for name, tensor in kept.items()} == {"values": torch.bfloat16, "indices": torch.int32}
    found = carry.spread(kept, 4)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.125, 0.25, 0.125], [0.0, 0.0, 1.0, 0.0]]))

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


def test_the_oldest_entries_are_those_that_are_overwritten_next():
    ring = carry.add(carry.add(carry.empty_ring(5, ENTRIES), entries(10)), entries(13))
    before = [ring["entries"]["y"].clone(), ring["entries"]["ids"].clone()]
    lost = carry.oldest(ring, 3)
    assert lost["y"].tolist() == [11, 12, 13] and lost["ids"].tolist() == [[11] * 2, [12] * 2, [13] * 2]
    after = carry.add(ring, entries(16))
    assert lost["y"].tolist() == [11, 12, 13] and after["entries"]["y"].tolist() != before[0].tolist()
    carry.add(ring, lost)
    assert torch.equal(ring["entries"]["y"], before[0]) and torch.equal(ring["entries"]["ids"], before[1])


def test_different_entries_are_chosen_and_only_those_that_are_there():
    ring = carry.add(carry.empty_ring(5, ENTRIES), entries(10))
    keys = torch.tensor([0.9, 0.1, 0.5, 0.0, 0.2])
    found, there = carry.choose(ring, keys, 2, torch.float64)
    assert found["y"].tolist() == [11, 12] and found["y"].dtype == torch.float64 and found["ids"].dtype == torch.int64
    assert there.tolist() == [True, True]
    found, there = carry.choose(ring, keys, 4)
    assert found["y"][:3].tolist() == [11, 12, 10] and there.tolist() == [True, True, True, False]


def test_rings_of_many_models_are_those_of_each():
    def advance(ring, new, keys):
        ring = carry.add(ring, new)
        return ring, carry.choose(ring, keys, 2)

    torch.manual_seed(0)
    new, keys = {"ids": torch.randint(9, (4, 3, 2)), "y": torch.randn(4, 3)}, torch.rand(4, 5)
    rings = [carry.empty_ring(5, ENTRIES) for _ in range(4)]
    for index in (1, 3):  # models whose rings are at different places
        rings[index] = carry.add(rings[index], entries(20 + index))
    together = {
        "entries": {name: torch.stack([ring["entries"][name] for ring in rings]) for name in ENTRIES},
        "written": torch.stack([ring["written"] for ring in rings]),
    }
    ring, (chosen, there) = torch.func.vmap(advance)(together, new, keys)
    for index, own in enumerate(rings):
        expected, (values, flags) = advance(own, {name: tensor[index] for name, tensor in new.items()}, keys[index])
        assert int(ring["written"][index]) == int(expected["written"])
        assert torch.equal(there[index], flags)
        for name in ENTRIES:
            assert torch.equal(ring["entries"][name][index], expected["entries"][name])
            assert torch.equal(chosen[name][index][flags], values[name][flags])


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


@pytest.mark.parametrize("count", [1, 7, 50])
def test_probabilities_sum_to_one_whatever_was_kept_also_under_vmap(count):
    torch.manual_seed(0)
    probabilities = (3 * torch.randn(6, 4, 50)).softmax(-1)
    found = carry.spread(carry.largest(probabilities, count), 50)
    torch.testing.assert_close(found.sum(-1), torch.ones(6, 4), rtol=1e-6, atol=0)
    if count == 50:  # bfloat16 has 8 bits
        torch.testing.assert_close(found, probabilities, rtol=2**-7, atol=0)
    stacked = torch.func.vmap(lambda p: carry.spread(carry.largest(p, count), 50))(probabilities)
    torch.testing.assert_close(stacked, found, rtol=1e-6, atol=0)

"""How CEM's attention is laid on programs; that these compile, ``test_static`` sees."""

import itertools

from paper_repro.kernels.tied_attention.triton import LEAST, ROW_BYTES, tiles


def test_heads_take_two_powers_of_two_where_these_are_less_than_one() -> None:
    assert {width: tiles(width, 2)[:2] for width in (1, 16, 40, 56, 64, 72, 84, 128, 200)} == {
        1: (16, 0),
        16: (16, 0),
        40: (32, 16),
        56: (64, 0),
        64: (64, 0),
        72: (64, 16),
        84: (64, 32),
        128: (128, 0),
        200: (256, 0),
    }
    given = itertools.product((1, 33, 72, 129, 256), (2, 4, 8), (False, True), (80, 90))
    for width, size, own_keys, capability in given:
        plan = tiles(width, size, own_keys, capability)
        assert width <= plan.block + plan.tail and min(plan.own, plan.other, plan.block) >= LEAST
        assert plan.own * (plan.block + plan.tail) * size <= ROW_BYTES or plan.own == LEAST
        assert all(number & (number - 1) == 0 for number in plan[:5])

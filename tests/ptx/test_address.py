"""Addresses of a cluster: the rank stands in bits 24 and up, generic or not."""

import numpy as np
import pytest

from refsim.ptx.memory.space import WINDOWS, is_shared, position_of, rank_bits, rank_of, with_rank

RANKS, OFFSETS = np.arange(16), np.array([0, 1024, (1 << 24) - 1])


@pytest.mark.parametrize("base", [0, WINDOWS["shared"]])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_rank_and_position_come_back(base, dtype):
    if base and dtype == np.uint32:
        return
    for rank in RANKS:
        address = (base + (int(rank) << 24) + OFFSETS).astype(dtype)
        assert (rank_of(address) == rank).all()
        assert (position_of(address) == OFFSETS).all()
        for other in RANKS:
            mapped = with_rank(address, np.array([other]))
            assert mapped.dtype == dtype
            assert (mapped == base + (int(other) << 24) + OFFSETS).all()


def test_a_worked_number():
    assert int(with_rank(np.array([0x03000410], np.uint32), np.array([1]))[0]) == 0x01000410
    assert int(rank_bits(np.array([3]))[0]) == 0x03000000


def test_the_window_of_shared_memory():
    start = WINDOWS["shared"]
    at = np.array([0, start - 1, start, start + (15 << 24) + 5, start + (1 << 32)], np.uint64)
    assert is_shared(at).tolist() == [False, False, True, True, False]

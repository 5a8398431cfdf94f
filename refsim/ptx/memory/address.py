"""Shared memory of a cluster as one window: bits 24 and up of a shared address are the rank of the CTA that owns it.

CTA 3 of a cluster sees its own byte 1040 at 0x03000410, and CTA 0 reaches it there too. An address of rank r is the
same number in the window of `.shared::cta` of that CTA and in that of `.shared::cluster` of all. Without a cluster the
rank is 0. Source: PTX ISA, mapa and getctarank; the shift is what ptxas emits for the address of a shared variable from
sm_90 on.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS

RANK_SHIFT = 24
OFFSETS = (1 << RANK_SHIFT) - 1
_SHARED = WINDOWS["shared"]
_RANKS = WINDOW_SIZE - 1 - OFFSETS

Addresses = NDArray[Any]


def rank_bits(rank: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the rank bits of shared addresses of a CTA of that rank."""
    bits: NDArray[np.uint64] = rank.astype(np.uint64) << np.uint64(RANK_SHIFT)
    return bits


def rank_of(address: Addresses) -> NDArray[np.int64]:
    """Return the rank in a shared address, within its window or generic."""
    ranks: NDArray[np.int64] = (address.astype(np.int64) & _RANKS) >> RANK_SHIFT
    return ranks


def position_of(address: Addresses) -> NDArray[np.int64]:
    """Return the byte position within the owner's shared memory."""
    positions: NDArray[np.int64] = address.astype(np.int64) & OFFSETS
    return positions


def with_rank(address: Addresses, rank: NDArray[Any]) -> Addresses:
    """Return the corresponding byte of another CTA: (0x03000410, 1) gives 0x01000410; generic addresses stay
    generic."""
    mapped: Addresses = (address & ~address.dtype.type(_RANKS)) | rank_bits(rank).astype(address.dtype)
    return mapped


def is_shared(address: Addresses) -> NDArray[np.bool_]:
    """Return which generic addresses lie in the window of shared memory."""
    at = address.astype(np.int64, copy=False)
    inside: NDArray[np.bool_] = (at >= _SHARED) & (at < _SHARED + WINDOW_SIZE)
    return inside

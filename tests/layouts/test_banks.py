"""Bank conflicts against a loop over lanes, banks and words, and against cases whose cost is published."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError
from refsim.layouts.banks import Collision, access_width, bank_conflicts, layout_conflicts
from refsim.layouts.swizzles import swizzle
from refsim.layouts.tiles import tile

LANES = np.arange(32)


def one_by_one(addresses: list[int], width: int) -> list[int]:
    """Wavefronts of each phase: the largest set of words that one bank holds, found lane by lane."""
    served = {16: 8, 8: 16}.get(width, 32)
    costs = []
    for begin in range(0, len(addresses), served):
        banks: dict[int, set[int]] = {}
        for address in addresses[begin : begin + served]:
            for byte in range(address, address + width):
                banks.setdefault(byte // 4 % 32, set()).add(byte // 4)
        costs.append(max(len(words) for words in banks.values()))
    return costs


@dataclass(frozen=True)
class MmaA:
    """The A fragment of mma.m16n8k16 with 16-bit elements, from PTX: two rows, two pairs of k."""

    threads: int = 32
    values: int = 8

    def coord(self, thread: ArrayLike, value: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lane, index = np.asarray(thread), np.asarray(value)
        return lane // 4 + 8 * (index // 2 % 2), 2 * (lane % 4) + index % 2 + 8 * (index // 4)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_wavefronts_equal_the_loop(width: int) -> None:
    random = np.random.default_rng(5)
    for lanes in (1, 7, 8, 17, 32):
        near = random.integers(0, 64, (40, lanes)) * width
        far = random.integers(0, 4096, (40, lanes)) * width
        addresses = np.concatenate([near, far])
        got = bank_conflicts(addresses, width).wavefronts
        assert got.tolist() == [one_by_one(row, width) for row in addresses.tolist()]


# addresses of 32 lanes, width, wavefronts by phase
PUBLISHED = [
    ("consecutive words", LANES * 4, 4, [1]),
    ("one word for all", LANES * 0, 4, [1]),
    ("bytes of eight words", LANES, 1, [1]),
    ("every second word", LANES * 8, 4, [2]),
    ("one bank", LANES * 128, 4, [32]),
    ("a column of odd pitch", LANES * 132, 4, [1]),
    ("64 bits in a row", LANES * 8, 8, [1, 1]),
    ("128 bits in a row", LANES * 16, 16, [1, 1, 1, 1]),
    ("128 bits in a column of 128-byte rows", LANES * 128, 16, [8, 8, 8, 8]),
    ("the same, swizzled 128B", swizzle("128B")(LANES * 128), 16, [1, 1, 1, 1]),
    ("64-byte rows swizzled 64B", swizzle("64B")(LANES * 64), 16, [1, 1, 1, 1]),
    ("32-byte rows swizzled 32B", swizzle("32B")(LANES * 32), 16, [1, 1, 1, 1]),
    ("64-byte rows, no swizzle", LANES * 64, 16, [4, 4, 4, 4]),
]


@pytest.mark.parametrize(
    ("addresses", "width", "want"), [case[1:] for case in PUBLISHED], ids=[c[0] for c in PUBLISHED]
)
def test_published_case(addresses: NDArray[np.int64], width: int, want: list[int]) -> None:
    conflicts = bank_conflicts(addresses, width)
    assert conflicts.wavefronts.tolist() == want
    assert conflicts.ideal.tolist() == [1] * len(want)
    assert conflicts.excess == sum(want) / len(want) - 1


def test_narrow_key_of_a_bf16_swizzle_leaves_two_ways() -> None:
    """A row of two 128-byte halves: XOR of bits 7..9 sees (2 row + half) mod 8, which takes four values."""
    rows, halves = LANES % 8, 0
    addresses = swizzle("128B")(rows * 256 + halves * 128)
    assert bank_conflicts(addresses[:8], "ldmatrix.m8n8.x1.b16").wavefronts.tolist() == [2]
    wider = swizzle("Swizzle<3,4,4>")(rows * 256)
    assert bank_conflicts(wider[:8], "ldmatrix.m8n8.x1.b16").wavefronts.tolist() == [1]
    assert bank_conflicts(rows[:8] * 256, "ldmatrix.m8n8.x1.b16").wavefronts.tolist() == [8]


def test_collisions_name_bank_words_and_lanes() -> None:
    conflicts = bank_conflicts([0, 128, 4, 0], 4)
    assert conflicts.collisions() == (Collision(0, 0, (0, 128), ((0, 3), (1,))),)
    assert bank_conflicts([[0, 4], [0, 128]], 4).collisions(1) == (Collision(0, 0, (0, 128), ((0,), (1,))),)
    late = bank_conflicts([0] * 8 + [16, 144], 16)
    assert late.wavefronts.tolist() == [1, 2]
    assert {(hit.phase, hit.bank, hit.lanes) for hit in late.collisions()} == {
        (1, bank, ((8,), (9,))) for bank in (4, 5, 6, 7)
    }


@pytest.mark.parametrize(
    ("instruction", "width"),
    [
        ("ld.shared.b32", 4),
        ("ld.shared.v4.f32", 16),
        ("st.shared.v2.b64", 16),
        ("st.shared::cta.u8", 1),
        ("ld.shared.b128", 16),
        ("ld.shared.v2.f16x2", 8),
        ("ld.shared.v4.bf16x2", 16),
        ("ld.shared.b16", 2),
        ("ldmatrix.m8n8.x4.b16.trans", 16),
        ("stmatrix.m16n8.x2.trans.b8", 16),
        ("ldmatrix.m16n16.x1.trans.b8", 16),
    ],
)
def test_instruction_gives_its_width(instruction: str, width: int) -> None:
    assert access_width(instruction) == width


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: bank_conflicts([2], 4), "bad-access"),
        (lambda: bank_conflicts(np.arange(33) * 4, 4), "bad-access"),
        (lambda: bank_conflicts([0], 12), "bad-access"),
        (lambda: bank_conflicts([0], "ld.shared.v4.f64"), "bad-access"),
        (lambda: bank_conflicts([-4], 4), "out-of-range"),
        (lambda: bank_conflicts([0] * 32, "ldmatrix.m8n8.x2.b16"), "bad-access"),
        (lambda: bank_conflicts([0], "ld.global.b32"), "unknown-instruction"),
        (lambda: bank_conflicts([0], 4).collisions(1), "out-of-range"),
        (lambda: layout_conflicts(MmaA(), tile("K", "128B", 2, (16, 64)), width=8), "bad-access"),
        (lambda: layout_conflicts(MmaA(), tile("K", "128B", 2, (16, 64)), width=1), "bad-access"),
    ],
)
def test_misuse_is_refused(call: Callable[[], object], code: str) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code


def test_fragment_from_a_tile() -> None:
    """mma A straight from a tile, 4 bytes at a time: clean when swizzled, 4 rows a bank without."""
    swizzled = layout_conflicts(MmaA(), tile("K", "128B", 2, (16, 64)), width=4)
    assert swizzled.wavefronts.tolist() == [[[1], [1], [1], [1]]]
    plain = layout_conflicts(MmaA(), tile("K", "none", 2, (16, 64)), width=4)
    assert plain.total == 4  # core matrices of 128 bytes are clean too
    assert str(plain) == "4 wavefronts for 4 accesses of 4 bytes a lane, 4 without conflicts"


def test_no_access_has_no_conflicts() -> None:
    none = bank_conflicts(np.zeros((0, 4), np.int64), 4)
    assert (none.total, none.wavefronts.shape) == (0, (0, 1))

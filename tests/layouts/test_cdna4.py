"""CDNA4, from logical operands to the registers of each lane to D: shuffled scales, the maps of MFMA and the placeholder of its
arithmetic fit together. FP8 is OCP's there and FNUZ on CDNA3.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim import layouts, numerics, oracles
from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.numerics import UnverifiedProfileWarning
from refsim.testing import assert_bits_equal

SHAPES = {16: "16x16x128", 32: "32x32x64"}
FORMATS = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
DATA = {8: "", 6: ".fp6", 4: ".fp4"}
LANES = np.arange(64)
Lanes = NDArray[Any]
Word = Callable[[int, int, int], tuple[int, int]]


@pytest.fixture(autouse=True)
def placeholder() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnverifiedProfileWarning)
        yield


def operand(seed: int, format: str, rows: int, k: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes of numbers, and scales that are all different within 32 rows and 8 blocks."""
    row, generator = format_named(format), np.random.default_rng(seed)
    codes = generator.integers(0, row.code_limit, (rows, k)).astype(np.uint8)
    codes[~np.isfinite(decode(codes, row))] = 1
    order = np.stack([generator.permutation(256) for _ in range(-(-rows // 32) * -(-k // 256))])
    scales = order.reshape(-(-rows // 32), -(-k // 256), 32, 8).swapaxes(1, 2).reshape(-(-rows // 32) * 32, -1)
    return codes, (96 + scales[:rows, : k // 32] % 64).astype(np.uint8)


def data_registers(codes: NDArray[np.uint8], format: str, mn: int, side: str) -> Lanes:
    """What the lanes hold of a (mn, K) stretch of an operand: (64, values)."""
    fragment = layouts.fragment(f"mfma.{SHAPES[mn]}.f8f6f4.{side}{DATA[format_named(format).bits]}")
    rows, columns = fragment.coord(LANES[:, None], np.arange(fragment.values)[None])
    return codes[rows, columns] if side == "a" else codes[columns, rows]


def scale_registers(shuffled: NDArray[np.uint8], tile: int) -> NDArray[np.uint8]:
    """The words of the lanes, four bytes each, of 32 rows and 8 blocks: lane l loads word l of the tile's 256 bytes."""
    return shuffled.reshape(-1, 64, 4)[tile]


def which_byte(mn: int, part: int, step: int) -> tuple[int, int]:
    """The stretch of 8 blocks and the byte of a word that OPSEL chooses, for 16 rows and a K of 128, or 32 and 64."""
    return (step // 2, 2 * (step % 2) + part) if mn == 16 else (step // 4, step % 4)


def multiplied(registers: list[Lanes], scales: list[Lanes], c: Lanes, formats: tuple[str, str], mn: int) -> Lanes:
    """One MFMA: from registers to registers."""
    shape = f"mfma.{SHAPES[mn]}.f8f6f4"
    matrices = []
    for values, format, side in zip(registers, formats, "ab", strict=True):
        fragment = layouts.fragment(f"{shape}.{side}{DATA[format_named(format).bits]}")
        matrix = np.zeros(fragment.shape, np.uint8)
        matrix[fragment.coord(LANES[:, None], np.arange(fragment.values)[None])] = values
        matrices.append(matrix if side == "a" else matrix.T)
    of_blocks = []
    for values, side in zip(scales, "ab", strict=True):
        fragment = layouts.fragment(f"{shape}.sf{side}")
        matrix = np.zeros(fragment.shape, np.uint8)
        matrix[fragment.coord(LANES, 0 * LANES)] = values
        of_blocks.append(matrix if side == "a" else matrix.T)
    d = layouts.fragment(f"{shape}.d")
    places = d.coord(LANES[:, None], np.arange(d.values)[None])
    sums = np.zeros((mn, mn), np.float32)
    sums[places] = c
    found = numerics.mma(
        *matrices,
        sums,
        unit="mfma.scale",
        a_format=formats[0],
        b_format=formats[1],
        target="gfx950",
        a_scale=of_blocks[0],
        b_scale=of_blocks[1],
        scale_format="e8m0",
        k=matrices[0].shape[1],
    )
    return found[places]


def emulated(
    a: Lanes, b: Lanes, sa: Lanes, sb: Lanes, formats: tuple[str, str], mn: int, byte: Any = which_byte
) -> Lanes:
    """D of whole tiles of 32 rows and of 256 k, every number through the registers of a lane."""
    (m, k), n, width = a.shape, len(b), int(SHAPES[mn].split("x")[2])
    row, stretches = layouts.scale_layout(f"cdna4_{mn}"), k // 256
    shuffled = [row.shuffle(each, fill=0xFF) for each in (sa, sb)]
    d = layouts.fragment(f"mfma.{SHAPES[mn]}.f8f6f4.d")
    found = np.zeros((m, n), np.float32)
    for top in range(0, m, mn):
        for left in range(0, n, mn):
            sums = np.zeros((64, d.values), np.float32)
            for step in range(k // width):
                part = slice(step * width, (step + 1) * width)
                data = [
                    data_registers(x[at : at + mn, part], format, mn, side)
                    for x, at, format, side in ((a, top, formats[0], "a"), (b, left, formats[1], "b"))
                ]
                scales = []
                for each, at in zip(shuffled, (top, left), strict=True):
                    stretch, chosen = byte(mn, at // mn % (32 // mn), step)
                    scales.append(scale_registers(each, at // 32 * stretches + stretch)[:, chosen])
                sums = multiplied(data, scales, sums, formats, mn)
            rows, columns = d.coord(LANES[:, None], np.arange(d.values)[None])
            found[top + rows, left + columns] = sums
    return found


@pytest.mark.parametrize("mn", SHAPES)
@pytest.mark.parametrize(
    "formats", [("e4m3", "e4m3"), ("e2m1", "e2m1"), ("e5m2", "e2m1"), ("e2m3", "e3m2")], ids="-".join
)
def test_registers_give_the_product_of_the_logical_operands(formats: tuple[str, str], mn: int) -> None:
    (a, sa), (b, sb) = operand(1, formats[0], 32, 512), operand(2, formats[1], 32, 512)
    want = oracles.block_scaled_matmul(a, b, sa, sb, a_format=formats[0], b_format=formats[1], target="gfx950")
    assert_bits_equal(emulated(a, b, sa, sb, formats, mn), want, "f32")


def test_a_byte_of_another_part_or_step_is_refused() -> None:
    (a, sa), (b, sb) = operand(3, "e4m3", 32, 256), operand(4, "e4m3", 32, 256)
    want = oracles.block_scaled_matmul(a, b, sa, sb, a_format="e4m3", b_format="e4m3", target="gfx950")
    wrong = {
        "parts": lambda mn, part, step: (step // 2, 2 * (step % 2) + 1 - part),
        "first": lambda mn, part, step: (0, 0),
    }
    for byte in wrong.values():
        d = emulated(a, b, sa, sb, ("e4m3", "e4m3"), 16, byte)
        assert (d.view(np.uint32) != want.view(np.uint32)).mean() > 0.5


@pytest.mark.parametrize("mn", SHAPES)
def test_a_lane_loads_the_scales_of_its_row_as_one_word(mn: int) -> None:
    scales = np.random.default_rng(0).integers(96, 160, (32, 8)).astype(np.uint8)
    words = scale_registers(layouts.scale_layout(f"cdna4_{mn}").shuffle(scales), 0)
    row, block = layouts.fragment(f"mfma.{SHAPES[mn]}.f8f6f4.sfa").coord(LANES, 0 * LANES)
    blocks = 64 // mn  # of one instruction: 2 of K = 64, 4 of K = 128
    for part in range(32 // mn):
        for step in range(8 // blocks):
            byte = which_byte(mn, part, step)[1]
            np.testing.assert_array_equal(words[:, byte], scales[mn * part + row, blocks * step + block])


@pytest.mark.parametrize("name", ["cdna4_16", "cdna4_32", "cdna4_16_m256"])
@pytest.mark.parametrize("shape", [(32, 8), (37, 8), (64, 5), (300, 17), (1, 1)])
def test_shuffled_scales_come_back_and_pads_hold_what_they_are_given(name: str, shape: tuple[int, int]) -> None:
    row = layouts.scale_layout(name)
    scales = np.random.default_rng(0).integers(0, 255, shape).astype(np.uint8)
    shuffled = row.shuffle(scales, fill=0xFF)
    np.testing.assert_array_equal(row.unshuffle(shuffled, shape), scales)
    assert (shuffled.reshape(-1)[row.pads_of(shape)] == 0xFF).all()
    assert shuffled.size == np.prod(row.padded(shape))


def test_every_e8m0_code_is_a_power_of_two_but_the_last() -> None:
    values = decode(np.arange(256, dtype=np.uint8), "e8m0")
    np.testing.assert_array_equal(values[:255], np.ldexp(1.0, np.arange(255) - 127))
    assert np.isnan(values[255])


def test_fp8_is_fnuz_on_cdna3_and_ocp_on_cdna4() -> None:
    ones = np.full((1, 32), 0x38, np.uint8)  # 1 in OCP's E4M3; 0.5 in FNUZ
    taken = {"gfx942": "e4m3fnuz", "gfx950": "e4m3"}
    found = {
        chip: float(numerics.mma(ones, ones, unit="mfma", target=chip, a_format=f, b_format=f, k=32)[0, 0])
        for chip, f in taken.items()
    }
    assert found == {"gfx942": 8.0, "gfx950": 32.0}
    for chip, other in (("gfx942", "e4m3"), ("gfx950", "e4m3fnuz")):
        with pytest.raises(RefsimError, match="no known arithmetic"):
            numerics.mma(ones, ones, unit="mfma", target=chip, a_format=other, b_format=other)
    scale = np.full((1, 1), 127, np.uint8)
    with pytest.raises(RefsimError) as refused:
        oracles.block_scaled_matmul(ones, ones, scale, scale, a_format="e4m3fnuz", b_format="e4m3fnuz", target="gfx950")
    assert refused.value.code == "unknown-arithmetic"

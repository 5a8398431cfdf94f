"""encode, decode, convert and packing: documented answers, the legality of every PTX name, and every error message."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refsim.conversions import (
    CONVERSIONS,
    conversion_named,
    convert,
    decode,
    encode,
    pack,
    round_bits,
    round_to_odd,
    unpack,
)
from refsim.conversions.packing import bit_fields
from refsim.conversions.rounding import ROUNDINGS, STOCHASTIC
from refsim.errors import RefsimError
from refsim.formats import FORMATS, Format, format_named
from refsim.reference.assembler import ptx_version, releases
from refsim.targets import has

CASES = [
    # format, value, rounding, overflow, code
    ("e4m3", 464.0, "nearest-even", "nan", 0x7E),
    ("e4m3", 464.00003, "nearest-even", "nan", 0x7F),
    ("e4m3", -465.0, "nearest-even", "nan", 0xFF),
    ("e4m3", 1e30, "toward-zero", "nan", 0x7E),
    ("e4m3", np.inf, "toward-zero", "nan", 0x7F),
    ("e4m3", -1e30, "up", "nan", 0xFE),
    ("e4m3", 449.0, "up", "nan", 0x7F),
    ("e4m3", 2.0**-10, "nearest-even", "saturate", 0x00),
    ("e4m3", 2.0**-10, "ties-away", "saturate", 0x01),
    ("e4m3", -1e-300, "down", "saturate", 0x81),
    ("e4m3", -0.0, "nearest-even", "saturate", 0x80),
    ("e5m2", 61439.0, "nearest-even", "inf", 0x7B),
    ("e5m2", 61440.0, "nearest-even", "inf", 0x7C),
    ("e5m2", -np.inf, "nearest-even", "saturate", 0xFB),
    ("e5m2", 70000.0, "nearest-even", "nan", 0x7F),
    ("e2m1", 0.75, "nearest-even", "saturate", 0x2),
    ("e2m1", 1.75, "nearest-even", "saturate", 0x4),
    ("e2m1", 3.5, "nearest-even", "saturate", 0x6),
    ("e2m1", -0.1, "nearest-even", "saturate", 0x8),
    ("e8m0", 1.5, "nearest-even", "saturate", 0x80),
    ("e8m0", 3.0, "nearest-even", "saturate", 0x80),
    ("e8m0", 3.0, "ties-away", "saturate", 0x81),
    ("e8m0", 0.0, "nearest-even", "nan", 0x00),
    ("e8m0", 2.0**-140, "down", "nan", 0x00),
    ("e8m0", -1.0, "nearest-even", "saturate", 0x00),
    ("e8m0", -1.0, "nearest-even", "nan", 0xFF),
    ("e8m0", 2.0**-127 * 1.5, "toward-zero", "saturate", 0x00),
    ("ue4m3", -1.0, "nearest-even", "saturate", 0x00),
    ("ue4m3", -1.0, "nearest-even", "nan", 0x7F),
    ("ue4m3", -(2.0**-10), "nearest-even", "nan", 0x00),
    ("ue5m3", 1e9, "nearest-even", "saturate", 0xFE),
    ("e4m3fnuz", -0.0, "nearest-even", "saturate", 0x00),
    ("e4m3fnuz", -1e-9, "nearest-even", "saturate", 0x00),
    ("e4m3fnuz", 1e9, "nearest-even", "nan", 0x80),
    ("mxint8", 1 / 128, "nearest-even", "saturate", 0x00),
    ("mxint8", 3 / 128, "nearest-even", "saturate", 0x02),
    ("mxint8", -2.0, "nearest-even", "saturate", 0x80),
    ("mxint8", 2.0, "nearest-even", "saturate", 0x7F),
    ("mxint8", -1e300, "nearest-even", "saturate", 0x80),
    ("e4m3", -1.03125, "up", "saturate", 0xB8),
    ("e4m3", -1.03125, "down", "saturate", 0xB9),
    ("f16", 65520.0, "nearest-even", "inf", 0x7C00),
    ("f16", 65520.0, "toward-zero", "inf", 0x7BFF),
    ("bf16", 1.00390625, "nearest-even", "inf", 0x3F80),
    ("tf32", 1 + 2.0**-11, "ties-away", "inf", 0x3F802000),
    ("f32", 1 + 2.0**-24, "nearest-even", "inf", 0x3F800000),
    ("f32", 1e300, "nearest-even", "inf", 0x7F800000),
]


@pytest.mark.parametrize(("format", "value", "rounding", "overflow", "code"), CASES)
def test_encode_gives_the_documented_code(format: str, value: float, rounding: str, overflow: str, code: int) -> None:
    assert int(encode(value, format, rounding=rounding, overflow=overflow)) == code


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_left_out_overflow_is_that_of_the_conversion_instructions(format) -> None:
    """Infinity where an instruction without .satfinite gives it: cvt.rn.bf16.f32, cvt.rn.f16.f32, cvt.rna.tf32.f32."""
    instructions = [row for row in CONVERSIONS.values() if row.to == format and row.name.startswith("cvt.")]
    assert format.overflow == ("inf" if format.has_infinity and format.bits > 8 else "saturate")
    assert not instructions or format.overflow in {row.overflow for row in instructions}
    for beyond in (np.inf, 1e300):
        left_out, said = encode(beyond, format), encode(beyond, format, overflow=format.overflow)
        assert int(left_out) == int(said) == (format.infinity_code if format.overflow == "inf" else format.max_code)


@pytest.mark.parametrize(
    ("format", "code"), [("bf16", 0x7F80), ("f16", 0x7C00), ("tf32", 0x7F800000), ("f32", 0x7F800000)]
)
def test_wide_formats_overflow_to_infinity(format: str, code: int) -> None:
    assert int(encode(np.inf, format)) == code
    assert int(encode(3e300, format)) == code
    assert int(encode(3e300, format, rounding="toward-zero")) == format_named(format).max_code


@pytest.mark.parametrize(("format", "code"), [("e4m3", 0x7E), ("e5m2", 0x7B), ("e8m0", 0xFE), ("e2m1", 0x7)])
def test_narrow_formats_saturate(format: str, code: int) -> None:
    assert int(encode(np.inf, format)) == int(encode(1e300, format)) == code


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_nan_takes_the_code_that_is_asked_for(format) -> None:
    default = format.max_code if format.nan_code is None else format.nan_code
    values = np.array([np.nan, -np.nan])
    assert encode(values, format).tolist() == [default, default]
    assert encode(values, format, nan=1).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("pattern", "format", "direct", "detour"),
    [(0x3B3FFFFF, "e4m3", 0x01, 0x02), (0x3F3FFFFF, "e2m1", 0x1, 0x2)],
)
def test_one_rounding_differs_from_two(pattern: int, format: str, direct: int, detour: int) -> None:
    """Through half precision the value lands on a tie, and the tie goes the other way."""
    value = np.uint32(pattern).view(np.float32)
    assert int(encode(value, format)) == direct
    assert int(encode(value.astype(np.float16), format)) == detour


def test_float64_is_not_rounded_to_float32_first() -> None:
    value = np.uint64(0x3F50000000000001).view(np.float64)
    assert int(encode(value, "e4m3")) == 0x01
    assert int(encode(np.float32(value), "e4m3")) == 0x00


@pytest.mark.parametrize("format", ["e4m3", "bf16", "f16", "f32", "mxint8"])
def test_value_types_agree(format: str) -> None:
    """The same values as integers, halves, singles and doubles; big-endian and strided arrays too."""
    values = np.arange(-120, 121)
    expected = encode(values.astype(np.float64), format, overflow="saturate")
    for dtype in (np.int8, np.int16, np.int64, np.float16, np.float32, ml_dtypes.bfloat16, ">f4", ">f8"):
        np.testing.assert_array_equal(encode(values.astype(dtype), format), expected)
    strided = np.repeat(values.astype(np.float32), 3)[::3].reshape(1, -1)
    np.testing.assert_array_equal(encode(strided, format), expected.reshape(1, -1))
    assert encode(np.float32(3.0), format).shape == ()
    assert encode(np.zeros((2, 0, 3), np.float32), format).shape == (2, 0, 3)


def test_chunks_and_odd_tails_change_nothing() -> None:
    """Sizes around the chunk of the tables, odd ones too, from an unaligned start."""
    rng = np.random.default_rng(5)
    for count in ((1 << 16) - 1, 1 << 16, (1 << 17) + 1, 3 * (1 << 16) + 7):
        codes = rng.integers(0, 256, count + 1, dtype=np.uint8)[1:]
        codes[-1] = 0x38
        values = decode(codes, "e4m3", np.float32)
        expected = np.take(format_named("e4m3").table.astype(np.float32), codes)
        np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32))
        number = ~np.isnan(values)
        np.testing.assert_array_equal(encode(values, "e4m3")[number], codes[number])
        wide = encode(values.astype(np.float64), "e4m3")
        np.testing.assert_array_equal(wide[number], codes[number])
        halves = encode(values, "bf16", overflow="inf")
        np.testing.assert_array_equal(decode(halves, "bf16", np.float32)[number], values[number])


def test_an_integer_just_beyond_two_to_the_53_rounds_up() -> None:
    for integer, code in ((2**53, 0x5A000000), (2**53 + 1, 0x5A000001), (2**62 - 1, 0x5E800000)):
        assert encode([integer], "f32", "up").tolist() == [code]
        assert encode([-integer], "f32", "down").tolist() == [code | 1 << 31]


@pytest.mark.parametrize(("row", "numbers"), [("e4m3", "float32"), ("bf16", "float32"), ("f32", "float64")])
def test_the_way_out_of_an_array_of_codes_loses_no_number(row: str, numbers: str) -> None:
    with pytest.raises(RefsimError) as caught:
        encode(np.ones(3, format_named(row).code_dtype), row)
    assert f"np.{numbers})" in caught.value.help


def test_integers_beyond_two_to_the_53_are_rounded_once() -> None:
    above_tie = (1 << 62) + (1 << 38) + 1  # the tie between two float32, and one more
    assert int(encode(np.int64(above_tie), "f32")) == 0x5E800001
    assert int(encode(np.float64(above_tie), "f32")) == 0x5E800000
    assert encode(np.array([2**64 - 1], np.uint64), "f32", rounding="toward-zero").tolist() == [0x5F7FFFFF]
    assert encode(np.array([-(2**63)]), "f32").tolist() == [0xDF000000]


@pytest.mark.parametrize("rounds", [encode, round_bits])
@pytest.mark.parametrize(
    ("spelled", "meant"),
    [("rn", "nearest-even"), ("rz", "toward-zero"), ("rm", "down"), ("rp", "up"), ("rna", "ties-away"), ("RNE", "nearest-even"),
     ("rtz", "toward-zero"), (".rd", "down"), ("RU", "up"), ("Nearest_Even", "nearest-even"), ("ties_away", "ties-away")],
)  # fmt: skip
def test_short_names_of_roundings_are_names(rounds: Callable[..., Any], spelled: str, meant: str) -> None:
    values = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-12, -1 - 2.0**-12])
    assert rounds(values, "f16", rounding=spelled).tolist() == rounds(values, "f16", rounding=meant).tolist()


@pytest.mark.parametrize("rounds", [encode, round_bits])
@pytest.mark.parametrize(
    ("spelled", "help"),
    [
        ("rne-f32", "nearest-even"),
        ("rz-f32", "toward-zero"),
        ("rs", "random bits"),
        ("nearst", "nearest-even"),
        (None, "nearest: "),
    ],
)
def test_an_unknown_rounding_shows_all_names(rounds: Callable[..., Any], spelled: str, help: str) -> None:
    with pytest.raises(RefsimError) as caught:
        rounds(1.0, "f16", rounding=spelled)
    assert caught.value.code == "unknown-rounding"
    assert help in caught.value.help
    assert "rne" in caught.value.rule


@pytest.mark.parametrize("format", [row for row in FORMATS if row.bits <= 32], ids=str)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_an_array_that_may_hold_codes_is_not_encoded(format: Format, shape: tuple[int, ...]) -> None:
    codes = np.ones(shape, format.code_dtype)
    for array in (codes, codes[()], codes.astype(format.code_dtype.newbyteorder(">"))):
        with pytest.raises(RefsimError, match="may hold codes") as caught:
            encode(array, format)
        assert "refsim.decode" in caught.value.help
        numbers = array.astype(re.search(r"astype\(np.(\w+)\)", caught.value.help)[1])  # type: ignore[index]
        np.testing.assert_array_equal(encode(numbers, format), encode(np.ones(shape).tolist(), format))


@pytest.mark.parametrize("format", [row for row in FORMATS if row.bits <= 32], ids=str)
@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_the_way_from_another_type_to_codes_keeps_the_count(format: Format, kind: str) -> None:
    array = np.array([0, 1, 1], kind)
    with pytest.raises(RefsimError, match="bad-dtype") as caught:
        decode(array, format)
    for way, dtype in re.findall(r"\.(astype|view)\(np\.(\w+)\)", caught.value.help):
        assert getattr(array, way)(dtype).shape == array.shape
        if way == "astype":
            assert decode(array.astype(dtype), format).tolist() == decode([0, 1, 1], format).tolist()


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ("cvt.rn.e4m3.f32", "cvt.rn.satfinite.e4m3x2.f32"),
        ("cvt.rn.e5m2.f16", "cvt.rn.satfinite.e5m2x2.f16x2"),
        ("cvt.rn.satfinite.e2m1.f32", "cvt.rn.satfinite.e2m1x2.f32"),
        ("cvt.rz.e8m0.bf16", "cvt.rz.ue8m0x2.bf16x2"),
        ("cvt.rn.f16.e4m3", "cvt.rn.f16x2.e4m3x2"),
        ("cvt.rn.bf16.f23", "cvt.rn.bf16.f32"),
        ("ml_dtype.e4m3fn", "ml_dtypes.e4m3fn"),
    ],
)
def test_the_nearest_conversion_has_the_types_that_were_asked_for(asked: str, first: str) -> None:
    with pytest.raises(RefsimError, match="unknown-name") as caught:
        conversion_named(asked)
    assert caught.value.help.startswith(f"nearest: {first},")


def test_round_bits_takes_the_error_of_a_float64_sum() -> None:
    """1 + 2^-11 ties to 1 in f16; with a hair more it does not, with a hair less neither."""
    tie = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11])
    assert round_bits(tie, "f16").tolist() == [0x3C00, 0x3C02]
    assert round_bits(tie, "f16", error=np.array([2.0**-80, 2.0**-80])).tolist() == [0x3C01, 0x3C02]
    assert round_bits(tie, "f16", error=np.array([-(2.0**-80), -(2.0**-80)])).tolist() == [0x3C00, 0x3C01]
    assert round_bits(tie, "f16", "up").tolist() == [0x3C01, 0x3C02]
    assert round_bits(-tie, "f16", "down", error=np.zeros(2)).tolist() == [0xBC01, 0xBC02]
    assert round_bits(np.array([1e9]), "f16", satfinite=True).tolist() == [0x7BFF]
    assert round_to_odd(np.array([1.0]), np.array([-(2.0**-60)]))[0] == 1 - 2.0**-53


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        ("cvt.rn.satfinite.e4m3x2.f32", (1.0, 2.0), 0x3840),
        ("cvt.rn.satfinite.e5m2x2.f32", (np.nan, -np.inf), 0x7FFB),
        ("cvt.rn.satfinite.relu.e4m3x2.f32", (-1.0, np.nan), 0x007F),
        ("cvt.rn.satfinite.e2m1x2.f32", (1.0, -2.0), 0x2C),
        ("cvt.rn.satfinite.e2m3x2.f32", (np.nan, -100.0), 0x1F3F),
        ("cvt.rn.satfinite.e4m3x2.f16x2", (np.uint32(0x3C004000),), 0x3840),
        ("cvt.rz.ue8m0x2.f32", (-3.0, np.inf), 0x80FF),
        ("cvt.rz.satfinite.ue8m0x2.f32", (3e38, np.inf), 0xFEFE),
        ("cvt.rp.ue8m0x2.f32", (3e38, 0.0), 0xFF00),
        ("cvt.rp.satfinite.ue8m0x2.bf16x2", (np.uint32(0x3F81_7F80),), 0x80FE),
        ("cvt.rn.f16x2.e4m3x2", (np.uint16(0x387F),), 0x3C007FFF),
        ("cvt.rn.relu.f16x2.e5m2x2", (np.uint16(0xFC3C),), 0x00003C00),
        ("cvt.rn.f16x2.e5m2x2", (np.uint16(0xFC01),), 0xFC000100),
        ("cvt.rn.f16x2.e2m1x2", (np.uint8(0x2F),), 0x3C00C600),
        ("cvt.rn.f16x2.e3m2x2", (np.uint16(0xDF0C),), 0x4F003C00),
        ("cvt.rn.bf16x2.ue8m0x2", (np.uint16(0x00FF),), 0x00407FFF),
        ("cvt.rn.bf16x2.f32", (1.0, -2.0), 0x3F80C000),
        ("cvt.rn.relu.bf16x2.f32", (1.0, -2.0), 0x3F800000),
        ("cvt.rz.f16.f32", (65536.0,), 0x7BFF),
        ("cvt.rn.f16.f32", (65536.0,), 0x7C00),
        ("cvt.rn.satfinite.f16.f32", (-np.inf,), 0xFBFF),
        ("cvt.rz.bf16.f32", (np.uint32(0x3F80FFFF),), 0x3F80),
        ("cvt.rna.tf32.f32", (np.uint32(0x3F801000),), 0x3F802000),
        ("cvt.rn.tf32.f32", (np.uint32(0x3F801000),), 0x3F800000),
        ("cvt.rn.relu.tf32.f32", (-1.0,), 0),
        ("cuda.nosat.e4m3.f32", (-500.0,), 0xFF),
        ("ml_dtypes.e8m0fnu", (0.0,), 0xFF),
    ],
)
def test_convert_returns_the_register(name: str, operands: tuple, expected: int) -> None:
    result = convert(name, *operands)
    assert result.dtype == conversion_named(name).result_dtype
    assert hex(int(result)) == hex(expected)


def test_convert_broadcasts_and_accepts_either_order_of_modifiers() -> None:
    a = np.linspace(-4, 4, 24, dtype=np.float32).reshape(2, 3, 4)
    packed = convert("cvt.rn.relu.satfinite.e4m3x2.f32", a, np.float32(1))
    assert packed.shape == a.shape
    np.testing.assert_array_equal(packed >> 8, encode(np.maximum(a, 0), "e4m3"))
    np.testing.assert_array_equal(packed & 0xFF, 0x38)


@pytest.mark.parametrize("name", [name for name, row in CONVERSIONS.items() if row.rounding == STOCHASTIC])
def test_random_bits_decide_between_the_neighbours(name: str) -> None:
    """Bits all 0 truncate, all 1 round any nonzero discarded part of 16 bits (13 for f16) away from zero."""
    row = conversion_named(name)
    value = np.float32(1 + 2.0 ** -(row.to.mantissa_bits + 3))
    operands = [value] * row.elements
    down = convert(name, *operands, random_bits=np.uint32(0))
    up = convert(name, *operands, random_bits=np.uint32(0xFFFFFFFF))
    one = int(encode(1.0, row.to))
    width = 8 * row.result_dtype.itemsize // row.elements
    for place in range(row.elements):
        assert int(down) >> (width * place) & ((1 << width) - 1) == one
        assert int(up) >> (width * place) & ((1 << width) - 1) == one + 1


def test_random_bits_serve_their_operands() -> None:
    """1 + a half ulp rounds up exactly when the heaviest random bit of that element is set."""
    value = np.float32(1 + 2.0**-4)
    codes = [
        int(convert("cvt.rs.satfinite.e4m3x4.f32", value, value, value, value, random_bits=np.uint32(1 << bit)))
        for bit in (16, 31, 0, 15, 8)
    ]
    assert codes == [0x39383838, 0x38393838, 0x38383938, 0x38383839, 0x38383838]
    value = np.float32(1.25)
    nibbles = [
        int(convert("cvt.rs.satfinite.e2m1x4.f32", value, value, value, value, random_bits=np.uint32(1 << bit)))
        for bit in (8, 31, 0, 23)
    ]
    assert nibbles == [0x3222, 0x2322, 0x2232, 0x2223]
    half = np.float32(1 + 2.0**-11)
    results = [int(convert("cvt.rs.f16x2.f32", half, half, random_bits=np.uint32(1 << bit))) for bit in (28, 12, 31)]
    assert results == [0x3C013C00, 0x3C003C01, 0x3C003C00]


def ptx_line(name: str) -> str:
    """One instruction with this name, its operands in registers of the right kind."""
    row = CONVERSIONS[name]
    kinds = {8: "%b", 16: "%h", 32: "%r"}
    result = kinds[8 * row.result_dtype.itemsize]
    source = "%f" if row.reads.name == "f32" else kinds[8 * row.operand_dtype.itemsize]
    operands = [f"{source}{index + 1}" for index in range(row.operand_count)]
    listed = "{" + ", ".join(operands) + "}" if len(operands) == 4 else ", ".join(operands)
    random = ", %r9" if row.rounding == STOCHASTIC else ""
    line = f"{name} {result}0, {listed}{random};"
    if "%b" not in line:
        return line
    load = "mov.b16 {byte, dead}, %h1; " if row.operand_dtype.itemsize == 1 else ""
    return "{ .reg .b8 byte; " + load + line.replace("%b0", "byte").replace("%b1", "byte") + " }"


def test_every_ptx_name_assembles(tmp_path: Path) -> None:
    """ptxas is the judge of which modifiers an instruction has, on the target that the row names and later ones."""
    try:
        release, assembler = releases()[-1]
    except RefsimError as error:
        if os.environ.get("CI") == "true":
            pytest.fail("needed in CI: nvidia-cuda-nvcc with ptxas")
        pytest.skip(f"no ptxas to judge the names: {error.help}")
    # PTX 9.2 brought those that exist in families of targets.
    rows = [row for row in CONVERSIONS.values() if not row.policy and (row.since[-1] != "f" or release >= (13, 2))]
    for target in ("sm_90a", "sm_100a"):
        legal = [row for row in rows if has(target, row.since)]
        body = "\n".join(ptx_line(row.name) for row in legal)
        source = tmp_path / f"{target}.ptx"
        source.write_text(
            f".version {ptx_version(release)}\n.target {target}\n.address_size 64\n.visible .entry all_conversions()\n{{\n"
            ".reg .b16 %h<10>; .reg .b32 %r<10>; .reg .f32 %f<10>; .reg .b8 dead;\n" + body + "\nret;\n}\n"
        )
        done = subprocess.run(
            [assembler, f"-arch={target}", "-o", tmp_path / "out.cubin", source],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        print(f"{len(legal)} PTX conversions assemble for {target}")


@pytest.mark.parametrize(("format", "container"), [("e2m1", "f8f6f4"), ("e2m3", "f8f6f4"), ("e4m3", "f8f6f4")])
def test_f8f6f4_container_places(format: str, container: str) -> None:
    codes = np.arange(1 << {"e2m1": 4, "e2m3": 6, "e4m3": 8}[format], dtype=np.uint8)
    shift = 2 if format == "e2m1" else 0
    np.testing.assert_array_equal(pack(codes, format, container), codes << shift)


def test_packed_bytes() -> None:
    assert pack([1, 2], "e2m1").tolist() == [0x21]
    assert pack([1, 2], "e2m1", "x2").tolist() == [0x21]
    assert pack([1, 2], "e4m3", "x2").tolist() == [0x0201]
    assert pack([1, 2, 3, 4], "e2m3").tolist() == [0x81, 0x30, 0x10]
    assert pack([[0x3F, 0, 0x3F, 0]] * 2, "e3m2").tolist() == [[0x3F, 0xF0, 0x03]] * 2
    assert pack([1, 2], "e2m1", "byte").tolist() == [1, 2]
    assert unpack([0x21, 0x43], "e2m1").tolist() == [1, 2, 3, 4]
    assert pack(np.array([0x3C00], np.uint16), "f16").tolist() == [0x3C00]


ERRORS = [
    ("unknown-format", lambda: encode(1.0, "e4m5")),
    ("unknown-rounding", lambda: encode(1.0, "e4m3", rounding="nearest")),
    ("unknown-policy", lambda: encode(1.0, "e4m3", overflow="wrap")),
    ("no-such-value", lambda: encode(1.0, "e4m3", overflow="inf")),
    ("no-such-value", lambda: encode(1.0, "e2m1", overflow="nan")),
    ("no-such-value", lambda: encode(1.0, "mxint8", overflow="nan")),
    ("out-of-range", lambda: encode(1.0, "e2m1", nan=0x10)),
    ("bad-dtype", lambda: encode(np.zeros(2, np.complex64), "e4m3")),
    ("bad-dtype", lambda: encode(np.zeros(2, np.bool_), "e4m3")),
    ("bad-dtype", lambda: decode(0, "e4m3", np.float16)),
    ("bad-dtype", lambda: decode(0, "e4m3", "single precision")),
    ("out-of-range", lambda: encode(1.0, "e4m3", nan=2.5)),
    ("bad-dtype", lambda: decode(np.zeros(2, np.float32), "e4m3")),
    ("bad-dtype", lambda: decode(np.zeros(2, np.int8), "e4m3")),
    ("out-of-range", lambda: decode(np.array([0x80], np.uint8), "ue4m3")),
    ("out-of-range", lambda: decode(0x10, "e2m1")),
    ("out-of-range", lambda: decode(-1, "e4m3")),
    ("out-of-range", lambda: decode(np.array([0x100], np.uint16), "e4m3")),
    ("out-of-range", lambda: pack([0x40, 0, 0, 0], "e2m3")),
    ("unknown-rounding", lambda: round_bits(1.0, "f16", rounding="rs")),
    ("unknown-name", lambda: convert("cvt.rn.satfinite.e4m3.f32", 1.0)),
    ("operand-count", lambda: convert("cvt.rn.satfinite.e4m3x2.f32", 1.0)),
    ("bad-dtype", lambda: convert("cvt.rn.satfinite.e4m3x2.f32", np.float64([1.0]), np.float32([1.0]))),
    ("bad-dtype", lambda: convert("cvt.rn.f16x2.e4m3x2", np.uint32([1]))),
    ("bad-shape", lambda: convert("cvt.rn.bf16x2.f32", np.zeros(2, np.float32), np.zeros(3, np.float32))),
    ("random-bits", lambda: convert("cvt.rs.f16x2.f32", 1.0, 1.0)),
    ("random-bits", lambda: convert("cvt.rs.f16x2.f32", 1.0, 1.0, random_bits=np.int64(1))),
    ("random-bits", lambda: convert("cvt.rn.bf16.f32", 1.0, random_bits=np.uint32(1))),
    ("unknown-name", lambda: pack([1], "e2m1", "nibbles")),
    ("unsupported-format", lambda: pack([1], "f16", "x2")),
    ("bad-shape", lambda: pack([1, 2, 3], "e2m1")),
    ("bad-shape", lambda: pack(3, "e2m3")),
    ("bad-shape", lambda: unpack(np.zeros(4, np.uint8), "e2m3")),
    ("bad-dtype", lambda: unpack(np.zeros(4, np.uint8), "e4m3", "x2")),
]


@pytest.mark.parametrize(("code", "call"), ERRORS)
def test_mistakes_are_named(code: str, call) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code


def test_unknown_conversion_shows_the_three_nearest() -> None:
    with pytest.raises(RefsimError) as caught:
        convert("cvt.rn.satfinite.e4m3x3.f32", 1.0)
    assert caught.value.help.count("cvt.") == 3
    assert "cvt.rn.satfinite.e4m3x2.f32" in caught.value.help


def test_rows_cite_and_name_themselves() -> None:
    assert all(row.source.place and name == row.name for name, row in CONVERSIONS.items())
    assert {row.rounding for row in CONVERSIONS.values()} <= {*ROUNDINGS, STOCHASTIC}


def test_lists_of_several_lengths_are_no_values() -> None:
    with pytest.raises(RefsimError, match="lists of different lengths"):
        encode([[1], [1, 2]], "e4m3")


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [1, 3, 8, 13, 64])
def test_codes_of_any_width_lie_in_a_stream_of_bits(bits: int, count: int) -> None:
    """The first code has the lowest bits of one large integer."""
    codes = np.random.default_rng(count).integers(0, 1 << bits, (2, 3, count)).astype(np.uint8)
    sums = [sum(code << (bits * place) for place, code in enumerate(row)) for row in codes.reshape(-1, count).tolist()]
    raw = np.array([list(each.to_bytes(-(-bits * count // 8), "little")) for each in sums], np.uint8)
    np.testing.assert_array_equal(bit_fields(raw.reshape(2, 3, -1), bits, count), codes)

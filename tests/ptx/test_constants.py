"""Constant expressions of PTX against ptxas, which puts their values into a variable, and against values that it once put."""

import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refsim.errors import RefsimError
from refsim.ptx.text.parser import parse
from refsim.reference.assembler import releases

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
MINUS_ONE = (1 << 64) - 1

# What ptxas 13.0 put into a variable of type s64, as bits.
# fmt: off
RECORDED = {
    "-7/2": -3, "-8>>1": -4, "~0>>1": (1 << 63) - 1, "~0<0": 0, "(.s64)~0>>1": -1, "5U-7": -2, "(5U-7)/2": (1 << 63) - 1,
    "0x8000000000000000/2": 1 << 62, "18446744073709551615/2": (1 << 63) - 1, "-1<0U": 0, "-1&1": 1, "(-1&-1)<0": 1,
    "(-1|0)/2": 0, "!5": 0, "!!5": 1, "2&&3": 1, "0||7": 1, "1?2:3": 2, "(1?-1:2U)<0": 1, "1?0?5:6:7": 6,
    "1<<64": 1, "1<<-1": -(1 << 63), "-1>>70": -1, "1>>65": 0, "2+3*4": 14, "1-2-3": -4, "100/10/2": 5, "1<<2<<3": 32,
    "2^3&4": 2,
    "1<2<3": 1, "3>2>1": 0, "-5-+-5": 0, "(.u64)-1/2": (1 << 63) - 1, "(.s64)(.u64)-1/2": 0, "5% (-3)": 5,
    "-5% -3": -5, "-7% 3": 0,
    "(-5% -3)<0": 0,
    "-1==18446744073709551615": 1, "WARP_SZ*2": 64, "1+2<4": 1, "3&1==1": 1, "1|2^3&4": 3, "1||0&&0": 1, "1|1&&0": 0,
    "2 | 1 == 1": 3, "4 ^ 1 | 2": 7, "-9223372036854775808/-1": 0, "017": 15, "0b101": 5, "0x1F": 31, "010U": 8,
    "1.5>0.5": 1, "1.5==1.5": 1, "1.5<=0.5": 0, "- 5": -5, "(~5)/2": 9223372036854775805,
}
FLOATS = {
    ("f32", "1.5+0.1"): 0x3FCCCCCD, ("f64", "0f3f800000"): 0x3F800000, ("f32", "0d3ff0000000000000"): 0x3F800000,
    ("f32", "1e39"): 0x7F800000, ("b32", "1.5"): 0x3FC00000, ("b64", "1.5"): 0x3FF8000000000000,
    ("f64", "0.1+0.2"): 0x3FD3333333333334, ("f64", "-1.5*2.0/3.0"): 0xBFF0000000000000, ("f32",
    "0f7f800001"): 0x7F800001,
    ("f64", "-(1.5)"): 0xBFF8000000000000, ("f64", ".5"): 0x3FE0000000000000, ("f64", "1."): 0x3FF0000000000000,
    ("f32", "16777217.0"): 0x4B800000, ("f32", "1e-40"): 0x116C2, ("f32", "1e-46"): 0, ("u8", "300"): 0x2C,
    ("s8", "-300"): 0xD4, ("b16", "70000"): 0x1170, ("b128", "-5"): (1 << 128) - 5, ("b8", "1==1"): 1,
}
# fmt: on


def values(type: str, expressions: list[str]) -> list[int]:
    """The bits that a variable of a type begins with."""
    variable = parse(f"{HEAD}.global .{type} t[{len(expressions)}] = {{{', '.join(expressions)}}};\n").variables["t"]
    width = variable.element
    initial = variable.initial or b""
    return [int.from_bytes(initial[at : at + width], "little") for at in range(0, len(initial), width)]


def test_integers_are_what_ptxas_made_of_them() -> None:
    assert values("s64", list(RECORDED)) == [value & MINUS_ONE for value in RECORDED.values()]


@pytest.mark.parametrize(("type", "expression"), sorted(FLOATS))
def test_floats_and_narrow_integers_are_what_ptxas_made_of_them(type: str, expression: str) -> None:
    assert values(type, [expression]) == [FLOATS[type, expression]]


REFUSED = {
    "s64": [
        "1/0",
        "1% 0",
        "!1.5",
        "1.5&&1",
        "(.s64)1.5",
        "1.5?1:2",
        "1.0&&0.0",
        "~1.5",
        "1.5<<1",
        "1 +",
        "(1",
        "1?2",
        "--",
        "09",
        "99999999999999999999",
    ],
    "f64": ["1.5+1", "1+1.5", "1?1.5:2.5", "1e400", "1.0/0.0", "1.0==1.0?1.0:2.0", "0f3f800000+1.0", "1"],
    "u32": ["1.5"],
    "b16": ["1.5"],
    "f32": ["0x3f800000", "WARP_SZ"],
}


@pytest.mark.parametrize(("type", "expression"), [(type, one) for type, many in REFUSED.items() for one in many])
def test_what_is_no_constant_is_one_error(type: str, expression: str) -> None:
    with pytest.raises(RefsimError) as caught:
        values(type, [expression])
    assert caught.value.code == "malformed-ptx"
    assert caught.value.where == "PTX line 4"


@pytest.mark.parametrize(
    "text", ["(" * 30_000 + "1" + ")" * 30_000, "1?2:" * 30_000 + "3", "1?" * 30_000 + "3", "(" * 30_000]
)
def test_deep_nesting_is_one_error(text: str) -> None:
    with pytest.raises(RefsimError, match="nested deeper"):
        values("s64", [text])


@pytest.mark.parametrize("text", ["-" * 30_000 + "1", "1" + "+1" * 30_000, "!" * 30_001 + "0"])
def test_long_expressions_have_a_value(text: str) -> None:
    assert values("s64", [text]) == [30_001 if "+" in text else 1]


LITERALS = st.one_of(
    st.integers(0, 70).map(str),
    st.sampled_from(["0x7fffffffffffffff", "0x8000000000000000", "18446744073709551615", "3U", "WARP_SZ"]),
)
OPERATORS = ["+", "-", "*", "/", "% ", "% -", "<<", ">>", "<", "<=", ">", ">=", "==", "!=", "&", "|", "^", "&&", "||"]


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions of expressions, with and without parentheses."""
    return st.one_of(
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(" ".join),
        inner.map(lambda text: f"({text})"),
        st.tuples(st.sampled_from(["-", "+", "~", "!", "(.s64)", "(.u64)"]), inner).map("".join),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} ? {parts[1]} : {parts[2]})"),
    )


EXPRESSIONS = st.recursive(LITERALS, grown, max_leaves=8)


def assembled(expression: str, folder: Path) -> int | None:
    """What ptxas puts into a variable; None if it refuses."""
    text, image = folder / "v.ptx", folder / "v.cubin"
    text.write_text(f"{HEAD}.visible .global .u64 t[2] = {{{expression}, 77}};\n")
    if subprocess.run(
        [releases()[-1][1], "-arch", "sm_90a", str(text), "-o", str(image)], capture_output=True, check=False
    ).returncode:
        return None
    return int.from_bytes(section(image.read_bytes(), b".nv.global.init")[:8], "little")


def section(image: bytes, name: bytes) -> bytes:
    """The bytes of a section of a cubin."""
    (table,), (count, names) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<HH", image, 60)
    headers = [struct.unpack_from("<IIQQQQ", image, table + 64 * at) for at in range(count)]
    for header in headers:
        start = headers[names][4] + header[0]
        if image[start : image.index(b"\0", start)] == name:
            return image[header[4] : header[4] + header[5]]
    raise AssertionError(f"no section {name!r}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(expression=EXPRESSIONS)
def test_an_expression_is_what_ptxas_makes_of_it(expression: str, tmp_path: Path) -> None:
    expected = assembled(expression, tmp_path)
    try:
        found = values("u64", [expression])[0]
    except RefsimError:
        found = None
    assert found == expected

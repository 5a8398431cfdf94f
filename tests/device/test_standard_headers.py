"""The macros that NVRTC's own headers lack have the values of C, which NumPy and Python know from elsewhere."""

import ctypes
import math
import re

import numpy as np
import pytest

from refsim.device.compile import PROLOGUE, standard_headers

HEADERS = dict(standard_headers(()))
MACROS = {
    name: words
    for text in (*HEADERS.values(), PROLOGUE)
    for name, words in re.findall(r"^#define (\w+) (.+)$", text, re.MULTILINE)
}


def value(words: str) -> float:
    """A macro's value: names replaced, suffixes of C left out."""
    words = re.sub(r"\b[A-Z]\w*_(?:MAX|MIN)\b", lambda found: f"({value(MACROS[found[0]])})", words)
    return eval(re.sub(r"(?<=[0-9])(?:[uU]?[lL]{0,2}|[uU]|F)\b", "", words), {})


TYPES = {
    "SCHAR": ctypes.c_byte,
    "CHAR": ctypes.c_byte,
    "SHRT": ctypes.c_short,
    "INT": ctypes.c_int,
    "LONG": ctypes.c_long,
    "LLONG": ctypes.c_longlong,
    **{f"INT{bits}": getattr(ctypes, f"c_int{bits}") for bits in (8, 16, 32, 64)},
}


@pytest.mark.parametrize("name", TYPES)
def test_limits_are_those_of_the_type(name: str) -> None:
    bits = 8 * ctypes.sizeof(TYPES[name])
    assert value(MACROS[f"{name}_MIN"]) == -(1 << bits - 1)
    assert value(MACROS[f"{name}_MAX"]) == (1 << bits - 1) - 1
    assert value(MACROS[f"U{name.replace('SCHAR', 'CHAR')}_MAX"]) == (1 << bits) - 1
    assert value(MACROS["CHAR_BIT"]) == 8


@pytest.mark.parametrize(
    ("prefix", "dtype", "digits"), [("FLT", np.float32, (6, -37, 38)), ("DBL", np.float64, (15, -307, 308))]
)
def test_ranges_are_those_of_the_type(prefix: str, dtype: type, digits: tuple[int, int, int]) -> None:
    row = np.finfo(dtype)
    known = {
        "MAX": row.max,
        "MIN": row.smallest_normal,
        "TRUE_MIN": row.smallest_subnormal,
        "EPSILON": row.eps,
        "MANT_DIG": row.nmant + 1,
        "MIN_EXP": row.minexp + 1,
        "MAX_EXP": row.maxexp,
        **dict(zip(("DIG", "MIN_10_EXP", "MAX_10_EXP"), digits, strict=True)),
    }
    assert {name: dtype(value(MACROS[f"{prefix}_{name}"])) for name in known} == {
        name: dtype(each) for name, each in known.items()
    }


CONSTANTS = {
    "M_E": math.e,
    "M_LOG2E": math.log2(math.e),
    "M_LOG10E": math.log10(math.e),
    "M_LN2": math.log(2),
    "M_LN10": math.log(10),
    "M_PI": math.pi,
    "M_PI_2": math.pi / 2,
    "M_PI_4": math.pi / 4,
    "M_1_PI": 1 / math.pi,
    "M_2_PI": 2 / math.pi,
    "M_2_SQRTPI": 2 / math.sqrt(math.pi),
    "M_SQRT2": math.sqrt(2),
    "M_SQRT1_2": math.sqrt(0.5),
}


def test_constants_are_the_nearest_numbers() -> None:
    found = {name: value(words) for name, words in MACROS.items() if name.startswith("M_")}
    assert found.keys() == CONSTANTS.keys()
    for name, constant in CONSTANTS.items():
        assert abs(found[name] - constant) <= math.ulp(constant), name


def test_infinity_and_nan_have_the_bits_that_nvcc_gives_them() -> None:
    bits = {
        name: int(re.search(r"0x[0-9a-f]+", MACROS[name])[0], 16)
        for name in ("INFINITY", "NAN", "HUGE_VALF", "HUGE_VAL")
    }
    assert bits == {"INFINITY": 0x7F800000, "NAN": 0x7FFFFFFF, "HUGE_VALF": 0x7F800000, "HUGE_VAL": 0x7FF0000000000000}


def test_every_header_of_c_leads_to_one_that_there_is() -> None:
    for name, text in HEADERS.items():
        for other in re.findall(r"#include <(\w+)>", text):
            assert other in HEADERS, name
    assert "#include <cstdint>" in HEADERS["inttypes.h"]


def test_of_cub_what_threads_warps_and_blocks_call_is_taken(tmp_path) -> None:
    for part in ("thread", "warp", "block", "iterator", "device"):
        (tmp_path / "cub" / part).mkdir(parents=True)
        (tmp_path / "cub" / part / f"{part}_x.cuh").write_text("")
    text = dict(standard_headers((str(tmp_path),)))["cub/cub.cuh"]
    assert text.split() == [
        word for part in ("thread", "warp", "block", "iterator") for word in ("#include", f"<cub/{part}/{part}_x.cuh>")
    ]

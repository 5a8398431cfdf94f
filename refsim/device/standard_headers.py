"""Standard C and C++ headers for NVRTC, which has none: libcu++ under the standard names, and nvcc's implicit headers.

refsim passes them to NVRTC as texts, so that a kernel compiles as it does under nvcc; a name in `std::` is the one in
`cuda::std::`.
"""

from functools import lru_cache
from pathlib import Path

PROLOGUE = """\
#ifndef INFINITY
#define INFINITY (__builtin_bit_cast(float, 0x7f800000))
#endif
#ifndef NAN
#define NAN (__builtin_bit_cast(float, 0x7fffffff))
#endif
#ifndef HUGE_VALF
#define HUGE_VALF (__builtin_bit_cast(float, 0x7f800000))
#endif
#ifndef HUGE_VAL
#define HUGE_VAL (__builtin_bit_cast(double, 0x7ff0000000000000ull))
#endif
"""
"""Macros of math.h, which nvcc includes in every file; they precede line 1 of a source."""

_STD = "\nnamespace cuda { namespace std {} }\nnamespace std { using namespace ::cuda::std; }\n"
_CPP = (
    *("array", "atomic", "barrier", "bit", "bitset", "cassert", "cfloat", "chrono", "climits", "cmath", "complex"),
    *("concepts", "cstddef", "cstdint", "cstdlib", "cstring", "ctime", "expected", "functional", "initializer_list"),
    *("iterator", "latch", "limits", "mdspan", "numbers", "numeric", "optional", "ranges", "ratio", "semaphore"),
    *("source_location", "span", "tuple", "type_traits", "utility", "variant"),
)
_C = {
    "assert.h": "cassert",
    "float.h": "cfloat",
    "limits.h": "climits",
    "stddef.h": "cstddef",
    "stdint.h": "cstdint",
    "inttypes.h": "cstdint",
    "stdlib.h": "cstdlib",
    "string.h": "cstring",
    "time.h": "ctime",
}
_MATH = """
#ifndef M_PI
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#endif
"""
_FLOAT = """
#ifndef FLT_MAX
#define FLT_RADIX 2
#define FLT_MANT_DIG 24
#define FLT_DIG 6
#define FLT_MIN_EXP (-125)
#define FLT_MAX_EXP 128
#define FLT_MIN_10_EXP (-37)
#define FLT_MAX_10_EXP 38
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_TRUE_MIN 1.401298464e-45F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MANT_DIG 53
#define DBL_DIG 15
#define DBL_MIN_EXP (-1021)
#define DBL_MAX_EXP 1024
#define DBL_MIN_10_EXP (-307)
#define DBL_MAX_10_EXP 308
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_TRUE_MIN 4.9406564584124654e-324
#define DBL_EPSILON 2.2204460492503131e-16
#endif
"""
_LIMITS = """
#ifndef INT_MAX
#define CHAR_BIT 8
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define CHAR_MIN SCHAR_MIN
#define CHAR_MAX SCHAR_MAX
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MIN (-INT_MAX - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295u
#define LONG_MIN (-LONG_MAX - 1L)
#define LONG_MAX 9223372036854775807L
#define ULONG_MAX 18446744073709551615UL
#define LLONG_MIN (-LLONG_MAX - 1LL)
#define LLONG_MAX 9223372036854775807LL
#define ULLONG_MAX 18446744073709551615ULL
#endif
"""
_INTEGERS = "".join(
    f"#ifndef {sign}INT{bits}_MAX\n#define {sign}INT{bits}_MAX {(1 << (bits if sign else bits - 1)) - 1}"
    f"{sign}{'LL' if bits == 64 else ''}\n"
    + ("" if sign else f"#define INT{bits}_MIN (-INT{bits}_MAX - 1)\n")
    + "#endif\n"
    for bits in (8, 16, 32, 64)
    for sign in ("", "U")
)
_ASSERT = """
#ifdef NDEBUG
#undef assert
#define assert(condition) ((void)0)
#endif
"""
_BESIDE = {
    "cmath": _MATH,
    "cassert": _ASSERT,
    "cfloat": _FLOAT,
    "climits": _LIMITS,
    "cstdint": _INTEGERS,
    "cstddef": "#ifndef NULL\n#define NULL 0\n#endif\n",
}
_TENSOR_MAP = """\
#pragma once
typedef unsigned int cuuint32_t;
typedef unsigned long long cuuint64_t;
typedef struct CUtensorMap_st { alignas(64) cuuint64_t opaque[16]; } CUtensorMap;
"""


def _moved(name: str) -> str:
    """Return a header that libcu++ before CCCL 3.0 has under another name: <cuda/std/__algorithm_>."""
    new, old = f"<cuda/std/{name}>", f"<cuda/std/__{name}_>"
    return f"#pragma once\n#if __has_include({new})\n#include {new}\n#else\n#include {old}\n#endif{_STD}"


_OWN = {
    "math.h": _MATH,  # its functions are built in
    "cstdio": "#pragma once\nnamespace std { using ::printf; }\n",
    "stdio.h": "#pragma once\n",
    "cinttypes": "#include <cstdint>\n",
    "algorithm": _moved("algorithm"),
    "new": _moved("new"),
    "cuda.h": _TENSOR_MAP,  # only the types of kernel arguments
}
_CUB = ("thread", "warp", "block", "iterator")


@lru_cache(maxsize=4)
def standard_headers(include: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return (name, text) of each header, for the folders that contain libcu++ and CUB.

    `<cub/cub.cuh>` includes the parts of CUB that a kernel calls; algorithms that the host launches are left out.
    """
    found = {name: f"#include <cuda/std/{name}>{_STD}{_BESIDE.get(name, '')}" for name in _CPP}
    found |= {name: f"#include <{cpp}>\n" for name, cpp in _C.items()} | _OWN
    for folder in include:
        names = [path for part in _CUB for path in sorted((Path(folder) / "cub" / part).glob("*.cuh"))]
        if names:
            found["cub/cub.cuh"] = "".join(f"#include <cub/{path.parent.name}/{path.name}>\n" for path in names)
    return tuple(sorted(found.items()))

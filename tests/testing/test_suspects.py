"""A mistake put into a right kernel is named by its kind and its CUDA line; one that has no kind stays unnamed."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

import refsim.device
from refsim.device import Device
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.testing.campaign import run_campaign
from refsim.testing.runs import examine
from refsim.testing.suspects import OutOfTimeError, suspects_of
from refsim.testing.suspects.budget import Budget
from refsim.testing.suspects.trials import repaired

TARGET = "sm_90a"
HEAD = """
#include <cuda_bf16.h>
#include <cuda_fp8.h>
__device__ float mul_ftz(float x) { float p; asm("mul.ftz.f32 %0, %1, 0f3F000000;" : "=f"(p) : "f"(x)); return p; }
__device__ float max_nan(float x, float z) { float p; asm("max.NaN.f32 %0, %1, %2;" : "=f"(p) : "f"(x), "f"(z)); return p; }
extern "C" __global__ void k(const float* a, const float* b, float* y, int n) {
  __shared__ float row[256];
  int t = threadIdx.x;
"""
EACH = "  for (int i = t; i < n; i += 32) { float x = a[i], z = b[i];\n    y[i] = %s;\n  }\n}\n"


@dataclass(frozen=True)
class Case:
    n: int
    seed: int = 0


PROBLEMS = (Case(33, 1), Case(128, 2), Case(70, 3), Case(256, 4), Case(5, 5))


def operands(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of all sizes, so that every path is walked: subnormals, overflow, infinities, NaN."""
    draw = np.random.default_rng(case.seed)
    a, b = draw.standard_normal((2, case.n)).astype(np.float32) * np.float32(100)
    a[::7], b[1::9] = np.float32(3e-39), np.float32(1e-30)
    a[3::11], b[4::13] = np.float32(np.inf), np.float32(np.nan)
    return a, b


def run(launcher: Launcher, case: Case, entry: str = "k") -> Outputs:
    a, b = (launcher.upload(array, name=name) for array, name in zip(operands(case), "ab", strict=True))
    y = launcher.output(case.n, np.float32, name="y")
    launcher.launch(entry, 1, 32, [a, b, y, np.int32(case.n)])
    return {"y": launcher.read(y)}


def held_to(tmp_path: Path, right: str, wrong: str) -> tuple[Kernel, Device]:
    """The kernel `wrong`, held to what `right` writes, and a device for it."""
    sources = {name: tmp_path / f"{name}.cu" for name in ("right", "wrong")}
    for name, body in (("right", right), ("wrong", wrong)):
        sources[name].write_text(HEAD + body)
    device = refsim.device.open("sim:eager", TARGET)

    def oracle(case: Case) -> Outputs:
        with device.launcher(sources["right"]) as launcher:
            return run(launcher, case)

    problems = st.builds(Case, st.integers(1, 256), st.integers(0, 9))
    return Kernel("k", oracle, problems, run, {"y": "f32"}, recipe=Case, file=sources["wrong"]), device


def named(tmp_path: Path, right: str, wrong: str) -> list[str]:
    """The suspects of `wrong`, held to what `right` writes."""
    kernel, device = held_to(tmp_path, right, wrong)
    failing_first = sorted(PROBLEMS, key=lambda problem: examine(kernel, problem, device).finding is None)
    return [str(found) for found in repaired(kernel, TARGET, failing_first, budget=Budget(60.0))]


SUM = "  float s = t < n ? fminf(a[t], 1e4f) : 0.0f;\n%s\n  for (int i = t; i < n; i += 32) y[i] = s;\n}\n"
LOOP = "  float s = 0;\n  for (%s) s += __saturatef(a[i] * 0.01f) + 0.1f;\n  for (int i = t; i < n; i += 32) y[i] = s;\n}\n"
LAST = "  for (int i = t; i < n; i += 32) y[i] = s;\n}\n"
TREE = (
    "  row[t] = t < n ? __saturatef(a[t] * 0.01f) + 0.1f : 0.0f;\n  __syncthreads();\n"
    "  for (%s) {\n    if (%s) row[t] += row[t + h];\n    __syncthreads();\n  }\n"
    "  for (int i = t; i < n; i += 32) y[i] = row[0];\n}\n"
)
DOWN = "  for (int o = 16; o; o >>= 1)\n    s += __shfl_xor_sync(~0u, s, o);"
UP = "  for (int o = 1; o < 32; o <<= 1)\n    s += __shfl_xor_sync(~0u, s, o);"
SHARED = (
    "  for (int i = t; i < 256; i += 32)\n    row[%s] = i < n ? a[i] : 0.0f;\n  __syncthreads();\n"
    "  for (int i = t; i < n; i += 32) y[i] = row[%s];\n}\n"
)
TABLE = {
    "contracted": ("contraction", EACH % "__fadd_rn(__fmul_rn(x, z), 3.3f)", EACH % "x * z + 3.3f"),
    "not contracted": ("contraction", EACH % "x * z + 3.3f", EACH % "__fadd_rn(__fmul_rn(x, z), 3.3f)"),
    "rounded to zero": ("rounding mode", EACH % "__fadd_rn(x, 0.1f)", EACH % "__fadd_rz(x, 0.1f)"),
    "narrowed to zero": ("rounding mode", EACH % "float(__float2half_rn(x))", EACH % "float(__float2half_rz(x))"),
    "to the nearest whole": ("rounding mode", EACH % "floorf(x)", EACH % "rintf(x)"),
    "flushed": (
        "flushed subnormals",
        EACH % "x * 0.5f",
        EACH % "mul_ftz(x)",
    ),
    "clamped": ("infinity saturated or propagated", EACH % "x + 1.0f", EACH % "fminf(x + 1.0f, 448.0f)"),
    "saturated": ("infinity saturated or propagated", EACH % "x + 1.0f", EACH % "__saturatef(x + 1.0f)"),
    "NaN dropped": (
        "NaN dropped or propagated",
        EACH % "max_nan(x, z)",
        EACH % "fmaxf(x, z)",
    ),
    "rounded twice": (
        "double rounding",
        EACH % "float(__float2half_rn(x + z))",
        EACH % "float(__float2half_rn(__bfloat162float(__float2bfloat16(x + z))))",
    ),
    "rounded once": (
        "double rounding",
        EACH % "float(__float2half_rn(__bfloat162float(__float2bfloat16(x + z))))",
        EACH % "float(__float2half_rn(x + z))",
    ),
    "lanes upwards": ("reduction order", SUM % DOWN, SUM % UP),
    "a chain for a tree": (
        "reduction order",
        EACH % "(x + z) + (5.1f + a[n - 1 - i])",
        EACH % "((x + z) + 5.1f) + a[n - 1 - i]",
    ),
    "from the end": (
        "reduction order",
        EACH % "((x + z) + 5.1f) + a[n - 1 - i]",
        EACH % "((a[n - 1 - i] + 5.1f) + z) + x",
    ),
    "approximate": ("special function", EACH % "x / z", EACH % "__fdividef(x, z)"),
    "reciprocal": ("scale rule", EACH % "x / z", EACH % "x * (1.0f / z)"),
    "another limit": ("scale rule", EACH % "x / 448.0f", EACH % "x / 240.0f"),
    "exponent cut": (
        "scale rule",
        EACH % "float((__float_as_uint(x) + 0x7fffffu) >> 23)",
        EACH % "float(__float_as_uint(x) >> 23)",
    ),
    "e5m2": (
        "format",
        EACH % "float(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3))",
        EACH % "float(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2))",
    ),
    "swizzled on one side": (
        "swizzle not undone",
        SHARED % ("i ^ (i >> 3 & 7)", "i ^ (i >> 3 & 7)"),
        SHARED % ("i ^ (i >> 3 & 7)", "i"),
    ),
    "tail": (
        "tail",
        EACH % "i < n ? x : 0.0f",
        EACH % "i < (n & -8) ? x : 0.0f",
    ),
    "a loop from its end": (
        "reduction order",
        LOOP % "int i = 0; i < n; ++i",
        LOOP % "int i = n - 1; i >= 0; --i",
    ),
    "one too few in a loop": (
        "off by one",
        LOOP % "int i = 0; i < n; ++i",
        LOOP % "int i = 0; i < n - 1; ++i",
    ),
    "an intrinsic": ("rounding mode", EACH % "__fsqrt_rn(fabsf(x))", EACH % "__fsqrt_rz(fabsf(x))"),
    "two names": (
        "scale rule",
        EACH % "__nv_cvt_float_to_e8m0(x / 448.0f, __NV_SATFINITE, cudaRoundPosInf)",
        EACH % "__nv_cvt_float_to_e8m0(x / 256.0f, __NV_SATFINITE, cudaRoundZero)",
    ),
    "a tree": (
        "reduction order",
        TREE % ("int h = 16; h > 0; h /= 2", "t < h"),
        TREE % ("int h = 1; h < 32; h *= 2", "t % (2 * h) == 0"),
    ),
    "terms of a loop": (
        "reduction order",
        LOOP % "int i = 0; i < n; ++i",
        LOOP % "int i = n - 1; i + 1 > 0; i += -1",
    ),
    "two sums for one": (
        "reduction order",
        "  float s = 0;\n  for (int i = 0; i < n; ++i) s += __saturatef(a[i] * 0.01f) + 0.1f;\n" + LAST,
        "  float s = 0, z = 0;\n  for (int i = 0; i < n; i += 2) {\n    s += __saturatef(a[i] * 0.01f) + 0.1f;\n"
        "    if (i + 1 < n) z += __saturatef(a[i + 1] * 0.01f) + 0.1f;\n  }\n  s += z;\n" + LAST,
    ),
    "one sum for two": (
        "reduction order",
        "  float s = 0, z = 0;\n  for (int i = 0; i < n; i += 2) {\n    s += __saturatef(a[i] * 0.01f) + 0.1f;\n"
        "    if (i + 1 < n) z += __saturatef(a[i + 1] * 0.01f) + 0.1f;\n  }\n  s += z;\n" + LAST,
        "  float s = 0;\n  for (int i = 0; i < n; ++i) s += __saturatef(a[i] * 0.01f) + 0.1f;\n" + LAST,
    ),
    "cut by hand": (
        "rounding mode",
        EACH % "float((__float_as_uint(x) + 0x7fff + (__float_as_uint(x) >> 16 & 1)) >> 16)",
        EACH % "float(__float_as_uint(x) >> 16)",
    ),
    "one too few": ("off by one", EACH % "i < n - 7 ? x : z", EACH % "i <= n - 7 ? x : z"),
}


QUICK = (
    "contracted",
    "rounded twice",
    "lanes upwards",
    "swizzled on one side",
    "one too few",
)
EVERY = pytest.mark.ci("every kind of mistake; a few of them in every run")


@pytest.mark.sampled(14, "the edits that mend them are tried by themselves in tests/testing/test_suspect_repairs.py")
@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=EVERY) for name in TABLE])
def test_a_mistake_is_named(name: str, tmp_path: Path) -> None:
    kind, right, wrong = TABLE[name]
    found = named(tmp_path, right, wrong)
    assert [text.partition(":")[0] for text in found] == [kind], found
    place = "wrong.cu" if name == "tail" else "wrong.cu:"  # what a compiler takes out of a loop has no line
    assert place in found[0]
    said = found[0].partition(f" at {place}")[0]
    assert " instead of " not in said or set(said.split(" instead of ")[0].split()) != set(
        said.split(" instead of ")[1].split()
    )


VALUES = {
    "contracted": "fma.rn.f32 instead of mul.rn.f32 and add.rn.f32",
    "not contracted": "add.rn.f32 instead of fma.rn.f32",
    "rounded to zero": "add.rz.f32 instead of add.rn.f32",
    "another limit": "div.rn.f32 of 240 instead of div.rn.f32 of 448",
    "one too few in a loop": "`i < n` instead of `i <= n`",
    "NaN dropped": "max.f32 instead of max.NaN.f32",
}


@pytest.mark.parametrize(
    "name", ["contracted", "one too few in a loop", *(pytest.param(name, marks=EVERY) for name in VALUES)]
)
def test_the_likely_cause_names_both_values(name: str, tmp_path: Path) -> None:
    _, right, wrong = TABLE[name]
    (found,) = named(tmp_path, right, wrong)
    assert VALUES[name] in found
    assert found.endswith(f"(with {VALUES[name].partition(' instead of ')[2]} all {len(PROBLEMS)} test cases pass)")


UNNAMED = {
    "right": (EACH % "x * z + 3.3f", EACH % "x * z + 3.3f"),
    "constant": (EACH % "x * z + 3.3f", EACH % "x * z + 3.4f"),
    "sign": (EACH % "x * z + 3.3f", EACH % "x * z - 3.3f"),
    "operand": (EACH % "x / z", EACH % "z / x"),
    "function": (EACH % "sqrtf(x)", EACH % "fabsf(x)"),
    "stride": (EACH % "a[i / 2]", EACH % "a[i / 3]"),
}


@pytest.mark.parametrize(
    "name", [name if name in ("right", "constant") else pytest.param(name, marks=EVERY) for name in UNNAMED]
)
def test_nothing_is_named_where_no_kind_of_mistake_fits(name: str, tmp_path: Path) -> None:
    assert named(tmp_path, *UNNAMED[name]) == []


def test_a_campaign_names_the_mistake_and_holds_it_to_all_it_has_seen(tmp_path: Path) -> None:
    kernel, device = held_to(tmp_path, EACH % "__fadd_rn(__fmul_rn(x, z), 3.3f)", EACH % "x * z + 3.3f")
    verdict = run_campaign(kernel, device, cases=8, suspect_seconds=120.0)
    assert verdict.mismatch is not None
    (suspect,) = verdict.mismatch.suspects
    assert suspect.startswith("contraction: fma rounds once")
    assert f"likely cause: {suspect}" in verdict.lines()


def test_a_search_that_runs_out_of_time_says_so(tmp_path: Path) -> None:
    kernel, device = held_to(tmp_path, EACH % "__fadd_rn(__fmul_rn(x, z), 3.3f)", EACH % "x * z + 3.3f")
    verdict = run_campaign(kernel, device, cases=8, suspect_seconds=1e-9)
    assert verdict.mismatch is not None
    assert verdict.mismatch.suspects == ()
    assert any(
        note.startswith("no likely cause yet: the search ended after 1e-09 s of processor time and 0 edits")
        for note in verdict.notes
    )


def test_no_problem_is_run_when_the_time_is_over(tmp_path: Path) -> None:
    kernel, _ = held_to(tmp_path, EACH % "x", EACH % "x + 1.0f")
    asked = []

    def counted(launcher: Launcher, case: Case) -> Outputs:
        asked.append(case)
        return run(launcher, case)

    with pytest.raises(OutOfTimeError):
        repaired(replace(kernel, run=counted), TARGET, PROBLEMS, budget=Budget(0.0))
    assert set(asked) == {PROBLEMS[0]}


def test_sizes_tell_a_tail_that_is_left_out(tmp_path: Path) -> None:
    """No edit puts back what is missing; it agrees where n is a multiple of 4."""
    right = EACH % "x"
    wrong = "  for (int i = t; i < n / 4; i += 32)\n    for (int j = 0; j < 4; ++j) y[4 * i + j] = a[4 * i + j];\n"
    wrong += "  for (int i = n / 4 * 4 + t; i < n; i += 32) y[i] = 7.0f;\n}\n"
    kernel, device = held_to(tmp_path, right, wrong)
    (found,) = suspects_of(kernel, device, Case(33), (), seconds=60.0)
    assert str(found).startswith("tail: it agrees where n is a multiple of 4 and nowhere else")


def test_every_entry_that_some_problem_launches_is_mended(tmp_path: Path) -> None:
    """The problem that failed launches one entry, others launch another."""
    right, wrong = EACH % "__fadd_rn(__fmul_rn(x, z), 3.3f)", EACH % "x * z + 3.3f"
    second = HEAD.partition('extern "C"')[1] + HEAD.partition('extern "C"')[2].replace("void k(", "void other(")

    def either(launcher: Launcher, case: Case) -> Outputs:
        return run(launcher, case, "k" if case.n % 2 else "other")

    kernel, _ = held_to(tmp_path, right + second + right, wrong + second + wrong)
    found = repaired(replace(kernel, run=either), TARGET, PROBLEMS, budget=Budget(60.0))
    assert [each.suspect for each in found] == ["contraction"]


@pytest.mark.ci("seconds; that nothing is named where nothing fits is held in every run")
def test_an_edit_that_mends_the_failure_alone_is_not_named(tmp_path: Path) -> None:
    """One product too many is rounded to zero, which happens to be right for one problem."""
    right, wrong = EACH % "__fadd_rn(x, n == 33 ? 0.1f : 0.2f)", EACH % "__fadd_rz(x, 0.1f)"
    kernel, _ = held_to(tmp_path, right, wrong)
    assert [each.suspect for each in repaired(kernel, TARGET, [PROBLEMS[0]], budget=Budget(60.0))] == ["rounding mode"]
    assert repaired(kernel, TARGET, PROBLEMS, budget=Budget(60.0)) == ()

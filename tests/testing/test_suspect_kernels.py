"""Kernels of many styles, each with one mistake: what is named is the mistake, and where it is said to be."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

import refsim.device
from refsim.kernels import Kernel, Launcher, Outputs, Promise
from refsim.testing.runs import examine
from refsim.testing.suspects import suspects_of


@dataclass(frozen=True)
class Matrix:
    rows: int
    columns: int
    seed: int = 0

    def numbers(self, part: int, rows: int) -> np.ndarray:
        draw = np.random.default_rng((self.seed, part))
        return draw.standard_normal((rows, self.columns)).astype(np.float32)


HEAD = """
#include <cuda_fp16.h>
#include <cuda_fp8.h>
"""
ARGUMENTS = 'extern "C" __global__ void k(const {0}* a, const {0}* b, {1}* y, int rows, int cols) {{\n'
EACH = "  int i = blockIdx.x * 128 + threadIdx.x;\n  if (i < rows * cols) {\n    %s\n  }\n}\n"
FLOATS, HALVES = ARGUMENTS.format("float", "float") + EACH, ARGUMENTS.format("__half", "__half") + EACH
TO_HALF = ARGUMENTS.format("float", "__half") + EACH
TO_E4M3 = ARGUMENTS.format("float", "unsigned char") + EACH
SHARED = (
    ARGUMENTS.format("float", "float")
    + """  __shared__ float s[128];
  int t = threadIdx.x, i = blockIdx.x * 128 + t;
  s[t] = i < rows * cols ? a[i] : 0.0f;
  __syncthreads();
  if (i < rows * cols) y[i] = s[%s] * 2.0f;
}
"""
)
SUM = (
    ARGUMENTS.format("float", "float")
    + """  int t = threadIdx.x, r = blockIdx.x;
  __shared__ float s[128];
  float x = 0;
  %s
  s[t] = x;
  __syncthreads();
  for (int h = 64; h; h >>= 1) { if (t < h) s[t] += s[t + h]; __syncthreads(); }
  if (!t) y[r] = s[0];
}
"""
)
STRIDED = "for (int i = t; i < cols; i += 128) x += a[r * cols + i];"
BLOCKED = "int c = (cols + 127) / 128; for (int i = t * c; i < min(cols, t * c + c); ++i) x += a[r * cols + i];"
TWO_SUMS = (
    "float z = 0; int i = t; for (; i + 128 < cols; i += 256) { x += a[r * cols + i]; z += a[r * cols + i + 128]; }"
    " if (i < cols) x += a[r * cols + i]; x += z;"
)
MMA = (
    ARGUMENTS.format("unsigned short", "float")
    + r"""  // y[16][8] of each block is A, 16 rows, times B, 8 columns of which each is a row of memory
  __shared__ __align__(16) unsigned short tile[16 * 64];
  int lane = threadIdx.x, r0 = blockIdx.x * 16;
  float d[4] = {0, 0, 0, 0};
  for (int k0 = 0; k0 < cols; k0 += 64) {
    __syncwarp();
    for (int i = lane; i < 16 * 64; i += 32) {
      int r = i / 64, c = i / 8 % 8, j = i % 8, k = k0 + c * 8 + j;
      tile[r * 64 + (c ^ (r & 7)) * 8 + j] = r0 + r < rows && k < cols ? a[(r0 + r) * cols + k] : 0;
    }
    __syncwarp();
    for (STEPS) {
      unsigned A[4], B[2];
      for (int q = 0; q < 4; ++q) {
        int r = lane / 4 + 8 * (q & 1), c = s * 2 + (q >> 1);
        A[q] = *(const unsigned*)&tile[r * 64 + CHUNK * 8 + 2 * (lane % 4)];
      }
      for (int q = 0; q < 2; ++q) {
        int n = ROW, k = k0 + s * 16 + 2 * (lane % 4) + 8 * q;
        B[q] = (k < cols ? b[n * cols + k] : 0) | (k + 1 < cols ? b[n * cols + k + 1] : 0) << 16;
      }
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
    }
  }
  for (int q = 0; q < 4; ++q) {
    int r = r0 + lane / 4 + 8 * (q >> 1), c = 2 * (lane % 4) + (q & 1);
    if (r < rows) y[r * 8 + c] = d[q];
  }
}
"""
)


def mma(steps: str = "int s = 0; s < 4; ++s", chunk: str = "(c ^ (r & 7))", row: str = "lane / 4") -> str:
    return MMA.replace("STEPS", steps).replace("CHUNK", chunk).replace("ROW", row)


@dataclass(frozen=True)
class Style:
    """How a kernel of a style is launched: bytes of its inputs' elements, the format of its output, and that output's shape."""

    bytes_: int = 4
    format: str = "f32"
    shape: str = "matrix"

    def problems(self) -> tuple[Matrix, ...]:
        if self.shape == "tile":
            return Matrix(33, 70, 1), Matrix(16, 64, 2), Matrix(8, 130, 3)
        if self.shape == "rows":
            return Matrix(3, 300, 1), Matrix(2, 512, 2), Matrix(4, 257, 3)
        return Matrix(33, 20, 1), Matrix(16, 64, 2), Matrix(40, 64, 3)

    def run(self, launcher: Launcher, problem: Matrix) -> Outputs:
        rows, columns = problem.rows, problem.columns
        inputs = [problem.numbers(0, rows), problem.numbers(1, 8 if self.shape == "tile" else rows)]
        if self.shape == "tile":
            inputs = [(each.view(np.uint32) >> 16).astype(np.uint16) for each in inputs]
        elif self.bytes_ == 2:
            inputs = [each.astype(np.float16) for each in inputs]
        shape, grid, block = {
            "matrix": ((rows, columns), -(-rows * columns // 128), 128),
            "rows": ((rows,), rows, 128),
            "tile": ((rows, 8), -(-rows // 16), 32),
        }[self.shape]
        dtype = {"f32": np.float32, "f16": np.uint16, "e4m3": np.uint8}[self.format]
        a, b = (launcher.upload(each, name=name) for each, name in zip(inputs, "ab", strict=True))
        y = launcher.output(int(np.prod(shape)), dtype, name="y")
        launcher.launch("k", grid, block, [a, b, y, np.int32(rows), np.int32(columns)])
        return {"y": launcher.read(y).reshape(shape)}


PLAIN, HALF, NARROWED, CODED = Style(), Style(2, "f16"), Style(4, "f16"), Style(4, "e4m3")
ROWS, TILE = Style(shape="rows"), Style(2, shape="tile")
PRODUCTS = "a[i] * __int_as_float((127 + int(b[i] * 4.0f)) << 23)"
TABLE = {
    "contraction of halves": (
        HALF,
        "contraction: fma rounds once",
        HALVES % "y[i] = __hadd_rn(__hmul_rn(a[i], b[i]), a[i]);",
        HALVES % "y[i] = __hfma(a[i], b[i], a[i]);",
    ),
    "e4m3 through a half": (
        CODED,
        "double rounding: a value is rounded to a narrower type",
        TO_E4M3 % f"y[i] = __nv_cvt_float_to_fp8({PRODUCTS}, __NV_SATFINITE, __NV_E4M3);",
        TO_E4M3
        % f"y[i] = __nv_cvt_halfraw_to_fp8(__half_raw(__float2half_rn({PRODUCTS})), __NV_SATFINITE, __NV_E4M3);",
    ),
    "a half through a float": (
        NARROWED,
        "double rounding: a result is rounded to float32",
        TO_HALF
        % 'asm("cvt.rn.f16.f64 %0, %1;" : "=h"(*(short*)&y[i]) : "d"((i & 1 ? 1.00146484375 : 1.00048828125) + 1e-9 * a[i]));',
        TO_HALF % "y[i] = __float2half_rn(fmaf(1e-9f, a[i], i & 1 ? 1.00146484375f : 1.00048828125f));",
    ),
    "tensor cores from the last step": (TILE, "reduction order: a loop", mma(), mma("int s = 3; s >= 0; --s")),
    "a swizzled tile read plain": (TILE, "swizzle not undone: an address", mma(), mma(chunk="c")),
    "the next row of an operand is the next column": (
        TILE,
        (
            "off-by-one row: each row is read one behind its place, input b",
            "elements of another place: the next row of every 8 is taken, input b",
        ),
        mma(),
        mma(row="(lane / 4 + 1) % 8"),
    ),
    "the next row summed": (
        ROWS,
        # Both are what happens: a sum of the next row is the next row's output. Which is found depends on what is drawn.
        (
            "off by one: each element lies one before its place, output y",
            "off-by-one row: each row is read one behind its place, input a",
        ),
        SUM % STRIDED,
        SUM % STRIDED.replace("r * cols", "min(r + 1, rows - 1) * cols"),
    ),
    "the next column": (
        PLAIN,
        "off-by-one column: each column is read one behind its place, input a",
        FLOATS % "y[i] = a[i] * 2.0f + b[i];",
        FLOATS % "y[i] = a[i % cols + 1 < cols ? i + 1 : i] * 2.0f + b[i];",
    ),
    "stored one column further": (
        PLAIN,
        "off-by-one column: each column lies one behind its place, output y",
        FLOATS % "y[i] = a[i] - b[i];",
        FLOATS % "if (i % cols + 1 < cols) y[i + 1] = a[i] - b[i]; if (i % cols == 0) y[i] = 7.0f;",
    ),
    "runs for strides": (ROWS, "reduction order: threads take runs", SUM % STRIDED, SUM % BLOCKED),
    "strides for runs": (ROWS, "reduction order: threads take runs", SUM % BLOCKED, SUM % STRIDED),
    "two sums for one": (ROWS, "reduction order: a loop adds to several", SUM % STRIDED, SUM % TWO_SUMS),
    "a neighbour": (
        PLAIN,
        "elements permuted: neighbouring runs of 4 bytes of each row are exchanged, input a",
        FLOATS % "y[i] = a[i] * 2.0f;",
        FLOATS % "y[i] = a[(i ^ 1) < rows * cols ? i ^ 1 : i] * 2.0f;",
    ),
    "a neighbour in shared memory": (
        PLAIN,
        "elements permuted: neighbouring runs of 4 bytes",
        SHARED % "t",
        SHARED % "(i ^ 1) < rows * cols ? t ^ 1 : t",
    ),
    "another stride": (ROWS, "", SUM % STRIDED, SUM % STRIDED.replace("r * cols", "r * (cols & ~7)")),
    "the right kernel": (PLAIN, "", SHARED % "t", SHARED % "t"),
}
QUICK = (
    "a half through a float",
    "stored one column further",
    "a neighbour",
)
EVERY = pytest.mark.ci("kernels of every style; a few of them in every run")


@pytest.mark.sampled(6, "seconds each; tests/testing/test_suspects.py names the same kinds")
@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=EVERY) for name in TABLE])
def test_a_mistake_is_named_or_nothing_is(name: str, tmp_path: Path) -> None:
    style, said, right, wrong = TABLE[name]
    device = refsim.device.open("sim:eager", "sm_90a")
    sources = {each: tmp_path / f"{each}.cu" for each in ("right", "wrong")}
    for each, body in (("right", right), ("wrong", wrong)):
        sources[each].write_text(HEAD + body)

    def oracle(problem: Matrix) -> Outputs:
        with device.launcher(sources["right"]) as launcher:
            return style.run(launcher, problem)

    problems, promise = style.problems(), Promise.BITWISE_EXCEPT_NAN_PAYLOAD
    outputs = {"y": style.format}
    strategy = st.sampled_from([Matrix(each.rows, each.columns, 9) for each in problems])
    kernel = Kernel(
        "k",
        oracle,
        strategy,
        style.run,
        outputs,
        recipe=Matrix,
        file=sources["wrong"],
        promise=promise,
        corpus=problems,
    )
    findings = {problem: examine(kernel, problem, device).finding for problem in problems}
    if name == "the right kernel":
        assert not any(findings.values())
    failing = next(problem for problem in problems if findings[problem] or name == "the right kernel")
    found = [str(each) for each in suspects_of(kernel, device, failing, (), seconds=60.0)]
    assert len(found) == bool(said), found
    assert all(text.startswith(said) for text in found), found

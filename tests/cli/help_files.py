"""The files that examples of help pages read: `write(example)` makes those of one example in the working directory."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from refsim import encode, quantize
from refsim.files import save
from refsim.layouts import fragment
from refsim.layouts.scales import scale_layout
from refsim.scaling import quantize as quantize_groups

RNG = np.random.default_rng(20261128)
PTX_ADD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 x, .param .u64 count, .param .u64 y)
{
    .reg .b32 %r<2>; .reg .b64 %d<6>; .reg .f32 %f<3>; .reg .pred %p<2>;
    mov.u32 %r1, %tid.x;
    cvt.u64.u32 %d1, %r1;
    ld.param.u64 %d2, [count];
    setp.ge.u64 %p1, %d1, %d2;
    @%p1 ret;
    ld.param.u64 %d3, [x];
    ld.param.u64 %d4, [y];
    shl.b64 %d5, %d1, 2;
    add.u64 %d3, %d3, %d5;
    add.u64 %d4, %d4, %d5;
    ld.global.f32 %f1, [%d3];
    add.f32 %f2, %f1, %f1;
    st.global.f32 [%d4], %f2;
    ret;
}
"""
PTX_SCALE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 y)
{
    .reg .b32 %r<2>; .reg .b64 %d<4>; .reg .f32 %f<3>;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d1, %r1, 4;
    ld.param.u64 %d2, [x];
    ld.param.u64 %d3, [y];
    add.u64 %d2, %d2, %d1;
    add.u64 %d3, %d3, %d1;
    ld.global.f32 %f1, [%d2];
    mul.f32 %f2, %f1, 0f40000000;
    st.global.f32 [%d3], %f2;
    ret;
}
"""
CUDA_ADD = """extern "C" __global__ void add(const float *x, unsigned long long count, float *y) {
    unsigned long long i = threadIdx.x;
    if (i < count)
        y[i] = x[i] + x[i];
}
"""
CUDA_SCALE = """#include "width.h"
template <typename T> __global__ void scale(T *x, T factor) {
    if (threadIdx.x < COUNT * WIDTH) x[threadIdx.x] *= factor;
}
"""
PROGRAM = """import cupy as cp
x = cp.arange(64, dtype=cp.float32)
add = cp.RawKernel('extern "C" __global__ void add(float *x) { x[threadIdx.x] += 1.0f; }', 'add')
add((1,), (64,), (x,))
print(float(x.get().sum()))
"""
FUNCTION = """import numpy as np
def matmul(a, b):
    return np.matmul(np.asarray(a, np.float32), np.asarray(b, np.float32))
"""


def whole(shape: tuple[int, ...], low: int = -3, high: int = 4) -> np.ndarray:
    """Small whole numbers, whose products and sums no arithmetic rounds."""
    return RNG.integers(low, high, shape).astype(np.float32)


def save_values(name: str, values: np.ndarray, row: str) -> None:
    save(name, encode(values, row), row)


def weights() -> None:
    save_values("weights.npy", whole((4, 8)), "bf16")
    save("weights.safetensors", encode(whole((16, 64)), "bf16"), "bf16", key="layer.0.weight")


def tags() -> None:
    row, col = fragment("mma.m16n8k16.bf16.a").elements
    np.save("tags.npy", 16 * row + col)


def scales() -> None:
    codes = (126 + np.arange(128 * 8).reshape(128, 8) % 4).astype(np.uint8)
    np.save("scales.npy", codes)
    scale_layout("nvidia_128x4").shuffle(codes, fill=0).tofile("dump.bin")
    np.save("scales.shuffled.npy", np.fromfile("dump.bin", np.uint8))
    scale_layout("nvidia_128x4").shuffle(np.full((130, 12), 127, np.uint8), fill=0).tofile("scales.bin")
    values = RNG.standard_normal((128, 256)).astype(np.float32)
    save("original.safetensors", encode(values, "bf16"), "bf16", key="w")
    blocks = quantize(encode(values, "bf16"), "mxfp8", input_format="bf16")
    save("model.safetensors", blocks.scales, "e8m0", key="w.scales")


def dump() -> None:
    np.arange(64 * 128, dtype="<f4").tofile("acc.bin")
    np.full(64 * 128, 0x38, np.uint8).tofile("tile.bin")
    scale_layout("nvidia_128x4").shuffle(np.full((64, 4), 127, np.uint8), fill=0).tofile("sf.bin")


def outputs() -> None:
    want = whole((64, 128))
    save_values("want.npy", want, "bf16")
    want[3, 4] += 1
    save_values("got.npy", want, "bf16")
    for name in ("got", "want"):
        save(f"{name}.safetensors", encode(want, "bf16"), "bf16", key="layer.0")


def transposed() -> None:
    want = whole((32, 32))
    save_values("want.npy", want, "bf16")
    save_values("got.npy", want.T, "bf16")


def product() -> None:
    a, b = whole((32, 128)), whole((32, 128))
    save_values("a.npy", a, "e4m3")
    save_values("b.npy", b, "e4m3")
    sa, sb = (2.0 ** RNG.integers(-2, 3, (32, 1))).astype(np.float32), np.float32(0.5)
    np.save("sa.npy", sa)
    np.save("sb.npy", np.full((32, 1), sb))
    save_values("train.npy", a @ b.T * sa * sb, "bf16")
    save_values("serve.npy", a @ b.T * sa, "bf16")


def experts() -> None:
    a, b = whole((32, 128)), whole((4, 32, 128))
    save("a.npy", encode(a, "e4m3"), "e4m3")
    save("experts.npy", encode(b, "e4m3"), "e4m3")
    index = RNG.integers(0, 4, 32).astype(np.int32)
    np.save("index.npy", index)
    save_values("moe.npy", np.einsum("mk,mnk->mn", a, b[index]), "bf16")


def integers() -> None:
    a, b = whole((32, 64), -9, 9).astype(np.int8), whole((32, 64), -9, 9).astype(np.int8)
    zero = np.arange(32, dtype=np.int32) % 5
    for name, each in (("a", a), ("b", b), ("zb", zero)):
        np.save(f"{name}.npy", each)
    np.save("d.npy", (a.astype(np.int32) - 3) @ b.astype(np.int32).T)


def narrow_weights() -> None:
    x, w = whole((16, 128)), RNG.integers(0, 16, (32, 128)).astype(np.uint8)
    save_values("x.npy", x, "bf16")
    np.save("w.npy", w)
    np.save("s.npy", np.full((32, 1), 0.5, np.float32))
    save_values("y.npy", x @ (w.astype(np.float32) - 8).T * np.float32(0.5), "bf16")


def rounded() -> None:
    values = RNG.standard_normal((32, 64)).astype(np.float32)
    np.save("x.npy", values)
    save_values("want.npy", values, "e4m3")
    save("got.npy", encode(values, "e4m3", rounding="toward-zero"), "e4m3")


def quantized() -> None:
    codes = encode(RNG.standard_normal((16, 256)), "bf16")
    save("x.npy", codes, "bf16")
    made = quantize_groups(codes, "bf16", quotient="divide")
    save("q.npy", made.codes, "e4m3")
    np.save("s.npy", made.scales)


def normalized() -> None:
    x = np.where(whole((8, 64)) < 0, -1.0, 1.0).astype(np.float32)
    w = whole((64,), 1, 4)
    for name, values in (("x", x), ("w", w), ("y", x * w)):
        save_values(f"{name}.npy", values, "bf16")


def attention() -> None:
    q, k, v = (encode(RNG.standard_normal((1, 16, 32)), "bf16") for _ in range(3))
    for name, codes in (("q", q), ("k", k), ("v", v)):
        save(f"{name}.npy", codes, "bf16")
    save_values("o.npy", np.zeros((1, 16, 32), np.float32), "bf16")


def model() -> None:
    values = {"layer.weight": RNG.standard_normal((32, 64)).astype(np.float32)}
    save("model.safetensors", encode(values["layer.weight"], "bf16"), "bf16", key="layer.weight")


def factors() -> None:
    save("a.npy", encode(whole((64, 64)), "e4m3"), "e4m3")
    save("b.npy", encode(whole((64, 64)), "e4m3"), "e4m3")


def case() -> None:
    from refsim.testing import kernel_named
    from refsim.testing.replay import write_case

    kernel = kernel_named("fp8_quantize")
    made = write_case(Path("failures"), kernel, kernel.corpus[0], {"name": "sim"}, "1 element differs")
    made.rename("failures/fp8_quantize-0123456789.json")


def sources() -> None:
    np.save("x.npy", np.arange(64, dtype=np.float32))
    for name, text in {
        "add.ptx": PTX_ADD,
        "kernel.ptx": PTX_ADD,
        "scale.ptx": PTX_SCALE,
        "mine.ptx": PTX_SCALE,
        "add.cu": CUDA_ADD,
        "scale.cu": CUDA_SCALE,
        "headers/width.h": "#define COUNT 8\n",
        "served.py": FUNCTION,
        "trained.py": FUNCTION,
        "vector_add.py": PROGRAM,
        "package/main.py": PROGRAM,
        "tests/test_add.py": f"def test_it_adds():\n    {PROGRAM.strip().replace(chr(10), chr(10) + '    ')}\n",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)


FILES: dict[str, Callable[[], None]] = {
    r"weights\.": weights,
    r"tags\.npy": tags,
    r"scales (un)?shuffle|scales check": scales,
    r"refsim show": dump,
    r"refsim diff ": outputs,
    r"explain-diff got\.npy want\.npy -t bf16": transposed,
    r"explain-diff train": product,
    r"explain-diff moe": experts,
    r"explain-diff d\.npy": integers,
    r"explain-diff y.*--b-format u4": narrow_weights,
    r"explain-diff got.*--values": rounded,
    r"explain-diff q\.npy": quantized,
    r"--row rms_norm": normalized,
    r"explain-diff o\.npy": attention,
    r"refsim ((de)?quantize|files)": model,
    r"refsim mma --a a\.npy": factors,
    r"failures/": case,
    r"refsim (simulate|run|order|blame|ptx)": sources,
}
"""A pattern of examples, and what writes their files."""


def write(example: str) -> None:
    for pattern, files in FILES.items():
        if re.search(pattern, example):
            files()

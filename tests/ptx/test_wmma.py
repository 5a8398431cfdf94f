"""wmma: every shape, type and order in memory, against products of whole matrices that know no fragments."""

from itertools import product

import numpy as np
import pytest

from refsim import numerics, ptx
from refsim.conversions import encode
from refsim.errors import RefsimError
from refsim.layouts.families.wmma import WMMA_SHAPES, Shape

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
WIDTHS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "f32": 32, "s32": 32}
REGISTERS = {"f32": "f32", "f64": "f64"}
PADDING = 16
WARPS = 2
CASES = [
    (shape, type, c_type, d_type)
    for shape in WMMA_SHAPES
    for type in shape.types
    for c_type in shape.accumulators
    for d_type in shape.accumulators
]


def count(operand: str, type: str, lines: int, depth: int) -> int:
    """Registers of a fragment, as the ISA's table has them: eight for every f16 operand."""
    return 8 if type == "f16" and operand in "ab" else lines * depth * WIDTHS[type] // 32 // max(32, WIDTHS[type])


def kernel(shape: Shape, type: str, c_type: str, d_type: str, orders: tuple[str, ...], space: str) -> str:
    """One warp a matrix: load A, B and C with padded rows, multiply, store D."""
    sizes = {"a": (shape.m, shape.k), "b": (shape.n, shape.k), "c": (shape.m, shape.n), "d": (shape.m, shape.n)}
    types = {"a": type, "b": type, "c": c_type, "d": d_type}
    numbers = {name: count(name, types[name], *sizes[name]) for name in "abcd"}
    lists = {name: "{" + ", ".join(f"%{name}{place}" for place in range(numbers[name])) + "}" for name in "abcd"}
    lines = [f".reg .{REGISTERS.get(types[name], 'b32')} %{name}<{numbers[name]}>;" for name in "abcd"]
    for place, name in enumerate("abcd"):
        lines += [f"ld.param.u64 %p{place}, [{name}];", f"ld.param.u32 %s{place}, [stride_{name}];"]
        rows = (
            (shape.m, shape.k, shape.m, shape.m)[place]
            if orders[place] == "row"
            else (shape.k, shape.n, shape.n, shape.n)[place]
        )
        lines += [
            f"mul.lo.u32 %x, %s{place}, {rows * WIDTHS[types[name]] // 8};",
            "mad.wide.u32 %p%d, %w, %x, %p%d;".replace("%d", str(place)),
        ]
    for place, name in enumerate("abc"):
        lines += [
            f"wmma.load.{name}.sync.aligned.{orders[place]}.{shape}{space}.{types[name]} {lists[name]}, [%p{place}], %s{place};"
        ]
    kinds = f"{d_type}.{c_type}" if type == "f16" else f"{d_type}.{type}.{type}.{c_type}"
    lines += [
        f"wmma.mma.sync.aligned.{orders[0]}.{orders[1]}.{shape}.{kinds} {lists['d']}, {lists['a']}, {lists['b']}, {lists['c']};"
    ]
    lines += [f"wmma.store.d.sync.aligned.{orders[3]}.{shape}{space}.{d_type} [%p3], {lists['d']}, %s3;"]
    parameters = ", ".join(
        [*(f".param .u64 {name}" for name in "abcd"), *(f".param .u32 stride_{name}" for name in "abcd")]
    )
    head = ".reg .b64 %p<4>; .reg .b32 %s<4>; .reg .b32 %x; .reg .b32 %w; mov.u32 %w, %tid.x; shr.u32 %w, %w, 5;"
    return HEAD + f".visible .entry k({parameters}) {{ {head}\n" + "\n".join(lines) + "\nret; }\n"


def codes(generator: np.random.Generator, type: str, *shape: int) -> np.ndarray:
    """Random elements as unsigned integers, values of products that neither vanish nor overflow."""
    if type in ("s8", "u8", "s32"):
        return (
            generator.integers(0, 256, shape, np.uint8)
            if WIDTHS[type] == 8
            else generator.integers(-9999, 9999, shape, np.int32).view(np.uint32)
        )
    values = generator.normal(size=shape)
    if type in ("f32", "f64"):
        return values.astype(f"f{WIDTHS[type] // 8}").view(f"u{WIDTHS[type] // 8}")
    return encode(values, type)


def laid_out(matrix: np.ndarray, order: str) -> tuple[np.ndarray, int]:
    """Matrices (warps, rows, cols) in memory with padded rows (columns), and the stride in elements."""
    lines = matrix if order == "row" else matrix.swapaxes(1, 2)
    padded = np.zeros((*lines.shape[:2], lines.shape[2] + PADDING), matrix.dtype)
    padded[:, :, : lines.shape[2]] = lines
    return padded, padded.shape[2]


def expected(a: np.ndarray, b: np.ndarray, c: np.ndarray, shape: Shape, case: tuple[str, str, str]) -> np.ndarray:
    """D as codes: whole matrices by numerics.mma, C widened and D narrowed by NumPy; integers by NumPy alone."""
    type, c_type, d_type = case
    if type in ("s8", "u8"):
        left, right = (x.view(np.int8 if type == "s8" else np.uint8).astype(np.int64) for x in (a, b))
        return (left @ right + c.view(np.int32)).astype(np.int32).view(np.uint32)
    wide = "f32" if "f32" in (c_type, d_type) else d_type
    containers = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
    term = c.view(containers[c_type]).astype(containers[wide])
    depth = 4 if type == "tf32" else shape.k
    result = numerics.mma(
        a,
        np.ascontiguousarray(b.swapaxes(1, 2)),
        term,
        unit="mma.sync",
        a_format=type,
        b_format=type,
        d_format=wide,
        target="sm_90a",
        k=depth,
    )
    return result.astype(containers[d_type]).view(f"u{WIDTHS[d_type] // 8}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: ".".join(map(str, case)))
def test_a_product_of_whole_matrices(case: tuple[Shape, str, str, str], refsim_profile: str) -> None:
    """In every order of the four matrices; the quick profile tries a quarter of them, for each case another."""
    shape, type, c_type, d_type = case
    generator = np.random.default_rng(shape.m * shape.k)
    a, b = codes(generator, type, WARPS, shape.m, shape.k), codes(generator, type, WARPS, shape.k, shape.n)
    c = codes(generator, c_type, WARPS, shape.m, shape.n)
    want = expected(a, b, c, shape, (type, c_type, d_type))
    for number, orders in enumerate(product(("row", "col"), repeat=4)):
        if refsim_profile == "quick" and (number + number // 4 - CASES.index(case)) % 4:
            continue
        given = [laid_out(matrix, order) for matrix, order in zip((a, b, c, np.zeros_like(want)), orders, strict=True)]
        buffers, strides = [buffer for buffer, _ in given], [np.uint32(stride) for _, stride in given]
        space = ("", ".global")[number % 2]
        ptx.load(kernel(shape, type, c_type, d_type, orders, space)).launch(
            "k", (1,), (32 * WARPS,), [*buffers, *strides]
        )
        assert np.array_equal(buffers[3], laid_out(want, orders[3])[0]), orders


def test_lanes_that_are_missing_are_a_finding() -> None:
    text = kernel(WMMA_SHAPES[0], "f16", "f32", "f32", ("row",) * 4, "")
    buffers = [np.zeros(4096, np.uint32) for _ in range(4)]
    with pytest.raises(RefsimError, match="divergent-sync"):
        ptx.load(text).launch("k", (1,), (40,), [*buffers, *(np.uint32(16),) * 4])


def test_integers_wrap_or_saturate() -> None:
    """The largest C plus a positive product: clamped with .satfinite, else around to the negative numbers."""
    shape = next(shape for shape in WMMA_SHAPES if "s8" in shape.types)
    text = kernel(shape, "s8", "s32", "s32", ("row", "col", "row", "row"), "")
    for extra, want in (("", -(2**31) + 15), (".satfinite", 2**31 - 1)):
        a, b = np.ones((1, 16, 16), np.int8), np.ones((1, 16, 16), np.int8)
        c, d = np.full((1, 16, 16), 2**31 - 1, np.int32), np.zeros((1, 16, 16), np.int32)
        changed = text.replace("m16n16k16.s32.s8.s8.s32", f"m16n16k16{extra}.s32.s8.s8.s32")
        ptx.load(changed).launch("k", (1,), (32,), [a, b, c, d, *(np.uint32(16),) * 4])
        assert (d == want).all()


SHARED = """.visible .entry k(.param .u64 out, .param .u32 rows) {
    .shared .align 32 .b8 s[512]; .reg .b32 %r<20>; .reg .b64 %p1; .reg .f32 %f<8>; .reg .pred %q;
    ld.param.u64 %p1, [out]; ld.param.u32 %r1, [rows]; mov.u32 %r2, %tid.x; mov.u32 %r3, s;
    setp.ge.u32 %q, %r2, %r1; @%q bra FILLED;
    mad.lo.u32 %r4, %r2, 32, %r3; mov.b32 %r5, 0; st.shared.v4.b32 [%r4], {%r5, %r5, %r5, %r5};
    st.shared.v4.b32 [%r4+16], {%r5, %r5, %r5, %r5};
    FILLED: bar.sync 0;
    wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r4,%r5,%r6,%r7,%r8,%r9,%r10,%r11}, [%r3];
    wmma.load.b.sync.aligned.col.m16n16k16.shared.f16 {%r12,%r13,%r14,%r15,%r16,%r17,%r18,%r19}, [%r3];
    mov.f32 %f0, 0f00000000;
    wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7},
        {%r4,%r5,%r6,%r7,%r8,%r9,%r10,%r11}, {%r12,%r13,%r14,%r15,%r16,%r17,%r18,%r19}, {%f0,%f0,%f0,%f0,%f0,%f0,%f0,%f0};
    STORE ret; }"""


@pytest.mark.parametrize(
    "store",
    [
        "wmma.store.d.sync.aligned.row.m16n16k16.f32 [%p1], {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7};",
        "st.global.f32 [%p1], %f2;",
    ],
)
def test_an_unwritten_row_of_an_operand_reaches_the_rows_of_the_product_that_it_makes(store: str) -> None:
    """Sixteen rows written: silent. Twelve: rows and columns from 12 on are undefined, and row 8 and on are stored."""
    program = ptx.load(HEAD + SHARED.replace("STORE", store))
    out = np.ones((16, 16), np.float32)
    program.launch("k", (1,), (32,), [out, np.uint32(16)])
    assert out[0, 0] == 0
    with pytest.raises(RefsimError, match="uninitialised"):
        program.launch("k", (1,), (32,), [out, np.uint32(12)])


def test_an_unwritten_row_whose_products_are_not_stored_passes() -> None:
    """Rows 0 to 7 and their columns alone: register 0 of each lane."""
    program = ptx.load(HEAD + SHARED.replace("STORE", "st.global.f32 [%p1], %f0;"))
    out = np.ones((16, 16), np.float32)
    program.launch("k", (1,), (32,), [out, np.uint32(8)])
    assert out[0, 0] == 0

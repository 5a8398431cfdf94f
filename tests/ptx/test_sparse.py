"""mma.sp: every type, shape and selector against whole products that know no fragments; metadata that no instruction takes."""

from typing import Any

import numpy as np
import pytest

from refsim import numerics, ptx
from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts import fragment
from refsim.layouts.families.sparse import SPARSE_SHAPES, SparseShape
from refsim.numerics.sparse import sparsity_of

pytestmark = pytest.mark.filterwarnings("ignore::refsim.numerics.UnverifiedProfileWarning")
KINDS = [
    (shape, d, a, b) for shape in SPARSE_SHAPES for d in shape.accumulators for a in shape.types for b in shape.types
]
DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
WARPS = 2


def opcode_of(shape: SparseShape, d: str, a: str, b: str, sparse: str = "sp", saturates: str = "") -> str:
    return f"mma.{sparse}.sync.aligned.{shape}.row.col{saturates}.{d}.{a}.{b}.{d}"


def kernel(opcode: str, counts: tuple[int, int, int], selector: int, target: str = "sm_90a") -> str:
    """A lane loads its registers of A, B and C and its metadata, multiplies, and stores D."""
    c = counts[2]
    loads = "\n".join(
        f"mad.wide.u32 %address, %lane, {4 * count}, %{name};"
        + "".join(f"ld.global.b32 %{name}{i}, [%address+{4 * i}];" for i in range(count))
        for name, count in zip("abc", counts, strict=True)
    )
    registers = {
        name: "{" + ", ".join(f"%{name}{i}" for i in range(n)) + "}" for name, n in zip("abc", counts, strict=True)
    }
    stores = "".join(f"st.global.b32 [%address+{4 * i}], %c{i};" for i in range(c))
    return f"""
.version 9.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pe, .param .u64 pd) {{
.reg .b32 %lane, %e, {", ".join(f"%{name}{i}" for name, n in zip("abc", counts, strict=True) for i in range(n))};
.reg .b64 %a, %b, %c, %m, %d, %address;
mov.u32 %lane, %tid.x;
ld.param.u64 %a, [pa]; ld.param.u64 %b, [pb]; ld.param.u64 %c, [pc]; ld.param.u64 %m, [pe]; ld.param.u64 %d, [pd];
{loads}
mad.wide.u32 %address, %lane, 4, %m; ld.global.b32 %e, [%address];
{opcode} {registers["c"]}, {registers["a"]}, {registers["b"]}, {registers["c"]}, %e, {selector};
mad.wide.u32 %address, %lane, {4 * c}, %d;
{stores}
ret;
}}
"""


def registers(matrix: np.ndarray, name: str) -> np.ndarray:
    """The registers that hold a matrix of codes (warps, rows, columns): uint32 (lanes, registers), value by value."""
    row = fragment(name)
    held = np.zeros((len(matrix), row.threads, row.registers), np.uint32)
    for value in range(row.values):
        r, c = row.coord(np.arange(row.threads), value)
        codes = np.where(r >= 0, matrix[:, r, c], 0).astype(np.uint32)
        held[:, :, value // row.per_register] |= codes << np.uint32(row.slot_bits * (value % row.per_register))
    return held.reshape(-1, row.registers)


def matrix_of(held: np.ndarray, name: str, dtype: Any) -> np.ndarray:
    row = fragment(name)
    words = held.reshape(-1, row.threads, row.registers)
    found = np.zeros((len(words), *row.shape), dtype)
    for value in range(row.values):
        shift = np.uint32(row.slot_bits * (value % row.per_register))
        r, c = row.coord(np.arange(row.threads), value)
        found[:, r, c] = (words[:, :, value // row.per_register] >> shift).astype(dtype)
    return found


def stored(generator: np.random.Generator, type: str, *shape: int, rising: bool) -> tuple[np.ndarray, np.ndarray]:
    """Numbers, three in ten of them zero, and positions."""
    row = element_named(type)
    sparsity = sparsity_of(row)
    codes = generator.integers(0, row.code_limit, shape, np.uint64).astype(row.code_dtype)
    codes[generator.random(shape) < 0.3] = 0
    ranks = np.argsort(generator.random((*shape[:-1], shape[-1] // sparsity.kept, sparsity.group)), axis=-1)[
        ..., : sparsity.kept
    ]
    return codes, (np.sort(ranks, axis=-1) if rising else ranks).reshape(shape).astype(np.uint8)


def words_of(positions: np.ndarray, shape: SparseShape, type: str, selector: int, rest: int = 0) -> np.ndarray:
    """The metadata of each lane; lanes that give none have `rest`."""
    fields = np.uint8([0x4, 0xE])[positions] if shape.position_bits == 4 else positions
    name = shape.metadata(type, selector)
    words = registers(fields, name)[:, 0]
    words[np.tile((fragment(name).elements[0] < 0).all(axis=1), len(positions))] = rest
    return words


def run(
    opcode: str, shape: SparseShape, names: tuple[str, str, str], operands: Any, selector: int, **how: Any
) -> np.ndarray:
    a, b, c, words = operands
    held = [registers(matrix, name) for matrix, name in zip((a, b.swapaxes(1, 2), c), names, strict=True)]
    d = np.zeros_like(held[2])
    text = kernel(opcode, tuple(each.shape[1] for each in held), selector, how.pop("target", "sm_90a"))
    ptx.load(text).launch("k", (1,), (len(words),), [*held, words, d], **how)
    return matrix_of(d, names[2], c.dtype)


def names_of(shape: SparseShape, d: str, a: str, b: str) -> tuple[str, str, str]:
    refined = f".{d}" if d != shape.accumulators[0] else ""
    return f"{shape.stem}.{a}.a", f"{shape.stem}.{b}.b", f"{shape.stem}.{a}.c{refined}"


@pytest.mark.parametrize(("shape", "d", "a_type", "b_type"), KINDS, ids=str)
def test_a_product_of_every_type(shape: SparseShape, d: str, a_type: str, b_type: str) -> None:
    """Every selector; positions in any order, and rising ones; lanes that give no metadata have what no instruction takes."""
    generator = np.random.default_rng(shape.k + len(a_type))
    b = generator.integers(0, element_named(b_type).code_limit, (WARPS, 8, shape.k), np.uint64)
    b = b.astype(element_named(b_type).code_dtype)
    c = generator.integers(-100, 100, (WARPS, 16, 8)).astype(DTYPES[d])
    bits = np.uint16 if d == "f16" else np.uint32
    for selector in shape.selectors:
        for sparse in ("sp", "sp::ordered_metadata"):
            a, positions = stored(generator, a_type, WARPS, 16, shape.k // 2, rising=sparse != "sp")
            words = words_of(positions, shape, a_type, selector, rest=0xFFFFFFFF)
            names = names_of(shape, d, a_type, b_type)
            opcode = opcode_of(shape, d, a_type, b_type, sparse)
            got = run(opcode, shape, names, (a, b, c.view(bits), words), selector)
            how: dict[str, Any] = {"a_format": a_type, "b_format": b_type, "d_format": d, "k": shape.k}
            want = numerics.mma(a, b, c, unit="mma.sync", metadata=positions, **how)
            np.testing.assert_array_equal(got, want.view(bits))


def test_a_sum_of_integers_is_clamped() -> None:
    shape = next(shape for shape in SPARSE_SHAPES if shape.types == ("s8", "u8"))
    a, positions = np.full((1, 16, 16), 127, np.uint8), np.tile(np.uint8([1, 3]), (1, 16, 8))
    b, c = np.full((1, 8, 32), 255, np.uint8), np.full((1, 16, 8), 2**31 - 1, np.uint32)
    words, names = words_of(positions, shape, "s8", 1), names_of(shape, "s32", "s8", "u8")
    clamped = run(opcode_of(shape, "s32", "s8", "u8", saturates=".satfinite"), shape, names, (a, b, c, words), 1)
    assert (clamped == 2**31 - 1).all()
    wrapped = run(opcode_of(shape, "s32", "s8", "u8"), shape, names, (a, b, c, words), 1)
    assert (wrapped.view(np.int32) == 127 * 255 * 16 - 2**31 - 1).all()


def test_exact_sums_are_those_of_the_whole_matrix() -> None:
    shape = SPARSE_SHAPES[2]
    generator = np.random.default_rng(2)
    a, positions = stored(generator, "f16", 1, 16, 16, rising=True)
    a = generator.normal(size=a.shape).astype(np.float16).view(np.uint16)
    b = generator.normal(size=(1, 8, 32)).astype(np.float16).view(np.uint16)
    c = np.zeros((1, 16, 8), np.uint32)
    operands = a, b, c, words_of(positions, shape, "f16", 0)
    got = run(
        opcode_of(shape, "f32", "f16", "f16"),
        shape,
        names_of(shape, "f32", "f16", "f16"),
        operands,
        0,
        arithmetic="exact",
    )
    whole = numerics.decompress(a, positions, "f16")
    want = numerics.exact_product(whole, b, a_format="f16", b_format="f16")
    np.testing.assert_array_equal(got.view(np.float32), want)


@pytest.mark.parametrize(
    ("types", "sparse", "lane", "word", "what"),
    [
        ("f16", "sp", 5, 0x44445444, "row 1, stored column 14 on is 0b0101: it names one element twice"),
        (
            "f16",
            "sp::ordered_metadata",
            4,
            0x44444414,
            "row 1, stored column 2 on is 0b0001: it names its elements in falling",
        ),
        (
            "f16",
            "sp::ordered_metadata",
            4,
            0x14444444,
            "row 9, stored column 6 on is 0b0001: it names its elements in falling",
        ),
        ("tf32", "sp", 1, 0x44444474, "row 0, stored column 5 on is 0b0111: it is neither 0b0100 nor 0b1110"),
        ("s8", "sp", 1, 0x4444444F, "row 8, stored column 0 on is 0b1111: it names one element twice"),
    ],
)
def test_metadata_that_no_instruction_takes_is_a_fault(
    types: str, sparse: str, lane: int, word: int, what: str
) -> None:
    shape = {"f16": SPARSE_SHAPES[2], "tf32": SPARSE_SHAPES[5], "s8": SPARSE_SHAPES[6]}[types]
    d = shape.accumulators[0]
    row = element_named(types)
    a, b = (np.zeros((1, *extent), row.code_dtype) for extent in ((16, shape.k // 2), (8, shape.k)))
    words = np.full(32, 0x44444444, np.uint32)
    words[lane] = word
    operands = a, b, np.zeros((1, 16, 8), np.uint32), words
    with pytest.raises(RefsimError, match=what) as caught:
        run(opcode_of(shape, d, types, types, sparse), shape, names_of(shape, d, types, types), operands, 0)
    assert caught.value.code == "invalid-operand"
    assert f"thread ({lane}, 0, 0)" in str(caught.value)
    if sparse != "sp":  # the order of positions is free without it
        run(opcode_of(shape, d, types, types), shape, names_of(shape, d, types, types), operands, 0)


def test_a_selector_that_the_shape_has_not_is_a_fault() -> None:
    shape = SPARSE_SHAPES[2]
    operands = *(np.zeros((1, *extent), np.uint16) for extent in ((16, 16), (8, 32))), np.zeros((1, 16, 8), np.uint32)
    words = np.full(32, 0x44444444, np.uint32)
    with pytest.raises(RefsimError, match="the sparsity selector is 2") as caught:
        run(opcode_of(shape, "f32", "f16", "f16"), shape, names_of(shape, "f32", "f16", "f16"), (*operands, words), 2)
    assert caught.value.code == "invalid-operand"


UNDEFINED = """
.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 pd) {{
.shared .align 4 .b32 nothing;
.reg .b32 %lane, %e, %at, %a<4>, %b<4>; .reg .f32 %c<4>; .reg .b64 %d, %address; .reg .pred %p;
mov.u32 %lane, %tid.x; ld.param.u64 %d, [pd];
mov.b32 %a0, 0; mov.b32 %a1, 0; mov.b32 %a2, 0; mov.b32 %a3, 0;
mov.b32 %b0, 0; mov.b32 %b1, 0; mov.b32 %b2, 0; mov.b32 %b3, 0;
mov.f32 %c0, 0f00000000; mov.f32 %c1, 0f00000000; mov.f32 %c2, 0f00000000; mov.f32 %c3, 0f00000000;
mov.b32 %e, {metadata};
setp.eq.u32 %p, %lane, {lane}; mov.u32 %at, nothing;
@%p ld.shared.b32 %{register}, [%at];
mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {{%c0, %c1, %c2, %c3}}, {{%a0, %a1, %a2, %a3}},
  {{%b0, %b1, %b2, %b3}}, {{%c0, %c1, %c2, %c3}}, %e, 0;
mad.wide.u32 %address, %lane, 16, %d;
setp.{stores} %p, %lane, {row};
@%p st.global.v4.f32 [%address], {{%c0, %c1, %c2, %c3}};
ret;
}}
"""


@pytest.mark.parametrize(
    ("register", "lane", "metadata", "stores", "reached"),
    [
        # lane 1 has k 2 and 3 of B's column 0: rows that store elements 0 and 1 of each group meet neither
        ("b0", 1, "0x44444444", "ge.u32", None),
        ("b0", 1, "0xEEEEEEEE", "ge.u32", "an output"),
        ("b0", 0, "0xEEEEEEEE", "ge.u32", None),
        # rows 0 and 8 are those of the lanes 0 to 3: others do not see an element of A, which stands in row 0
        ("a0", 0, "0x44444444", "gt.u32", None),
        ("a0", 0, "0x44444444", "le.u32", "an output"),
        ("c0", 0, "0x44444444", "le.u32", "an output"),
        # with selector 0 the lanes 0 and 1 of each four give the metadata
        ("e", 1, "0x44444444", "ge.u32", "the metadata of a sparse product"),
        ("e", 2, "0x44444444", "ge.u32", None),
    ],
)
def test_undefined_bits_go_where_they_matter(
    register: str, lane: int, metadata: str, stores: str, reached: str | None
) -> None:
    row = 0 if stores == "ge.u32" else 3
    text = UNDEFINED.format(register=register, lane=lane, metadata=metadata, stores=stores, row=row)
    out = np.zeros((32, 4), np.float32)
    if reached is None:
        trace = ptx.load(text).launch("k", (1,), (32,), [out])
        assert trace.findings == ()
        assert [note.code for note in trace.notes] == ["uninitialised-unused"]
    else:
        with pytest.raises(RefsimError, match=reached) as caught:
            ptx.load(text).launch("k", (1,), (32,), [out])
        assert caught.value.code == "uninitialised"


def test_a_warp_in_parts_is_a_fault() -> None:
    shape = SPARSE_SHAPES[2]
    text = kernel(opcode_of(shape, "f32", "f16", "f16"), (4, 4, 4), 0)
    words = np.zeros(32, np.uint32)
    with pytest.raises(RefsimError) as caught:
        ptx.load(text).launch("k", (1,), (16,), [*(np.zeros((32, 4), np.uint32) for _ in "abc"), words, words])
    assert caught.value.code == "divergent-sync"

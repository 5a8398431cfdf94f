"""Laws of ldmatrix, stmatrix and mma.sync: fragments by `refsim.layouts`, element by element, sums by `refsim.numerics`."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim import layouts, numerics, ptx
from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.formats import float_named
from refsim.numerics import UnverifiedProfileWarning
from refsim.numerics.dot.definition import dot_product
from refsim.numerics.profiles import profile
from refsim.ptx.isa import fragments, products
from refsim.ptx.isa.forms import Bound, clauses
from refsim.ptx.isa.instances import instances
from refsim.reference import single_instruction
from refsim.reference.instructions import words
from refsim.reference.rational_float import GRIDS, ExactNumber, add, mul
from refsim.testing.strategies import share

WARPS = 2
LANES = 32 * WARPS
SCHEDULES = [("eager", 0), ("random", 1)]
COUNTS, TRANS = (1, 2, 4), ("", ".trans")
SUFFIXES = [(count, trans) for count in COUNTS for trans in TRANS]
CODES = {"f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32, "f64": np.uint64}
VALUES = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "s32": np.int32}


def row_addresses(raw: np.ndarray, pool: int) -> np.ndarray:
    return raw % np.uint64(pool // 16) * np.uint64(16)


@pytest.mark.parametrize(("count", "trans"), SUFFIXES)
@pytest.mark.parametrize("space", ["shared", "shared::cta"])
@share(1 / 3)
@given(raw=words(128), places=words(LANES), schedule=st.sampled_from(SCHEDULES))
def test_ldmatrix_gives_each_lane_what_its_fragment_says(
    space: str, count: int, trans: str, raw: np.ndarray, places: np.ndarray, schedule: tuple[str, int]
) -> None:
    """Row i of a warp is the 16 bytes at lane i's address; other lanes' addresses may be anything."""
    fragment = layouts.fragment(f"ldmatrix.m8n8.x{count}.b16{trans}")
    pool, at = raw.view(np.uint8), row_addresses(places, 1024)
    unread = np.arange(LANES) % 32 >= 8 * count
    at[unread] += np.uint64(7)
    opcode = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.{space}.b16"
    got = single_instruction.run(opcode, at, pool=pool, policy=schedule[0], seed=schedule[1]).results
    rows, cols = fragment.elements
    start = at.reshape(WARPS, 32)[:, rows] // np.uint64(2)
    want = pool.view(np.uint16)[start + cols.astype(np.uint64)].reshape(LANES, 2 * count)
    words = np.stack(got, axis=1).astype(np.uint64)
    for value in range(2 * count):
        assert np.array_equal(words[:, value // 2] >> np.uint64(16 * (value % 2)) & np.uint64(0xFFFF), want[:, value])


@pytest.mark.parametrize(("count", "trans"), SUFFIXES)
@share(1 / 3)
@given(raw=words(128), values=words(LANES), shift=st.integers(0, 63))
def test_stmatrix_writes_the_rows_of_its_fragment_and_nothing_else(
    count: int, trans: str, raw: np.ndarray, values: np.ndarray, shift: int
) -> None:
    fragment = layouts.fragment(f"stmatrix.m8n8.x{count}.b16{trans}")
    pool = raw.view(np.uint8)
    at = np.roll(np.arange(LANES, dtype=np.uint64) * np.uint64(16), shift)
    held = [np.roll(values, place).astype(np.uint32) for place in range(count)]
    got = single_instruction.run(f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16", at, *held, pool=pool).pool
    want = pool.copy()
    for lane in range(LANES):
        for value in range(2 * count):
            row, col = fragment.coord(lane % 32, value)
            start = int(at[lane - lane % 32 + int(row)]) + 2 * int(col)
            code = int(held[value // 2][lane]) >> (16 * (value % 2)) & 0xFFFF
            want[start : start + 2] = np.frombuffer(code.to_bytes(2, "little"), np.uint8)
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    "opcode", ["ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix.sync.aligned.x4.m8n8.shared.b16"]
)
def test_a_row_must_be_aligned_to_its_16_bytes(opcode: str) -> None:
    at = np.arange(32, dtype=np.uint64) * np.uint64(16)
    at[9] += np.uint64(8)
    with pytest.raises(RefsimError) as caught:
        single_instruction.run(opcode, at, pool=np.zeros(1024, np.uint8))
    assert caught.value.code == "misaligned"
    assert "thread (9, 0, 0)" in str(caught.value)


@pytest.mark.parametrize("lanes", [16, 40])
def test_part_of_a_warp_is_a_fault(lanes: int) -> None:
    with pytest.raises(RefsimError) as caught:
        single_instruction.run(
            "ldmatrix.sync.aligned.m8n8.x1.shared.b16", np.zeros(lanes, np.uint64), pool=np.zeros(1024, np.uint8)
        )
    assert caught.value.code == "divergent-sync"


# ---- mma.sync, but for products of narrow types by kind and of blocks with scales: tests/ptx/test_block_scale.py
MMA = {
    bound.opcode: bound
    for clause in clauses()
    if clause.mnemonic == "mma" and "sparse" not in clause.flags
    for bound in instances(clause)
    if "kind::" not in bound.opcode
}


def formats(bound: Bound) -> tuple[str, str, str, str]:
    """Shape, the formats of A and B, and of C and D: m16n8k16, bf16, bf16, f32."""
    parts = [
        word for word in bound.opcode.split(".") if word not in ("mma", "sync", "aligned", "row", "col", "satfinite")
    ]
    return parts[0], parts[2], parts[3], parts[1]


def name_of(bound: Bound, operand: str) -> str:
    """The fragment of an operand: accumulators other than the first of a shape have their type behind them."""
    shape, a, b, d = formats(bound)
    stem = f"mma.{shape}.{b if operand == 'b' else a}.{operand}"
    return f"{stem}.f16" if operand in "cd" and d == "f16" else stem


def held(fragment: layouts.Fragment, matrix: np.ndarray) -> list[np.ndarray]:
    """The registers that hold a matrix of codes (warps, rows, cols): one array of lanes each."""
    per, dtype = fragment.per_register, np.dtype(f"u{fragment.register_bits // 8}")
    rows, cols = fragment.elements
    codes = matrix[:, rows, cols].astype(dtype).reshape(32 * len(matrix), fragment.registers, per)
    shifts = (fragment.slot_bits * np.arange(per)).astype(dtype)
    return list(np.bitwise_or.reduce(codes << shifts, axis=2).T)


def codes_of(name: str, shape: tuple[int, ...], draw: np.random.Generator, narrow: bool) -> np.ndarray:
    """Codes: any at all, or finite ones whose exponents lie close together."""
    dtype = np.dtype(CODES.get(name, np.uint8))
    codes = draw.integers(0, 1 << 64, shape, dtype=np.uint64)
    if not narrow or name in ("s8", "u8"):
        return codes.astype(dtype)
    format = float_named(name)
    field = np.uint64(format.bias - 2) + (codes >> np.uint64(60)) % np.uint64(4)
    fraction = codes % np.uint64(1 << format.mantissa_bits)
    sign = (codes >> np.uint64(63)) * np.uint64(format.sign_mask >> format.padding_bits)
    word = sign | field << np.uint64(format.mantissa_bits) | fraction
    return (word << np.uint64(format.padding_bits)).astype(dtype)


def accumulators(name: str, shape: tuple[int, ...], draw: np.random.Generator, narrow: bool) -> np.ndarray:
    if name == "s32" or not narrow:
        itemsize = np.dtype(VALUES[name]).itemsize
        return draw.integers(0, 1 << 64, shape, dtype=np.uint64).astype(f"u{itemsize}").view(VALUES[name])
    return draw.integers(-32, 32, shape).astype(VALUES[name])


def problem(bound: Bound, seed: int, narrow: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    _, a, b, d = formats(bound)
    (m, k), (_, n) = layouts.fragment(name_of(bound, "a")).shape, layouts.fragment(name_of(bound, "b")).shape
    draw = np.random.default_rng(seed)
    left, right = codes_of(a, (WARPS, m, k), draw, narrow), codes_of(b, (WARPS, n, k), draw, narrow)
    return left, right, accumulators(d, (WARPS, m, n), draw, narrow)


def executed(bound: Bound, left: np.ndarray, right: np.ndarray, c: np.ndarray, **options: Any) -> np.ndarray:
    """D (warps, M, N) of the instruction, read from the registers of its fragment."""
    a, b, d = (layouts.fragment(name_of(bound, operand)) for operand in "abd")
    unsigned = c.view(f"u{c.dtype.itemsize}")
    sources = [*held(a, left), *held(b, right.swapaxes(1, 2)), *held(d, unsigned)]
    registers = single_instruction.run(bound.opcode, *sources, **options).results
    rows, cols = d.elements
    value = np.arange(d.values)
    words = np.stack(registers, axis=1).reshape(WARPS, 32, d.registers)[:, :, value // d.per_register]
    shifts = (d.slot_bits * (value % d.per_register)).astype(words.dtype)
    got = np.zeros_like(unsigned)
    got[:, rows, cols] = words >> shifts & words.dtype.type((1 << d.slot_bits) - 1)
    return got


def places(seed: int, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Four elements of the result, whose definition is slow."""
    draw = np.random.default_rng(seed)
    return [tuple(draw.integers(0, shape).tolist()) for _ in range(4)]


def chip_code(left: np.ndarray, right: np.ndarray, c: int, types: tuple[str, str, str], target: str) -> int:
    """One element as the chip's row has it, over Python integers."""
    a, b, d = types
    row = profile(target, "mma.sync", a, b, d)
    return dot_product(left.tolist(), right.tolist(), c, row, len(left), a_format=a, b_format=b).result


def exact_code(left: np.ndarray, right: np.ndarray, c: int, types: tuple[str, str, str]) -> int:
    """One element summed exactly and rounded once, over fractions; an exact zero is +0."""
    a, b, d = types
    total = GRIDS[d].decode(c)
    for pair in zip(decode(left, a).tolist(), decode(right, b).tolist(), strict=True):
        total = add(total, mul(*map(number, pair)))
    return GRIDS[d].encode(total if total.magnitude else ExactNumber(False, Fraction(0)))


def number(value: float) -> ExactNumber:
    return ExactNumber(math.copysign(1, value) < 0, Fraction(abs(value)) if math.isfinite(value) else abs(value))


def assert_defined(
    got: np.ndarray, operands: tuple[np.ndarray, ...], types: tuple[str, str, str], target: str, seed: int
):
    """Some elements of a result have the bits of the definition; without a target those of the exact sum."""
    left, right, c = operands
    bits, given = (each.view(f"u{each.dtype.itemsize}") for each in (got, c))
    for warp, m, n in places(seed, c.shape):
        sides = left[warp, m], right[warp, n], int(given[warp, m, n]), types
        assert bits[warp, m, n] == (chip_code(*sides, target) if target else exact_code(*sides)), (warp, m, n)


@pytest.mark.parametrize("opcode", sorted(MMA))
@share(1 / 12)
@given(seed=st.integers(0, 1 << 32), narrow=st.booleans())
def test_mma_multiplies_the_matrices_of_its_fragments_as_the_chip_does(opcode: str, seed: int, narrow: bool) -> None:
    bound = MMA[opcode]
    _, a, b, d = formats(bound)
    left, right, c = problem(bound, seed, narrow)
    got = executed(bound, left, right, c)
    if d == "s32":
        want = integers(left, right, c, a, b, satfinite="satfinite" in opcode)
    else:
        target = "sm_80" if bound.since in ("sm_75", "sm_80") else "sm_90a"
        target = "sm_75" if bound.since == "sm_75" else target
        want = numerics.mma(
            left, right, c, unit="mma.sync", a_format=a, b_format=b, d_format=d, target=target, k=left.shape[-1]
        )
        assert_defined(got, (left, right, c), (a, b, d), target, seed)
    assert np.array_equal(got, want.view(got.dtype))


def integers(left: np.ndarray, right: np.ndarray, c: np.ndarray, a: str, b: str, *, satfinite: bool) -> np.ndarray:
    """Python integers, wrapped or clamped."""
    wide = [(codes.view(np.int8) if name == "s8" else codes).astype(object) for codes, name in ((left, a), (right, b))]
    total = np.einsum("wmk,wnk->wmn", *wide) + c.astype(object)
    low, high = -(1 << 31), (1 << 31) - 1
    settle = (lambda x: min(max(x, low), high)) if satfinite else (lambda x: (x - low) % (1 << 32) + low)
    return np.vectorize(settle, otypes=[np.int64])(total).astype(np.int32)


def test_satfinite_clamps_where_the_plain_form_wraps() -> None:
    opcode = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
    left, right = np.full((WARPS, 16, 32), 127, np.uint8), np.full((WARPS, 8, 32), 127, np.uint8)
    c = np.full((WARPS, 16, 8), (1 << 31) - 1, np.int32)
    assert (executed(MMA[opcode], left, right, c).view(np.int32) < 0).all()
    clamped = executed(MMA[opcode.replace(".s32.s8", ".satfinite.s32.s8", 1)], left, right, c)
    assert (clamped.view(np.int32) == (1 << 31) - 1).all()
    low = executed(MMA[opcode.replace(".s32.s8", ".satfinite.s32.s8", 1)], left, right | np.uint8(0x80), ~c)
    assert (low.view(np.int32) == -(1 << 31)).all()


KINDS = [
    ("bf16", "bf16", "f32", 16),
    ("f16", "f16", "f32", 16),
    ("f16", "f16", "f16", 16),
    ("tf32", "tf32", "f32", 8),
    ("e4m3", "e5m2", "f32", 32),
    ("e5m2", "e4m3", "f16", 16),
]


@pytest.mark.parametrize(("a", "b", "d", "k"), KINDS)
@share(1 / 2)
@given(seed=st.integers(0, 1 << 32), spread=st.sampled_from(["any", "narrow", "zeros", "ties", "cancelling"]))
def test_exact_arithmetic_is_the_exact_sum_rounded_once(a: str, b: str, d: str, k: int, seed: int, spread: str) -> None:
    """float64 and its proofs against the definition over Python integers; a tie is where one error would show."""
    draw = np.random.default_rng(seed)
    left, right = (codes_of(name, (3, rows, k), draw, spread != "any") for name, rows in ((a, 16), (b, 8)))
    c = accumulators(d, (3, 16, 8), draw, spread != "any")
    if spread == "zeros":
        left = np.where(draw.random(left.shape) < 0.7, 0, left).astype(left.dtype)
    elif spread == "ties":
        c = (c.astype(np.float64) * 2.0 ** {"f32": 17, "f16": 5}[d]).astype(VALUES[d])
    elif spread == "cancelling":
        left[..., 1::2], right[..., 1::2] = left[..., ::2], right[..., ::2]
        right[..., 1::2] ^= right.dtype.type(1 << (8 * right.dtype.itemsize - 1))
    with np.errstate(all="ignore"):
        got = products.exact(left, right, c, products.mma_kind(a, b, d))
    assert_defined(got, (left, right, c), (a, b, d), "", seed)
    want = numerics.exact_product(left, right, c, a_format=a, b_format=b, d_format=d)
    assert np.array_equal(got.view(f"u{c.dtype.itemsize}"), want.view(f"u{c.dtype.itemsize}"))


@pytest.mark.parametrize("opcode", [opcode for opcode in sorted(MMA) if formats(MMA[opcode])[3] in ("f32", "f16")])
@share(1 / 12)
@given(seed=st.integers(0, 1 << 32), finite=st.booleans())
def test_rows_of_zeros_change_nothing_but_the_time(opcode: str, seed: int, finite: bool) -> None:
    """Zeros of both signs in A, +0 or -0 in C, NaN and infinities in B: the bits of the whole matrices, as the definition
    has them: four elements of each."""
    bound = MMA[opcode]
    _, a, b, d = formats(bound)
    left, right, c = problem(bound, seed, narrow=finite)
    draw = np.random.default_rng(seed)
    empty = draw.random(left.shape[1]) < 0.8
    sign = left.dtype.type(1 << (8 * left.dtype.itemsize - 1))
    left[:, empty] = np.where(draw.random(left[:, empty].shape) < 0.5, sign, left.dtype.type(0))
    c[:, empty] = np.where(draw.random(c[:, empty].shape) < 0.02, c.dtype.type(-0.0), c.dtype.type(0))
    target = "sm_90a" if bound.since == "sm_89" else "sm_80"
    with np.errstate(all="ignore"):
        for arithmetic in products.ARITHMETICS:
            kind = products.mma_kind(a, b, d)
            got = products.multiply(left, right, c, kind, left.shape[-1], target, arithmetic)
            assert_defined(got, (left, right, c), (a, b, d), "" if arithmetic == "exact" else target, seed)


def test_the_target_decides_the_arithmetic_of_fp8() -> None:
    """sm_89 cuts products 13 bits below C, so that 2^14 + 32 x 2^-4 stays 2^14; sm_90 adds C to the sum of products."""
    text = """.version 9.0
.target {target}
.address_size 64
.entry k(.param .u64 out) {{
    .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %d<3>;
    mov.b32 %r1, 0x38383838; mov.b32 %r2, 0x18181818; mov.f32 %f0, 0f46800000;
    mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {{%f0, %f1, %f2, %f3}}, {{%r1, %r1, %r1, %r1}}, {{%r2, %r2}},
        {{%f0, %f0, %f0, %f0}};
    ld.param.u64 %d1, [out]; mov.u32 %r3, %tid.x; mad.wide.u32 %d1, %r3, 4, %d1; st.global.f32 [%d1], %f0; ret;
}}
"""
    found = {}
    for target in ("sm_89", "sm_90a"):
        out = np.zeros(32, np.float32)
        ptx.load(text.format(target=target)).launch("k", (1,), (32,), [out])
        found[target] = set(out.tolist())
    assert found == {"sm_89": {16384.0}, "sm_90a": {16386.0}}


@pytest.mark.parametrize(("target", "refused"), [("sm_80", True), ("sm_89", False)])
def test_a_form_is_refused_before_its_first_target(target: str, refused: bool) -> None:
    body = """.reg .b32 %r<4>; .reg .f32 %f<4>; mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0, %f1, %f2, %f3},
        {%r0, %r1, %r2, %r3}, {%r0, %r1}, {%f0, %f1, %f2, %f3}; ret;"""
    program = ptx.load(f".version 9.0\n.target {target}\n.address_size 64\n.entry k() {{\n{body}\n}}\n")
    if refused:
        with pytest.raises(RefsimError, match="exists from sm_89 on") as caught:
            program.launch("k", (1,), (32,), [])
        assert caught.value.code == "wrong-target"
    else:
        program.launch("k", (1,), (32,), [])


def test_a_target_whose_sums_are_not_known_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    body = """.reg .b32 %r<4>; .reg .f32 %f<4>; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3},
        {%r0, %r1, %r2, %r3}, {%r0, %r1}, {%f0, %f1, %f2, %f3}; ret;"""
    program = ptx.load(f".version 9.0\n.target sm_103a\n.address_size 64\n.entry k() {{\n{body}\n}}\n")
    with pytest.warns(UnverifiedProfileWarning, match="nothing is published of sm_103"):
        program.launch("k", (1,), (32,), [])

    def without_a_row(*arguments: Any) -> Any:
        if arguments[-1] == "exact":
            return multiply(*arguments)
        raise RefsimError("unknown-arithmetic", "no row")

    multiply = fragments.multiply_in_turn
    monkeypatch.setattr(fragments, "multiply_in_turn", without_a_row)
    with pytest.raises(RefsimError, match="sm_103a") as caught:
        program.launch("k", (1,), (32,), [])
    assert (caught.value.code, caught.value.exit_code) == ("unknown-arithmetic", 5)
    assert "exact" in caught.value.help
    assert program.launch("k", (1,), (32,), [], arithmetic="exact").idealised

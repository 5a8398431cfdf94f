"""The interface to the probe kernels: rows, packing into registers and shared memory, refusals."""

import re
from dataclasses import dataclass, field

import numpy as np
import pytest

from refsim import numerics
from refsim.bringup.tensor_cores import (
    ACCUMULATE,
    KERNEL_FILE,
    NEGATE_A,
    NEGATE_B,
    instruction_named,
    instructions,
    products,
)
from refsim.device.compile import compile_ptx
from refsim.errors import RefsimError
from refsim.formats import E4M3, F64, TF32, U8
from refsim.kernels import Buffer
from refsim.layouts.descriptors import descriptor, walk
from refsim.layouts.families import fragment

HOPPER = {row.name: row for row in instructions("sm_90a")}


@dataclass
class ModelLauncher:
    """Runs an entry on the model: places are read one by one, B of wgmma through its descriptor."""

    target: str = "sm_90a"
    arrays: list = field(default_factory=list)
    launches: list = field(default_factory=list)

    def upload(self, array, *, name):
        self.arrays.append(np.ascontiguousarray(array).reshape(-1))
        return Buffer(name, len(self.arrays) - 1, self.arrays[-1].size, self.arrays[-1].dtype)

    def output(self, count, dtype, *, name):
        return self.upload(np.full(count, 0xA5, dtype), name=name)

    def read(self, buffer):
        return self.arrays[buffer.address]

    def launch(self, entry, grid, block, args):
        self.launches.append((entry, grid, block))
        row = next(row for row in HOPPER.values() if row.entry == entry)
        a, b, c, d = (self.arrays[argument.address] for argument in args[:4])
        steps, flags = (args[5], args[6]) if row.unit == "wgmma" else (args[4], ACCUMULATE)
        place = np.ndindex(grid[0], int(steps))
        x, y = (np.zeros((grid[0], steps, size, row.k), np.uint64) for size in (row.m, row.n))
        for at in place:
            number = at[0] * int(steps) + at[1]
            x[at] = elements(row.fragment("a"), a, number)
            if row.unit == "wgmma":
                y[at] = in_shared(row, b, int(args[4]), number)
            else:
                y[at] = elements(row.fragment("b"), b, number).T
        x, y = (array.swapaxes(1, 2).reshape(grid[0], size, -1) for array, size in ((x, row.m), (y, row.n)))
        z = [elements(row.fragment("d"), c, number) for number in range(grid[0])] if flags & ACCUMULATE else None
        kind = row.d_format.array_dtype
        signs = {"negate_a": True} if flags & NEGATE_A else {}
        signs |= {"negate_b": True} if flags & NEGATE_B else {}
        result = numerics.mma(
            x.astype(row.a_format.code_dtype),
            y.astype(row.b_format.code_dtype),
            None if z is None else np.array(z).astype(f"u{np.dtype(kind).itemsize}").view(kind),
            unit=row.unit,
            a_format=row.a_format,
            b_format=row.b_format,
            d_format=row.d_format,
            target="sm_90a",
            k=row.k,
            **signs,
        )
        layout = row.fragment("d")
        for number, matrix in enumerate(result.view(f"u{result.itemsize}")):
            put(layout, d, number, matrix)


def where(layout, thread, value, number):
    """The register of a value in an image of many fragments, and the lowest bit of its slot."""
    register = (number * layout.threads + thread) * layout.registers + value // layout.per_register
    return register, value % layout.per_register * layout.slot_bits


def elements(layout, image, number):
    """The matrix that fragment `number` of an image holds, read place by place."""
    matrix = np.zeros(layout.shape, np.uint64)
    for thread in range(layout.threads):
        for value in range(layout.values):
            register, bit = where(layout, thread, value, number)
            row, col = layout.coord(thread, value)
            matrix[int(row), int(col)] = (int(image[register]) >> bit) & ((1 << layout.slot_bits) - 1)
    return matrix


def put(layout, image, number, matrix):
    for thread in range(layout.threads):
        for register in range(layout.registers):
            image[(number * layout.threads + thread) * layout.registers + register] = 0
        for value in range(layout.values):
            register, bit = where(layout, thread, value, number)
            row, col = layout.coord(thread, value)
            image[register] |= image.dtype.type(int(matrix[int(row), int(col)]) << bit)


def in_shared(row, image, word, number):
    """B as the descriptor finds it in the bytes of a tile."""
    tile = image[number * row.n * 8 : (number + 1) * row.n * 8].view(np.uint8)
    places = walk(descriptor("wgmma-smem"), word, f"wgmma.m64n{row.n}k{row.k}.{row.b_format}.b", major="K").bits
    dtype = row.b_format.code_dtype
    return tile.view(dtype)[places.reshape(row.n, row.k) // (8 * dtype.itemsize)]


def codes(shape, format, seed):
    """Small integers as codes, so that every sum is exact and order does not matter."""
    numbers = np.random.default_rng(seed).integers(0 if format is U8 else -2, 3, shape)
    if format.is_integer:
        return numbers.astype(np.int8).view(np.uint8)
    if format in (F64, TF32):
        kind = np.float64 if format is F64 else np.float32
        return numbers.astype(kind).view(format.code_dtype)
    from refsim import encode

    return encode(numbers.astype(np.float64), format)


ONE_EACH = [
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16",
    "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32",
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32",
    "mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32",
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
    "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16",
    "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32",
    "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e4m3",
    "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8",
]


FROM_NOTHING = pytest.mark.ci("what is multiplied into C is packed in every run; without C it is packed the same way")


@pytest.mark.parametrize(
    ("accumulated", "name"),
    [
        *((True, name) for name in ONE_EACH),
        *(
            pytest.param(False, name, marks=() if place in (0, 7) else FROM_NOTHING)
            for place, name in enumerate(ONE_EACH)
        ),
    ],
)
def test_packing_puts_every_code_where_the_instruction_reads_it(name, accumulated):
    row = instruction_named(name)
    a, b = codes((2, row.m, 2 * row.k), row.a_format, 1), codes((2, row.n, 2 * row.k), row.b_format, 2)
    kind = row.d_format.array_dtype
    c = np.random.default_rng(3).integers(-9, 9, (2, row.m, row.n)).astype(kind).view(f"u{np.dtype(kind).itemsize}")
    launcher = ModelLauncher()
    got = products(launcher, row, a, b, c if accumulated else None)
    want = numerics.mma(
        a,
        b,
        c.view(kind) if accumulated else None,
        unit=row.unit,
        a_format=row.a_format,
        b_format=row.b_format,
        d_format=row.d_format,
        target="sm_90a",
        k=row.k,
    )
    assert got.dtype == want.view(got.dtype).dtype
    assert np.array_equal(got, want.view(got.dtype))
    assert np.unique(got).size > 8
    assert launcher.launches == [(row.entry, (2,), (row.threads,))]


def test_negated_operands_turn_the_sign():
    row = instruction_named("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3")
    a, b = codes((1, 64, 32), E4M3, 1), codes((1, 8, 32), E4M3, 2)
    plain = products(ModelLauncher(), row, a, b).view(np.float32)
    for flags, sign in (((True, False), -1), ((False, True), -1), ((True, True), 1)):
        got = products(ModelLauncher(), row, a, b, negate_a=flags[0], negate_b=flags[1]).view(np.float32)
        assert np.array_equal(got, sign * plain)


def test_fp4_stands_in_bits_5_to_2_of_its_byte():
    row = instruction_named("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e3m2.f32")
    a = np.arange(16 * 32, dtype=np.uint8).reshape(1, 16, 32) & 15
    assert row.fragment("a").packed(a)[0, 0, 0] == 0x0C080400  # A[0, 0:4] = 0, 1, 2, 3
    b = np.arange(8 * 32, dtype=np.uint8).reshape(1, 8, 32) & 63
    assert row.fragment("b").packed(b.swapaxes(1, 2))[0, 0, 0] == 0x03020100


def test_unpacked_is_the_inverse():
    layout = fragment("mma.m16n8k16.f16.d.f16")
    matrices = np.arange(3 * 16 * 8, dtype=np.uint16).reshape(3, 16, 8)
    assert np.array_equal(layout.unpacked(layout.packed(matrices), np.dtype(np.uint16)), matrices)


LATER = pytest.mark.ci("the oldest target is compiled for in every run")


@pytest.mark.parametrize(
    "target", ["sm_80", *(pytest.param(name, marks=LATER) for name in ("sm_89", "sm_90a", "sm_100a"))]
)
def test_the_probe_file_holds_the_entries_of_a_target(target):
    text = compile_ptx(KERNEL_FILE, target).text
    rows = instructions(target)
    assert sorted(re.findall(r"\.visible \.entry (\w+)\(", text)) == sorted(row.entry for row in rows)
    assert [row.name for row in rows if f"{row.name} " not in text] == []


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a"])
def test_every_instruction_has_arithmetic_and_fragments(target):
    rows = instructions(target)
    assert len({row.name for row in rows}) == len({row.entry for row in rows}) == len(rows)
    for row in rows:
        assert row.k in row.profile(target).k
        assert row.fragment("a").shape == (row.m, row.k)
        assert row.fragment("d").shape == (row.m, row.n)


def test_wgmma_belongs_to_sm_90a_alone():
    assert any(row.unit == "wgmma" for row in instructions("sm_90a"))
    assert {row.unit for target in ("sm_90", "sm_100a") for row in instructions(target)} == {"mma.sync"}


FP8 = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"


@pytest.mark.parametrize(
    ("code", "a", "b", "c", "negate"),
    [
        ("bad-shape", (1, 16, 16), (1, 8, 16), None, False),
        ("bad-shape", (16, 32), (8, 32), None, False),
        ("bad-shape", (1, 16, 32), (2, 8, 32), None, False),
        ("bad-shape", (1, 16, 32), (1, 8, 32), (1, 8, 16), False),
        ("bad-modifier", (1, 16, 32), (1, 8, 32), None, True),
    ],
)
def test_arguments_that_do_not_fit_are_refused(code, a, b, c, negate):
    z = None if c is None else np.zeros(c, np.uint32)
    with pytest.raises(RefsimError) as caught:
        products(
            ModelLauncher(), instruction_named(FP8), np.zeros(a, np.uint8), np.zeros(b, np.uint8), z, negate_a=negate
        )
    assert caught.value.code == code


def test_values_in_place_of_codes_are_refused():
    with pytest.raises(RefsimError, match="codes of e4m3 are uint8"):
        products(ModelLauncher(), instruction_named(FP8), np.zeros((1, 16, 32)), np.zeros((1, 8, 32), np.uint8))


@pytest.mark.parametrize("name", ["sm_75", "gfx942", "sm_90x"])
def test_unknown_targets_are_refused(name):
    with pytest.raises(RefsimError, match=name):
        instructions(name)


def test_an_unknown_opcode_is_refused_with_the_nearest():
    with pytest.raises(RefsimError, match="m16n8k32"):
        instruction_named("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f16")

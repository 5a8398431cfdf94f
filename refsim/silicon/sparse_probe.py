"""The probe of products with a sparse A: every form of mma.sp and wgmma.mma_async.sp, one kernel each.

Each block, a warp or a warpgroup, computes one test case. A GPU ran `ptx()`; the simulator runs the identical text on
identical inputs. The classes of test cases show: the thread that holds each part of the metadata; the limits of steps
and the order of stored elements in them; the bits lost where large terms cancel; whether absent elements take part as
NaN, infinity or a signed zero; groups with fewer nonzeros; positions that descend within a group.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import numerics
from refsim.conversions import encode
from refsim.formats import ElementType, Format, element_named, float_named
from refsim.layouts.descriptors import operand_descriptor
from refsim.layouts.families import Fragment
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.sparse import SPARSE_SHAPES, SPARSE_WARPGROUP_SHAPES, SparseShape
from refsim.layouts.tiles import K, tile
from refsim.numerics.methods import ASCENDING, BYTE_PAIRS, EARLY, LATE
from refsim.numerics.multiply import ProductSpec
from refsim.numerics.rows import Profile, Unit
from refsim.numerics.sparse import Sparsity, gathered, sparsity_of
from refsim.silicon.vectors import splitmix64
from refsim.silicon.wmma_probe import module

Array = NDArray[Any]
IMAGE = 4096
"""Bytes of shared memory that a warpgroup fills: A from 0 on, B from B_START on."""
B_START = 2048
_NO_FIELDS = 0x0F0F0F0F  # the register of lanes that give no metadata: a meaningless pattern


@dataclass(frozen=True)
class Problem:
    """Test cases of a form: stored codes of A (cases, M, K / 2) with positions, B (cases, N, K), C (cases, M, N)."""

    a: Array
    positions: NDArray[np.uint8]
    b: Array
    c: Array

    def part(self, chosen: slice) -> "Problem":
        """Return some of the test cases."""
        return Problem(self.a[chosen], self.positions[chosen], self.b[chosen], self.c[chosen])


@dataclass(frozen=True)
class SparseInstruction:
    """One instruction: `sparse` is sp or sp::ordered_metadata; a warpgroup takes A from registers or shared memory."""

    shape: SparseShape
    a: str
    b: str
    d: str
    selector: int
    sparse: str = "sp"
    from_registers: bool = True

    @property
    def opcode(self) -> str:
        """Return the opcode of the instruction."""
        if self.shape.is_warpgroup:
            return f"wgmma.mma_async.sp.sync.aligned.{self.shape}.{self.d}.{self.a}.{self.b}"
        return f"mma.{self.sparse}.sync.aligned.{self.shape}.row.col.{self.d}.{self.a}.{self.b}.{self.d}"

    @property
    def name(self) -> str:
        """Return the opcode with selector and source of A."""
        source = f" A in {'registers' if self.from_registers else 'shared memory'}" if self.shape.is_warpgroup else ""
        return f"{self.opcode} selector {self.selector}{source}"

    @property
    def unit(self) -> Unit:
        """Return the unit that executes the instruction."""
        return "wgmma" if self.shape.is_warpgroup else "mma.sync"

    @property
    def threads(self) -> int:
        """Return the number of threads that execute the instruction."""
        return 2 * self.shape.m if self.shape.is_warpgroup else 32

    @property
    def problems(self) -> int:
        """Return the test cases per class of a form: the results of warps and warpgroups are equally many."""
        return 4 if self.shape.is_warpgroup else 16

    @property
    def formats(self) -> tuple[ElementType, ElementType, ElementType]:
        """Return the element types of A, B and D."""
        return element_named(self.a), element_named(self.b), element_named(self.d)

    @property
    def product(self) -> ProductSpec:
        """Return the product; its K counts elements of the whole A."""
        return ProductSpec(*self.formats, self.shape.m, self.shape.n, self.shape.k, self.unit)

    @property
    def sparsity(self) -> Sparsity:
        """Return the number of kept elements and the group of A's type."""
        return sparsity_of(element_named(self.a))

    def fragment(self, operand: str) -> Fragment:
        """Return the fragment of A, of B (for a warp only) or of C."""
        shape, type = self.shape, self.b if operand == "b" else self.a
        refined = f".{self.d}" if operand == "c" and self.d != shape.accumulators[0] else ""
        if not shape.is_warpgroup:
            return fragment_named(f"{shape.stem}.{type}.{operand}{refined}")
        return fragment_named(
            f"wgmma.m64n{shape.n}k{shape.k // 2}.{type}.{'d' if operand == 'c' else operand}{refined}"
        )

    @cached_property
    def counts(self) -> tuple[int, int, int]:
        """Return the number of registers of A, B and C that a thread loads."""
        b = 0 if self.shape.is_warpgroup else self.fragment("b").registers
        return self.fragment("a").registers, b, self.fragment("c").registers

    @property
    def words(self) -> int:
        """Return the number of 32-bit words that a thread loads: registers of A, B and C, and its metadata."""
        return sum(self.counts) + 1

    def kernel(self, entry: str) -> str:
        """Return the PTX entry (words, images, out); only a warpgroup reads images."""
        a, b, c = self.counts
        lists = [_listed(name, count) for name, count in zip("abc", self.counts, strict=True)]
        names = [f"%{name}{place}" for name, count in zip("abc", self.counts, strict=True) for place in range(count)]
        lines = [
            f".visible .entry {entry}(.param .u64 words, .param .u64 images, .param .u64 out) {{",
            f".reg .b32 %t, %g, %at, %i, %e, {', '.join(names)}; .reg .b64 %w, %o, %p, %da, %db; .reg .pred %yes, %more;",
            f".shared .align 1024 .b8 s[{IMAGE}];" if self.shape.is_warpgroup else "",
            "ld.param.u64 %w, [words]; ld.param.u64 %p, [images]; ld.param.u64 %o, [out];",
            f"mov.u32 %t, %tid.x; mov.u32 %g, %ctaid.x; mad.lo.u32 %at, %g, {self.threads}, %t;",
            f"mad.wide.u32 %w, %at, {4 * self.words}, %w; mad.wide.u32 %o, %at, {4 * c}, %o;",
            *(f"ld.global.b32 {name}, [%w+{4 * place}];" for place, name in enumerate([*names, "%e"])),
            *(self._product_of_warpgroup(lists) if self.shape.is_warpgroup else self._product_of_warp(lists)),
            *(f"st.global.b32 [%o+{4 * place}], %c{place};" for place in range(c)),
            "ret;",
            "}",
        ]
        assert a + b + c == len(names)
        return "\n".join(filter(None, lines))

    def _product_of_warp(self, lists: list[str]) -> list[str]:
        a, b, c = lists
        return [f"{self.opcode} {c}, {a}, {b}, {c}, %e, {self.selector};"]

    def _product_of_warpgroup(self, lists: list[str]) -> list[str]:
        """Return the lines that fill shared memory and multiply in a warpgroup."""
        words = [operand_descriptor("wgmma-smem", *each) for each in self._tiles]
        floats = not element_named(self.a).is_integer
        turned = element_named(self.a).code_bits == 16
        constants = ", 1, 1" * floats + (", 0" if self.from_registers else ", 0, 0") * turned
        source = lists[0] if self.from_registers else "%da"
        return [
            f"mad.wide.u32 %p, %g, {IMAGE}, %p; shl.b32 %i, %t, 2; mov.u32 %at, s;",
            "FILL: cvt.u64.u32 %da, %i; add.u64 %da, %p, %da; ld.global.b32 %g, [%da];",
            "add.u32 %at, %at, %i; st.shared.b32 [%at], %g; mov.u32 %at, s;",
            f"add.u32 %i, %i, {4 * self.threads}; setp.lt.u32 %more, %i, {IMAGE}; @%more bra FILL;",
            "fence.proxy.async.shared::cta; bar.sync 0; shr.u32 %at, %at, 4; cvt.u64.u32 %p, %at;",
            *(f"add.u64 %d{side}, %p, {word:#x};" for side, word in zip("ab", words, strict=True)),
            "setp.eq.u32 %yes, 0, 0; wgmma.fence.sync.aligned;",
            f"{self.opcode} {lists[2]}, {source}, %db, %e, {self.selector}, %yes{constants};",
            "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        ]

    @property
    def _tiles(self) -> list[tuple[Any, int]]:
        """Return the tiles of A and B in shared memory, K-major without a swizzle, and their first bytes."""
        size = element_named(self.a).code_dtype.itemsize
        extents = (self.shape.m, self.shape.k // 2), (self.shape.n, self.shape.k)
        return [(tile(K, "none", size, extent), start) for extent, start in zip(extents, (0, B_START), strict=True)]

    # ---- inputs and results of a kernel
    def inputs(self, problem: Problem) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """Return the 32-bit words of all threads (threads, words), and the images of shared memory."""
        metadata = fragment_named(self.shape.metadata(self.a, self.selector))
        fields = problem.positions
        if self.shape.position_bits == 4:
            fields = np.array([0x4, 0xE], np.uint8)[fields]
        words = metadata.packed(fields)
        words[:, (metadata.elements[0] < 0).all(axis=1)] = _NO_FIELDS
        matrices = {"a": problem.a, "c": problem.c}
        if not self.shape.is_warpgroup:
            matrices = {"a": problem.a, "b": problem.b.swapaxes(1, 2), "c": problem.c}
        held = [self.fragment(operand).packed(codes) for operand, codes in matrices.items()]
        threads = np.concatenate([*held, words], axis=-1)
        return threads.reshape(-1, threads.shape[-1]), self._images(problem)

    def _images(self, problem: Problem) -> NDArray[np.uint8]:
        """Return shared memory with A and B of each test case (cases, IMAGE), or a dummy for a warp."""
        if not self.shape.is_warpgroup:
            return np.zeros((1, 16), np.uint8)
        images = np.zeros((len(problem.a), IMAGE), np.uint8)
        for matrix, (tiling, start) in zip((problem.a, problem.b), self._tiles, strict=True):
            rows, columns = np.indices(matrix.shape[1:])
            at = tiling.address(rows, columns, start).ravel()[:, None] + np.arange(matrix.dtype.itemsize)
            images[:, at] = np.ascontiguousarray(matrix).view(np.uint8).reshape(len(matrix), *at.shape)
        return images

    def results(self, words: NDArray[np.uint32]) -> Array:
        """Return D (cases, M, N) as codes, from the registers that all threads stored."""
        return self.fragment("c").unpacked(words, self.formats[2].code_dtype)


def _listed(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{place}" for place in range(count)) + "}"


def forms() -> list[SparseInstruction]:
    """Return every form in order; entry k of the module is `form_<k>`."""
    found = []
    for shape in SPARSE_SHAPES:
        for a in shape.types:
            for d in shape.accumulators:
                found += [SparseInstruction(shape, a, a, d, selector) for selector in shape.selectors]
                found.append(SparseInstruction(shape, a, shape.types[-1], d, 0, "sp::ordered_metadata"))
    for shape in SPARSE_WARPGROUP_SHAPES:
        for a in shape.types:
            for d in shape.accumulators:
                for from_registers in (False, True):
                    found += [
                        SparseInstruction(shape, a, shape.types[-1], d, s, "sp", from_registers)
                        for s in shape.selectors
                    ]
    return found


def ptx() -> str:
    """Return the PTX module of all forms, as the GPU ran it."""
    return module(forms())


class SteadyNumbers:
    """Random numbers that are equal in every release of NumPy: `splitmix64` of a running count."""

    def __init__(self, seed: int) -> None:
        self.next = seed << 40

    def words(self, size: tuple[int, ...]) -> NDArray[np.uint64]:
        """Return random 64-bit patterns."""
        first, self.next = self.next, self.next + prod(size)
        return splitmix64(np.arange(first, self.next, dtype=np.uint64)).reshape(size)

    def random(self, size: tuple[int, ...]) -> NDArray[np.float64]:
        """Return numbers from 0 to below 1."""
        return (self.words(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integers(self, low: int, high: int, size: tuple[int, ...]) -> NDArray[np.int64]:
        """Return integers from `low` to below `high`."""
        return (self.words(size) % np.uint64(high - low)).astype(np.int64) + low

    def normal(self, size: tuple[int, ...]) -> NDArray[np.float64]:
        """Return numbers of about a normal distribution: twelve uniform numbers less six."""
        total = self.random(size) - 6
        for _ in range(11):
            total += self.random(size)
        return total


def problems(form: SparseInstruction) -> Problem:
    """Return all test cases of a form: the cases of each class of `classes_of`, in order."""
    made = [
        CLASSES[name](form, SteadyNumbers(number << 8 | form.shape.k)) for number, name in enumerate(classes_of(form))
    ]
    return Problem(*(np.concatenate([getattr(each, field) for each in made]) for field in ("a", "positions", "b", "c")))


def classes_of(form: SparseInstruction) -> list[str]:
    """Return the classes of a form: only sp allows descending positions, only floats have NaN and cancel."""
    left_out = {"falling"} if form.sparse != "sp" or form.sparsity.kept == 1 else set()
    if element_named(form.a).is_integer:
        left_out |= {"cancelling", "absent specials", "met specials", "tiny"}
    return [name for name in CLASSES if name not in left_out]


def _sizes(form: SparseInstruction) -> tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]:
    shape = form.shape
    return (form.problems, shape.m, shape.k // 2), (form.problems, shape.n, shape.k), (form.problems, shape.m, shape.n)


def _positions(form: SparseInstruction, draw: SteadyNumbers, *, rising: bool = True) -> NDArray[np.uint8]:
    """Return random positions of the stored elements of A, ascending within each group or descending."""
    size, sparsity = _sizes(form)[0], form.sparsity
    ranks = np.argsort(draw.random((*size[:2], size[2] // sparsity.kept, sparsity.group)), axis=-1)
    ordered = np.sort(ranks[..., : sparsity.kept], axis=-1)
    if not rising:
        ordered = ordered[..., ::-1]
    return np.ascontiguousarray(ordered).reshape(size).astype(np.uint8)


def _codes(values: Array, row: ElementType) -> Array:
    if row.is_integer:
        low, high = (0, 255) if not row.sign_mask else (-128, 127)
        return np.asarray(np.clip(np.rint(values * 16), low, high).astype(np.int64).astype(np.uint8))
    return np.asarray(encode(values.astype(np.float32), float_named(row)))


def _numbers(draw: SteadyNumbers, size: tuple[int, ...], row: ElementType) -> Array:
    wide = 2.0 ** draw.integers(-5, 6, size)
    return _codes(draw.normal(size) * (1 if row.is_integer else wide), row)


def _accumulators(form: SparseInstruction, draw: SteadyNumbers) -> Array:
    d, size = form.formats[2], _sizes(form)[2]
    if d.is_integer:
        return draw.integers(-(2**31), 2**31, size).astype(np.uint32)
    return _codes(draw.normal(size) * 2.0 ** draw.integers(-4, 5, size), d)


def _any(form: SparseInstruction, draw: SteadyNumbers, *, rising: bool = True) -> Problem:
    a_row, b_row, _ = form.formats
    sizes = _sizes(form)
    a, b = _numbers(draw, sizes[0], a_row), _numbers(draw, sizes[1], b_row)
    return Problem(a, _positions(form, draw, rising=rising), b, _accumulators(form, draw))


def _layout(form: SparseInstruction, draw: SteadyNumbers) -> Problem:
    """Return test cases that show the element of B that each stored element of A meets. Each row of A has one 1, B
    holds the number of its k, and C is zero, so D names the element."""
    a_row, b_row, _ = form.formats
    sizes = _sizes(form)
    a = np.zeros(sizes[0], a_row.code_dtype)
    problem, row = np.indices(sizes[0][:2])
    a[problem, row, (row + problem * (sizes[0][2] // form.problems + 1)) % sizes[0][2]] = _one(a_row)
    numbers = np.broadcast_to(_counted(b_row, form.shape.k), sizes[1])
    return Problem(a, _positions(form, draw), np.ascontiguousarray(numbers), _zeros(form))


def _one(row: ElementType) -> int:
    return 1 if row.is_integer else int(encode(np.ones(1, np.float32), float_named(row))[0])


def _counted(row: ElementType, count: int) -> Array:
    """Return `count` different numbers."""
    if row.is_integer:
        return np.arange(1, count + 1, dtype=np.uint8)
    format = float_named(row)
    if format.bits == 32:
        return encode(np.arange(1, count + 1).astype(np.float32), format)
    return (np.arange(count) + _one(row) - (count // 2 << format.padding_bits)).astype(row.code_dtype)


def _zeros(form: SparseInstruction) -> Array:
    return np.zeros(_sizes(form)[2], form.formats[2].code_dtype)


def _cancelling(form: SparseInstruction, draw: SteadyNumbers) -> Problem:
    """Return test cases whose rows have x, -x and a small number, which only a step without the two keeps. They are at
    three stored places of each row; B is 1."""
    a_row, b_row, _ = form.formats
    sizes = _sizes(form)
    a = np.zeros(sizes[0], a_row.code_dtype)
    places = np.argsort(draw.random(sizes[0]), axis=-1)[..., :3]
    format, fraction = float_named(a_row), 2.0 ** -draw.integers(0, 6, sizes[0][:2])
    largest = 2.0 ** min(15, (1 << format.exponent_bits) - 3 - format.bias)
    smallest = 2.0 ** max(-20, 1 - format.bias - format.mantissa_bits)
    for number, value in enumerate((largest * fraction, -largest * fraction, smallest / fraction)):
        code = encode(value.astype(np.float32), format)
        np.put_along_axis(a, places[..., number : number + 1], code[..., None], axis=-1)
    b = np.full(sizes[1], _one(b_row), b_row.code_dtype)
    return Problem(a, _positions(form, draw), b, _zeros(form))


def _absent_specials(form: SparseInstruction, draw: SteadyNumbers) -> Problem:
    """Return test cases where B has NaN and infinities at all absent positions. All rows store equal positions of each
    group."""
    problem = _any(form, draw)
    positions = np.broadcast_to(problem.positions[:, :1], problem.positions.shape)
    kept, group = form.sparsity.kept, form.sparsity.group
    met = np.zeros(problem.b.shape, np.bool_)
    place = np.arange(positions.shape[-1]) // kept * group + positions[:, 0]
    met[np.arange(form.problems)[:, None], :, place] = True
    specials = _specials(float_named(form.formats[1]))
    b = np.where(met, problem.b, specials[draw.integers(0, len(specials), problem.b.shape)])
    return Problem(problem.a, np.ascontiguousarray(positions), b.astype(problem.b.dtype), problem.c)


def _met_specials(form: SparseInstruction, draw: SteadyNumbers) -> Problem:
    """Return test cases with one NaN, infinity or signed zero in B, and half of the stored elements signed zeros."""
    problem = _any(form, draw)
    a, b, row = problem.a.copy(), problem.b.copy(), float_named(form.formats[0])
    zeros = np.array([0, row.sign_mask], a.dtype)
    a = np.where(draw.random(a.shape) < 0.5, zeros[draw.integers(0, 2, a.shape)], a)
    specials = np.concatenate([_specials(float_named(form.formats[1])), np.zeros(1, b.dtype)])
    where = draw.integers(0, b.shape[-1], b.shape[:2])[..., None]
    np.put_along_axis(b, where, specials[draw.integers(0, len(specials), where.shape)], axis=-1)
    return Problem(a, problem.positions, b, problem.c)


def _specials(format: Format) -> Array:
    """Return NaN, and infinities where the format has them."""
    with_infinity = [np.inf, -np.inf] if format.has_infinity else []
    return encode(np.array([np.nan, *with_infinity], np.float32), format)


def _fewer(form: SparseInstruction, draw: SteadyNumbers) -> Problem:
    """Return test cases whose groups have no nonzero, or one at either place."""
    problem = _any(form, draw)
    kept = form.sparsity.kept
    groups = problem.a.reshape(*problem.a.shape[:2], -1, kept).copy()
    count = draw.integers(0, kept + 1, groups.shape[:-1])
    ranks = np.argsort(draw.random(groups.shape), axis=-1)
    groups[ranks >= count[..., None]] = 0
    return Problem(groups.reshape(problem.a.shape), problem.positions, problem.b, problem.c)


def _tiny(form: SparseInstruction, draw: SteadyNumbers) -> Problem:
    """Return test cases whose products have about the exponent that a zero has in a sum."""
    a_row, b_row, d = (float_named(row) for row in form.formats)
    sizes, zero = _sizes(form), _row(form).zero_exponent
    assert zero is not None

    def small(size: tuple[int, ...], row: Format) -> Array:
        exponent = np.maximum(1 - row.bias - row.mantissa_bits, zero // 2 + draw.integers(-6, 4, size))
        return _codes((2 * draw.integers(0, 2, size) - 1) * (1 + draw.random(size)) * 2.0**exponent, row)

    c = encode((draw.normal(sizes[2]) * 2.0 ** (zero + 4)).astype(np.float32), d)
    return Problem(small(sizes[0], a_row), _positions(form, draw), small(sizes[1], b_row), c)


CLASSES: dict[str, Callable[[SparseInstruction, SteadyNumbers], Problem]] = {
    "layout": _layout,
    "any numbers": _any,
    "cancelling": _cancelling,
    "absent specials": _absent_specials,
    "met specials": _met_specials,
    "fewer nonzeros": _fewer,
    "tiny": _tiny,
    "falling": lambda form, draw: _any(form, draw, rising=False),
}


# ---- hypotheses: the first is the model's, the others are alternatives


def _row(form: SparseInstruction) -> Profile:
    return numerics.sparse_profile("sm_90a", form.unit, form.a, form.b, form.d, form.shape.k)


def _stored(form: SparseInstruction, problem: Problem, row: Profile, order: Array | None = None) -> Array:
    """Return D of the stored elements and the elements of B they meet, in an order of columns, by one arithmetic."""
    chosen = np.arange(form.shape.k // 2) if order is None else order
    met = np.ascontiguousarray(gathered(problem.b, problem.positions, form.sparsity)[..., chosen])
    return _dense(form, problem.a[:, :, None, chosen], met, problem.c[:, :, None], row, form.shape.k // 2)[:, :, 0]


def _dense(form: SparseInstruction, a: Array, b: Array, c: Array, row: Profile, k: int) -> Array:
    return replace(form.product, k=k).codes(a, b, c, row=row)


def _whole(form: SparseInstruction, problem: Problem, steps: int) -> Array:
    """Return D of the decompressed A, by two dense instructions or by one with steps twice as long."""
    row, k = _row(form), form.shape.k
    whole = numerics.decompress(problem.a, problem.positions, form.a)
    if steps == 1:
        row = replace(row, k=(k,), length=2 * row.length)
    return _dense(form, whole, problem.b, problem.c, row, k // steps)


def _by_halves(form: SparseInstruction, problem: Problem) -> Array:
    """Return D where metadata of 8-bit types is read in the layout of 16-bit types: half a register a row."""
    words = form.inputs(problem)[0][:, -1].reshape(len(problem.a), -1)
    row, column = np.indices(problem.a.shape[1:])
    lane = 32 * (row // 16) + 4 * (row % 8) + form.selector * form.shape.lanes + column // 8
    shift = (2 * (column % 8 + 8 * (row // 8 % 2))).astype(np.uint32)
    positions = (words[:, lane] >> shift & np.uint32(3)).astype(np.uint8)
    return _stored(form, replace(problem, positions=positions), _row(form))


def _changed(**changes: Any) -> Callable[[SparseInstruction, Problem], Array]:
    return lambda form, problem: _stored(form, problem, replace(_row(form), **changes))


def _by_place(form: SparseInstruction, problem: Problem) -> Array:
    """Return D by steps of the first stored element of each group, then of the second."""
    order = np.arange(form.shape.k // 2)
    return _stored(form, problem, _halved(form), np.concatenate([order[::2], order[1::2]]))


def _halved(form: SparseInstruction) -> Profile:
    row = _row(form)
    return replace(row, length=max(1, min(row.length, form.shape.k // 2) // 2))


HYPOTHESES: dict[str, Callable[[SparseInstruction, Problem], Array]] = {
    "as the model infers": lambda form, given: form.product.codes(given.a, given.b, given.c, metadata=given.positions),
    "steps half as long": lambda form, problem: _stored(form, problem, _halved(form)),
    "steps of first and of second places": _by_place,
    "the whole matrix, two dense instructions": lambda form, problem: _whole(form, problem, 2),
    "the whole matrix, steps twice as long": lambda form, problem: _whole(form, problem, 1),
    "order ascending": _changed(order=ASCENDING),
    "order by pairs of bytes": _changed(order=BYTE_PAIRS),
    "C early": _changed(c_enters=EARLY),
    "C late": _changed(c_enters=LATE),
    "metadata by halves of registers": _by_halves,
}


def hypotheses(form: SparseInstruction) -> list[str]:
    """Return the hypotheses that can differ for a form. Integer sums do not differ; only metadata of 8-bit types has
    two possible layouts."""
    names = list(HYPOTHESES)
    sums = names[:1] if element_named(form.a).is_integer else names[:-1]
    return [*sums, *(names[-1:] if form.shape.code_bits == 8 else [])]


def differing(form: SparseInstruction, problem: Problem, results: Array) -> dict[str, dict[str, int]]:
    """Return the number of results that differ from each hypothesis, by class."""
    found = {}
    for name in hypotheses(form):
        wrong = (HYPOTHESES[name](form, problem) != results).reshape(-1, form.problems, *results.shape[1:])
        found[name] = dict(zip(classes_of(form), wrong.sum(axis=(1, 2, 3)).tolist(), strict=True))
    return found

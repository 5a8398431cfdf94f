"""How operands are read: their codes, or codes of another format, flushed, transposed, swizzled, or cut short."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.ways import Cause, DoesNotApplyError, Family, Way, beside, subnormals_flushed
from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.formats import E4M3, E5M2, FORMATS, ElementType, Format
from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout
from refsim.sources import FNUZ, OCP_MX, PTX

Matrix = NDArray[Any]
LEAST_STEP = 32


@dataclass(frozen=True)
class OperandReading(Way):
    """How a kernel reads an operand: codes moved or changed by `apply`, then decoded as `format` (None: its own)."""

    format: ElementType | None = None

    def read(self, codes: Matrix, format: ElementType) -> tuple[Matrix, ElementType]:
        """Return the codes and the format from which products are computed."""
        return codes if self.apply is None else self.apply(codes, format), self.format or format


AS_IT_IS = OperandReading("as it is", Family.FORMAT, PTX["mma, operands"], rank=0)


def chunks_moved(matrix: Matrix, width_bytes: int, count: int, shift: int) -> Matrix | None:
    """Return the matrix with chunk c of row r exchanged with chunk c ^ (r >> shift) % count.

    `width_bytes` bytes stay together, 0: one element. Return None where the rows are not made of such chunks.
    """
    size = matrix.dtype.itemsize
    width = max(1, width_bytes // size) if width_bytes else 1
    if matrix.ndim != 2 or matrix.shape[0] < 2 or matrix.shape[1] % (width * count) or width_bytes % size:
        return None
    chunks = matrix.reshape(matrix.shape[0], -1, count, width)
    row, chunk = np.ogrid[: matrix.shape[0], :count]
    moved = np.take_along_axis(chunks, (chunk ^ (row >> shift) % count)[:, None, :, None], axis=2)
    return np.ascontiguousarray(moved).reshape(matrix.shape)


def swizzled(pattern: tuple[int, int, int], codes: Matrix, format: ElementType | None = None) -> Matrix:
    """Return a matrix with exchanged chunks. Raises DoesNotApplyError where rows are not made of such chunks."""
    found = chunks_moved(codes, *pattern)
    if found is None:
        raise DoesNotApplyError
    return found


def _transposed(codes: Matrix, format: ElementType) -> Matrix:
    if codes.shape[0] != codes.shape[1]:
        raise DoesNotApplyError
    return np.ascontiguousarray(codes.T)


def _transposed_in_place(codes: Matrix, format: ElementType) -> Matrix:
    """Return the memory of a matrix (rows, K) read as if its shape were (K, rows)."""
    return np.ascontiguousarray(codes.reshape(codes.shape[::-1]).T)


def _step_twice(width: int, steps: int, codes: Matrix, format: ElementType) -> Matrix:
    """Return the matrix with the last of every `steps` steps of `width` columns replaced by the one before."""
    if codes.shape[1] % (width * steps):
        raise DoesNotApplyError
    columns = np.arange(codes.shape[1])
    return np.ascontiguousarray(codes[:, columns - width * (columns // width % steps == steps - 1)])


def _fragments(change: Callable[[Matrix], Matrix], width: int, codes: Matrix, format: ElementType) -> Matrix:
    """Return a matrix whose fragments, 16 rows by two runs of `width` columns, are changed; zeros fill up the last ones.

    `change` gets axes of fragments, halves of 16 rows, 8 rows, fragments of K, two runs, `width` columns.
    """
    rows, columns = codes.shape
    padded = np.pad(codes, ((0, -rows % 16), (0, -columns % (2 * width))))
    parts = padded.reshape(len(padded) // 16, 2, 8, -1, 2, width)
    return np.ascontiguousarray(change(parts).reshape(padded.shape)[:rows, :columns])


def fragment_readings(width: int) -> Iterator[OperandReading]:
    """Yield the confusions of the registers of a fragment, of which 16 bytes of a row hold `width` elements."""
    inner = f"with the two inner registers of a matrix load exchanged, 8 rows for {width} columns"
    pairs = f"with each {width} columns exchanged for the next, as if the two registers of B were exchanged"
    of_tile = "with each tile of 8 x 8 transposed"
    changes: list[tuple[str, Family, Any]] = [
        (inner, Family.FRAGMENT, lambda parts: parts.swapaxes(1, 4)),
        (pairs, Family.FRAGMENT, lambda parts: parts[..., ::-1, :]),
        (of_tile, Family.TRANSPOSED, lambda parts: parts.swapaxes(2, 5)),
    ]
    for says, family, change in changes[: 3 if width == 8 else 2]:
        yield OperandReading(says, family, PTX["ldmatrix"], partial(_fragments, change, width), 2)


def exchanged(codes: Matrix) -> Matrix:
    """Return the two codes of each byte in reverse order."""
    if codes.shape[-1] % 2:
        raise DoesNotApplyError
    return np.ascontiguousarray(codes.reshape(*codes.shape[:-1], -1, 2)[..., ::-1]).reshape(codes.shape)


CHUNK_PATTERNS = (
    *((16, count, shift) for count in (8, 4, 2) for shift in (0, 1, 2)),
    (8, 8, 0),
    (0, 32, 0),
    (0, 16, 0),
    (0, 8, 0),
)
"""Swizzles of a tile's rows: bytes that stay together (0: one element), chunks that are exchanged, row bits skipped."""


def flushed_below(least: float, codes: Matrix, format: ElementType) -> Matrix:
    """Return zeros of their sign for numbers below `least`, such as the subnormals of a format before it was widened."""
    assert isinstance(format, Format)
    return np.where(np.abs(decode(codes, format)) < least, codes & codes.dtype.type(format.sign_mask), codes)


@functools.cache
def readings_of(format: ElementType) -> tuple[OperandReading, ...]:
    """Return every way in which codes of a format are read, the right one first."""
    found = [AS_IT_IS]
    if isinstance(format, Format):
        for other in FORMATS:
            if other is format or other.bits != format.bits or not other.signed or not other.exponent_bits:
                continue
            fields = (other.exponent_bits, other.mantissa_bits) == (format.exponent_bits, format.mantissa_bits)
            family = Family.FNUZ if fields and other.specials is not format.specials else Family.FORMAT
            if family is Family.FNUZ or other.mantissa_bits:
                rank = 1 if family is Family.FNUZ else 3
                says = f"as codes of {other}, not of {format}"
                found.append(OperandReading(says, family, FNUZ["table 1"], format=other, rank=rank))
        if format.exponent_bits and format.mantissa_bits:
            says = "with subnormals as zeros"
            found.append(OperandReading(says, Family.FLUSHED, PTX["ftz"], subnormals_flushed))
            for narrow in (E4M3, E5M2):
                if format.mantissa_bits > narrow.mantissa_bits and format.min_normal < narrow.min_normal < 1:
                    name = f"with subnormals of {narrow} as zeros, numbers below {narrow.min_normal:g}"
                    flush = partial(flushed_below, narrow.min_normal)
                    found.append(OperandReading(name, Family.FLUSHED, PTX["ftz"], flush, rank=2))
    found.append(OperandReading("as its transpose", Family.TRANSPOSED, PTX["ldmatrix, .trans"], _transposed))
    says, source = "with rows for columns", PTX["wgmma, K-major and MN-major"]
    found.append(OperandReading(says, Family.TRANSPOSED, source, _transposed_in_place, 2))
    for pattern in CHUNK_PATTERNS:
        name, source = f"with chunk c of row r for {words_of_chunks(*pattern)}", PTX["tensor swizzling modes"]
        found.append(OperandReading(name, Family.SWIZZLE, source, partial(swizzled, pattern), rank=2))
    found += fragment_readings(128 // format.bits)
    if format.bits == 4:
        says = "with the two codes of a byte exchanged"
        found.append(OperandReading(says, Family.PACKING, PTX["cvt, e2m1x2"], lambda codes, row: exchanged(codes)))
    return tuple(found)


STEPS_TWICE = tuple(
    OperandReading(
        f"with a part of K twice: the last {width} columns of every {width * steps} are those before them",
        Family.TAIL,
        PTX["mma, operands"],
        partial(_step_twice, width, steps),
        2,
    )
    for width, steps in product((32, 16, 64, 128), (4, 2))
)
"""Far readings: one step of K is added twice, another one not at all."""


# ---- addends -----------------------------------------------------------------------------------------------------------


def _apart(axis: int, apart: int, values: Matrix, format: ElementType) -> Matrix:
    """Return values whose lines `apart` on an axis are exchanged; zeros are beyond the last line."""
    extent = values.shape[axis]
    if extent <= apart:
        raise DoesNotApplyError
    more = [(0, -extent % (2 * apart) if each == axis else 0) for each in range(values.ndim)]
    padded = np.pad(values, more)
    return np.take(padded, np.arange(extent) ^ apart, axis)


def _on(step: int, axis: int, values: Matrix, format: ElementType) -> Matrix:
    return beside(step, values, axis)


def _addends() -> Iterator[OperandReading]:
    """Yield the places from which C is read, the right one first."""
    yield AS_IT_IS
    source, lines = PTX["ld.global"], ((1, "column"), (0, "row"))
    for axis, line in lines:
        for apart in (1, 2, 8):
            says = f"so that {line}s {apart} apart are exchanged"
            yield OperandReading(says, Family.ORDER, source, partial(_apart, axis, apart), 2)
        for step, says in ((1, f"from the next {line}"), (-1, f"from the {line} before")):
            yield OperandReading(says, Family.SHIFTED, source, partial(_on, step, axis), 2)
    says = "from the first row for all"
    yield OperandReading(says, Family.SHIFTED, source, lambda c, format: c[:1].repeat(len(c), 0))
    for says, change in (("as its transpose", _transposed), ("with rows for columns", _transposed_in_place)):
        yield OperandReading(says, Family.TRANSPOSED, source, change, 2)


ADDEND_READINGS = tuple(_addends())


def words_of_chunks(width: int, count: int, shift: int) -> str:
    """Return the chunk that a pattern exchanges with chunk c of row r, in words."""
    size = f"{width} bytes" if width else "one element"
    return f"chunk c ^ {f'(r >> {shift})' if shift else 'r'} % {count}, {size} each"


# ---- scales ------------------------------------------------------------------------------------------------------------


def _places(layout: ScaleLayout, scales: Matrix) -> NDArray[np.int64]:
    """Return the element that holds each scale in a layout, whatever the size of an element."""
    shape = (scales.shape[0], scales.shape[1])
    try:
        places = layout.offset(np.arange(shape[0])[:, None], np.arange(shape[1])[None, :], shape)
    except RefsimError:
        raise DoesNotApplyError from None
    return np.asarray(places // layout.element_bytes, np.int64)


def _read_shuffled(layout: ScaleLayout, scales: Matrix, format: ElementType) -> Matrix:
    """Return scales stored row by row and read in the layout. Raises DoesNotApplyError for reads after the end."""
    index = _places(layout, scales)
    if index.max() >= scales.size:
        raise DoesNotApplyError
    return np.asarray(scales.reshape(-1)[index])


def _read_plain(layout: ScaleLayout, scales: Matrix, format: ElementType) -> Matrix:
    """Return scales stored in the layout and read row by row."""
    index = _places(layout, scales)
    packed = np.zeros(max(int(index.max()) + 1, scales.size), scales.dtype)
    packed[index] = scales
    return packed[: scales.size].reshape(scales.shape)


def _power_of_two(rounding: Callable[[Matrix], Matrix], scales: Matrix, format: ElementType) -> Matrix:
    if scales.dtype != np.float32:
        raise DoesNotApplyError  # scales are codes
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.exp2(rounding(np.log2(scales))), scales.dtype)


@functools.cache
def scale_readings() -> tuple[OperandReading, ...]:
    """Return every way in which a grid of scales is read, the right one first."""
    found = [AS_IT_IS]
    for layout in SCALE_LAYOUTS:
        for verb, change in (("row by row where they lie in", _read_plain), ("in", _read_shuffled)):
            says = f"{verb} {layout.name}" + ("" if change is _read_plain else " where they lie row by row")
            found.append(OperandReading(says, Family.SCALE_LAYOUT, layout.source, partial(change, layout)))
    says, source = "block by block where they lie row by row", OCP_MX["section 5.2, scales of blocks"]
    found.append(OperandReading(says, Family.SCALE_LAYOUT, source, _transposed_in_place))
    for name, rounding in (("above", np.ceil), ("below", np.floor), ("nearest", np.rint)):
        says = f"as the power of two {name}" + (" them" if rounding is not np.rint else "")
        found.append(OperandReading(says, Family.SCALE_RULE, OCP_MX["section 5.2"], partial(_power_of_two, rounding)))
    return tuple(found)


def readings_of_b(
    left: Sequence[OperandReading], right: Sequence[OperandReading], *, far: bool = False
) -> Iterator[OperandReading | Cause]:
    """Yield the ways in which B of a product is read, and those of FNUZ in which A is read alike; or all far ways.

    The near ways of A and of B are given.
    """
    yield from STEPS_TWICE if far else right
    for row in (*left, *STEPS_TWICE) if far else left:
        for other in (*right, *STEPS_TWICE) if far else right:
            is_fnuz = row.family is other.family is Family.FNUZ
            if is_fnuz is not far and (is_fnuz or row.name == other.name):
                each = row.name if row.name == other.name else f"{row.name}, B {other.name}"
                who = "A and B are" if row.name == other.name else "A is"
                yield cause_of_both(row, other, "_read", f"{who} read {each}")


def cause_of_both(left: Way, right: Way, aspect: str, says: str) -> Cause:
    """Return one mistake in A and B as one cause, of the aspects "a" and "b" before `aspect`."""
    return Cause(right.family, says, f"b{aspect}", right, right.source, right.rank, beside=((f"a{aspect}", left),))


def formats_read(plan: Any, own: tuple[ElementType, ElementType]) -> tuple[ElementType, ElementType]:
    """Return the formats as which a plan reads the codes of A and B, given their own formats."""
    return plan.a_read.format or own[0], plan.b_read.format or own[1]


def side_read(plan: Any, at: int, codes: Matrix, format: ElementType) -> Matrix:
    """Return the codes of A (`at` 0) or B as a plan reads them."""
    return (plan.a_read, plan.b_read)[at].read(codes, format)[0]  # type: ignore[no-any-return]


def scales_read(plan: Any, at: int, scales: Matrix, format: ElementType) -> Matrix:
    """Return the scales of A (`at` 0) or B as a plan reads them."""
    return (plan.a_scales_read, plan.b_scales_read)[at].read(scales, format)[0]  # type: ignore[no-any-return]


TAILS = (128, 64, 32, 16, 256)


def tail_causes(columns: int) -> Iterator[Cause]:
    """Yield the causes in how many columns of K are added."""
    source = PTX["cp.async.bulk.tensor: what lies outside"]
    yield Cause(Family.TAIL, "every column of K is added", "tail", 0, source, 0)
    for width in TAILS:
        if columns % width and columns > width:
            says = f"the last {columns % width} columns of K are left out, which fill no {width}"
            yield Cause(Family.TAIL, says, "tail", width, source)
    for width in TAILS:
        if columns > width and columns % width == 0:
            says = f"the last {width} columns of K are left out"
            yield Cause(Family.TAIL, says, "tail", -width, source, 2)


def scales_read_as(*rows: OperandReading) -> Iterator[Cause]:
    """Yield the causes in how scales are read: those of A, of B, of both alike."""
    for row in rows:
        for name, aspect in (("A", "a_scales_read"), ("B", "b_scales_read")):
            yield row.cause(aspect, f"the scales of {name} are read {{}}")
        yield cause_of_both(row, row, "_scales_read", f"the scales of A and B are read {row.name}")


def kept_columns(columns: int, tail: int) -> NDArray[np.int64]:
    """Return the columns of K that are added under a `tail` of `tail_causes`: whole multiples, or all but the last.

    A negative tail leaves out the last -tail columns. kept_columns(20, 16) and kept_columns(20, -4) are 0..15.
    Raises DoesNotApplyError where no column is left.
    """
    kept = columns // tail * tail if tail > 0 else columns + tail
    if kept <= 0:
        raise DoesNotApplyError
    return np.arange(kept)


def ends_of_parts(columns: int, most: int) -> list[int]:
    """Return at most `most` ends of parts of K, multiples of 32, and the last column."""
    step = -(-max(LEAST_STEP, -(-columns // most)) // LEAST_STEP) * LEAST_STEP
    return [*range(step, columns, step), columns]

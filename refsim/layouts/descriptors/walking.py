"""From a matrix descriptor and an instruction to every byte that is read: addresses, banks, overlaps, out of range."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, S8, TF32, U8, ElementType, element_named
from refsim.integers import whole
from refsim.layouts.banks import BANK_BYTES, BANKS, BankConflicts, bank_conflicts
from refsim.layouts.descriptors.fields import Descriptor, Fields
from refsim.layouts.drawing import drawn
from refsim.layouts.families.wgmma import PRODUCTS
from refsim.layouts.swizzles import Swizzle, swizzle
from refsim.layouts.tiles import MAJORS, K, Major, atom_rows, check_major
from refsim.render.cards import FieldsCard
from refsim.sources import PTX

CHUNK_BYTES = 16
# 227 KiB, the most that one block may have on sm_90 and sm_100
SHARED_BYTES = 232_448
K_BYTES = 32
BASE_OFFSET_BYTES = 128  # what base_offset counts

_NAME = re.compile(r"(wgmma|tcgen05)(\.sp)?\.m([0-9]{1,6})n([0-9]{1,6})k([0-9]{1,6})\.([a-z0-9.]+)\.([ab])")
_COPY = re.compile(r"tcgen05\.cp\.(128x256|4x256|128x128|64x128|32x128)b")
# Kind of tcgen05.mma, bits of an element's container in shared memory, element types
_F8F6F4 = (E4M3, E5M2, E2M3, E3M2, E2M1)
_KINDS: tuple[tuple[str, int, tuple[ElementType, ...]], ...] = (
    ("f16", 16, (F16, BF16)),
    ("tf32", 32, (TF32,)),
    ("i8", 8, (S8, U8)),
    ("f8f6f4", 8, _F8F6F4),
    ("mxf8f6f4", 8, _F8F6F4),
    ("mxf4", 4, (E2M1,)),
    ("mxf4nvf4", 4, (E2M1,)),
)
_LONG_K = {"mxf4": 96, "mxf4nvf4": 96, "mxf8f6f4": 64}  # where the instruction descriptor says so, on some chips
_LONG_BYTES = 48  # of K, for descriptors with an absolute address as leading offset
_TCGEN05_KINDS = {kind: (container, {row.name: row.code_bits for row in rows}) for kind, container, rows in _KINDS}


@dataclass(frozen=True)
class Operand:
    """Describe the operand that an instruction reads through one descriptor: `rows` of M or N by `k`.

    Elements of `element_bits` lie in containers of `container_bits`. A 16-byte chunk holds 128 / container_bits
    elements, packed at its low end (e2m1 of kind::f8f6f4: 16 elements in 8 bytes, then 8 unused bytes).
    """

    name: str
    unit: str
    rows: int
    k: int
    element_bits: int
    container_bits: int


@drawn
@dataclass(frozen=True, repr=False)
class Walk(FieldsCard):
    """Describe a read: `bits` (rows, k) is the absolute bit address in shared memory at which each element begins.

    Row r and column c of `bits` are element (r, c) of A, or (n, k) of B. `window` is the legal byte range. `problems`
    are reads that are probably mistakes; wgmma makes them as `bits` says. `assumed`: no chip was recorded that reads so
    by tcgen05, but wgmma does.
    """

    descriptor: Descriptor
    word: int
    operand: Operand
    major: Major
    bits: NDArray[np.int64]
    chunks: NDArray[np.int64]
    window: tuple[int, int]
    problems: tuple[str, ...]
    assumed: bool = False

    @property
    def addresses(self) -> NDArray[np.int64]:
        """Return (rows, k): the byte in which each element begins."""
        return self.bits // 8

    @property
    def banks(self) -> NDArray[np.int64]:
        """Return (rows, k): the bank of that byte."""
        return self.addresses // BANK_BYTES % BANKS

    @cached_property
    def bytes_read(self) -> NDArray[np.int64]:
        """Return every byte address that holds a part of an element, ascending, once."""
        last = (self.bits + self.operand.element_bits - 1) // 8
        width = int((last - self.addresses).max()) + 1
        reach = self.addresses[..., None] + np.arange(width)
        return np.unique(reach[reach <= last[..., None]])

    @cached_property
    def overlaps(self) -> NDArray[np.int64]:
        """Return the byte addresses from which two or more elements are read, ascending; empty if sound."""
        found, counts = np.unique(self.bits, return_counts=True)
        return np.unique(found[counts > 1] // 8)

    @cached_property
    def out_of_range(self) -> NDArray[np.int64]:
        """Return the bytes read outside `window`, ascending."""
        return self.bytes_read[(self.bytes_read < self.window[0]) | (self.bytes_read >= self.window[1])]

    @cached_property
    def conflicts(self) -> BankConflicts:
        """Return the wavefronts of each core matrix (8 chunks of 16 bytes), as ldmatrix would fetch them.

        The documents do not say how tensor cores fetch. The guides call a layout conflict-free that has 1 wavefront
        here.
        """
        return bank_conflicts(self.chunks, width=CHUNK_BYTES)

    def readers(self, byte_address: int) -> list[tuple[int, int]]:
        """Return the elements (row, k) that are read from the byte at an address."""
        begin, end = int(whole("byte address", byte_address)) * 8, byte_address * 8 + 8
        hit = (self.bits < end) & (self.bits + self.operand.element_bits > begin)
        return [(int(row), int(k)) for row, k in np.argwhere(hit)]

    def __str__(self) -> str:
        rows, k = self.bits.shape
        read = self.bytes_read
        lines = [
            f"{self.operand.name}, {self.major}-major: {rows} x {k} elements of {self.operand.element_bits} bits",
            f"  reads {read.size} bytes from {read[0]:#x} to {read[-1]:#x}, {self.conflicts}",
            f"  {self.overlaps.size} bytes are read as two elements, {self.out_of_range.size} lie out of range",
        ]
        lines += ["  assumed: rows of one group cross atoms, as recorded for wgmma, not for tcgen05"] * self.assumed
        return "\n".join([*lines, *(f"  problem: {problem}" for problem in self.problems)])


def operand_named(name: str, ctas: int = 1) -> Operand:
    """Return the operand of an instruction: "wgmma.m64n128k32.e4m3.b", "tcgen05.m128n256k32.f8f6f4.e2m1.a".

    For tcgen05 the kind comes first; the element type may follow it (default: the kind's widest). `ctas` 2 is
    cta_group::2, where each block's descriptor covers half of M (for a) or half of N (for b). wgmma.sp and tcgen05.sp
    multiply by a sparse A: `wgmma.sp.m64n128k64.e4m3.b` has all of K, `.a` the half that is stored. tcgen05.cp.128x256b
    is the source of that copy, rows of bytes. An opcode of wgmma followed by its operand is read, too.
    Raises RefsimError for shapes and types that the unit does not have.
    operand_named("wgmma.m64n128k32.e4m3.b").rows is 128. Source: the instruction's entry.
    """
    if copied := _COPY.fullmatch(name):
        rows, bits = map(int, copied[1].split("x"))
        return Operand(name, "tcgen05", rows, bits // 8, 8, 8)
    match = _NAME.fullmatch(name) or _NAME.fullmatch(_of_opcode(name))
    if match is None:
        what = f"{name!r} names no operand in shared memory"
        raise RefsimError("unknown-name", what, help="wgmma.m64n128k16.bf16.a or tcgen05.m128n256k32.f8f6f4.e2m1.b")
    unit, m, n, k, types, side = match[1], int(match[3]), int(match[4]), int(match[5]), match[6], match[7]
    is_sparse = match[2] is not None
    if ctas not in (1, 2) or (ctas == 2 and unit == "wgmma"):
        raise RefsimError("bad-descriptor", f"{unit} has no group of {ctas} blocks", where=name)
    made = _wgmma(types, name, is_sparse=is_sparse) if unit == "wgmma" else _tcgen05(types, name, ctas, is_sparse)
    if m not in made.rows or k not in (made.k, made.long_k) or n not in made.columns:
        legal = f"m {' or '.join(map(str, made.rows))}, n {made.spoken_columns}, k {made.k}"
        legal += f" or {made.long_k}" * (made.long_k != 0)
        what = f"{unit}{match[2] or ''} has no m{m}n{n}k{k} of {types}" + (" over two blocks" if ctas == 2 else "")
        raise RefsimError("bad-shape", what, where=name, rule=f"{PTX[f'{unit}, matrix shapes']}: {legal}")
    read = k // 2 if is_sparse and side == "a" else k
    return Operand(match[0], unit, (m if side == "a" else n) // ctas, read, made.element_bits, made.container_bits)


def _of_opcode(text: str) -> str:
    """Return the name of the operand that follows an opcode of wgmma; "" for anything else."""
    from refsim.matrix_opcodes import matrix_opcode  # imported here because few calls need it

    opcode = matrix_opcode(text)
    if opcode is None or opcode.family != "wgmma" or opcode.operand not in opcode.types:
        return ""
    pair = dict.fromkeys((opcode.types["a"], opcode.types["b"]))
    return f"wgmma{'.sp' if opcode.sparse else ''}.{opcode.shape}.{'.'.join(pair)}.{opcode.operand}"


def walk(
    descriptor: Descriptor,
    word: int,
    operand: str,
    *,
    major: Major = K,
    ctas: int = 1,
    window: tuple[int, int] | None = None,
) -> Walk:
    """Return every address that one instruction reads through a matrix descriptor.

    `operand` as in `operand_named`, `major` "K" or "MN", `window` the bytes [first, end) that may be read (default all
    232,448 of a block). Address of 16-byte chunk c of row r, K-major with swizzle: start + (r / 8) stride + (r % 8)
    span + 16 c. A start may lie anywhere in an atom: the absolute address of each row decides its swizzle, less 128
    times base_offset. An illegal descriptor is an error that says what is wrong with it.
    Source: PTX ISA, strides and canonical layouts; CUTLASS, make_gmma_desc and make_umma_desc; starts in an atom:
    recorded for wgmma on an H200 (conformance/vectors/h200/operand_starts.json), assumed for tcgen05.
    walk(descriptor("wgmma-smem"), 0x4000004000010040, "wgmma.m64n64k16.bf16.a").bytes_read.size is 2048.
    Raises RefsimError for a descriptor, an operand or a window that does not fit.
    """
    if descriptor.operand_of is None:
        raise RefsimError("bad-descriptor", f"{descriptor.kind} describes no memory: there is nothing to walk")
    shape = operand_named(operand, ctas)
    if shape.unit != descriptor.operand_of:
        raise RefsimError("bad-descriptor", f"{descriptor.kind} is not an operand of {shape.unit}", where=operand)
    if wrong := descriptor.problems(word):
        raise RefsimError("bad-descriptor", wrong[0], where=f"{descriptor.kind} {word:#x}", rule=str(descriptor.source))
    fields = descriptor.decode(word)
    pattern = swizzle(str(fields["swizzle"]))
    _check_major(shape, pattern, major, fields)
    chunks = _chunks(fields, pattern, shape, major)
    bits, matrices, window = _element_bits(chunks, shape, major), _core_matrices(chunks), window or (0, SHARED_BYTES)
    problems, crosses = _problems(fields, pattern, shape, major), shape.unit != "wgmma" and crosses_atoms(fields)
    return Walk(descriptor, word, shape, major, bits, matrices, window, problems, crosses)


def crosses_atoms(fields: Fields) -> bool:
    """Return whether an operand begins past the first row of an atom, so that its groups of rows lie in two atoms."""
    pattern = swizzle(str(fields["swizzle"]))
    start = int(fields["start_address"]) - BASE_OFFSET_BYTES * int(fields["base_offset"])
    return pattern.bits > 0 and start % (pattern.span_bytes * atom_rows(pattern)) >= pattern.span_bytes


@dataclass(frozen=True)
class _Legal:
    """Describe the legal M, N and K of an instruction of some types, and the bits of element and container."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    spoken_columns: str
    k: int
    element_bits: int
    container_bits: int
    long_k: int = 0


def _wgmma(types: str, name: str, *, is_sparse: bool) -> _Legal:
    """Return the legal shapes of wgmma for `types`: one type for both operands, or A's and B's ("e4m3.e5m2").

    The types of A and B are in one entry of PRODUCTS.
    """
    parts = types.split(".")
    row = next((row for row in PRODUCTS if {*parts} <= {*row.types}), None)
    if row is None or len(parts) > 2 or (is_sparse and element_named(parts[0]).code_bits < 8):
        have = ", ".join(type for row in PRODUCTS for type in row.types)
        raise RefsimError("bad-dtype", f"wgmma multiplies no {types}", where=name, help=f"types: {have}")
    bits = element_named(parts[0]).code_bits
    return _Legal((64,), row.columns, row.spoken_columns, 2 * row.k if is_sparse else row.k, bits, bits)


def _tcgen05(types: str, name: str, ctas: int, is_sparse: bool) -> _Legal:
    """Return the legal shapes of tcgen05.mma for `types`: a kind, and an element type that may follow it."""
    kind, _, element = types.partition(".")
    container, elements = _TCGEN05_KINDS.get(kind, (0, {}))
    if not container or (element and element not in elements):
        what = f"tcgen05.mma has no kind {kind}" if not container else f"kind::{kind} has no elements of {element}"
        raise RefsimError("bad-dtype", what, where=name, help=f"known: {', '.join(elements or _TCGEN05_KINDS)}")
    step = 8 * ctas
    rows, columns = (32, 64, 128) if ctas == 1 else (128, 256), tuple(range(step, 257, step))
    k, long_k = K_BYTES * 8 // container * (1 + is_sparse), 0 if is_sparse else _LONG_K.get(kind, 0)
    spoken, bits = f"{step} to 256 in steps of {step}", elements.get(element, container)
    return _Legal(rows, columns, spoken, k, bits, container, long_k)


def _check_major(shape: Operand, pattern: Swizzle, major: str, fields: Fields) -> None:
    if major not in MAJORS:
        raise RefsimError("bad-tile", f"major is K or MN, not {major!r}")
    check_major(major, pattern)
    if major != K and (shape.element_bits < 8 or (shape.unit == "wgmma" and shape.element_bits != 16)):
        what = f"{shape.name} is read K-major only"
        raise RefsimError("bad-tile", what, rule="wgmma transposes 16-bit operands alone; tcgen05 none of 4 or 6 bits")
    if fields.get("leading_mode") == "absolute" and shape.k * shape.container_bits != 8 * _LONG_BYTES:
        what = "leading_mode absolute is for K of 48 bytes, which this instruction does not have"
        raise RefsimError("bad-descriptor", what)


def _chunks(fields: Fields, pattern: Swizzle, shape: Operand, major: str) -> NDArray[np.int64]:
    """Return the absolute address of every 16-byte chunk, swizzled: (chunks, lines).

    A line runs along the major dimension: it is a row of the operand if that is K, else one k.
    """
    start, leading, stride, base = (
        int(fields[name]) for name in ("start_address", "leading_byte_offset", "stride_byte_offset", "base_offset")
    )
    along, across = (shape.k, shape.rows) if major == K else (shape.rows, shape.k)
    chunk = np.arange(-(-along * shape.container_bits // (8 * CHUNK_BYTES)))[:, None]
    line = np.arange(across)[None, :]
    if pattern.bits == 0:
        offset = _in_core_matrices(chunk, line, *((leading, stride) if major == K else (stride, leading)))
    elif major == K:
        offset = chunk * CHUNK_BYTES + _in_atoms(line, pattern, stride)
        if fields.get("leading_mode") == "absolute":  # chunks beyond the span lie at the leading address
            beyond = start % pattern.span_bytes + chunk * CHUNK_BYTES - pattern.span_bytes
            offset = np.where(beyond >= 0, leading - start + beyond + _in_atoms(line, pattern, stride), offset)
    else:
        per_span = pattern.span_bytes // CHUNK_BYTES
        offset = chunk // per_span * leading + chunk % per_span * CHUNK_BYTES + _in_atoms(line, pattern, stride)
    # The pattern begins at base_offset, not at 0. Whole repeats are subtracted, else distances could be negative.
    origin = (base * BASE_OFFSET_BYTES - 8 * pattern.repeat_bytes) * (pattern.bits > 0)
    return np.asarray(pattern(start + offset - origin) + origin)


def _in_core_matrices(
    chunk: NDArray[np.int64], line: NDArray[np.int64], to_next_chunk: int, to_next_lines: int
) -> NDArray[np.int64]:
    """Return offsets without a swizzle: eight lines of one chunk are 128 contiguous bytes.

    LBO is the distance to the next such group along K, SBO along MN, whichever of them is contiguous.
    """
    return chunk * to_next_chunk + line // 8 * to_next_lines + line % 8 * CHUNK_BYTES


def _in_atoms(line: NDArray[np.int64], pattern: Swizzle, stride: int) -> NDArray[np.int64]:
    """Return offsets of lines with a swizzle: `atom_rows` lines are an atom, and SBO leads to the next atom."""
    lines = atom_rows(pattern)
    return line // lines * stride + line % lines * pattern.span_bytes


def _element_bits(chunks: NDArray[np.int64], shape: Operand, major: str) -> NDArray[np.int64]:
    """Return the bit address at which each element begins, counted from address 0: (rows, k)."""
    per_chunk = CHUNK_BYTES * 8 // shape.container_bits
    index = np.arange(shape.k if major == K else shape.rows)
    begins = chunks[index // per_chunk] * 8 + (index % per_chunk * shape.element_bits)[:, None]
    return begins.T if major == K else begins


def _core_matrices(chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return chunk addresses eight lines at a time: (chunks x lines / 8, 8)."""
    return chunks.reshape(-1, 8)


def _problems(fields: Fields, pattern: Swizzle, shape: Operand, major: str) -> tuple[str, ...]:
    """Return problems of a legal descriptor that reads wrong data."""
    found = []
    start, span = int(fields["start_address"]) - BASE_OFFSET_BYTES * int(fields["base_offset"]), pattern.span_bytes
    across = shape.k * shape.container_bits // 8
    is_split = fields.get("leading_mode") == "absolute"
    if pattern.bits and major == K and start % span + across > span and not is_split:
        found.append(f"{across} bytes of K from byte {start % span} of a {span}-byte row run into the next row")
    if major == K and shape.rows > 8 and int(fields["stride_byte_offset"]) == 0:
        found.append("stride_byte_offset 0: every group of 8 rows is the first one")
    return tuple(found)

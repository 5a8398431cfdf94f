"""From a matrix descriptor and an instruction to every byte that is read: addresses, banks, overlaps, out of range."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    F16,
    S8,
    TF32,
    U8,
    ElementType,
    element_named,
)
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
_LONG_BYTES = 48  # of K, which a descriptor whose leading offset is an absolute address may have
_TCGEN05_KINDS = {kind: (container, {row.name: row.code_bits for row in rows}) for kind, container, rows in _KINDS}


@dataclass(frozen=True)
class Operand:
    """What an instruction reads through one descriptor: `rows` of M or N by `k`, elements of `element_bits`.

    Elements stand in containers of `container_bits`: 16-byte chunks hold 128 / container_bits of them, packed at the
    chunk's low end (e2m1 of kind::f8f6f4: 16 elements in 8 bytes, then 8 bytes that are not used).
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
    """What is read: `bits` (rows, k) is the absolute bit address in shared memory at which each element begins.

    Row r and column c of `bits` are element (r, c) of A, or (n, k) of B. `window` is the legal byte range.
    """

    descriptor: Descriptor
    word: int
    operand: Operand
    major: Major
    bits: NDArray[np.int64]
    chunks: NDArray[np.int64]
    window: tuple[int, int]
    problems: tuple[str, ...]

    @property
    def addresses(self) -> NDArray[np.int64]:
        """(rows, k): the byte in which each element begins."""
        return self.bits // 8

    @property
    def banks(self) -> NDArray[np.int64]:
        """(rows, k): the bank of that byte."""
        return self.addresses // BANK_BYTES % BANKS

    @cached_property
    def bytes_read(self) -> NDArray[np.int64]:
        """Every byte address that holds a part of an element, ascending, once."""
        last = (self.bits + self.operand.element_bits - 1) // 8
        width = int((last - self.addresses).max()) + 1
        reach = self.addresses[..., None] + np.arange(width)
        return np.unique(reach[reach <= last[..., None]])

    @cached_property
    def overlaps(self) -> NDArray[np.int64]:
        """The byte addresses of elements that two or more elements are read from, ascending: empty if sound."""
        found, counts = np.unique(self.bits, return_counts=True)
        return np.unique(found[counts > 1] // 8)

    @cached_property
    def out_of_range(self) -> NDArray[np.int64]:
        """Bytes read outside `window`, ascending."""
        return self.bytes_read[(self.bytes_read < self.window[0]) | (self.bytes_read >= self.window[1])]

    @cached_property
    def conflicts(self) -> BankConflicts:
        """Wavefronts of each core matrix (8 chunks of 16 bytes), as ldmatrix would fetch them.

        How tensor cores fetch is not documented: a layout with 1 wavefront here is the one the guides call conflict-free.
        """
        return bank_conflicts(self.chunks, width=CHUNK_BYTES)

    def readers(self, byte_address: int) -> list[tuple[int, int]]:
        """The elements (row, k) that are read from the byte at an address."""
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
        return "\n".join([*lines, *(f"  problem: {problem}" for problem in self.problems)])


def operand_named(name: str, ctas: int = 1) -> Operand:
    """The operand of an instruction: "wgmma.m64n128k32.e4m3.b", "tcgen05.m128n256k32.f8f6f4.e2m1.a".

    For tcgen05 the kind comes first; the element type may follow it (default: the kind's widest). `ctas` 2 is
    cta_group::2, where each block's descriptor covers half of M (for a) or half of N (for b).
    wgmma.sp and tcgen05.sp multiply by a sparse A: `wgmma.sp.m64n128k64.e4m3.b` has all of K, `.a` the half that is stored.
    tcgen05.cp.128x256b is what that copy reads, rows of bytes.
    An opcode of wgmma with its operand behind it is read too. Raises RefsimError for shapes and types that the unit does not
    have.
    operand_named("wgmma.m64n128k32.e4m3.b").rows is 128. Source: the row of the instruction.
    """
    if copied := _COPY.fullmatch(name):
        rows, bits = map(int, copied[1].split("x"))
        return Operand(name, "tcgen05", rows, bits // 8, 8, 8)
    match = _NAME.fullmatch(name) or _NAME.fullmatch(_of_opcode(name))
    if match is None:
        raise RefsimError(
            "operand-name",
            f"{name!r} names no operand in shared memory",
            help="wgmma.m64n128k16.bf16.a or tcgen05.m128n256k32.f8f6f4.e2m1.b",
        )
    unit, m, n, k, types, side = match[1], int(match[3]), int(match[4]), int(match[5]), match[6], match[7]
    is_sparse = match[2] is not None
    if ctas not in (1, 2) or (ctas == 2 and unit == "wgmma"):
        raise RefsimError("operand-ctas", f"{unit} has no group of {ctas} blocks", where=name)
    made = _wgmma(types, name, is_sparse=is_sparse) if unit == "wgmma" else _tcgen05(types, name, ctas, is_sparse)
    if m not in made.rows or k not in (made.k, made.long_k) or n not in made.columns:
        legal = f"m {' or '.join(map(str, made.rows))}, n {made.spoken_columns}, k {made.k}"
        legal += f" or {made.long_k}" * (made.long_k != 0)
        raise RefsimError(
            "operand-shape",
            f"{unit}{match[2] or ''} has no m{m}n{n}k{k} of {types}" + (" over two blocks" if ctas == 2 else ""),
            where=name,
            rule=f"{PTX[f'{unit}, matrix shapes']}: {legal}",
        )
    read = k // 2 if is_sparse and side == "a" else k
    return Operand(match[0], unit, (m if side == "a" else n) // ctas, read, made.element_bits, made.container_bits)


def _of_opcode(text: str) -> str:
    """The operand that stands behind an opcode of wgmma, by its name; "" for anything else."""
    from refsim.matrix_opcodes import matrix_opcode  # seldom needed: a start loads it not

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
    """Every address that one instruction reads through a matrix descriptor: walk(descriptor("wgmma-smem"), word, name).

    `operand` as in `operand_named`, `major` "K" or "MN", `window` the bytes [first, end) that may be read (default all
    232,448 of a block). Address of 16-byte chunk c of row r, K-major with swizzle: start + (r / 8) stride +
    (r % 8) span + 16 c, swizzled as an absolute address. An illegal word is refused with what is wrong in it.
    Source: PTX ISA, strides and canonical layouts; CUTLASS, make_gmma_desc and make_umma_desc.
    walk(descriptor("wgmma-smem"), 0x4000004000010040, "wgmma.m64n64k16.bf16.a").bytes_read.size is 2048.
    Raises RefsimError for a word, an operand or a window that does not fit.
    """
    if descriptor.operand_of is None:
        raise RefsimError("descriptor-walk", f"{descriptor.kind} describes no memory: there is nothing to walk")
    shape = operand_named(operand, ctas)
    if shape.unit != descriptor.operand_of:
        raise RefsimError("descriptor-walk", f"{descriptor.kind} is no operand of {shape.unit}", where=operand)
    if wrong := descriptor.problems(word):
        raise RefsimError(
            "descriptor-word", wrong[0], where=f"{descriptor.kind} {word:#x}", rule=str(descriptor.source)
        )
    fields = descriptor.decode(word)
    pattern = swizzle(str(fields["swizzle"]))
    _check_major(shape, pattern, major, fields)
    chunks = _chunks(fields, pattern, shape, major)
    return Walk(
        descriptor,
        word,
        shape,
        major,
        _element_bits(chunks, shape, major),
        _core_matrices(chunks),
        window or (0, SHARED_BYTES),
        _problems(fields, pattern, shape, major),
    )


@dataclass(frozen=True)
class _Legal:
    """What an instruction of some types multiplies: the legal M, N and K, and the bits of an element and its container."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    spoken_columns: str
    k: int
    element_bits: int
    container_bits: int
    long_k: int = 0


def _wgmma(types: str, name: str, *, is_sparse: bool) -> _Legal:
    """The types are one for both operands, or A's and B's: "e4m3", "e4m3.e5m2"; they share a row of PRODUCTS."""
    parts = types.split(".")
    row = next((row for row in PRODUCTS if {*parts} <= {*row.types}), None)
    if row is None or len(parts) > 2 or (is_sparse and element_named(parts[0]).code_bits < 8):
        have = ", ".join(type for row in PRODUCTS for type in row.types)
        raise RefsimError("operand-type", f"wgmma multiplies no {types}", where=name, help=f"types: {have}")
    bits = element_named(parts[0]).code_bits
    return _Legal((64,), row.columns, row.spoken_columns, 2 * row.k if is_sparse else row.k, bits, bits)


def _tcgen05(types: str, name: str, ctas: int, is_sparse: bool) -> _Legal:
    kind, _, element = types.partition(".")
    container, elements = _TCGEN05_KINDS.get(kind, (0, {}))
    if not container or (element and element not in elements):
        raise RefsimError(
            "operand-type",
            f"tcgen05.mma has no kind {kind}" if not container else f"kind::{kind} has no elements of {element}",
            where=name,
            help=f"known: {', '.join(elements or _TCGEN05_KINDS)}",
        )
    step = 8 * ctas
    return _Legal(
        (32, 64, 128) if ctas == 1 else (128, 256),
        tuple(range(step, 257, step)),
        f"{step} to 256 in steps of {step}",
        K_BYTES * 8 // container * (1 + is_sparse),
        elements.get(element, container),
        container,
        0 if is_sparse else _LONG_K.get(kind, 0),
    )


def _check_major(shape: Operand, pattern: Swizzle, major: str, fields: Fields) -> None:
    if major not in MAJORS:
        raise RefsimError("tile-major", f"major is K or MN, not {major!r}")
    check_major(major, pattern)
    if major != K and (shape.element_bits < 8 or (shape.unit == "wgmma" and shape.element_bits != 16)):
        raise RefsimError(
            "tile-major",
            f"{shape.name} is read K-major only",
            rule="wgmma transposes 16-bit operands alone; tcgen05 none of 4 or 6 bits",
        )
    if fields.get("leading_mode") == "absolute" and shape.k * shape.container_bits != 8 * _LONG_BYTES:
        raise RefsimError(
            "descriptor-walk", "leading_mode absolute is for K of 48 bytes, which this instruction does not have"
        )


def _chunks(fields: Fields, pattern: Swizzle, shape: Operand, major: str) -> NDArray[np.int64]:
    """(chunks, lines): the absolute address of every 16-byte chunk, swizzled. A line runs along the major dimension: it is
    a row of the operand if that is K, else one k."""
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
        if (
            fields.get("leading_mode") == "absolute"
        ):  # what is beyond a row of the span lies where the leading address says
            beyond = start % pattern.span_bytes + chunk * CHUNK_BYTES - pattern.span_bytes
            offset = np.where(beyond >= 0, leading - start + beyond + _in_atoms(line, pattern, stride), offset)
    else:
        per_span = pattern.span_bytes // CHUNK_BYTES
        offset = chunk // per_span * leading + chunk % per_span * CHUNK_BYTES + _in_atoms(line, pattern, stride)
    # The pattern is laid from base_offset on, not from 0; whole repeats lower, so that no distance is negative.
    origin = base * BASE_OFFSET_BYTES - 8 * pattern.repeat_bytes
    return np.asarray(pattern(start + offset - origin) + origin)


def _in_core_matrices(
    chunk: NDArray[np.int64], line: NDArray[np.int64], to_next_chunk: int, to_next_lines: int
) -> NDArray[np.int64]:
    """Without a swizzle: eight lines of one chunk are 128 bytes in a row. LBO leads from one to the next along K, SBO along
    MN, whichever of them is contiguous."""
    return chunk * to_next_chunk + line // 8 * to_next_lines + line % 8 * CHUNK_BYTES


def _in_atoms(line: NDArray[np.int64], pattern: Swizzle, stride: int) -> NDArray[np.int64]:
    """With a swizzle: so many lines of a span each are an atom, and SBO leads to the next one."""
    lines = atom_rows(pattern)
    return line // lines * stride + line % lines * pattern.span_bytes


def _element_bits(chunks: NDArray[np.int64], shape: Operand, major: str) -> NDArray[np.int64]:
    """(rows, k): where each element begins within its chunk, in bits from address 0."""
    per_chunk = CHUNK_BYTES * 8 // shape.container_bits
    index = np.arange(shape.k if major == K else shape.rows)
    begins = chunks[index // per_chunk] * 8 + (index % per_chunk * shape.element_bits)[:, None]
    return begins.T if major == K else begins


def _core_matrices(chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Chunk addresses eight lines at a time: (chunks x lines / 8, 8)."""
    return chunks.reshape(-1, 8)


def _problems(fields: Fields, pattern: Swizzle, shape: Operand, major: str) -> tuple[str, ...]:
    """What is legal to write but reads nonsense."""
    found = []
    start, span = int(fields["start_address"]) - BASE_OFFSET_BYTES * int(fields["base_offset"]), pattern.span_bytes
    across = shape.k * shape.container_bits // 8
    is_split = fields.get("leading_mode") == "absolute"
    if pattern.bits and major == K and start % span + across > span and not is_split:
        found.append(f"{across} bytes of K from byte {start % span} of a {span}-byte row run into the next row")
    if pattern.bits and start % (span * atom_rows(pattern)) >= span and major == K:
        found.append(f"start_address {start:#x} is not in the first row of an atom: rows of one group cross atoms")
    if major == K and shape.rows > 8 and int(fields["stride_byte_offset"]) == 0:
        found.append("stride_byte_offset 0: every group of 8 rows is the first one")
    return tuple(found)

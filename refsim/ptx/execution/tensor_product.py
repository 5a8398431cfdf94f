"""The request of one tcgen05.mma, from its opcode and its instruction descriptor. No operand has been read yet.

`ZeroColumns` is the zero-column mask of tcgen05.mma.ws: the columns of B that count as zeros, and the first column of
B.

Operands of tcgen05 in shared and in tensor memory: from chunks of 16 bytes, and from columns of 32 bits, to
codes."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from refsim.conversions import unpack
from refsim.errors import RefsimError
from refsim.formats import element_named, float_named
from refsim.layouts.descriptors import descriptor
from refsim.layouts.descriptors.fields import Descriptor
from refsim.layouts.descriptors.instructions import INSTRUCTION_DESCRIPTORS
from refsim.layouts.descriptors.walking import crosses_atoms, operand_named
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.tensor_sparse import StoredFields, stored_of
from refsim.layouts.tiles import MN
from refsim.ptx.execution.matrix_operands import DescriptorError, placed
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.tensor_map import LANE_SHIFT, TENSOR_LANES
from refsim.targets import target_named

_LONG = (103, 107)  # the chips whose 4-bit products may have K = 96
_TWICE = 107  # the chip whose 8-bit products may have K = 64
_LONG_BIT = 31
_BLOCKS = {"1x": 32, "2x": 32, "4x": 16}  # elements that share a scale, by the scale vector of the shorter K
# N of integers is a multiple of 16 above 32 columns; with two CTAs N is always a multiple of 32.
_FINE_COLUMNS, _COARSE = 32, 16
_HALF_ROWS = 64  # M of a CTA that uses half of its lanes
_MOST_SPARSE_COLUMNS = 128  # largest N of a stationary B with a sparse A
_DESCRIPTORS: dict[str, Descriptor] = {row.kind.partition(".")[2]: row for row in INSTRUCTION_DESCRIPTORS}
_LANES = 128
_SHIFTS = {32: 16}  # by M, the largest shift of B; 32 for a larger M
_MOST_SHIFT = 32


class ColumnMaskError(Exception):
    """The mask descriptor asks for more than exists."""


@dataclass(frozen=True)
class ZeroColumns:
    """The columns of B that are zeros, (n,), and how many columns of B stand before the first used one."""

    zero: Bools
    shift: int


def zero_columns(word: int, m: int, n: int, most: int) -> ZeroColumns:
    """Return the zero columns that a descriptor describes for a product of m rows and n columns.

    `most` is the shift that the instruction descriptor allows. N is cut into as many parts as D has below each other,
    each with its own start and first value. If the mask is not empty, spans of use + 1 zeros and of skip + 1 ones
    alternate. For M = 128, skip 2, use 3: 0b...1110000 1110000.

    Raises ColumnMaskError. Source: PTX ISA, zero-column mask descriptor; CUTLASS, MaskAndShiftB.
    """

    def field(low: int, bits: int) -> int:
        return word >> low & (1 << bits) - 1

    if field(36, 3) or field(62, 2):
        raise ColumnMaskError("bits 36 to 38 and 62 to 63 are reserved")
    shift, limit = field(56, 6), min(most, _SHIFTS.get(m, _MOST_SHIFT))
    if shift > limit:
        raise ColumnMaskError(f"a shift by {shift} columns, M = {m} and the instruction descriptor allow {limit}")
    if not field(39, 1):
        return ZeroColumns(np.zeros(n, np.bool_), shift)
    skipped, used, parts = field(40, 8) + 1, field(48, 8) + 1, _LANES // m
    found: list[Any] = []
    for part in range(parts):
        place = np.arange(n // parts) + field(8 * part, 8)
        first = skipped if field(32 + part, 1) else used
        found.append((place % (skipped + used) < first) == bool(field(32 + part, 1)))
    return ZeroColumns(np.concatenate(found), shift)


class ProductError(Exception):
    """The instruction or the target does not accept this instruction descriptor; the message gives the reason."""


@dataclass(frozen=True)
class TensorForm:
    """D (m x n) = A (m x k) B (k x n) + D, where `a`, `b` and `d` name types; m counts the rows of all CTAs of the
    group.

    `majors` are the orders of A and B in shared memory, `negated` marks the operands whose sign is turned, `satfinite`
    clamps integer sums. With block scales, `scale` is their format, `blocks` their number along K, and `ids` the first
    bytes of A's and B's scales. If A `is_sparse`, k counts all its elements, and the column of `selector` holds the
    metadata. A stationary B may begin up to `most_shift` columns further on.
    """

    kind: str
    m: int
    n: int
    k: int
    a: str
    b: str
    d: str
    majors: tuple[str, str]
    negated: tuple[bool, bool]
    satfinite: bool = False
    scale: str = ""
    blocks: int = 0
    ids: tuple[int, int] = (0, 0)
    ctas: int = 1
    is_stationary: bool = False
    is_sparse: bool = False
    selector: int = 0
    most_shift: int = 0

    @cached_property
    def sums(self) -> "TensorForm":
        """Return the form without the fields that do not matter once operands and scales have been read."""
        return replace(self, ids=(0, 0), majors=("K", "K"), negated=(False, False), selector=0, most_shift=0)

    @property
    def parts(self) -> int:
        """Return the number of parts of D's columns that lie below each other: each part needs A in its own lanes."""
        return 1 if self.is_halved else TENSOR_LANES * self.ctas // self.m

    @cached_property
    def a_columns(self) -> int:
        """Return how many columns of tensor memory a row of A takes."""
        operand = operand_named(self.operand("a"), self.ctas)
        return operand.k * operand.container_bits // 32

    def scale_columns(self, side: str) -> int:
        """Return how many columns A's or B's scales take, from the first to the last."""
        return _columns_of(self.scales(side))

    def depth(self, side: str) -> int:
        """Return how many elements a row of A, or a column of B, has in memory."""
        return self.k // 2 if self.is_sparse and side == "a" else self.k

    @property
    def stored(self) -> StoredFields:
        """Return how the metadata of a sparse A is stored."""
        return stored_of(self.kind)

    @property
    def metadata(self) -> str:
        """Return the name of the metadata's layout in tensor memory."""
        return f"tcgen05.sp.m{self.m}k{self.k}.{self.stored.kind}.{self._variant}.meta"

    @property
    def _variant(self) -> str:
        return "ws" if self.is_stationary else f"{self.ctas}sm"

    @property
    def is_halved(self) -> bool:
        """Return whether only 16 lanes of each 32 hold rows."""
        return not self.is_stationary and self.m // self.ctas == _HALF_ROWS and (self.ctas == 1 or self.is_sparse)

    def operand(self, side: str) -> str:
        """Return the name of A or B in shared memory under which its descriptor is walked."""
        type, sparse = self.a if side == "a" else self.b, "sp." * self.is_sparse
        return f"tcgen05.{sparse}m{self.m}n{self.n}k{self.k}.{self.kind}.{type}.{side}"

    def rows(self, side: str) -> int:
        """Return how many rows of A, or columns of B, one CTA has."""
        return (self.m if side == "a" else self.n) // self.ctas

    def cells(self, peer: int) -> tuple[Array, Array]:
        """Return the lanes and columns of D's rows in one CTA of the group, each (m / ctas, n)."""
        return _cells(self.accumulator, self.rows("a"), peer)

    @cached_property
    def accumulator(self) -> str:
        """Return the name of D's layout in tensor memory."""
        sparse = "sp." * (self.is_sparse and self.ctas == 2 and self.is_halved)
        return f"tcgen05.{sparse}m{self.m}n{self.n}.{self._variant}.d"

    def scales(self, side: str) -> str:
        """Return the name of the layout of A's or B's scales in tensor memory."""
        which, extent = ("m", self.rows("a")) if side == "a" else ("n", self.n)
        first = self.ids[side == "b"]
        return f"tcgen05.{which}{extent}.{self.blocks}x.sf{side}" + (f".id{first}" if first else "")


def _problem(word: int, kind: str, target: str) -> str:
    """Return why a target does not accept the descriptor bit that makes K longer; "" if it does."""
    number = target_named(target).number
    fields = _DESCRIPTORS[kind].decode(word)
    if fields.get("k", 0) == 96 and number not in _LONG:
        return (
            f"K = 96 (bit {_LONG_BIT}), which {' and '.join(f'sm_{each}' for each in _LONG)} have and {target} has not"
        )
    if kind in ("mxf8f6f4",) and word >> _LONG_BIT & 1 and number != _TWICE:
        return f"K = 64 (bit {_LONG_BIT}), which sm_{_TWICE} has and {target} has not"
    return ""


@lru_cache(maxsize=1 << 10)
def tensor_form(
    kind: str, word: int, target: str, vector: str, ctas: int, *, is_stationary: bool = False, is_sparse: bool = False
) -> TensorForm:
    """Return the product that an instruction descriptor describes. `vector` is the scale vector of the opcode, "" for a
    kind without scales. Raises ProductError."""
    row = _DESCRIPTORS[kind]
    if longer := _problem(word, kind, target):
        raise ProductError(longer)
    if wrong := row.problems(word):
        raise ProductError(wrong[0])
    fields: dict[str, Any] = row.decode(word)
    if bool(fields["sparse"]) != is_sparse:
        one, other = ("the opcode", "it") if is_sparse else ("it", "the opcode")
        raise ProductError(f"{one} says that A is sparse, {other} does not")
    if fields.get("max_shift") and not is_stationary:
        raise ProductError("it allows shifts of B, which a stationary B has alone (.ws)")
    m, n = fields["m"], fields["n"]
    if kind == "i8" and (n > _FINE_COLUMNS or ctas > 1) and n % (_COARSE * ctas):
        raise ProductError(f"N = {n} of kind::i8 is not a multiple of {_COARSE * ctas}")
    container = {"tf32": 32, "f16": 16, "mxf4": 4, "mxf4nvf4": 4}.get(kind, 8)
    form = TensorForm(
        kind,
        m,
        n,
        fields.get("k", 256 // container) * (1 + is_sparse),
        fields["a_format"],
        fields["b_format"],
        fields.get("d_format", "f32"),
        (fields["a_major"], fields["b_major"]),
        (bool(fields.get("negate_a", 0)), bool(fields.get("negate_b", 0))),
        bool(fields.get("saturate", 0)),
        fields.get("scale_format", ""),
        fields["k"] // _BLOCKS[vector] if vector else 0,
        (fields.get("a_scale_id", 0), fields.get("b_scale_id", 0)),
        ctas,
        is_stationary,
        is_sparse,
        fields.get("sparsity_selector", 0),
        fields.get("max_shift", 0),
    )
    _check(form)
    if is_sparse:
        _check_sparse(form)
    return form


def _check_sparse(form: TensorForm) -> None:
    """Raise ProductError unless the shape exists for a sparse A and the column of its selector is known."""
    if form.is_stationary and form.n > _MOST_SPARSE_COLUMNS:
        raise ProductError(f"N = {form.n}: with a sparse A a stationary B has {_MOST_SPARSE_COLUMNS} columns at most")
    try:
        fragment_named(form.metadata)
    except RefsimError as error:
        raise ProductError(f"{error.what} ({error.rule})") from None
    if form.selector >= form.stored.selectors:
        known = "0 and 1 choose one of two columns" if form.stored.selectors > 1 else "it is 0"
        raise ProductError(f"the sparsity selector is {form.selector}: of kind::{form.kind} {known}")


def _check(form: TensorForm) -> None:
    """Raise ProductError unless refsim.layouts has the shapes and layouts."""
    try:
        for side in "ab":
            operand_named(form.operand(side), form.ctas)
        fragment_named(form.accumulator)
        for side in "ab" if form.blocks else "":
            fragment_named(form.scales(side))
    except RefsimError as error:
        raise ProductError(f"{error.what} ({error.rule})" if error.rule else error.what) from None


@lru_cache(maxsize=256)
def _columns_of(name: str) -> int:
    """Return how many columns of four bytes a layout of bytes takes."""
    return fragment_named(name).values // 4


@lru_cache(maxsize=256)
def places_of(name: str) -> tuple[Array, Array]:
    """Return the lane, and the column or byte, of each element of a layout in tensor memory, each (rows, columns)."""
    fragment = fragment_named(name)
    rows, columns = np.indices(fragment.shape)
    return fragment.holder(rows, columns)


@lru_cache(maxsize=64)
def _cells(accumulator: str, rows: int, peer: int) -> tuple[Array, Array]:
    """Return the lanes and columns of the rows of D in one CTA of a group."""
    lanes, columns = (each[peer * rows : (peer + 1) * rows] for each in places_of(accumulator))
    return lanes % TENSOR_LANES, columns


@lru_cache(maxsize=64)
def _extent(accumulator: str, rows: int, peer: int, lane: int) -> tuple[Bools, int]:
    """Return a mask of the lanes of D in one CTA, `lane` further down, and the number of columns."""
    lanes, columns = _cells(accumulator, rows, peer)
    used = np.zeros(TENSOR_LANES, np.bool_)
    used[lanes.ravel() + lane] = True
    return used, int(columns.max()) + 1


@dataclass(frozen=True, eq=False)
class ProductAsked:
    """One executed tcgen05.mma.

    `d` is the address of D; `a` the descriptor of A, or its address if `a_in_columns`; `b` the descriptor of B. The
    product `adds` to D, divided by 2^`shift` first. `disabled` are the lanes of D that stay unchanged, CTA by CTA.
    `scales` and `metadata` are addresses. `rows_down`: A's rows are one lane further down. `columns`: the columns of a
    stationary B that count as zeros.
    """

    form: TensorForm
    d: int
    a: int
    b: int
    adds: bool
    a_in_columns: bool
    disabled: Bools
    shift: int = 0
    scales: tuple[int, ...] = ()
    metadata: int = 0
    rows_down: bool = False
    columns: ZeroColumns | None = None

    def a_lanes(self, peer: int) -> list[Array]:
        """Return the lanes of A's rows for each part of D's columns: the lanes of the part of D."""
        rows, _ = self.cells(peer)
        step = self.form.n // self.form.parts
        return [rows[:, part * step] for part in range(self.form.parts)]

    @property
    def lane(self) -> int:
        """Return the lane in D's address: 16 if rows take the upper half of each 32 lanes."""
        return self.d >> LANE_SHIFT

    def cells(self, peer: int) -> tuple[Array, Array]:
        """Return the lanes and columns of D's rows in one CTA, each (m / ctas, n); columns count from the address."""
        lanes, columns = self.form.cells(peer)
        return lanes + self.lane if self.lane else lanes, columns

    def extent(self, peer: int) -> tuple[Bools, int]:
        """Return the lanes (a mask) and the number of columns of D in one CTA of the group."""
        return _extent(self.form.accumulator, self.form.rows("a"), peer, self.lane)

    def off(self, peer: int) -> Bools:
        """Return which lanes of one CTA stay unchanged."""
        return self.disabled[peer * TENSOR_LANES : (peer + 1) * TENSOR_LANES]


_CHUNK, _WORD = 16, 32  # bytes, bits
_CORE_ROWS = 8  # rows that the stride of a descriptor moves by
COPY_ROWS = {"128x256b": 128, "4x256b": 4, "128x128b": 128, "64x128b": 64, "32x128b": 32}


def chunks_of(word: int, form: TensorForm, side: str) -> Array:
    """Return the shared addresses of the chunks of A or B; raise DescriptorError."""
    return placed(word, form.operand(side), "MN" if form.majors[side == "b"] == MN else "K", form.ctas)


def shifted_chunks(word: int, form: TensorForm, shift: int) -> Array:
    """Return the chunk addresses of a K-major B from row `shift` on. Rows past the last row of B lie where the rows
    that follow B would lie. Raises DescriptorError."""
    if form.majors[1] == MN:
        raise DescriptorError("a shift of its columns where it is MN-major, which is not modeled")
    fields = descriptor("tcgen05-smem").decode(word)
    start = int(fields["start_address"]) + form.n // _CORE_ROWS * int(fields["stride_byte_offset"])
    further = descriptor("tcgen05-smem").encode(**fields | {"start_address": start})
    held = np.concatenate([chunks_of(each, form, "b").reshape(form.n, -1) for each in (word, further)])
    return np.ascontiguousarray(held[shift : shift + form.n]).ravel()


@lru_cache(maxsize=1 << 12)
def is_assumed(word: int) -> bool:
    """Return whether only wgmma was recorded to read from where a legal descriptor begins."""
    return crosses_atoms(descriptor("tcgen05-smem").decode(word))


def row_chunks(word: int, shape: str) -> Array:
    """Return the shared addresses (rows, chunks) that a tcgen05.cp reads; raise DescriptorError."""
    return placed(word, f"tcgen05.cp.{shape}", "K").reshape(COPY_ROWS[shape], -1)


def codes_in_shared(items: Array, form: TensorForm, side: str) -> Array:
    """Return the codes (rows, k) of an operand, from the bytes (chunks, 16) of its chunks."""
    operand = operand_named(form.operand(side), form.ctas)
    type = form.a if side == "a" else form.b
    return _matrix(_contained(items, type, operand.container_bits), form, side)


def event_matrix(events: Array, form: TensorForm, side: str) -> Array:
    """Return events noted for each chunk of an operand as a matrix (rows, k)."""
    per = _CHUNK * 8 // operand_named(form.operand(side), form.ctas).container_bits
    return _matrix(np.repeat(events[:, None], per, axis=1), form, side)


@lru_cache(maxsize=64)
def chunk_rows(form: TensorForm, side: str, chunks: int) -> Bools:
    """Return which rows of A or columns of B each chunk has elements of, (chunks, rows)."""
    held = event_matrix(np.arange(chunks), form, side)
    found = np.zeros((chunks, len(held)), np.bool_)
    found[held, np.arange(len(held))[:, None]] = True
    return found


def _matrix(codes: Array, form: TensorForm, side: str) -> Array:
    """Return chunks (chunks, elements) as a matrix (rows, k)."""
    if form.majors[side == "b"] == MN:
        across = codes.shape[1]
        rows = np.ascontiguousarray(codes.reshape(-1, form.depth(side), across).swapaxes(1, 2))
        return rows.reshape(form.rows(side), form.depth(side))
    return codes.reshape(form.rows(side), form.depth(side))


def codes_in_columns(words: Array, form: TensorForm) -> Array:
    """Return the codes (rows, k) of A, from its 32-bit words (rows, columns) in tensor memory."""
    operand = operand_named(form.operand("a"), form.ctas)
    row, bytes_ = element_named(form.a), np.ascontiguousarray(words).view(np.uint8)
    if operand.container_bits == row.code_bits:
        return _contained(bytes_.reshape(-1, _CHUNK), form.a, operand.container_bits).reshape(form.rows("a"), -1)
    return bytes_ & np.uint8((1 << row.code_bits) - 1)


def fields_in_columns(words: Array, form: TensorForm, peer: int) -> Array:
    """Return the fields (rows, fields) of a CTA's metadata, from its 32-bit words (lanes, columns). Lanes that repeat
    other lanes are not read."""
    lane, field = (each[peer * form.rows("a") :][: form.rows("a")] for each in places_of(form.metadata))
    per = _WORD // form.stored.bits
    held = words[lane % TENSOR_LANES, field // per] >> (field % per * form.stored.bits).astype(np.uint32)
    return np.asarray(held & np.uint32((1 << form.stored.bits) - 1))


def _contained(items: Array, type: str, container: int) -> Array:
    """Return the elements of chunks, (chunks, elements): elements narrower than their bytes are packed at a chunk's low
    end."""
    row = element_named(type)
    if container > 4 and row.code_bits >= 8:
        return np.ascontiguousarray(items).view(row.code_dtype)
    return unpack(np.ascontiguousarray(items[:, : _used(type, container)]), float_named(type))


def _used(type: str, container: int) -> int:
    """Return how many bytes of a chunk elements fill: 8 for FP4 in byte containers (the rest is padding), else 16."""
    bits = element_named(type).code_bits
    return _CHUNK * bits // container if bits < 8 else _CHUNK


@lru_cache(maxsize=256)
def bytes_used(form: TensorForm, side: str) -> int:
    """Return how many bytes of each chunk of an operand in shared memory its product reads, from the chunk's first
    on."""
    return _used(form.a if side == "a" else form.b, operand_named(form.operand(side), form.ctas).container_bits)

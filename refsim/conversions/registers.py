"""convert: a conversion of CONVERSIONS applied to whole arrays of register contents."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.conversions.coding import Codes, Values, decode, encode_rule
from refsim.conversions.rounding import STOCHASTIC, encode_exact
from refsim.conversions.rows import Conversion, conversion_named, slot_bits
from refsim.errors import RefsimError
from refsim.formats import BF16, F16, F32, Format
from refsim.integers import read_as_array
from refsim.typed_arrays import native

_TYPED = {F32: "float32", F16: "float16", BF16: "bfloat16"}


def convert(name: str, *operands: ArrayLike, random_bits: ArrayLike | None = None) -> Codes:
    """Return the exact result of the instruction or library function `name`, as unsigned register contents.

    `operands`, of one shape or broadcastable: float32 arrays or their uint32 patterns for .f32 sources, packed uint32
    for .f16x2 and .bf16x2, packed uint16 (uint8 for e2m1x2) for narrow sources. Entries of libraries that read a half
    take one float16, bfloat16 or uint16 array. The first operand goes to the most significant place.
    `random_bits` (uint32) is required by .rs entries and by no other. The result has one register an element:
    convert("cvt.rn.satfinite.e4m3x2.f32", 1.0, 2.0) is 0x3840.
    Raises RefsimError for an unknown name (the three nearest are shown), a wrong count or type of operands.
    Source: the entry's.
    """
    row = conversion_named(name)
    if len(operands) != row.operand_count:
        what = f"{row.name} reads {row.operand_count} operands, not {len(operands)}"
        raise RefsimError("operand-count", what, rule=str(row.source))
    registers = [_register(operand, row) for operand in operands]
    random = _random(random_bits, row)
    try:
        shape = np.broadcast_shapes(*(each.shape for each in (*registers, *random)))
    except ValueError:
        shapes = ", ".join(str(each.shape) for each in (*registers, *random))
        raise RefsimError("bad-shape", f"operands of shapes {shapes} do not fit together", where=row.name) from None
    packed = row.operand_count != row.elements
    elements = _split(registers[0], row) if packed else np.empty((row.elements, *shape), row.operand_dtype)
    if not packed:
        for place, register in enumerate(registers):
            elements[place] = register
    codes = _encode_elements(elements, row, random)
    return codes[0].astype(row.result_dtype, copy=False) if row.elements == 1 else _join(codes, row)


def _register(operand: ArrayLike, row: Conversion) -> NDArray[np.unsignedinteger]:
    """Return one operand as register contents of `row.operand_dtype`; raise for another type."""
    if type(operand) is float and row.reads is F32:
        operand = np.float32(operand)
    array = native(read_as_array("an operand", operand))
    typed = _TYPED.get(row.reads) if row.operand_count == row.elements else None
    if typed is not None and array.dtype.name == typed:
        return np.ascontiguousarray(array).reshape(array.shape).view(row.operand_dtype)
    if array.dtype != row.operand_dtype:
        allowed = f"{row.operand_dtype} bit patterns" + (f" or {typed}" if typed else "")
        raise RefsimError("bad-dtype", f"{row.name} reads {allowed}, not {array.dtype}", rule=str(row.source))
    return array


def _random(random_bits: ArrayLike | None, row: Conversion) -> list[NDArray[np.uint32]]:
    if row.rounding != STOCHASTIC:
        if random_bits is not None:
            raise RefsimError("random-bits", f"{row.name} reads no random bits", rule="only .rs rounding does")
        return []
    if random_bits is None:
        raise RefsimError("random-bits", f"{row.name} needs random_bits", help="one uint32 a result register")
    array = np.asarray(random_bits)
    if array.dtype != np.uint32:
        raise RefsimError("random-bits", f"random_bits are uint32, not {array.dtype}", where=row.name)
    return [array]


def _split(register: NDArray[np.unsignedinteger], row: Conversion) -> NDArray[np.unsignedinteger]:
    """Return the codes of a packed register along a new first axis, most significant first."""
    width = slot_bits(row.reads, row.elements)
    mask = row.reads.code_limit - 1  # FP6 sits in a byte whose two upper bits are not read
    codes = np.empty((row.elements, *register.shape), row.reads.code_dtype)
    for place in range(row.elements):
        codes[row.elements - 1 - place] = (register >> (width * place)) & mask
    return codes


def _join(codes: Codes, row: Conversion) -> Codes:
    width = slot_bits(row.to, row.elements)
    register: Codes = codes[0].astype(row.result_dtype)
    for code in codes[1:]:
        register = (register << row.result_dtype.type(width)) | code
    return register


def _values(elements: NDArray[np.unsignedinteger], row: Conversion) -> Values:
    """Return float32 values that keep the sign of a NaN, which some rules read."""
    if row.reads is F32:
        return elements.view(np.float32)
    if row.reads is BF16:
        return (elements.astype(np.uint32) << 16).view(np.float32)
    if row.reads is F16:
        with np.errstate(invalid="ignore"):
            return elements.view(np.float16).astype(np.float32)
    return decode(elements, row.reads, np.float32)


def _encode_elements(elements: NDArray[np.unsignedinteger], row: Conversion, random: list[NDArray[np.uint32]]) -> Codes:
    """Encode (elements, ...) values; with stochastic rounding each place takes its own random bits."""
    values = _values(elements, row)
    if row.cut_specials is not None:
        return _with_cut_specials(encode_rule(values, row.rule), elements, row.to, row.cut_specials)
    if row.rounding != STOCHASTIC:
        return encode_rule(values, row.rule)
    with np.errstate(invalid="ignore"):
        exact = values.astype(np.float64)
    codes = np.empty(values.shape, row.to.code_dtype)
    for place, positions in enumerate(row.random_positions):
        field = np.broadcast_to(gather_bits(random[0], positions), values.shape[1:]).reshape(-1)
        rounded = encode_exact(exact[place].reshape(-1), row.rule, field, len(positions))
        codes[place] = rounded.reshape(values.shape[1:])
    return codes


def _with_cut_specials(codes: Codes, patterns: NDArray[np.unsignedinteger], to: Format, less: int) -> Codes:
    """Return codes where every infinity and NaN is its own pattern without padding bits, less a constant."""
    pattern = np.ascontiguousarray(patterns).reshape(patterns.shape).view(np.uint32)
    padding = np.uint32((1 << to.padding_bits) - 1)
    special = (pattern & np.uint32(0x7F800000)) == 0x7F800000
    return np.where(special, (pattern & ~padding) - np.uint32(less), codes)


def gather_bits(register: NDArray[np.uint32], positions: tuple[int, ...]) -> NDArray[np.uint32]:
    """Return the bits of `register` at `positions`, the first one most significant: (3, 0) of 0b1000 gives 0b10."""
    field = np.zeros_like(register)
    for position in positions:
        field = (field << np.uint32(1)) | ((register >> np.uint32(position)) & np.uint32(1))
    return field

"""Operands of tcgen05 in shared and in tensor memory: from chunks of 16 bytes, and from columns of 32 bits, to
codes."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import unpack
from refsim.formats import element_named, float_named
from refsim.layouts.descriptors import descriptor
from refsim.layouts.descriptors.walking import crosses_atoms, operand_named
from refsim.layouts.tiles import MN
from refsim.ptx.execution.matrix_operands import DescriptorError, placed
from refsim.ptx.execution.tensor_product import TensorForm, places_of
from refsim.ptx.memory.tensor_memory import TENSOR_LANES

Array = NDArray[Any]
_CHUNK, _WORD = 16, 32  # bytes, bits
_CORE_ROWS = 8  # rows that the stride of a descriptor moves by
COPY_ROWS = {"128x256b": 128, "4x256b": 4, "128x128b": 128, "64x128b": 64, "32x128b": 32}
__all__ = [
    "COPY_ROWS",
    "DescriptorError",
    "bytes_used",
    "chunk_rows",
    "chunks_of",
    "codes_in_columns",
    "codes_in_shared",
    "event_matrix",
    "fields_in_columns",
    "is_assumed",
    "row_chunks",
    "shifted_chunks",
]


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
def chunk_rows(form: TensorForm, side: str, chunks: int) -> NDArray[np.bool_]:
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

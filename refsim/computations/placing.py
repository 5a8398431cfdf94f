"""The places where outputs are written: their own, the transpose, or those of a swizzle."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from refsim.computations.reading import CHUNK_PATTERNS, swizzled, words_of_chunks
from refsim.computations.ways import Codes, DoesNotApplyError, Family, Way
from refsim.layouts.swizzles import SWIZZLES, Swizzle
from refsim.sources import CUBLAS, PTX


@dataclass(frozen=True)
class Placing(Way):
    """A permutation of an output: `apply` moves right elements to their written places, `back` reverses it."""

    apply: Callable[[Codes], Codes] = lambda codes: codes
    back: Callable[[Codes], Codes] = lambda codes: codes


def _turned(axis: int, least: int, back: bool, codes: Codes) -> Codes:
    """Return an output of at least `least` dimensions in the memory order of an axis and the next exchanged."""
    shape = list(codes.shape)
    if codes.ndim < least or 1 in (shape[axis], shape[axis + 1]):
        raise DoesNotApplyError
    if not back:
        return np.swapaxes(codes, axis, axis + 1).reshape(shape)
    shape[axis], shape[axis + 1] = shape[axis + 1], shape[axis]
    return np.swapaxes(codes.reshape(shape), axis, axis + 1)


def _swizzled(row: Swizzle, codes: Codes, *, back: bool) -> Codes:
    """Return the bytes where a shared-memory swizzle puts them. Raises DoesNotApplyError for places after the end."""
    if codes.nbytes % row.span_bytes:
        raise DoesNotApplyError
    flat = np.ascontiguousarray(codes).reshape(-1).view(np.uint64)  # a chunk is two or four of these
    of_chunk, moved = row.chunk_bytes // 8, np.empty_like(flat)
    whole = codes.nbytes // row.repeat_bytes * row.repeat_bytes // 8
    for part in (slice(whole), slice(whole, None)):
        chunks = min(flat[part].size, row.repeat_bytes // 8) // of_chunk
        places = np.asarray(row(np.arange(chunks) * row.chunk_bytes)) // row.chunk_bytes
        if int(places.max(initial=-1)) >= chunks:
            raise DoesNotApplyError
        if chunks:
            lines = flat[part].reshape(-1, chunks, of_chunk)
            moved[part] = lines[:, places if back else np.argsort(places)].reshape(-1)
    return moved.view(codes.dtype).reshape(codes.shape)


def _batches_rolled(by: int, codes: Codes) -> Codes:
    if codes.ndim < 3 or len(codes) < 2:
        raise DoesNotApplyError
    return np.roll(codes, by, 0)


def _batches_turned(codes: Codes) -> Codes:
    if codes.ndim < 3 or len(codes) < 3:
        raise DoesNotApplyError
    return codes[::-1]


def _of_batches() -> Iterator[Placing]:
    """Yield the placings that move the batches of (B, M, N)."""
    source = CUBLAS["strided batches"]
    for by, name in ((1, "behind"), (-1, "before")):
        says = f"one batch {name} their own, around the end"
        yield Placing(says, Family.BATCH, source, partial(_batches_rolled, by), back=partial(_batches_rolled, -by))
    yield Placing("from the last batch on", Family.BATCH, source, _batches_turned, back=_batches_turned)
    rows_first = partial(_turned, 0, 3, False), partial(_turned, 0, 3, True)
    yield Placing("as (M, B, N), rows before batches", Family.BATCH, source, rows_first[0], back=rows_first[1])


IN_PLACE = Placing("in their places", Family.TRANSPOSED, PTX["st"], rank=0)


@functools.cache
def placings() -> tuple[Placing, ...]:
    """Return every permutation that is tried, the identity first."""
    turned = partial(_turned, -2, 2, False), partial(_turned, -2, 2, True)
    stmatrix = PTX["stmatrix, .trans"]
    found = [IN_PLACE, Placing("as the transpose", Family.TRANSPOSED, stmatrix, turned[0], back=turned[1])]
    found += _of_batches()
    source = PTX["tensor swizzling modes"]
    for row in SWIZZLES:
        if row.bits:
            put, back = partial(_swizzled, row, back=False), partial(_swizzled, row, back=True)
            found.append(Placing(f"where swizzle {row.name} puts them", Family.SWIZZLE, source, put, back=back))
    for pattern in CHUNK_PATTERNS:
        name, change = f"with chunk c of row r at {words_of_chunks(*pattern)}", partial(swizzled, pattern)
        found.append(Placing(name, Family.SWIZZLE, source, change, back=change))
    return tuple(found)

"""Boxes of tensor maps a second time, element by element and in plain Python, to check the copy engine."""

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import encode
from refsim.layouts import TensorMap

Bytes = NDArray[np.uint8]
_ROWS = {"none": 1, "32B": 2, "64B": 4, "128B": 8}


def swizzled(address: int, mode: str) -> int:
    """Return the swizzled address: the number of the 128-byte line permutes its 16-byte chunks. swizzled(0x90, "128B")
    is 0x80."""
    chunk, line = address >> 4 & 7, address >> 7 & 7
    return address & ~0x70 | (chunk ^ line % _ROWS[mode]) << 4


def elements(made: TensorMap, corner: tuple[int, ...], shared: int) -> Iterator[tuple[int | None, int]]:
    """Yield for each element of a box its byte offset in the tensor (None outside) and its byte in shared memory."""
    size, steps = made.data_type.element_bits // 8, (1, *made.element_strides[1:])
    counts = [-(-extent // step) for extent, step in zip(made.box, steps, strict=True)]
    span = {"none": counts[0] * size, "32B": 32, "64B": 64, "128B": 128}[made.swizzle]
    for place in product(*(range(count) for count in reversed(counts))):
        index = [at + number * step for at, number, step in zip(corner, reversed(place), steps, strict=True)]
        outside = any(not 0 <= at < extent for at, extent in zip(index, made.dims, strict=True))
        source = index[0] * size + sum(at * stride for at, stride in zip(index[1:], made.strides, strict=True))
        row = 0
        for number, count in zip(place[:-1], list(reversed(counts))[:-1], strict=True):
            row = row * count + number
        yield None if outside else source, swizzled(shared + row * span + place[-1] * size, made.swizzle)


def pixels(made: TensorMap, base: tuple[int, ...]) -> Iterator[list[int]]:
    """Yield W, H, D and N of the pixels of an im2col map in order; the next row begins after the last pixel of a
    row."""
    assert made.pixels is not None
    at = list(base[1:])
    for _ in range(made.box[1]):
        yield list(at)
        for axis, (low, high) in enumerate(zip(made.pixels.lower, made.pixels.upper, strict=True)):
            at[axis] += made.element_strides[1 + axis]
            if at[axis] <= made.dims[1 + axis] - 1 + high:
                break
            at[axis] = low
        else:
            at[-1] += 1


def column_elements(
    made: TensorMap, base: tuple[int, ...], offsets: tuple[int, ...], shared: int
) -> Iterator[tuple[int | None, int]]:
    """Yield the pairs of `elements` for an im2col map: the channels of each pixel, moved by the offsets."""
    size, span = made.data_type.element_bits // 8, {"32B": 32, "64B": 64, "128B": 128}.get(made.swizzle)
    for row, pixel in enumerate(pixels(made, base)):
        moved = [at + more for at, more in zip(pixel, (*offsets, 0), strict=True)]
        for channel in range(made.box[0]):
            index = [base[0] + channel, *moved]
            outside = any(not 0 <= at < extent for at, extent in zip(index, made.dims, strict=True))
            source = index[0] * size + sum(at * stride for at, stride in zip(moved, made.strides, strict=True))
            to = shared + row * (span or made.box[0] * size) + channel * size
            yield None if outside else source, swizzled(to, made.swizzle)


def _chosen(
    made: TensorMap, corner: tuple[int, ...], shared: int, offsets: tuple[int, ...] | None
) -> Iterator[tuple[int | None, int]]:
    """Yield the pairs of `elements`, or of `column_elements` where there are offsets."""
    return elements(made, corner, shared) if offsets is None else column_elements(made, corner, offsets, shared)


def _as_loaded(made: TensorMap, element: bytes) -> bytes:
    """Return the bytes of an element after a load; tf32 is rounded."""
    if not made.data_type.rounded:
        return element
    value = np.frombuffer(element, np.float32)
    return np.asarray(encode(value.astype(np.float64), "tf32"), np.uint32).tobytes()


def loaded(
    made: TensorMap,
    corner: tuple[int, ...],
    shared: int,
    memory: Bytes,
    window: Bytes,
    offsets: tuple[int, ...] | None = None,
) -> Bytes:
    """Return a window of shared memory after a load of a box, or of pixels by offsets, to byte `shared`."""
    size, after = made.data_type.element_bits // 8, window.copy()
    fill = b"\xf7\x7f" * size if made.oob_fill != "zeros" else bytes(size)
    for source, to in _chosen(made, corner, shared, offsets):
        given = fill[:size] if source is None else _as_loaded(made, memory[source : source + size].tobytes())
        after[to : to + size] = list(given)
    return after


def stored(
    made: TensorMap,
    corner: tuple[int, ...],
    shared: int,
    memory: Bytes,
    window: Bytes,
    offsets: tuple[int, ...] | None = None,
) -> Bytes:
    """Return the tensor's bytes after a store of the box at byte `shared` of a window of shared memory."""
    size, after = made.data_type.element_bits // 8, memory.copy()
    for target, source in _chosen(made, corner, shared, offsets):
        if target is not None:
            after[target : target + size] = window[source : source + size]
    return after
